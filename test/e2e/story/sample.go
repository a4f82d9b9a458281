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
	fmt.Fprintf(w.Out, "     %s: part %d of %d, chosen by the seed (SEED=%s; %s=1 runs all)\n", what, i+1, n, w.Seed, sampling.FullEnv)
	return i
}

// group is checks that a sample has together, because they share fixtures.
type group struct {
	name string
	cost time.Duration // about what they add to a story, on two quiet cores
	once bool          // one lab's options suffice: neither nodes nor the gateway mode change the outcome
	demo bool          // belongs to a demonstration
}

// sampleBudget is what the groups of a sample cost together.
const sampleBudget = 6 * time.Minute

var (
	groupSecondary    = &group{name: "secondary networks", cost: 3 * time.Minute}
	groupMultus       = &group{name: "Multus", cost: 4 * time.Minute, once: true}
	groupBGP          = &group{name: "BGP", cost: 4 * time.Minute, demo: true}
	groupVRFLite      = &group{name: "BGP in networks' own VRFs", cost: 4 * time.Minute}
	groupReflector    = &group{name: "BGP with a router outside", cost: 4 * time.Minute}
	groupMigration    = &group{name: "live migration", cost: 3 * time.Minute, once: true}
	groupServices     = &group{name: "services", cost: 3 * time.Minute, demo: true}
	groupServiceTypes = &group{name: "types of services", cost: 3 * time.Minute}
	groupNodePorts    = &group{name: "node ports and external addresses", cost: 4 * time.Minute, demo: true}
	groupIngress      = &group{name: "ingress namespaces", cost: 2 * time.Minute}
	groupSCTP         = &group{name: "SCTP", cost: 90 * time.Second}
	groupDNS          = &group{name: "DNS and the API server's service", cost: 2 * time.Minute, demo: true}
	groupOpenPorts    = &group{name: "open ports", cost: time.Minute, once: true}
	groupEgress       = &group{name: "the way out", cost: 2 * time.Minute, demo: true}
	groupHostNetwork  = &group{name: "host-network pods", cost: 4 * time.Minute, demo: true}
	groupDiagnosis    = &group{name: "diagnosis", cost: 2 * time.Minute, demo: true}
	groupBadInput     = &group{name: "bad networks, and what kubectl shows", cost: 2 * time.Minute, once: true, demo: true}
	groupRemoval      = &group{name: "deletion of a network in use", cost: 90 * time.Second, once: true}
	groupKillAgent    = &group{name: "kill -9 of the agent", cost: 2 * time.Minute}
	groupKillZone     = &group{name: "kill -9 of the zone controller", cost: 2 * time.Minute, once: true}
	groupKillCluster  = &group{name: "kill -9 of the cluster controller", cost: 2 * time.Minute, once: true}
	groupMasquerade   = &group{name: "another masquerade range", cost: 10 * time.Minute}
	groupFaultPoints  = &group{name: "kill -9 of the agent after an operation", cost: 4 * time.Minute}
	// Each with the adversary's tenants.
	groupAttacks    = &group{name: "adversary: attempts", cost: 8 * time.Minute}
	groupCapture    = &group{name: "adversary: node ports", cost: 6 * time.Minute}
	groupEarly      = &group{name: "adversary: new host-network pods", cost: 5 * time.Minute, once: true}
	groupMechanisms = &group{name: "adversary: mechanisms", cost: 8 * time.Minute, once: true}
	groupWrites     = &group{name: "adversary: writes", cost: 7 * time.Minute, once: true}
)

// Besides is what a lab runs after the checks.
type Besides struct {
	Conformance, Kernel bool // Kubernetes' own tests, and the tests of the node's kernel
}

var (
	groupConformance = &group{name: "Kubernetes' own tests", cost: 2 * time.Minute}
	groupKernel      = &group{name: "the kernel's tests", cost: 4 * time.Minute}
)

// Sample leaves out groups of checks and of what runs besides them, so that the others fit into
// sampleBudget, and prints them. The first group in the order that the seed gives is always there.
func Sample(checks []Check, besides Besides, seed string, out io.Writer) ([]Check, Besides) {
	groups := groupsOf(checks)
	if besides.Conformance {
		groups = append(groups, groupConformance)
	}
	if besides.Kernel {
		groups = append(groups, groupKernel)
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
	sample := slices.DeleteFunc(slices.Clone(checks), func(c Check) bool {
		omit := slices.Contains(omitted, c.Group)
		if omit {
			fmt.Fprintf(out, "not in the sample of SEED=%s: %s\n", seed, c.Name())
		}
		return omit
	})
	for _, g := range []*group{groupConformance, groupKernel} {
		if slices.Contains(omitted, g) {
			fmt.Fprintf(out, "not in the sample of SEED=%s: %s\n", seed, g.name)
		}
	}
	besides.Conformance = besides.Conformance && !slices.Contains(omitted, groupConformance)
	besides.Kernel = besides.Kernel && !slices.Contains(omitted, groupKernel)
	return sample, besides
}

// The cost of the checks that are in no group: the checks of every sample, and
// what its last part runs besides checks (Kubernetes' own tests and the kernel's).
const (
	costUngrouped = 5 * time.Minute
	costBesides   = 30 * time.Minute
)

// Part splits the checks into parts that take about as long as each other, each with a lab of
// its own, and returns those of one, from 1. Checks of a group stay together, and so do those
// without a group.
func Part(checks []Check, part, parts int) []Check {
	cost := make([]time.Duration, parts)
	in := map[*group]int{nil: 0}
	cost[0] += costUngrouped
	cost[parts-1] += costBesides
	groups := groupsOf(checks)
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(b.cost, a.cost) })
	for _, g := range groups {
		least := slices.Index(cost, slices.Min(cost))
		in[g] = least
		cost[least] += g.cost
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return in[c.Group] != part-1 })
}

// WithoutOnce leaves out the checks that another lab has run and that no option of
// this lab changes, and prints them.
func WithoutOnce(checks []Check, out io.Writer) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool {
		omit := c.Group != nil && c.Group.once
		if omit {
			fmt.Fprintf(out, "run in the first lab alone: %s\n", c.Name())
		}
		return omit
	})
}

// groupsOf returns the groups of the checks, each once.
func groupsOf(checks []Check) []*group {
	var groups []*group
	for _, c := range checks {
		if c.Group != nil && !slices.Contains(groups, c.Group) {
			groups = append(groups, c.Group)
		}
	}
	return groups
}

// Demo leaves out the groups that a demonstration does not need, and prints them.
func Demo(checks []Check, out io.Writer) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool {
		omit := c.Group != nil && !c.Group.demo
		if omit {
			fmt.Fprintf(out, "not in the demonstration, select it by RUN: %s\n", c.Name())
		}
		return omit
	})
}
