// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Claims are added and removed in any order, some twice. The first claimant is always that of a sort, in all namespaces or
// some, with or without one of them.
func TestClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Claims[int]
		want := map[int]map[Claimant]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			thing := rapid.IntRange(1, 3).Draw(t, "thing")
			c := Claimant{rapid.Bool().Draw(t, "own"), time.Unix(rapid.Int64Range(0, 3).Draw(t, "age"), 0), rapid.SampledFrom([]string{"a", "a-b", "ab", "b"}).Draw(t, "namespace") + fmt.Sprintf("/%d", rapid.IntRange(0, 4).Draw(t, "name"))}
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
				for _, namespaces := range [][]string{nil, {}, {"a"}, {"ab", "a-b"}, {"a", "b", "ab"}} {
					in := func(namespace string) bool { return slices.Contains(namespaces, namespace) }
					if namespaces == nil {
						in = nil
					}
					for _, except := range []string{"", "a/1", c.Name} {
						i := slices.IndexFunc(list, func(c Claimant) bool { return (in == nil || in(c.namespace())) && c.Name != except })
						if got, ok := x.First(thing, in, except); ok != (i >= 0) || ok && got != list[i] {
							t.Fatalf("first claimant of %d in %v except %q is %v, of %v", thing, namespaces, except, got, list)
						}
					}
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
