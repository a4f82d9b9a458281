// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net/netip"
	"testing"

	"bulkhead/pkg/network"
)

// TestKernelLocalGateway: what a node forwards in local gateway mode, and with which address.
func TestKernelLocalGateway(t *testing.T) {
	w := newForwarder(t)
	w.in.Mode, w.in.TunnelPort = network.LocalGateway, network.TunnelPort
	w.in.Node = nodeAddresses
	w.in.NodePorts = []NodePort{{"udp", 30080, netip.MustParseAddr("169.254.0.11")}, {"udp", 30080, netip.MustParseAddr("fd69::b")}}
	w.in.LocalPorts = localPorts
	w.reconcile()
	for i, router := range []string{"169.254.0.11", "fd69::b"} {
		f := forwardAddresses[i]
		fromNetwork := sender{ns: w.tenant, from: f.masquerade}
		service, wire := at(f.service, 53), at(f.outside, 53)
		heardFrom := func(what, to string, want string) {
			t.Helper()
			w.answered(f.masquerade, to)
			if got := w.atOutside.sender("question"); got.Addr().Unmap() != netip.MustParseAddr(want) {
				t.Errorf("%s: the client is %s, want %s", what, got, want)
			}
		}
		denied := func(what string, s sender, to string, victim *ear) {
			t.Helper()
			w.expect(what, s, to, victim, false, fromNetwork, wire, w.atOutside)
		}
		heardFrom("a network to the wire", wire, f.node)
		if port := w.atOutside.sender("question").Port(); port < 32768 || port > 60999 {
			t.Errorf("a network to the wire: source port %d", port)
		}
		heardFrom("a network to a service", service, f.masquerade)
		heardFrom("a network to another's node port", at(f.node, 30080), f.node)
		denied("to another port of the service", fromNetwork, at(f.service, 54), w.atOutside)
		denied("to another network's gateway router", fromNetwork, at(router, 30080), w.atOutside)
		denied("to the overlay's port", fromNetwork, at(f.outside, network.TunnelPort), w.atOutside)
		denied("past OVN's router, with the pod's address", sender{ns: w.tenant, from: f.pod}, wire, w.atOutside)
		denied("the same to a node port", sender{ns: w.tenant, from: f.pod}, at(f.node, 30080), w.atOutside)
		denied("a tenant's process to another network's gateway router", sender{ns: w.host, from: f.node, mark: int(network.PacketMark(7))}, at(router, 30080), w.atOutside)
		w.expect("the node's own process", sender{ns: w.host, from: f.node}, at(router, 30080), w.atOutside, true, fromNetwork, wire, w.atOutside)
		// The tenant's side stands for OVN's load balancer.
		client := sender{ns: w.outside, from: f.outside}
		w.expect("external traffic policy Local", client, at(f.node, 30090), w.atTenant, true, fromNetwork, wire, w.atOutside)
		if got := w.atTenant.sender(fmt.Sprintf("text %d", w.number)).Addr().Unmap(); got != netip.MustParseAddr(f.outside) {
			t.Errorf("external traffic policy Local: the client is %s, want %s", got, f.outside)
		}
		denied("the same past the node's translation", client, at(f.masquerade, 30090), w.atTenant)
		denied("from outside to the network's masquerade address", sender{ns: w.outside, from: f.outside}, at(f.masquerade, 55), w.atTenant)
	}
}
