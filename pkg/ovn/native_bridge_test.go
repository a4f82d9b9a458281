// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/test/native"
)

// gatewayNetwork is a network that leaves the node, with its ports that are reached from
// outside it.
type gatewayNetwork struct {
	net   network.Network
	ports []flows.ServicePort
}

// outsideAddr returns the address outside the cluster that only one node reaches.
func outsideAddr(node, family int) netip.Addr {
	return netip.MustParseAddr([]string{fmt.Sprintf("198.51.100.%d", node), fmt.Sprintf("2001:db8::%d", node)}[family])
}

// outside connects the external bridge with the node's host and with its next hop, a
// namespace that has the addresses of outsideAddr, and gives it the flows of the agent.
func (z *zoneUnderTest) outside(nets ...gatewayNetwork) {
	z.t.Helper()
	node := z.node
	outside := []netip.Prefix{netip.MustParsePrefix("172.18.255.254/16"), netip.MustParsePrefix("fc00::ffff/64"), single(outsideAddr(node.ID, 0)), single(outsideAddr(node.ID, 1))}
	if err := z.ConnectOutside(node, namespace(z.t, z.Name+"outside"), outside...); err != nil {
		z.t.Fatal(err)
	}
	for f, masquerade := range testPlan(true).Masquerade {
		mustRun(z.t, "ip", "-n", z.NS, "route", "add", masquerade.String(), "via", node.NextHops[f].String(), "dev", node.Bridge)
	}
	mustRun(z.t, "ip", "netns", "exec", z.NS, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=2")
	converge(z.t, z.nb, testDefault(true), node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet"})
	z.bridgeFlows(append(nets, gatewayNetwork{net: testDefault(true)})...)
}

// bridgeFlows replaces the external bridge's flows by those of these networks.
func (z *zoneUnderTest) bridgeFlows(nets ...gatewayNetwork) {
	z.t.Helper()
	z.isolatedFlows(false, nets...)
}

// isolatedFlows is bridgeFlows with a mode of isolation between advertised networks.
func (z *zoneUnderTest) isolatedFlows(loose bool, nets ...gatewayNetwork) {
	z.t.Helper()
	p := testPlan(true)
	in := flows.Inputs{Loose: loose, Addresses: z.node.Addresses, Links: z.node.Links(), Reserved: z.node.Reserved(), MAC: z.node.BridgeMAC, Masquerade: p.Masquerade, Services: p.ServiceCIDRs,
		Pods: network.Network{Subnets: p.ClusterSubnets}.CIDRs(), Mode: z.node.Mode}
	bridge := flows.Bridge{Name: z.node.Bridge, Uplinks: []int{z.ofport(native.OutsideLink)}, Router: z.ofport(network.UplinkPatch(z.node.Bridge, z.node.Name))}
	want, err := flows.Build(bridge, in, flows.Hosts{})
	if err != nil {
		z.t.Fatal(err)
	}
	for _, n := range nets {
		g := flows.Gateway{Network: n.net.ID, Port: z.ofport(n.net.ExternalPatch(z.node.Bridge, z.node.Name)), Mark: n.net.ConntrackMark(), Ports: n.ports}
		for _, a := range p.MasqueradeGateway(n.net) {
			g.Addresses = append(g.Addresses, a.Addr())
		}
		if n.net.Announced() {
			g.Advertised, g.Pods = n.net.CIDRs(), must(n.net.HostSubnets(z.node.ID))(z.t)
		}
		want = append(want, flows.BuildNetwork(bridge, in, g)...)
	}
	if _, err := flows.Sync(context.Background(), z.OFCtl(), z.node.Bridge, want); err != nil {
		z.t.Fatal(err)
	}
	if ops, err := flows.Sync(context.Background(), z.OFCtl(), z.node.Bridge, want); err != nil || len(ops) > 0 {
		z.t.Fatalf("second run: %v, %v", ops, err)
	}
}

// ofport waits until a port of the external bridge exists and returns its OpenFlow port.
func (z *zoneUnderTest) ofport(name string) (port int) {
	z.t.Helper()
	eventually(z.t, "port "+name, func() (err error) {
		port, err = z.OFPort(name)
		return err
	})
	return port
}

// withGateways gives the first zone two tenants, whose pods have the same addresses, and the
// cluster default network, each with a pod p and a way out.
func withGateways(t *testing.T, zones []*zoneUnderTest) (red, blue, plain network.Network) {
	t.Helper()
	a := zones[0]
	plain = testDefault(true)
	red, blue = testNetwork(1, "red_net", network.Layer3, network.RolePrimary, "dual"), testNetwork(2, "blue_net", network.Layer2, network.RolePrimary, "dual")
	blue.Subnets[0].CIDR = netip.MustParsePrefix("10.20.0.0/24")
	redPods := [2][]PodPort{{nativePod(red, a, "p", 3)}, {}}
	bluePods := [2][]PodPort{{nativePod(blue, a, "p", 3)}, {}}
	plainPods := [2][]PodPort{{testPod(plain, a.node, network.DefaultName, "plain", "p", 3, false)}, {}}
	connect(t, zones, nil, nativeNetwork{red, redPods}, nativeNetwork{blue, bluePods}, nativeNetwork{plain, plainPods})
	a.outside(gatewayNetwork{net: red}, gatewayNetwork{net: blue})
	converge(t, a.nb, plain, a.node, nativeNetwork{plain, plainPods}.inputs(zones, 0))
	return red, blue, plain
}

// TestNativeGateways: two tenants with the same addresses and the cluster default network
// use the node's address for their connections to the outside and to the node, at once and
// with the same ports, and each gets its own answers.
func TestNativeGateways(t *testing.T) {
	t.Parallel()
	r, zones := nativeZones(t)
	a := zones[0]
	red, _, _ := withGateways(t, zones)

	outside := a.podNamespace("", "outside")
	serve(t, outside, 9090, "outside")
	serve(t, a.NS, 9090, "node")
	pods := []string{a.podNamespace("red", "p"), a.podNamespace("blue", "p"), a.podNamespace("plain", "p")}
	for f := range 2 {
		for _, ns := range pods {
			checkReach(t, r, []reach{{"the outside", ns, outsideAddr(1, f)}, {"the node", ns, a.node.Addresses[f].Addr()}}, nil)
			for _, protocol := range []string{"tcp", "udp"} {
				// A UDP server answers with its address on the link.
				for want, to := range map[string]netip.Addr{"outside": a.node.NextHops[f], "node": a.node.Addresses[f].Addr()} {
					eventually(t, ns+" to "+want, func() error {
						server, seen, err := ask(ns, protocol, netip.AddrPortFrom(to, 9090))
						if err != nil || server != want || want == "outside" && seen != a.node.Addresses[f].Addr().String() {
							return fmt.Errorf("%s: %q answers and sees %s: %w", protocol, server, seen, err)
						}
						return nil
					})
				}
			}
		}
		checkSamePorts(t, outside, pods, netip.AddrPortFrom(a.node.NextHops[f], 9091))
		checkSamePorts(t, a.NS, pods, netip.AddrPortFrom(a.node.Addresses[f].Addr(), 9091))
		// The pods' own addresses and the routers' mean nothing outside.
		for _, to := range []netip.Addr{nativePod(red, a, "p", 3).IPs[f].Addr(), testPlan(true).MasqueradeGateway(red)[f].Addr()} {
			mustRun(t, "ip", "-n", outside, "route", "replace", to.String(), "via", a.node.Addresses[f].Addr().String())
			checkReach(t, r, nil, []reach{{"from outside", outside, to}})
		}
	}
}

// checkSamePorts sends datagrams from one port of all pods to a server, and checks that each
// pod gets the answer to its own.
func checkSamePorts(t *testing.T, server string, pods []string, to netip.AddrPort) {
	t.Helper()
	const from = 40000
	echo(t, server, to)
	for round := range 3 {
		errs := make(chan error, len(pods))
		for i, ns := range pods {
			go func() {
				question := fmt.Sprintf("%d of round %d", i, round)
				answer, err := exchange(ns, from, to, question)
				if err == nil && answer != question {
					err = fmt.Errorf("%s asks %q and gets the answer to %q", ns, question, answer)
				}
				errs <- err
			}()
		}
		for range pods {
			if err := <-errs; err != nil {
				t.Errorf("from port %d to %s: %v", from, to, err)
			}
		}
	}
}

// TestNativeLocalGatewayNode: in local gateway mode pods reach their node's own servers through the gateway
// router, and each gets its own answers.
func TestNativeLocalGatewayNode(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a := zones[0]
	a.node.Mode = network.LocalGateway
	red, blue, plain := withGateways(t, zones)

	serve(t, a.NS, 9090, "node")
	pods := map[string]network.Network{a.podNamespace("red", "p"): red, a.podNamespace("blue", "p"): blue, a.podNamespace("plain", "p"): plain}
	for f := range 2 {
		for ns, n := range pods {
			for _, protocol := range []string{"tcp", "udp"} {
				eventually(t, ns+" to the node", func() error {
					server, seen, err := ask(ns, protocol, netip.AddrPortFrom(a.node.Addresses[f].Addr(), 9090))
					if err != nil || server != "node" || seen != testPlan(true).MasqueradeGateway(n)[f].Addr().String() {
						return fmt.Errorf("%s: %q answers and sees %s: %w", protocol, server, seen, err)
					}
					return nil
				})
			}
		}
		checkSamePorts(t, a.NS, slices.Collect(maps.Keys(pods)), netip.AddrPortFrom(a.node.Addresses[f].Addr(), 9091))
	}
}

// TestNativeHostPorts: what the node sends to a gateway router for a pod's host port reaches
// the pod, on both topologies and both IP families, and no other port does.
func TestNativeHostPorts(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a := zones[0]
	red, blue, plain := withGateways(t, zones)
	shared := mapAddrs(testPlan(true).MasqueradeFixed(network.MasqueradeLoopback))
	var nets []gatewayNetwork
	for i, n := range []network.Network{red, blue} {
		pod := nativePod(n, a, "p", 3)
		pod.HostPorts = []network.HostPort{
			{Protocol: "tcp", Port: 8080, PodPort: 9095}, {Protocol: "udp", Port: 8080, PodPort: 9095},
			{Protocol: "tcp", Port: uint16(8081 + i), PodPort: 9095, Host: netip.MustParseAddr("127.0.0.1")},
			{Protocol: "tcp", Port: uint16(8081 + i), PodPort: 9095, Host: netip.IPv6Loopback()},
		}
		converge(t, a.nb, n, a.node, nativeNetwork{n, [2][]PodPort{{pod}, {}}}.inputs(zones, 0))
		g := gatewayNetwork{net: n}
		for _, at := range shared {
			g.ports = append(g.ports, flows.ServicePort{Addr: at, Protocol: "tcp", Port: uint16(8081 + i), HostPort: true})
		}
		nets = append(nets, g)
		name := strings.TrimSuffix(n.Name, "_net")
		serve(t, a.podNamespace(name, "p"), 9095, name)
	}
	a.bridgeFlows(append(nets, gatewayNetwork{net: plain})...)
	var denied sync.WaitGroup
	for i, n := range nets {
		want := strings.TrimSuffix(n.net.Name, "_net")
		for f := range 2 {
			router := mapAddrs(testPlan(true).MasqueradeGateway(n.net))[f]
			for _, c := range []struct {
				protocol string
				to       netip.AddrPort
			}{{"tcp", netip.AddrPortFrom(router, 8080)}, {"udp", netip.AddrPortFrom(router, 8080)}, {"tcp", netip.AddrPortFrom(shared[f], uint16(8081+i))}} {
				eventually(t, c.protocol+" to "+c.to.String(), func() error {
					server, _, err := ask(a.NS, c.protocol, c.to)
					if err != nil || server != want {
						return fmt.Errorf("%q answers, want %s: %w", server, want, err)
					}
					return nil
				})
			}
			deny := func(from string, to netip.AddrPort) {
				denied.Go(func() { // each waits until it gives up
					if server, _, err := ask(from, "tcp", to); err == nil {
						t.Errorf("%s to %s is answered by %q", from, to, server)
					}
				})
			}
			for _, to := range []netip.AddrPort{netip.AddrPortFrom(router, 9095), netip.AddrPortFrom(shared[f], 8080), netip.AddrPortFrom(shared[f], 8083)} {
				deny(a.NS, to)
			}
			// What the node sends there, pods of other networks cannot send there themselves.
			for _, other := range []string{nets[1-i].net.Name, "plain_net"} {
				from := a.podNamespace(strings.TrimSuffix(other, "_net"), "p")
				deny(from, netip.AddrPortFrom(router, 8080))
				deny(from, netip.AddrPortFrom(shared[f], uint16(8081+i)))
			}
		}
	}
	denied.Wait()
	// The same, judged by what arrives at red's pod.
	p := newProbes(t)
	p.listen("red", a.podNamespace("red", "p"))
	control := map[arrival]bool{}
	for f, router := range mapAddrs(testPlan(true).MasqueradeGateway(red)) {
		to := netip.AddrPortFrom(router, 8080)
		own := fmt.Sprintf("node %d", f)
		p.send(own, a.NS, to, true)
		control[arrival{own, "red"}] = true
		for _, other := range []string{"blue", "plain"} {
			p.send(fmt.Sprintf("%s %d", other, f), a.podNamespace(other, "p"), to, true)
		}
	}
	p.arrive("the node's datagrams to red's host port arrive", control)
	seen := p.snapshot()
	p.rounds(20)
	p.arrive("they still arrive", control)
	p.only("host ports", seen, control)
}

func mapAddrs(ps []netip.Prefix) (out []netip.Addr) {
	for _, p := range ps {
		out = append(out, p.Addr())
	}
	return out
}
