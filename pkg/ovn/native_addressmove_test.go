// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"testing"

	"bulkhead/pkg/network"
)

// TestNativeAddressMoves: an external address, and a node port, that move from one service of a network to
// another in one transaction lead to the latter.
func TestNativeAddressMoves(t *testing.T) {
	t.Parallel()
	inServiceLabs(t, network.SharedGateway, func(l *serviceLab, f int) {
		outside := l.zones[0].podNamespace("", "outside")
		node := l.zones[0].node.Addresses[f].Addr()
		web, other := l.service(f, "web"), l.service(f, "other")
		external := web.ExternalIPs[0]
		mustRun(t, "ip", "-n", outside, "route", "replace", external.String(), "via", node.String())
		other.ClusterIPs = []netip.Addr{web.ClusterIPs[0].Next()}
		// Both services have an address and a node port, so that no load balancer is new or goes.
		both := func(s Service, at netip.Addr, nodePort uint16, server int) Service {
			s.ExternalIPs = []netip.Addr{at}
			s.Ports = append([]ServicePort(nil), s.Ports...)
			for i := range s.Ports {
				s.Ports[i].NodePort, s.Ports[i].Endpoints = nodePort, s.Ports[i].Endpoints[server:server+1]
			}
			return s
		}
		unused := external.Next()
		for round := range 2 {
			at := []netip.Addr{external, unused}
			ports := []uint16{30080, 30081}
			w, o := round%2, (round+1)%2
			l.update(both(web, at[w], ports[w], 0), both(other, at[o], ports[o], 1))
			server := []string{"s1", "s2"}[w]
			l.answers("the external address", outside, "tcp", netip.AddrPortFrom(external, 80), server)
			l.answers("the node port", outside, "tcp", netip.AddrPortFrom(node, 30080), server)
			l.answers("the external address, from a pod", l.ns(0, "c1"), "tcp", netip.AddrPortFrom(external, 80), server)
		}
		// The address moves to a load balancer that is new, and from one that goes.
		only := func(s Service) Service {
			s.ExternalIPs = nil
			s.Ports = append([]ServicePort(nil), s.Ports...)
			for i := range s.Ports {
				s.Ports[i].NodePort = 0
			}
			return s
		}
		keep := both(web, unused, 30081, 0)
		l.update(both(web, external, 30080, 0), only(other))
		l.answers("the external address, first", outside, "tcp", netip.AddrPortFrom(external, 80), "s1")
		l.update(keep, both(other, external, 30080, 1))
		l.answers("the external address, at a new load balancer", outside, "tcp", netip.AddrPortFrom(external, 80), "s2")
		l.answers("the node port, at a new load balancer", outside, "tcp", netip.AddrPortFrom(node, 30080), "s2")
		l.update(both(web, external, 30080, 0), only(other))
		l.answers("the external address, from a load balancer that goes", outside, "tcp", netip.AddrPortFrom(external, 80), "s1")
		l.answers("the node port, from a load balancer that goes", outside, "tcp", netip.AddrPortFrom(node, 30080), "s1")
		l.update()
	})
}
