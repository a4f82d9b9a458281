// SPDX-License-Identifier: Apache-2.0

// Package firewall keeps the nftables table "inet bulkhead": the backstop
// behind the eBPF programs and the VRFs. The whole table is ours, and nothing
// outside it is touched. The number of rules is constant: addresses are in
// sets, whose look-up costs the same whatever their size.
//
// It refuses
//
//   - what this node sends to the default-network address of a local pod that
//     has a primary network of its own, unless kubelet's socket sends it;
//   - what a pod in the host's network sends into a network, unless its socket
//     carries that network's mark, which it got at birth and cannot change;
//   - what would be forwarded into a network or out of one, but in local
//     gateway mode, where the kernel is the way out;
//   - what arrives for the overlay's port from a network or over loopback.
//
// A packet's own mark decides nothing: who has CAP_NET_RAW can choose it for
// each packet. Sockets' marks and cgroups do.
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
	// SetOwn holds pairs of an interface and the mark of the network it leads to.
	SetOwn = "own"

	CounterProbeAllowed = "probe_allowed"
	CounterProbeRefused = "probe_refused"
	CounterCrossNetwork = "cross_network"
	CounterForeign      = "foreign_socket"
	CounterForwarded    = "forwarded"
	CounterTunnel       = "tunnel_port"

	chainOutput   = "output"
	chainLocked   = "locked"
	chainNetworks = "networks"
	chainForward  = "forward"
	chainInput    = "input"
	chainUnmark   = "unmark"
)

// ports matches every network's management port, the cluster default network's
// included.
const ports = `"ovn-k8s-mp*"`

// Inputs are the facts that decide what should be.
type Inputs struct {
	// Locked are the default-network addresses of local pods that have a
	// primary network of their own.
	Locked []netip.Addr
	// Networks are those of this node, without the cluster default network.
	Networks []network.Network
	// DefaultPort is the cluster default network's management port.
	DefaultPort string
	// PodRoots are the cgroups that hold all pods; none where sockets' cgroups
	// cannot be matched.
	PodRoots []Cgroup
	// Mode tells whether the kernel forwards between networks and the outside.
	Mode       network.GatewayMode
	TunnelPort uint16
	Kubelet
}

// Cgroup is a directory of the cgroup2 tree: its path below the mount, without
// a leading slash, and its id now. nft keeps the id, so that a directory that
// was made anew needs the rule anew.
type Cgroup struct {
	Path string
	ID   uint64
}

// Kubelet is how its packets are told from others'.
type Kubelet struct {
	// Mark is what eBPF gives kubelet's sockets; 0 when the programs are not
	// loaded. Then Cgroup stands in; without either, the safe side is closed:
	// nothing on the node reaches locked addresses, probes included.
	Mark   uint32
	Cgroup Cgroup
}

