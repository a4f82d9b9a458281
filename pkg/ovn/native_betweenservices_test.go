// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// TestNativeLocalPolicyBetweenNetworks: in shared gateway mode, pods of other networks on the same
// node reach services with external traffic policy Local. The endpoints see the addresses of these pods'
// gateway routers, to which they send answers alone.
func TestNativeLocalPolicyBetweenNetworks(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a := zones[0]
	red, blue, plain := withGateways(t, zones)
	server := nativePod(red, a, "p", 3)
	serve(t, a.podNamespace("red", "p"), 8080, "red")
	echoLines(t, a.podNamespace("red", "p"), 8081, "red")
	const unused = 81 // an endpoint's port that no server uses
	outside := a.podNamespace("", "outside")
	external := map[int]netip.Addr{0: netip.MustParseAddr("203.0.113.7"), 1: netip.MustParseAddr("2001:db8:7::7")}
	var services []Service
	var ports []flows.ServicePort
	for f := range 2 {
		e := []Endpoint{{Addr: netip.AddrPortFrom(server.IPs[f].Addr(), 8080), Node: a.node.Name}}
		s := Service{Namespace: "red", Name: fmt.Sprint("web", f), ExternalIPs: []netip.Addr{external[f]}, ExternalLocal: true}
		for _, protocol := range []string{"tcp", "udp"} {
			s.Ports = append(s.Ports, ServicePort{Protocol: protocol, Port: 80, NodePort: uint16(30080 + f), Endpoints: e})
			ports = append(ports, flows.ServicePort{Protocol: protocol, Port: uint16(30080 + f), Local: true},
				flows.ServicePort{Protocol: protocol, Port: 80, Addr: external[f], Local: true})
		}
		s.Ports = append(s.Ports, ServicePort{Protocol: "udp", Port: unused, NodePort: uint16(30090 + f), Endpoints: []Endpoint{{Addr: netip.AddrPortFrom(server.IPs[f].Addr(), unused), Node: a.node.Name}}})
		s.Ports = append(s.Ports, ServicePort{Protocol: "tcp", Port: 82, NodePort: uint16(30082 + f), Endpoints: []Endpoint{{Addr: netip.AddrPortFrom(server.IPs[f].Addr(), 8081), Node: a.node.Name}}})
		ports = append(ports, flows.ServicePort{Protocol: "tcp", Port: uint16(30082 + f), Local: true})
		services = append(services, s)
	}
	in := nativeNetwork{red, [2][]PodPort{{server}, {}}}.inputs(zones, 0)
	in.Services = services
	converge(t, a.nb, red, a.node, in)
	a.bridgeFlows(gatewayNetwork{red, ports}, gatewayNetwork{net: blue}, gatewayNetwork{net: plain})
	for f := range 2 {
		for ns, n := range map[string]network.Network{a.podNamespace("blue", "p"): blue, a.podNamespace("plain", "p"): plain} {
			sees := testPlan(true).MasqueradeGateway(n)[f].Addr()
			for _, to := range []netip.AddrPort{netip.AddrPortFrom(a.node.Addresses[f].Addr(), uint16(30080+f)), netip.AddrPortFrom(external[f], 80)} {
				for _, protocol := range []string{"tcp", "udp"} {
					eventually(t, fmt.Sprintf("%s to %s, %s", ns, to, protocol), func() error {
						who, seen, err := ask(ns, protocol, to)
						if err != nil || who != "red" || seen != sees.String() {
							return fmt.Errorf("%q answers and sees %s, want %s: %w", who, seen, sees, err)
						}
						return nil
					})
				}
			}
		}
		// The endpoints' ports alone may send there, and the external bridge drops what answers nobody.
		masquerade := netip.MustParseAddr([]string{"169.254.0.77", "fd69::77"}[f])
		args := []string{"ip", "-n", outside, "addr", "add", single(masquerade).String(), "dev", "lo"}
		if f == 1 {
			args = append(args, "nodad")
		}
		mustRun(t, args...)
		for _, from := range []int{unused, unused + 1} {
			for to, want := range map[netip.Addr]bool{a.node.NextHops[f]: true, masquerade: false} {
				at := netip.AddrPortFrom(to, uint16(9000+from))
				echo(t, outside, at)
				if answer, err := exchange(a.podNamespace("red", "p"), from, at, "question"); (err == nil && answer == "question") != want {
					t.Errorf("from port %d to %s: answer %q, want one: %t: %v", from, at, answer, want, err)
				}
			}
		}
	}
	// Connections go on when the endpoint terminates, and when it serves no more.
	var open []*conversation
	for f := range 2 {
		for _, from := range []string{"blue", "plain"} {
			c := serviceClient{fmt.Sprintf("%s's pod to red's node port, %d", from, f), a.podNamespace(from, "p"), netip.AddrPortFrom(a.node.Addresses[f].Addr(), uint16(30082+f))}
			open = append(open, converse(t, c, "red"))
		}
	}
	for _, state := range []EndpointState{EndpointTerminating, EndpointNotServing} {
		for _, s := range in.Services {
			for _, p := range s.Ports {
				p.Endpoints[0].State = state
			}
		}
		converge(t, a.nb, red, a.node, in)
		a.sync()
		for _, c := range open {
			if err := c.ask("red", 10*time.Second); err != nil {
				t.Errorf("the endpoint's state is %d: %v", state, err)
			}
		}
	}
}
