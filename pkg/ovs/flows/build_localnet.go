// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"slices"
)

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
func (b *builder) localnets() {
	if len(b.bridge.Localnets) == 0 {
		return
	}
	byVLAN := map[int][]int{}
	for _, l := range b.bridge.Localnets {
		byVLAN[l.VLAN] = append(byVLAN[l.VLAN], l.Port)
	}
	for vlan, ports := range byVLAN {
		if vlan == 0 {
			continue // Build and gateway add the untagged ports
		}
		match := fmt.Sprintf(",dl_vlan=%d", vlan)
		b.add(tableInput, priorityVLAN, "in_port=LOCAL"+match, join(b.uplink, outputs(ports)))
		for _, port := range b.uplinks {
			b.add(tableInput, priorityVLAN, inPort(port)+match, join("LOCAL", outputs(ports)))
		}
	}
	for _, l := range b.bridge.Localnets {
		// Reassembled, the drops see what fragments carry.
		for _, ip := range []string{"ip", "ipv6"} {
			b.add(tableInput, priorityReassemble, join(ip, inPort(l.Port), "nw_frag=yes"), reassemble(tableLocalnets))
		}
		b.add(tableInput, priorityPass, inPort(l.Port), resubmit(tableLocalnets))
	}
	b.dropFromLocalnets()
	for _, l := range b.bridge.Localnets {
		b.fromLocalnet(l, byVLAN[l.VLAN])
	}
}

// dropFromLocalnets drops what no pod may send to the wire and the node: masquerade
// addresses, forged packets of the overlay, the node's own MAC address, and protocols
// between switches, which may close the node's port of the physical switch.
func (b *builder) dropFromLocalnets() {
	b.dropNotOnWire(tableLocalnets, "")
	b.dropForged(tableLocalnets)
	if b.in.MAC != "" {
		b.add(tableLocalnets, priorityNotOnWire, "dl_src="+b.in.MAC, "drop")
	}
	for _, reserved := range []string{"01:80:c2:00:00:00/ff:ff:ff:ff:ff:f0", "01:00:0c:cc:cc:cc/ff:ff:ff:ff:ff:fe"} {
		b.add(tableLocalnets, priorityNotOnWire, "dl_dst="+reserved, "drop")
	}
}

// fromLocalnet adds the flows for packets from one Localnet network. peers are all ports of
// its VLAN.
func (b *builder) fromLocalnet(l Localnet, peers []int) {
	const table = tableLocalnets
	port := inPort(l.Port)
	others := outputs(slices.DeleteFunc(slices.Clone(peers), func(p int) bool { return p == l.Port }))
	all := join(b.uplink, "LOCAL", others)
	if l.VLAN != 0 {
		b.add(table, priorityVLAN, fmt.Sprintf("%s,dl_vlan=%d", port, l.VLAN), all)
		return
	}
	b.add(table, priorityVLAN, port+tagged, "drop")
	b.add(table, priorityPass, port, all)
	if b.in.MAC != "" {
		b.add(table, priorityNode, port+",dl_dst="+b.in.MAC, "LOCAL")
	}
	if !b.routed() {
		return
	}
	for _, n := range neighbours {
		b.add(table, priorityNeighbour, fmt.Sprintf(n, port), join(all, outputs([]int{b.bridge.Router})))
	}
	for _, ip := range []string{"ip", "ipv6"} {
		b.add(table, priorityNetwork, fmt.Sprintf("%s,%s,dl_dst=%s", ip, port, b.in.MAC), toDestinations(fromWire))
	}
}
