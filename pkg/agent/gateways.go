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

// refusedExternal reports whether this node refuses a service's external address. It refuses addresses that nodes
// publish, as their zones do, and those of the cluster's ranges. An address that the service's author chose must not be on any interface
// of the node: it may be the API server's. A load balancer may give such an address, as kube-vip does.
func (r *nodeReconciler) refusedExternal(n network.Network, p flows.ServicePort) bool {
	return p.Claimed && r.has(p.Addr) || r.Node().HasAddress(p.Addr) || !p.Claimed && r.peers.hasAddress(p.Addr) || r.config.Plan.RefusedExternal(n, p.Addr) != ""
}

// enqueueAllGateways enqueues every network.
func enqueueAllGateways(q *Queue, c *Cache) {
	q.EnqueueGateways(network.DefaultID)
	for _, n := range c.Networks() {
		q.EnqueueGateways(n.ID)
	}
}
