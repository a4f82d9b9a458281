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
		checks, besides := Sample(Checks(), Besides{Conformance: true, Kernel: true}, fmt.Sprint("seed ", i), io.Discard)
		for g, there := range map[*group]bool{groupConformance: besides.Conformance, groupKernel: besides.Kernel} {
			if there {
				groups[g] = true
				seen[g.name]++
			}
		}
		for _, c := range checks {
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
	for _, g := range []*group{groupConformance, groupKernel} {
		if n := seen[g.name]; n == 0 || n == seeds {
			t.Errorf("%s are in %d of %d samples", g.name, n, seeds)
		}
	}
	if _, besides := Sample(Checks(), Besides{}, "seed", io.Discard); besides.Conformance || besides.Kernel {
		t.Errorf("besides the checks: %+v, want nothing", besides)
	}
}

// Every check is in one part, with those of its group, and no part costs much more than
// another.
func TestPart(t *testing.T) {
	for parts := 1; parts <= 3; parts++ {
		in, partOf := map[string]int{}, map[*group]int{}
		var costs []time.Duration
		for part := 1; part <= parts; part++ {
			checks := Part(Checks(), part, parts)
			var cost time.Duration
			for _, g := range groupsOf(checks) {
				cost += g.cost
			}
			if part == 1 {
				cost += costUngrouped
			}
			if part == parts {
				cost += costBesides
			}
			costs = append(costs, cost)
			for _, c := range checks {
				in[c.Name()]++
				if p, ok := partOf[c.Group]; ok && p != part {
					t.Errorf("%d parts: the group of %s is in parts %d and %d", parts, c.Name(), p, part)
				}
				partOf[c.Group] = part
			}
		}
		for _, c := range Checks() {
			if in[c.Name()] != 1 {
				t.Errorf("%d parts: %s is in %d", parts, c.Name(), in[c.Name()])
			}
		}
		if most, least := slices.Max(costs), slices.Min(costs); most-least > 10*time.Minute {
			t.Errorf("%d parts cost %v", parts, costs)
		}
	}
}

// Every check is complete, has a name of its own, and needs only fixtures that Run deletes.
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
