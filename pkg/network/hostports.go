// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"
)

// HostPort is a port of a pod that its node has, too (containers[].ports[].hostPort).
type HostPort struct {
	Protocol string     // tcp, udp or sctp
	Host     netip.Addr // the only address of the node that has it; invalid: all
	Port     uint16     // of the node
	PodPort  uint16     // of the pod
}

// loopback are the loopback addresses that host ports are reached at.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// HostPortRoute leads from an address of the node to a network's gateway router.
type HostPortRoute struct {
	At netip.Addr // of the node
	To netip.Addr // the masquerade address at which the router's load balancer has the port
}

// Routes returns, for each address of the node, the masquerade address at which the gateway router's load balancer has the port
// of a pod on n. node are the node's addresses, with the first of each IP family before the others. A port at loopback alone has a
// masquerade address that all networks share, so that another pod can have the same port at the node's address. A port at
// a second address of the node alone has no routes.
func (p HostPort) Routes(plan Plan, n Network, node []netip.Prefix) (out []HostPortRoute) {
	v4, v6 := n.Families()
	add := func(at []netip.Addr, to []netip.Prefix) {
		to = FilterFamilies(to, v4, v6)
		for _, a := range at {
			if router, ok := FirstOfFamily(to, a); ok {
				out = append(out, HostPortRoute{At: a, To: router.Addr()})
			}
		}
	}
	var own []netip.Addr
	for _, a := range node {
		own = append(own, a.Addr())
	}
	switch {
	case !p.Host.IsValid():
		add(slices.Concat(own, loopback), plan.MasqueradeGateway(n))
	case p.Host.IsUnspecified():
		same := func(a netip.Addr) bool { return a.Is4() != p.Host.Is4() }
		add(slices.DeleteFunc(slices.Concat(own, loopback), same), plan.MasqueradeGateway(n))
	case slices.Contains(loopback, p.Host):
		add([]netip.Addr{p.Host}, plan.MasqueradeFixed(MasqueradeLoopback))
	default:
		if first, ok := FirstOfFamily(node, p.Host); ok && first.Addr() == p.Host {
			add([]netip.Addr{p.Host}, plan.MasqueradeGateway(n))
		}
	}
	return out
}
