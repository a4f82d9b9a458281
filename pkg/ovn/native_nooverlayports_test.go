// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// TestNativeNoOverlayNodePort: the node port of a service of a network without an overlay leads to pods
// on all nodes, from outside the cluster and, on another node, from another network's pods. Not tested here: a pod that
// asks its own node, which needs the kernel's datapath.
func TestNativeNoOverlayNodePort(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	const port, nodePort = 9090, 30090
	plain := testDefault(true)
	fab := newFabric(t, zones)
	var nets []nativeNetwork
	for i, snat := range []string{"disabled", "enabled"} {
		n := testNetwork(i+1, []string{"blue_net", "red_net"}[i], network.Layer3, network.RolePrimary, "dual")
		n.Subnets[0].CIDR, n.Subnets[1].CIDR = netip.MustParsePrefix(fmt.Sprintf("10.2%d.0.0/16", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd2%d::/48", i+1))
		n.Transport, n.OutboundSNAT, n.AdvertisedVRFs = network.TransportNoOverlay, snat, "default"
		nets = append(nets, nativeNetwork{n, [2][]PodPort{{nativePod(n, zones[0], "a", 3)}, {nativePod(n, zones[1], "b", 3)}}})
	}
	service := func(at int, n nativeNetwork) Service {
		s := Service{Namespace: "x", Name: "web", ClusterIPs: addrs("10.96.0.7", "fd96::7")}
		p := ServicePort{Protocol: "tcp", Port: 80, NodePort: uint16(nodePort + at)}
		for i, z := range zones {
			for _, a := range n.pods[i][0].IPs {
				p.Endpoints = append(p.Endpoints, Endpoint{Addr: netip.AddrPortFrom(a.Addr(), port), Node: z.node.Name})
			}
		}
		s.Ports = []ServicePort{p}
		return s
	}
	for i, z := range zones {
		converge(t, z.nb, plain, z.node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", BGP: fab.bgp(nets[0].net, nets[1].net), ImportedRoutes: fab.imported(i, nets[0].net, nets[1].net)})
		gateways := []gatewayNetwork{{net: plain}}
		for at, n := range nets {
			in := n.inputs(zones, i)
			in.Services = []Service{service(at, n)}
			converge(t, z.nb, n.net, z.node, in)
			z.plugPod(n.net, n.pods[i][0])
			gateways = append(gateways, gatewayNetwork{n.net, []flows.ServicePort{{Protocol: "tcp", Port: uint16(nodePort + at)}}})
		}
		z.bridgeFlows(gateways...)
	}
	pods := map[string]string{}
	for _, n := range nets {
		fab.learn(n.net)
		name := n.net.Name[:len(n.net.Name)-len("_net")]
		for i, pod := range []string{"a", "b"} {
			ns := zones[i].podNamespace(name, pod)
			pods[name+"-"+pod] = ns
			serve(t, ns, port, name+"-"+pod)
		}
	}
	for f := range 2 {
		for at, n := range nets {
			name := n.net.Name[:len(n.net.Name)-len("_net")]
			other := map[string]string{"blue": "red-a", "red": "blue-a"}[name]
			for from, ns := range map[string]string{"outside": fab.router, other: pods[other]} {
				for i, z := range zones {
					if from != "outside" && i == 0 {
						continue
					}
					to := netip.AddrPortFrom(z.node.Addresses[f].Addr(), uint16(nodePort+at))
					seen := map[string]bool{}
					eventually(t, fmt.Sprintf("%s to %s of %s", from, to, name), func() error {
						server, _, err := ask(ns, "tcp", to)
						if err == nil {
							seen[server] = true
						}
						if !seen[name+"-a"] || !seen[name+"-b"] {
							return fmt.Errorf("only %v answer: %w", seen, err)
						}
						return nil
					})
				}
			}
		}
	}
}
