// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Claims are added and removed in any order, some twice. The list is always that of a sort.
func TestClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Claims[int]
		want := map[int]map[Claimant]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			thing := rapid.IntRange(1, 3).Draw(t, "thing")
			c := Claimant{rapid.Bool().Draw(t, "own"), time.Unix(rapid.Int64Range(0, 3).Draw(t, "age"), 0), fmt.Sprintf("ns/%d", rapid.IntRange(0, 9).Draw(t, "name"))}
			if want[thing] == nil {
				want[thing] = map[Claimant]bool{}
			}
			if rapid.Bool().Draw(t, "add") {
				x.Add(thing, c)
				want[thing][c] = true
			} else {
				x.Remove(thing, c)
				delete(want[thing], c)
			}
			claimed := 0
			for thing, claims := range want {
				var list []Claimant
				for c := range claims {
					list = append(list, c)
				}
				slices.SortFunc(list, Claimant.compare)
				if got := x.Of(thing); !slices.Equal(got, list) {
					t.Fatalf("claimants of %d are %v, want %v", thing, got, list)
				}
				if len(list) > 0 {
					claimed++
				}
			}
			if len(x.byThing) != claimed {
				t.Fatalf("%d things are claimed, want %d", len(x.byThing), claimed)
			}
		}
	})
}
