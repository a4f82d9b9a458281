// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

const (
	// zone is the conntrack zone of connections between gateway routers and the wire.
	zone = 64000
	// tableReplies handles packets from the wire whose connection is known.
	tableReplies = 1
	// zoneHost and zoneOVN are the conntrack zones of connections between the gateway
	// router and the node: one translates the node's address, one the router's.
	zoneHost, zoneOVN = 64001, 64002
	// Packets to the node pass tableToNode1 and tableToNode2, its replies tableFromNode1
	// and tableFromNode2.
	tableToNode1, tableToNode2, tableFromNode1, tableFromNode2 = 3, 4, 5, 6
	// Neighbour solicitations and advertisements (RFC 4861).
	solicitation, advertisement = 135, 136
)

// gateway adds the flows of the cluster default network's gateway router: its way out,
// and tenants' way to the services that all networks reach. Only the router's own
// connections are tracked: the node's do not depend on conntrack.
func (b *builder) gateway() {
	patch := inPort(b.bridge.Gateway)
	b.dropNotOnWire(patch)
	b.dropForged(patch) // fragments are reassembled: the router tracks all connections
	b.services(patch)
	b.ownEndpoints(patch)

	for _, n := range neighbours {
		b.add(priorityNeighbour, fmt.Sprintf(n, patch), b.toWire)
	}
	mark := network.Network{ID: network.DefaultID}.ConntrackMark()
	own := b.ownAddresses()
	for _, a := range own {
		b.add(priorityGateway, matchIP(patch, a, anywhere), fmt.Sprintf("ct(commit,zone=%d,exec(load:%#x->NXM_NX_CT_MARK[])),%s", zone, mark, b.toWire))
	}
	for _, port := range b.uplinks {
		for _, n := range neighbours {
			b.add(priorityNeighbour, fmt.Sprintf(n, inPort(port)), join("LOCAL", outputs([]int{b.bridge.Gateway}), b.untagged()))
		}
		// The overlay's packets are the node's: they skip the lookup, except fragments,
		// of which only the first has a port.
		for _, udp := range []string{"udp", "udp6"} {
			b.add(priorityTunnel, fmt.Sprintf("%s,%s,nw_frag=no,tp_dst=%d", udp, inPort(port), network.TunnelPort), "LOCAL")
		}
		for _, a := range own {
			b.add(priorityGateway, matchIP(inPort(port), anywhere, a), fmt.Sprintf("ct(table=%d,zone=%d)", tableReplies, zone))
		}
	}
	b.table = tableReplies
	for _, state := range []string{"+est+trk", "+rel+trk"} {
		b.add(priorityGateway, fmt.Sprintf("ct_state=%s,ct_mark=%#x", state, mark), outputs([]int{b.bridge.Gateway}))
	}
	b.add(priorityPass, "", "LOCAL")
	b.table = 0
}

// neighbours match ARP and neighbour discovery on a port.
var neighbours = []string{"arp,%s", fmt.Sprintf("icmp6,%%s,icmp_type=%d", solicitation), fmt.Sprintf("icmp6,%%s,icmp_type=%d", advertisement)}

// ownAddresses are the node's addresses, each alone.
func (b *builder) ownAddresses() []netip.Prefix {
	var own []netip.Prefix
	for _, a := range b.in.Addresses {
		own = append(own, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
	}
	return own
}

// dropForged drops a port's datagrams to the overlay's port, which nodes would take for the
// overlay's own. Fragments arrive here reassembled. Pods' own interfaces refuse such
// datagrams too, but not those that a service's endpoint makes of others.
func (b *builder) dropForged(port string) {
	for _, udp := range []string{"udp", "udp6"} {
		b.add(priorityForged, join(udp, port, fmt.Sprintf("tp_dst=%d", network.TunnelPort)), "drop")
	}
}

// ownEndpoints adds the way to services' endpoints that are the node itself, such as an API
// server on it. The gateway router has the node's addresses too: it sends to the host's
// masquerade address instead, and the node sees OVN's. The node opens no connection to OVN's
// masquerade address: what is not a reply is dropped.
func (b *builder) ownEndpoints(patch string) {
	fixed := func(offset uint64) (out []netip.Prefix) {
		for _, p := range (network.Plan{Masquerade: b.in.Masquerade}).MasqueradeFixed(offset) {
			out = append(out, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
		return out
	}
	mac := "mod_dl_dst:" + b.in.MAC + ","
	for _, host := range fixed(network.MasqueradeHost) {
		for _, own := range b.ownAddresses() {
			if network.SameFamily(own, host.Addr()) {
				b.add(priorityService, matchIP(patch, own, host), fmt.Sprintf("ct(commit,table=%d,zone=%d,nat(dst=%s))", tableToNode1, zoneHost, own.Addr()))
			}
		}
	}
	for _, router := range fixed(network.MasqueradeOVN) {
		b.add(priorityService, matchIP("in_port=LOCAL", anywhere, router), fmt.Sprintf("ct(table=%d,zone=%d,nat)", tableFromNode1, zoneOVN))
		family := "ip"
		if router.Addr().Is6() {
			family = "ipv6"
		}
		b.table = tableToNode1
		b.add(priorityPass, family, fmt.Sprintf("ct(commit,table=%d,zone=%d,nat(src=%s))", tableToNode2, zoneOVN, router.Addr()))
		b.table = 0
	}
	for table, action := range map[int]string{tableFromNode1: fmt.Sprintf("ct(table=%d,zone=%d,nat)", tableFromNode2, zoneHost), tableFromNode2: mac + outputs([]int{b.bridge.Gateway})} {
		b.table = table
		for _, match := range []string{"ct_state=+est+trk,ip", "ct_state=+rel+trk,ip", "ct_state=+est+trk,ipv6", "ct_state=+rel+trk,ipv6"} {
			b.add(priorityPass, match, action)
		}
	}
	b.table = tableToNode2
	b.add(priorityPass, "", mac+"LOCAL")
	b.table = 0
}

// services adds the way from tenants' pods, which the node forwards with their
// network's masquerade address, to services of the cluster default network. The node's
// firewall decides which services those are.
func (b *builder) services(patch string) {
	for _, masquerade := range b.in.Masquerade {
		for _, service := range b.in.Services {
			if !network.SameFamily(masquerade, service.Addr()) {
				continue
			}
			mac := "mod_dl_dst:" + b.in.MAC + ","
			b.add(priorityService, matchIP("in_port=LOCAL", masquerade, service), mac+fmt.Sprintf("output:%d", b.bridge.Gateway))
			b.add(priorityService, matchIP(patch, service, masquerade), mac+"LOCAL")
		}
	}
	for _, service := range b.in.Services { // that no load balancer has
		b.add(priorityNotOnWire, matchIP(patch, anywhere, service), "drop")
	}
}