// State is the table's content.
type State struct {
	Chains   []Chain
	Counters []string
	Sets     map[string][]string // elements as nft prints them, parts joined by " . ", sorted
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

// Build says what should be. Chains and rules are the same whatever the number
// of networks and pods.
func Build(in Inputs) State {
	st := State{
		Counters: []string{CounterCrossNetwork, CounterForeign, CounterForwarded, CounterProbeAllowed, CounterProbeRefused, CounterTunnel},
		Sets:     map[string][]string{SetLocked4: nil, SetLocked6: nil, SetOwn: nil},
	}
	for _, a := range in.Locked {
		set := SetLocked4
		if a = a.Unmap(); a.Is6() {
			set = SetLocked6
		}
		st.Sets[set] = append(st.Sets[set], a.String())
	}
	for _, n := range in.Networks {
		st.Sets[SetOwn] = append(st.Sets[SetOwn], fmt.Sprintf("%s . %#08x", n.ManagementPort(), n.PacketMark()))
	}
	for name, elements := range st.Sets {
		slices.Sort(elements)
		st.Sets[name] = slices.Compact(elements)
	}
	st.Chains = []Chain{
		in.lockedChain(),
		in.networksChain(),
		{Name: chainOutput, Hook: "output", Rules: []Rule{
			rule("locked pods, IPv4", "ip daddr @"+SetLocked4, "goto", chainLocked),
			rule("locked pods, IPv6", "ip6 daddr @"+SetLocked6, "goto", chainLocked),
			rule("networks", "oifname", ports, "goto", chainNetworks),
		}},
		in.forwardChain(),
		in.inputChain(),
		{Name: chainUnmark, Hook: "postrouting", Rules: []Rule{
			rule("into OVN", "oifname", ports, fmt.Sprintf("meta mark %#x-%#x", network.PacketMark(1), network.PacketMark(network.MaxID)), "meta mark set 0x0"),
		}},
	}
	return st
}

// lockedChain judges what goes to a locked address.
func (in Inputs) lockedChain() Chain {
	c := Chain{Name: chainLocked}
	refuse := func(who string, match ...string) {
		// Refused, not dropped: the caller learns at once.
		c.Rules = append(c.Rules,
			rule(who+", TCP", strings.Join(append(match, "meta l4proto tcp"), " "), "counter name", CounterProbeRefused, "reject with tcp reset"),
			rule(who, strings.TrimSpace(strings.Join(match, " ")+" counter name"), CounterProbeRefused, "reject with icmpx type admin-prohibited"))
	}
	for _, g := range in.PodRoots {
		if m, ok := g.match(); ok {
			refuse("pods"+g.suffix(), m) // whatever their sockets' mark says
		}
	}
	if allow, ok := in.allow(); ok {
		c.Rules = append(c.Rules, allow)
	}
	// Answers to what such a pod asked of the node; OVN decides what it may ask.
	c.Rules = append(c.Rules, rule("answers", "ct state established,related accept"))
	refuse("others")
	return c
}

// networksChain judges what goes into a network by its management port.
func (in Inputs) networksChain() Chain {
	c := Chain{Name: chainNetworks}
	if len(in.PodRoots) == 0 {
		return c
	}
	c.Rules = append(c.Rules, rule("a network's own", "oifname . socket mark @"+SetOwn, "accept"))
	if in.DefaultPort != "" {
		c.Rules = append(c.Rules, rule("pods outside the tenants on the default network", "oifname", fmt.Sprintf("%q", in.DefaultPort),
			fmt.Sprintf("socket mark != %#x-%#x", network.PacketMark(1), network.PacketMark(network.MaxID)), "accept"))
	}
	for _, g := range in.PodRoots {
		if m, ok := g.match(); ok {
			c.Rules = append(c.Rules, rule("other pods"+g.suffix(), m, "counter name", CounterForeign, "drop"))
		}
	}
	return c
}

// forwardChain judges what passes through the node. Inside a VRF the input
// interface is the VRF device, and the port the packet came by is the slave;
// the cluster default network's port has no VRF.
func (in Inputs) forwardChain() Chain {
	c := Chain{Name: chainForward, Hook: "forward", Rules: []Rule{
		rule("between networks", "iifname", ports, "oifname", ports, "counter name", CounterCrossNetwork, "drop"),
		rule("between networks, VRF", "meta sdifname", ports, "oifname", ports, "counter name", CounterCrossNetwork, "drop"),
		rule("loopback", `iifname "lo" oifname`, ports, "counter name", CounterForwarded, "drop"),
	}}
	if in.Mode != network.LocalGateway {
		c.Rules = append(c.Rules,
			rule("out of a network", "iifname", ports, "counter name", CounterForwarded, "drop"),
			rule("out of a network, VRF", "meta sdifname", ports, "counter name", CounterForwarded, "drop"),
			rule("into a network", "oifname", ports, "counter name", CounterForwarded, "drop"))
		return c
	}
	if in.TunnelPort != 0 {
		c.Rules = append(c.Rules,
			rule("overlay's port", "iifname", ports, fmt.Sprintf("udp dport %d", in.TunnelPort), "counter name", CounterTunnel, "drop"),
			rule("overlay's port, VRF", "meta sdifname", ports, fmt.Sprintf("udp dport %d", in.TunnelPort), "counter name", CounterTunnel, "drop"))
	}
	return c
}

// inputChain judges what arrives at the node itself.
func (in Inputs) inputChain() Chain {
	c := Chain{Name: chainInput, Hook: "input"}
	if in.TunnelPort == 0 {
		return c
	}
	port := fmt.Sprintf("udp dport %d", in.TunnelPort)
	c.Rules = append(c.Rules,
		rule("overlay's port from a network", "iifname", ports, port, "counter name", CounterTunnel, "drop"),
		rule("overlay's port from a network, VRF", "meta sdifname", ports, port, "counter name", CounterTunnel, "drop"),
		rule("overlay's port from this node", `iifname "lo"`, port, "counter name", CounterTunnel, "drop"))
	return c
}

// match is the expression for sockets below the cgroup. A path with characters
// that nft gives a meaning matches nothing.
func (g Cgroup) match() (string, bool) {
	if g.Path == "" || strings.ContainsAny(g.Path, "\"\\\n") {
		return "", false
	}
	return fmt.Sprintf("socket cgroupv2 level %d %q", strings.Count(g.Path, "/")+1, g.Path), true
}

// suffix tells rules of one text apart whose path means another cgroup now.
func (g Cgroup) suffix() string { return fmt.Sprintf(" of cgroup %d", g.ID) }

// allow is the rule that lets kubelet through; ok is false when it cannot be told.
func (k Kubelet) allow() (r Rule, ok bool) {
	if k.Mark != 0 {
		return rule("kubelet", fmt.Sprintf("socket mark %#x", k.Mark), "counter name", CounterProbeAllowed, "accept"), true
	}
	if m, ok := k.Cgroup.match(); ok {
		return rule("kubelet"+k.Cgroup.suffix(), m, "counter name", CounterProbeAllowed, "accept"), true
	}
	return Rule{}, false
}
