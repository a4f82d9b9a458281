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
		b.add(priorityNotOnWire, join(udp, port, fmt.Sprintf("tp_dst=%d", network.TunnelPort)), "drop")
	}
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
