// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// gatewayReconciler tells the external bridge's flow reconciler of each network.
type gatewayReconciler struct {
	config config.Config
	cache  *Cache
	flows  Flows // nil: the external bridge is not managed
	node   *nodeReconciler
}

// reconcile sets the network with that id, with the ports of its services that are reached
// from outside it, or removes it.
func (r *gatewayReconciler) reconcile(id int) error {
	if r.flows == nil {
		return nil
	}
	net, ok := r.cache.Network(id)
	if id == network.DefaultID {
		net, ok = r.config.DefaultNetwork, true
	}
	if !ok {
		r.flows.DeleteNetwork(id)
		return nil
	}
	ports := r.cache.ExposedPorts(id)
	own := r.node.Node().Addresses
	var pods []netip.Prefix // none without an id or a host subnet
	if id := r.node.Node().ID; id > 0 && net.Announced() {
		pods, _ = net.HostSubnets(id)
	}
	r.flows.SetNetwork(net, pods, append(slices.DeleteFunc(ports, func(p flows.ServicePort) bool {
		return p.Addr.IsValid() && refusedExternal(r.config.Plan, net, own, p.Addr)
	}), r.cache.loopbackPorts(id, r.config.Plan, r.config.DefaultNetwork)...))
	return nil
}

// refusedExternal reports whether no service of the network may have an external address. own
// are the node's addresses.
func refusedExternal(plan network.Plan, n network.Network, own []netip.Prefix, a netip.Addr) bool {
	isOwn := slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == a })
	return isOwn || plan.RefusedExternal(n, a) != ""
}

// reconcileAll enqueues every network.
func (r *gatewayReconciler) reconcileAll(q *Queue) {
	q.EnqueueGateways(network.DefaultID)
	for _, n := range r.cache.Networks() {
		q.EnqueueGateways(n.ID)
	}
}
