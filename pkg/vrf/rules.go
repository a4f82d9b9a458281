// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// A route lookup walks the node's rules one after the other. So that it does not take longer
// with more networks, packets without a network's mark skip all of them, and packets with one
// find their network's rule through a tree of goto rules: branches, and leaves that look up a
// network's table. At most three branches and one leaf are added with a network. All masquerade
// addresses share one rule and one table.
//
// What the node forwards to services uses the main table, which leads it to the external bridge: a
// network's table leads its own processes' packets to services into the network.
//
// Packets of ingress namespaces' pods to tenants' services arrive on the cluster default network's
// management port with a mark of the kind service and the number of the service's network, and use that
// network's table. Replies have a mark of the same kind and use the main table. So does the kernel's
// check of the packets' source, which looks up the reply.
//
// In local gateway mode the node forwards for pods. What leaves the node for them has
// network.OutMark, and uses the main table without its default routes first, and then its network's table,
// which has the default route, and unreachable routes where the packet must not go.
//
//	priority   rules
//	900        packets of the node's own processes, and packets to services from the management port of
//	           the cluster default network: goto 902
//	901        packets to services: lookup of the main table; packets with network.OutMark, or with a mark of
//	           the kind service: lookup of the main table without its default routes
//	902        the end of the rules before
//	903        packets from the external bridge: lookup of network.AdvertisedTable
//	2000–2002  packets without a network's mark: goto 4900, except those with a mark of the kind service
//	           from the management port of the cluster default network: goto 2010
//	2010       branches by the bits 9 to 13 of the network's id: goto 2100 + id>>9
//	2100–2119  branches by the bits 6 to 8: goto 2200 + id>>6
//	2200–2356  branches by the bits 3 to 5: goto 2500 + id>>3
//	2500–3750  leaves, by the whole id: lookup of the network's table
//	4800       marks of networks that the node does not have: unreachable
//	4900       the end of the tree
//	4901       packets to masquerade addresses: lookup of network.MasqueradeTable
//
// The node's shared rules belong to the cluster default network. Branches belong to no network:
// Target adds them with the first leaf below them, and deletes them with the last.
const (
	ownPriority        = network.RuleOut
	outPriority        = network.RuleOut + 1
	outEndPriority     = network.RuleOut + 2
	advertisedPriority = network.RuleOut + 3
	skipPriority       = network.FirstRule
	denyPriority       = 4800
	endPriority        = 4900
	masqueradePriority = network.LastRule
)

// treeLevel is a group of branches: those of the ids with the same id>>shift have the priority
// base + id>>shift.
type treeLevel struct{ base, shift int }

// treeLevels are the levels from the root to the leaves.
var treeLevels = [4]treeLevel{{2010, network.MarkBits}, {2100, 9}, {2200, 6}, {2500, 3}}

// numberMask selects the number of a network in its mark, and in network.IngressMark.
const numberMask = network.MarkMask &^ network.MarkKindService

func (l treeLevel) priority(id int) int { return l.base + id>>l.shift }

// RuleAction is what a rule does with a packet that it matches.
type RuleAction uint8

const (
	Lookup      RuleAction = 0                    // looks up Rule.Table
	Goto        RuleAction = 2                    // continues at Rule.Goto (FR_ACT_GOTO of linux/fib_rules.h)
	Nop         RuleAction = 3                    // continues: the target of a Goto (FR_ACT_NOP)
	Unreachable RuleAction = unix.RTN_UNREACHABLE // refuses the packet (FR_ACT_UNREACHABLE)
)

// Rule is a policy rule with Protocol. It matches a mark, a destination, an interface, or everything.
type Rule struct {
	IPv6     bool
	Priority int
	Mark     uint32
	Mask     uint32 // of Mark; 0: any mark
	To       netip.Prefix
	From     string // interface on which a packet arrives; "lo": the node's own packets
	Action   RuleAction
	Table    int  // of Lookup
	Specific bool // of Lookup: without default routes
	Goto     int  // priority of Goto's target
}

func (r Rule) String() string {
	match := "IPv4"
	if r.IPv6 {
		match = "IPv6"
	}
	if r.Mask != 0 {
		match += fmt.Sprintf(" fwmark %#x/%#x", r.Mark, r.Mask)
	}
	if r.To.IsValid() {
		match += " to " + r.To.String()
	}
	if r.From != "" {
		match += " iif " + r.From
	}
	switch r.Action {
	case Goto:
		return fmt.Sprintf("%d: %s goto %d", r.Priority, match, r.Goto)
	case Nop:
		return fmt.Sprintf("%d: %s nop", r.Priority, match)
	case Unreachable:
		return fmt.Sprintf("%d: %s unreachable", r.Priority, match)
	}
	suffix := ""
	if r.Specific {
		suffix = " except default routes"
	}
	return fmt.Sprintf("%d: %s lookup %d%s", r.Priority, match, r.Table, suffix)
}

