// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"bulkhead/test/sampling"
)

// sample chooses one of n parts by the seed, and prints which.
func (w *World) sample(what string, n int) int {
	i := sampling.Part(what, w.Seed, n)
	fmt.Fprintf(w.Out, "     %s: part %d of %d, chosen by the seed (SEED=%s; %s=1 plays all)\n", what, i+1, n, w.Seed, sampling.FullEnv)
	return i
}

// group is checks that a sample has together, because they share fixtures.
type group struct {
	name string
	cost time.Duration // about what they add to a story, on two quiet cores
}

// sampleBudget is what the groups of a sample cost together.
const sampleBudget = 5 * time.Minute

var (
	groupSecondary    = &group{"secondary networks", 3 * time.Minute}
	groupMultus       = &group{"Multus", 4 * time.Minute}
	groupBGP          = &group{"BGP", 4 * time.Minute}
	groupVRFLite      = &group{"BGP in networks' own VRFs", 4 * time.Minute}
	groupReflector    = &group{"BGP with a router outside", 4 * time.Minute}
	groupMigration    = &group{"live migration", 3 * time.Minute}
	groupServices     = &group{"services", 2 * time.Minute}
	groupServiceTypes = &group{"types of services", 3 * time.Minute}
	groupNodePorts    = &group{"node ports and external addresses", 3 * time.Minute}
	groupIngress      = &group{"ingress namespaces", 2 * time.Minute}
	groupSCTP         = &group{"SCTP", 90 * time.Second}
	groupDNS          = &group{"DNS", 90 * time.Second}
	groupOpenPorts    = &group{"open ports", time.Minute}
	groupRemoval      = &group{"deletion of a network in use", 90 * time.Second}
	groupKillAgent    = &group{"kill -9 of the agent", 2 * time.Minute}
	groupKillZone     = &group{"kill -9 of the zone controller", 2 * time.Minute}
	groupKillCluster  = &group{"kill -9 of the cluster controller", 2 * time.Minute}
	groupMasquerade   = &group{"another masquerade range", 10 * time.Minute}
	groupFaultPoints  = &group{"kill -9 of the agent after an operation", 4 * time.Minute}
	// Each with the arena.
	groupAttacks = &group{"adversary: attempts", 8 * time.Minute}
	groupCapture = &group{"adversary: node ports", 6 * time.Minute}
	groupEarly   = &group{"adversary: new host-network pods", 5 * time.Minute}
	groupWalls   = &group{"adversary: walls", 8 * time.Minute}
	groupWrites  = &group{"adversary: writes", 7 * time.Minute}
)

// Sample leaves out groups of checks, so that the others fit into sampleBudget, and
// prints them. The first group in the order that the seed gives is always there.
func Sample(checks []Check, seed string, out io.Writer) []Check {
	var groups []*group
	for _, c := range checks {
		if c.Group != nil && !slices.Contains(groups, c.Group) {
			groups = append(groups, c.Group)
		}
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(sampling.Hash(a.name+seed), sampling.Hash(b.name+seed)) })
	left := sampleBudget
	var omitted []*group
	for i, g := range groups {
		if i > 0 && g.cost > left {
			omitted = append(omitted, g)
			continue
		}
		left -= g.cost
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool {
		omit := slices.Contains(omitted, c.Group)
		if omit {
			fmt.Fprintf(out, "not in the sample of SEED=%s: %s\n", seed, c.Name())
		}
		return omit
	})
}

// Demo leaves out the groups that a demonstration does not need, and prints them.
func Demo(checks []Check, out io.Writer) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool {
		omit := c.Group != nil && c.Group != groupServices && c.Group != groupDNS && c.Group != groupBGP
		if omit {
			fmt.Fprintf(out, "not in the demonstration, select it by RUN: %s\n", c.Name())
		}
		return omit
	})
}
