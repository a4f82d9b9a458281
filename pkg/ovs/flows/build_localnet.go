// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"net/netip"
	"slices"
)

// untagged matches packets without a VLAN tag.
const untagged = "vlan_tci=0x0000/0x1000"

// Localnet is a patch port to a Localnet network whose physical network is the external
// bridge's. OVN tags what it sends there and accepts only its own tag.
type Localnet struct {
	Port int // OpenFlow port
	VLAN int // 0: untagged
}

// localnets adds the flows of Localnet networks. The bridge connects the networks of a
// VLAN, the wire, and the node, which gets untagged packets and those of its own VLAN
// devices. It copies packets and learns no addresses: OVN drops what is for no port, and
// no pod can claim an address towards the bridge.
func (b *builder) localnets(hosts Hosts) {
	if len(b.bridge.Localnets) == 0 {
		return
	}
	byVLAN := map[int][]int{}
	for _, l := range b.bridge.Localnets {
		byVLAN[l.VLAN] = append(byVLAN[l.VLAN], l.Port)
	}
	for vlan, ports := range byVLAN {
		if vlan == 0 {
			b.add(tableToLocalnets, priorityPass, "", outputs(ports))
			continue // Build and BuildNetwork add what leads there
		}
		match := fmt.Sprintf("dl_vlan=%d", vlan)
		b.add(tableToLocalnets, priorityVLAN, match, outputs(ports))
		b.add(tableInput, priorityVLAN, "in_port=LOCAL,"+match, join(b.uplink, b.toLocalnets(vlan)))
		for _, port := range b.uplinks {
			b.add(tableInput, priorityVLAN, join(inPort(port), match), join("LOCAL", b.toLocalnets(vlan)))
		}
	}
	for _, l := range b.bridge.Localnets {
		for _, ip := range []string{"ip", "ipv6"} {
			// Reassembled, the drops see what fragments carry.
			b.add(tableInput, priorityReassemble, join(ip, inPort(l.Port), "nw_frag=yes"), reassemble(tableLocalnets, zoneVLANs+l.VLAN))
		}
		b.add(tableInput, priorityPass, inPort(l.Port), resubmit(tableLocalnets))
		b.fromLocalnet(l)
	}
	b.dropFromLocalnets()
	b.protect(hosts)
}

// toLocalnets are the actions that send to the Localnet networks of a VLAN. The one that a packet
// is from does not get it: Open vSwitch never sends a packet to the port on which it arrived.
func (b *builder) toLocalnets(vlan int) string {
	if slices.ContainsFunc(b.bridge.Localnets, func(l Localnet) bool { return l.VLAN == vlan }) {
		return resubmit(tableToLocalnets)
	}
	return ""
}

// dropFromLocalnets drops what no pod may send to the wire and the node: masquerade
// addresses, forged packets of the overlay, and protocols between switches, which may close the
// node's port of the physical switch.
func (b *builder) dropFromLocalnets() {
	b.dropNotOnWire(tableLocalnets, "")
	b.dropForged(tableLocalnets)
	for _, reserved := range []string{"01:80:c2:00:00:00/ff:ff:ff:ff:ff:f0", "01:00:0c:cc:cc:cc/ff:ff:ff:ff:ff:fe"} {
		b.add(tableLocalnets, priorityNotOnWire, "dl_dst="+reserved, "drop")
	}
}

// protect keeps pods from taking over packets of this node, other nodes and routers. In every VLAN it
// drops frames from or to their MAC addresses; without a VLAN also packets with their IP addresses, and
// ARP and neighbour discovery for these. That includes the probes that ask for an
// address that nobody has yet (RFC 4862, RFC 5227): the host that is about to have it would give it up.
func (b *builder) protect(hosts Hosts) {
	macs, addrs := slices.Clone(hosts.MACs), slices.Concat(hosts.Addresses, b.in.Floating)
	if b.in.MAC != "" {
		macs = append(macs, b.in.MAC)
	}
	for _, own := range b.in.Addresses {
		addrs = append(addrs, own.Addr())
	}
	slices.Sort(macs)
	for _, mac := range slices.Compact(macs) {
		b.add(tableLocalnets, priorityForged, "dl_src="+mac, "drop")
		b.add(tableToLocalnets, priorityForged, "dl_dst="+mac, "drop")
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range slices.Compact(addrs) {
		drop := func(match string) { b.add(tableLocalnets, priorityForged, match, "drop") }
		drop(matchIP(untagged, single(a), anywhere))
		if a.Is4() {
			drop(fmt.Sprintf("arp,%s,arp_spa=%s", untagged, a))
			drop(fmt.Sprintf("arp,%s,arp_spa=0.0.0.0,arp_tpa=%s", untagged, a))
			continue
		}
		drop(fmt.Sprintf("icmp6,%s,icmp_type=%d,icmp_code=0,nd_target=%s", untagged, advertisement, a))
		drop(fmt.Sprintf("icmp6,%s,ipv6_src=::,icmp_type=%d,icmp_code=0,nd_target=%s", untagged, solicitation, a))
	}
}

// fromLocalnet adds the flows for packets from one Localnet network.
func (b *builder) fromLocalnet(l Localnet) {
	const table = tableLocalnets
	port := inPort(l.Port)
	all := join(b.uplink, "LOCAL", b.toLocalnets(l.VLAN))
	if l.VLAN != 0 {
		b.add(table, priorityVLAN, fmt.Sprintf("%s,dl_vlan=%d", port, l.VLAN), all)
		return
	}
	b.add(table, priorityVLAN, port+tagged, "drop")
	b.add(table, priorityPass, port, all)
	if b.in.MAC != "" {
		b.add(table, priorityNode, port+",dl_dst="+b.in.MAC, "LOCAL")
	}
	router := ""
	if b.routed() {
		router = outputs([]int{b.bridge.Router})
		for _, ip := range []string{"ip", "ipv6"} {
			b.add(table, priorityNetwork, fmt.Sprintf("%s,%s,dl_dst=%s", ip, port, b.in.MAC), toDestinations(fromWire))
		}
	}
	b.add(table, priorityNeighbour, "arp,"+port, join(all, router))
	// Open vSwitch reads no target in a message with a code or with options that it cannot
	// parse, so that protect's flows would not see whose name it is in.
	for _, kind := range []int{solicitation, advertisement} {
		match := fmt.Sprintf("icmp6,%s,icmp_type=%d", port, kind)
		b.add(table, priorityNeighbour, match+",icmp_code=0", join(all, router))
		b.add(table, priorityMalformed, match, "drop")
		b.add(table, priorityForged, match+",icmp_code=0,nd_target=::", "drop")
	}
}
