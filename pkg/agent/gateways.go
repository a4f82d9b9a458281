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
	ports := r.cache.PublishedPorts(id)
	var pods []netip.Prefix // none without an id or a host subnet
	if id := r.node.Node().ID; id > 0 && net.Announced() {
		pods, _ = net.HostSubnets(id)
	}
	r.flows.SetNetwork(net, pods, append(slices.DeleteFunc(ports, func(p flows.ServicePort) bool {
		return p.Addr.IsValid() && r.node.refusedExternal(net, p)
	}), r.cache.loopbackPorts(id, r.config.Plan, r.config.DefaultNetwork)...))
	return nil
}

// refusedExternal reports whether the network's service does not have an external address on this
// node. A load balancer may give an address that the node has, as kube-vip does, except one that the
// node publishes. What a service's author chooses is none of the node's, on any interface: it may be
// the API server's.
func (r *nodeReconciler) refusedExternal(n network.Network, p flows.ServicePort) bool {
	return p.Claimed && r.has(p.Addr) || r.Node().HasAddress(p.Addr) || r.config.Plan.RefusedExternal(n, p.Addr) != ""
}

// enqueueAllGateways enqueues every network.
func enqueueAllGateways(q *Queue, c *Cache) {
	q.EnqueueGateways(network.DefaultID)
	for _, n := range c.Networks() {
		q.EnqueueGateways(n.ID)
	}
}
