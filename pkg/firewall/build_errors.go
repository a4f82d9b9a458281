// SPDX-License-Identifier: Apache-2.0

package firewall

import "fmt"

// tunnelErrors drops ICMP errors that quote a packet of the overlay. The kernel believes them whoever sends them, also
// by a network's management port: one that says that a smaller packet is needed would stop all networks' larger
// packets to that node, because the overlay's are not fragmented. They help nobody: the nodes' link carries the
// overlay's MTU. And each quotes what another network's pod has sent.
func (in Inputs) tunnelErrors() []Rule {
	// Offsets in bits: of the quoted header behind the 8 bytes of ICMP, its protocol, and the port behind it.
	const udp, icmp, icmp6 = 17, "icmp type { destination-unreachable, redirect, time-exceeded, parameter-problem }",
		"icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }"
	var rules []Rule
	drop := func(name, kind, quoted string) {
		rules = append(rules, rule(name, kind, quoted, "counter name", CounterTunnel, "drop"))
	}
	drop("errors of the overlay", icmp, fmt.Sprintf("@th,136,8 %d @th,240,16 %d", udp, in.TunnelPort))
	drop("errors of packets with IP options", icmp, fmt.Sprintf("@th,64,8 != 0x45 @th,136,8 %d", udp))
	drop("errors of the overlay, IPv6", icmp6, fmt.Sprintf("@th,112,8 %d @th,400,16 %d", udp, in.TunnelPort))
	drop("errors of fragments of the overlay, IPv6", icmp6, fmt.Sprintf("@th,112,8 44 @th,384,8 %d @th,464,16 %d", udp, in.TunnelPort))
	drop("errors of packets with extension headers, IPv6", icmp6, "@th,112,8 { 0, 43, 60 }")
	drop("errors of fragments with extension headers, IPv6", icmp6, "@th,112,8 44 @th,384,8 { 0, 43, 44, 60 }")
	return rules
}