// markRules returns the leaves of a network. They exist in both IP families even if the
// network has only one: a marked packet of the other family must match the unreachable
// default route.
func markRules(net network.Network, ipv6 bool, table int) []Rule {
	var out []Rule
	for _, v6 := range families(ipv6) {
		out = append(out, Rule{IPv6: v6, Priority: treeLevels[len(treeLevels)-1].priority(net.ID), Mark: net.PacketMark(), Mask: numberMask, Table: table})
	}
	return out
}

// outsideRules returns the node's rules for packets that it forwards between pods and the outside,
// in local gateway mode.
func outsideRules(bridge string, ipv6 bool) []Rule {
	var out []Rule
	for _, v6 := range families(ipv6) {
		out = append(out,
			Rule{IPv6: v6, Priority: outPriority, Mark: network.OutMark, Mask: network.MarkMask, Table: MainTable, Specific: true},
			Rule{IPv6: v6, Priority: advertisedPriority, From: bridge, Table: network.AdvertisedTable})
	}
	return out
}

// sharedRules returns the node's rules that belong to no single network. port is the management port
// of the cluster default network.
func sharedRules(plan network.Plan, port string, ipv6 bool) []Rule {
	var out []Rule
	for _, v6 := range families(ipv6) {
		out = append(out,
			Rule{IPv6: v6, Priority: ownPriority, From: "lo", Action: Goto, Goto: outEndPriority},
			Rule{IPv6: v6, Priority: outPriority, Mark: network.MarkKindService, Mask: network.MarkKindOther, Table: MainTable, Specific: true},
			Rule{IPv6: v6, Priority: outEndPriority, Action: Nop},
			Rule{IPv6: v6, Priority: skipPriority + 1, Mark: network.MarkKindService, Mask: network.MarkKindOther, From: port, Action: Goto, Goto: treeLevels[0].base},
			Rule{IPv6: v6, Priority: skipPriority, Mask: network.MarkMask, Action: Goto, Goto: endPriority},
			Rule{IPv6: v6, Priority: skipPriority + 1, Mark: network.MarkKindEgressIP, Mask: network.MarkKindEgressIP, Action: Goto, Goto: endPriority},
			Rule{IPv6: v6, Priority: skipPriority + 2, Mark: network.MarkKindService, Mask: network.MarkKindService, Action: Goto, Goto: endPriority},
			Rule{IPv6: v6, Priority: endPriority, Action: Nop})
		// One rule for each bit of an id, so that no unmarked packet matches one, not even
		// when somebody has deleted the rules by which these skip the tree.
		for bit := network.MarkShift; bit < network.MarkShift+network.MarkBits; bit++ {
			out = append(out, Rule{IPv6: v6, Priority: denyPriority, Mark: 1 << bit, Mask: 1<<bit | network.MarkKindOther, Action: Unreachable})
		}
	}
	for _, c := range plan.ServiceCIDRs {
		if c.Addr().Is4() || ipv6 {
			out = append(out,
				Rule{IPv6: c.Addr().Is6(), Priority: ownPriority, To: c.Masked(), From: port, Action: Goto, Goto: outEndPriority},
				Rule{IPv6: c.Addr().Is6(), Priority: outPriority, To: c.Masked(), Table: MainTable})
		}
	}
	for _, m := range plan.Masquerade {
		if m.Addr().Is4() || ipv6 {
			out = append(out, Rule{IPv6: m.Addr().Is6(), Priority: masqueradePriority, To: m.Masked(), Table: network.MasqueradeTable})
		}
	}
	return out
}

// isShared reports whether a table has routes of several networks. Each route there has its
// network's management port.
func isShared(table int) bool {
	return table == network.MasqueradeTable || table == network.AdvertisedTable
}

// families lists the IP families that the kernel has; true is IPv6.
func families(ipv6 bool) []bool {
	if ipv6 {
		return []bool{false, true}
	}
	return []bool{false}
}

// branches returns the branches from the root to a leaf, from the leaf upwards; none for
// another rule.
func (r Rule) branches() []Rule {
	id, ok := network.NetworkOfPacketMark(r.Mark)
	if !ok || r.Action != Lookup || r.Priority != treeLevels[len(treeLevels)-1].priority(id) {
		return nil
	}
	var out []Rule
	for i := len(treeLevels) - 2; i >= 0; i-- {
		next := treeLevels[i+1]
		out = append(out, Rule{
			IPv6: r.IPv6, Priority: treeLevels[i].priority(id), Action: Goto, Goto: next.priority(id),
			Mark: network.PacketMark(id >> next.shift << next.shift), Mask: numberMask << next.shift & numberMask,
		})
	}
	return out
}

// isBranch reports whether a rule is a branch, also one that leads nowhere.
func (r Rule) isBranch() bool {
	return r.Action == Goto && r.Priority >= treeLevels[0].base && r.Priority < treeLevels[len(treeLevels)-1].base
}

// owner returns the table of the network that the rule belongs to. It is meaningless for
// branches.
func (r Rule) owner() int {
	if r.Action != Lookup || isShared(r.Table) {
		return MainTable
	}
	return r.Table
}
