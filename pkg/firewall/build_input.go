// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"slices"

	"bulkhead/pkg/network"
)

// unbridgedChain drops what comes from pods' interfaces that are not, or no longer, on the integration bridge:
// the bridge takes all packets of those that are. A pod whose port is gone would otherwise be a neighbour of the
// node's IP stack, past OVN and the guard.
func unbridgedChain() Chain {
	return Chain{Name: chainUnbridged, Hook: "prerouting", Early: true, Rules: []Rule{
		rule("not on the bridge", fmt.Sprintf("iifgroup %d", network.PodLinkGroup), "counter name", CounterUnbridged, "drop"),
	}}
}

// elsewhere matches what arrives on an interface that leads neither into networks nor to their gateway routers: a second
// interface of the node, or that of a container outside Kubernetes.
func (in Inputs) elsewhere() string {
	match := `iifname != "lo" iifname != ` + managementPorts + ` meta iifkind != "vrf"`
	if in.Bridge != "" {
		match += fmt.Sprintf(" iifname != %q", in.Bridge)
	}
	return match
}

// elsewhereChain drops what arrives elsewhere from or to a masquerade address and is not for the node itself. Conntrack, which does
// not tell interfaces apart, would take it for a packet of a network's connection, or the gateway router for an answer to it. The
// chain comes before conntrack, so that no connection changes. The range is link-local: a host beside the node, such as its management
// controller, may have an address of it and talk to the node.
func (in Inputs) elsewhereChain() Chain {
	c := Chain{Name: chainElsewhere, Hook: "prerouting", Early: true}
	for _, p := range in.Plan.Masquerade {
		for _, end := range []string{"saddr", "daddr"} {
			c.Rules = append(c.Rules, rule("masquerade address "+end+" "+p.String(), in.elsewhere(), ipOf(p), end, p.String(),
				"fib daddr type unicast counter name", CounterForwarded, "drop"))
		}
	}
	return c
}

// masqueradeElsewhere drops what elsewhereChain passes to the node's address and a node port's or host port's translation leads
// into a network, where the source would be another network's.
func (in Inputs) masqueradeElsewhere() (rules []Rule) {
	for _, p := range in.Plan.Masquerade {
		rules = append(rules, rule("masquerade address "+p.String()+" from elsewhere", in.elsewhere(), ipOf(p), "saddr", p.String(), "counter name", CounterForwarded, "drop"))
	}
	return rules
}

// forwardedTunnel drops what the node would forward to the overlay's port: if SNAT gave it this node's
// address, the receiving node would accept it as this node's.
func forwardedTunnel() []Rule {
	return []Rule{rule("overlay's port", fmt.Sprintf("udp dport %d", network.TunnelPort), "counter name", CounterTunnel, "drop")}
}

// inputChain filters packets to the node itself. A packet of the overlay arrives on the interface that has its
// destination address, or on one to which its source is routed. What another container of the node sends with a node's
// address arrives on neither.
func inputChain() Chain {
	port := fmt.Sprintf("udp dport %d", network.TunnelPort)
	c := Chain{Name: chainInput, Hook: "input", Rules: slices.Concat(tunnelErrors(), pathErrors(), fromNetworks("overlay's port from a network", port, "counter name", CounterTunnel, "drop"))}
	c.Rules = append(c.Rules,
		rule("overlay's port from this node", `iifname "lo"`, port, "counter name", CounterTunnel, "drop"),
		rule("overlay's port from where its source is not", port, "fib daddr . iif type != local fib saddr . iif oif missing counter name", CounterTunnel, "drop"))
	return c
}

// fromNetworks returns two rules for packets from networks: a packet that a management port in a VRF has received
// has the VRF device as its input interface.
func fromNetworks(name string, rest ...string) []Rule {
	return []Rule{
		rule(name, append([]string{"iifname", managementPorts}, rest...)...),
		rule(name+", VRF", append([]string{"meta sdifname", managementPorts}, rest...)...),
	}
}

// pathErrors drops forged ICMP messages that change the node's routes for everybody. The kernel believes that a packet was
// too long, or that another router is nearer, also if it has sent no such packet, and keeps that by destination: a
// tenant could make all networks' packets to another node too long for the overlay, or choose who gets them. So an error must
// quote a packet of a connection. A network has one MTU and one router: its errors are all dropped.
func pathErrors() []Rule {
	const tooLong, tooLong6 = "icmp type destination-unreachable icmp code frag-needed", "icmpv6 type packet-too-big"
	drop := []string{"counter name", CounterPathError, "drop"}
	var rules []Rule
	for _, m := range []struct{ name, match string }{{"packet too long", tooLong}, {"packet too long, IPv6", tooLong6}} {
		rules = append(rules, rule(m.name+", of no connection", append([]string{m.match, "ct state != related"}, drop...)...))
		rules = append(rules, fromNetworks(m.name+", from a network", append([]string{m.match}, drop...)...)...)
	}
	rules = append(rules, fromNetworks("redirect from a network", append([]string{"icmp type redirect"}, drop...)...)...)
	return append(rules, fromNetworks("redirect from a network, IPv6", append([]string{"icmpv6 type nd-redirect"}, drop...)...)...)
}

// tunnelErrors drops ICMP errors that quote a packet of the overlay. Anybody can forge one, and one that says that a smaller
// packet is needed would stop all networks' larger packets to that node, because the overlay's are not fragmented. Real ones are
// not needed, as the nodes' link carries the overlay's MTU, and each quotes what another network's pod has sent.
func tunnelErrors() []Rule {
	// Offsets in bits: of the quoted header behind the 8 bytes of ICMP, its protocol, and the port behind it.
	const udp, icmp, icmp6 = 17, "icmp type { destination-unreachable, redirect, time-exceeded, parameter-problem }",
		"icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }"
	var rules []Rule
	drop := func(name, kind, quoted string) {
		rules = append(rules, rule(name, kind, quoted, "counter name", CounterTunnel, "drop"))
	}
	drop("errors of the overlay", icmp, fmt.Sprintf("@th,136,8 %d @th,240,16 %d", udp, network.TunnelPort))
	drop("errors of packets with IP options", icmp, fmt.Sprintf("@th,64,8 != 0x45 @th,136,8 %d", udp))
	drop("errors of the overlay, IPv6", icmp6, fmt.Sprintf("@th,112,8 %d @th,400,16 %d", udp, network.TunnelPort))
	drop("errors of fragments of the overlay, IPv6", icmp6, fmt.Sprintf("@th,112,8 44 @th,384,8 %d @th,464,16 %d", udp, network.TunnelPort))
	drop("errors of packets with extension headers, IPv6", icmp6, "@th,112,8 { 0, 43, 60 }")
	drop("errors of fragments with extension headers, IPv6", icmp6, "@th,112,8 44 @th,384,8 { 0, 43, 44, 60 }")
	return rules
}
