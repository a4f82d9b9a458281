// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"
)

func TestSelect(t *testing.T) {
	chapter, err := Select("5")
	if err != nil || len(chapter) == 0 || slices.ContainsFunc(chapter, func(c Check) bool { return c.Chapter != 5 }) {
		t.Errorf("chapter 5: %d checks, %v", len(chapter), err)
	}
	named, err := Select("kill -9 of the agent")
	if err != nil || len(named) != 1 {
		t.Errorf("by name: %d checks, %v", len(named), err)
	}
	for _, run := range []string{"nothing has this name", "99", "("} {
		if _, err := Select(run); err == nil {
			t.Errorf("%q selects checks", run)
		}
	}
}

// Every check is in the sample of some seed, those without a group in all, and no sample
// has more groups than fit its budget, unless it has one.
func TestSample(t *testing.T) {
	seen := map[string]int{}
	const seeds = 200
	for i := range seeds {
		groups := map[*group]bool{}
		for _, c := range Sample(Checks(), fmt.Sprint("seed ", i), io.Discard) {
			seen[c.Name()]++
			if c.Group != nil {
				groups[c.Group] = true
			}
		}
		var cost time.Duration
		for g := range groups {
			cost += g.cost
		}
		if len(groups) == 0 || len(groups) > 1 && cost > sampleBudget {
			t.Errorf("seed %d: %d groups, %v", i, len(groups), cost)
		}
	}
	for _, c := range Checks() {
		if n := seen[c.Name()]; n == 0 || c.Group == nil && n != seeds || c.Group != nil && n == seeds {
			t.Errorf("%s is in %d of %d samples", c.Name(), n, seeds)
		}
	}
}

// Every check is complete, has a name of its own, and needs only fixtures that Play deletes.
func TestChecks(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Checks() {
		if names[c.Name()] {
			t.Errorf("two checks are named %s", c.Name())
		}
		names[c.Name()] = true
		if c.Run == nil || c.Chapter == 0 || c.Phase >= phases {
			t.Errorf("%s is incomplete", c.Name())
		}
		for _, f := range c.Needs {
			if !slices.Contains(fixtures, f) {
				t.Errorf("%s needs a fixture that is never deleted", c.Name())
			}
		}
	}
}
