// SPDX-License-Identifier: Apache-2.0

// Package firewall keeps the nftables table "inet bulkhead": the backstop
// behind the eBPF programs and the VRFs. The whole table is ours, and nothing
// outside it is touched. The number of rules is constant: addresses are in
// sets, whose look-up costs the same whatever their size.
//
// Two things are refused:
//
//   - what this node sends to the default-network address of a local pod that
//     has a primary network of its own, unless kubelet sends it. The eBPF
//     programs refuse that at connect; here raw sockets, and so a ping by root,
//     are refused too;
//   - what one network's management port would forward out of another's. VRF
//     tables lead nowhere else already; this holds if a table is wrong.
//
// And one thing is changed: a tenant's packet mark ends where the packet enters
// OVN. The kernel routes a tunnel's outer packet by the mark of the inner one,
// which would send it by the tenant's table.
package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Table is the owner mark: everything in it is ours.
const Table = "bulkhead"

// Names inside the table.
const (
	SetLocked4 = "locked4"
	SetLocked6 = "locked6"

	CounterProbeAllowed = "probe_allowed"
	CounterProbeRefused = "probe_refused"
	CounterCrossNetwork = "cross_network"

	chainOutput  = "output"
	chainLocked  = "locked"
	chainForward = "forward"
	chainUnmark  = "unmark"
)

// Inputs are the facts that decide what should be.
type Inputs struct {
	// Locked are the default-network addresses of local pods that have a
	// primary network of their own.
	Locked []netip.Addr
	Kubelet
}

// Kubelet is how its packets are told from others'.
type Kubelet struct {
	// Mark is what eBPF gives kubelet's sockets; 0 when the programs are not
	// loaded. Then Cgroup stands in; without either, the safe side is closed:
	// nothing on the node reaches locked addresses, probes included.
	Mark uint32
	// Cgroup is kubelet's path below the cgroup2 mount, without a leading
	// slash, and CgroupID its id now: nft keeps the id, so that a restarted
	// kubelet needs the rule anew.
	Cgroup   string
	CgroupID uint64
}

// State is the table's content.
type State struct {
	Chains   []Chain
	Counters []string
	Sets     map[string][]netip.Addr // sorted
}

// Chain is one chain. Hook is empty for one that others jump to.
type Chain struct {
	Name  string
	Hook  string
	Rules []Rule
}

// Rule is one rule. nft does not give a rule's text back as it was written, so
// its comment carries a digest of the text.
type Rule struct{ Text, Comment string }

func rule(why string, parts ...string) Rule {
	text := strings.Join(parts, " ")
	sum := sha256.Sum256([]byte(text))
	return Rule{Text: text, Comment: why + " " + hex.EncodeToString(sum[:4])}
}

// Build is what the table should hold.
func Build(in Inputs) State {
	st := State{
		Counters: []string{CounterCrossNetwork, CounterProbeAllowed, CounterProbeRefused},
		Sets:     map[string][]netip.Addr{SetLocked4: nil, SetLocked6: nil},
	}
	for _, a := range in.Locked {
		set := SetLocked4
		if a = a.Unmap(); a.Is6() {
			set = SetLocked6
		}
		st.Sets[set] = append(st.Sets[set], a)
	}
	for name, addrs := range st.Sets {
		slices.SortFunc(addrs, netip.Addr.Compare)
		st.Sets[name] = slices.Compact(addrs)
	}
	locked := Chain{Name: chainLocked}
	if allow, ok := in.allow(); ok {
		locked.Rules = append(locked.Rules, allow)
	}
	locked.Rules = append(locked.Rules,
		// Answers to what such a pod asked of the node; OVN decides what it may ask.
		rule("answers", "ct state established,related accept"),
		// Refused, not dropped: the caller learns at once.
		rule("others, TCP", "meta l4proto tcp counter name", CounterProbeRefused, "reject with tcp reset"),
		rule("others", "counter name", CounterProbeRefused, "reject with icmpx type admin-prohibited"))
	st.Chains = []Chain{
		locked,
		{Name: chainOutput, Hook: "output", Rules: []Rule{
			rule("locked pods, IPv4", "ip daddr @"+SetLocked4, "goto", chainLocked),
			rule("locked pods, IPv6", "ip6 daddr @"+SetLocked6, "goto", chainLocked),
		}},
		{Name: chainForward, Hook: "forward", Rules: []Rule{
			// Inside a VRF the input interface is the VRF device, and the port
			// it came by is the slave; the cluster default network's port has no VRF.
			rule("between networks", `iifname "ovn-k8s-mp*" oifname "ovn-k8s-mp*" counter name`, CounterCrossNetwork, "drop"),
			rule("between networks, VRF", `meta sdifname "ovn-k8s-mp*" oifname "ovn-k8s-mp*" counter name`, CounterCrossNetwork, "drop"),
		}},
		{Name: chainUnmark, Hook: "postrouting", Rules: []Rule{
			rule("into OVN", `oifname "ovn-k8s-mp*"`, fmt.Sprintf("meta mark %#x-%#x", network.PacketMark(1), network.PacketMark(network.MaxID)), "meta mark set 0x0"),
		}},
	}
	return st
}

// allow is the rule that lets kubelet through; ok is false when it cannot be told.
func (k Kubelet) allow() (r Rule, ok bool) {
	switch {
	case k.Mark != 0:
		return rule("kubelet", fmt.Sprintf("meta mark %#x", k.Mark), "counter name", CounterProbeAllowed, "accept"), true
	case k.Cgroup != "" && !strings.ContainsAny(k.Cgroup, "\"\\\n"):
		level := strings.Count(k.Cgroup, "/") + 1
		r = rule("kubelet", fmt.Sprintf("socket cgroupv2 level %d %q", level, k.Cgroup), "counter name", CounterProbeAllowed, "accept")
		// The same text means another cgroup when kubelet was restarted.
		r.Comment += fmt.Sprintf(" cgroup %d", k.CgroupID)
		return r, true
	default:
		return Rule{}, false
	}
}
