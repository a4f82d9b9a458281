// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// hosts returns the other hosts from whose addresses Localnet networks must not send, if there are such
// networks on the bridge.
func (r *FlowReconciler) hosts(bridge flows.Bridge, node network.Node) (flows.Hosts, error) {
	if len(bridge.Localnets) == 0 {
		return flows.Hosts{}, nil
	}
	link, found, err := r.Neighbours.MACs(r.Bridge, node.NextHops)
	r.mu.Lock()
	defer r.mu.Unlock()
	macs := map[netip.Addr]string{}
	for _, hop := range node.NextHops { // one that does not answer now keeps the address that it had
		if mac := cmp.Or(found[hop], r.routers[hop]); mac != "" {
			macs[hop] = mac
		}
	}
	r.link, r.routers = link, macs
	return protected(node, r.peers, macs), err
}

// maxPerNode is how many addresses and next hops of a node are protected. A node's annotation, which
// that node writes, does not decide how many flows others have.
const maxPerNode = 32

// protected returns the peers' and the routers' addresses.
func protected(node network.Node, peers []network.Node, routers map[netip.Addr]string) flows.Hosts {
	macs, addrs := map[string]bool{}, map[netip.Addr]bool{}
	for _, mac := range routers {
		macs[mac] = true
	}
	for _, n := range append(slices.Clone(peers), node) {
		macs[n.BridgeMAC] = true
		var list []netip.Addr
		for _, a := range n.Addresses {
			list = append(list, a.Addr())
		}
		list = slices.Concat(list, n.EncapIPs, n.NextHops)
		for _, a := range list[:min(len(list), maxPerNode)] {
			addrs[a] = true
		}
	}
	delete(macs, "")
	return flows.Hosts{MACs: slices.Sorted(maps.Keys(macs)), Addresses: slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)}
}

// neighbourChanged handles an event of the neighbour tables.
func (r *FlowReconciler) neighbourChanged(link int, host netip.Addr, mac string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if link == r.link && slices.Contains(r.node.NextHops, host) && r.routers[host] != mac {
		r.changed.all = true
		r.notify()
	}
}
