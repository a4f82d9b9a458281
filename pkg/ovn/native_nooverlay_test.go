// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/test/native"
)

// fabric is the link that the nodes share, with a router, which knows each node's pods.
type fabric struct {
	t      *testing.T
	zones  []*zoneUnderTest
	router string // its network namespace
}

// newFabric connects the external bridges of both zones. The link of the overlay is down from
// then on: what arrives has taken no tunnel.
func newFabric(t *testing.T, zones []*zoneUnderTest) *fabric {
	t.Helper()
	f := &fabric{t: t, zones: zones}
	var sides []string
	for _, z := range zones {
		ns := namespace(t, z.Name+"outside")
		if err := z.ConnectOutside(z.node, ns); err != nil {
			t.Fatal(err)
		}
		mustRun(t, "ip", "-n", ns, "link", "add", "lan", "type", "bridge")
		mustRun(t, "ip", "-n", ns, "link", "set", native.OutsideLink, "master", "lan")
		mustRun(t, "ip", "netns", "exec", z.NS, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=2")
		for i, masquerade := range testPlan(true).Masquerade {
			mustRun(t, "ip", "-n", z.NS, "route", "add", masquerade.String(), "via", z.node.NextHops[i].String(), "dev", z.node.Bridge)
		}
		sides = append(sides, ns)
	}
	f.router = namespace(t, zones[0].Name+"router")
	mustRun(t, "ip", "link", "add", "lan", "netns", f.router, "type", "veth", "peer", "name", "router", "netns", sides[0])
	mustRun(t, append([]string{"ip", "netns", "exec", f.router}, zones[0].Tree.Argv("ethtool", "-K", "lan", "tx", "off")...)...)
	mustRun(t, "ip", "-n", sides[0], "link", "set", "router", "master", "lan", "up")
	mustRun(t, "ip", "-n", f.router, "link", "set", "lan", "up")
	mustRun(t, "ip", "link", "add", "trunk", "netns", sides[0], "type", "veth", "peer", "name", "trunk", "netns", sides[1])
	for _, ns := range sides {
		mustRun(t, "ip", "-n", ns, "link", "set", "trunk", "master", "lan", "up")
		mustRun(t, "ip", "-n", ns, "link", "set", "lan", "up")
	}
	for _, a := range []string{"172.18.255.254/16", "fc00::ffff/64", "198.51.100.9/32", "2001:db8::9/128"} {
		mustRun(t, "ip", "-n", f.router, "address", "add", a, "dev", "lan", "nodad")
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		mustRun(t, "ip", "netns", "exec", f.router, "sysctl", "-qw", name+"=1")
	}
	for _, z := range zones {
		for _, hop := range z.node.NextHops {
			mustRun(t, "ip", "-n", z.NS, "route", "add", "default", "via", hop.String(), "dev", z.node.Bridge)
		}
		mustRun(t, "ip", "-n", z.NS, "link", "set", "under", "down")
	}
	return f
}

// learn gives the fabric's router the routes to a network's pods on all nodes.
func (f *fabric) learn(n network.Network) {
	for _, z := range f.zones {
		for i, host := range must(n.HostSubnets(z.node.ID))(f.t) {
			mustRun(f.t, "ip", "-n", f.router, "route", "replace", host.String(), "via", z.node.Addresses[i].Addr().String())
		}
	}
}

// imported returns the routes that zone i has learned to the pods of networks on the other node.
func (f *fabric) imported(i int, nets ...network.Network) []ImportedRoute {
	var out []ImportedRoute
	other := f.zones[1-i].node
	for _, n := range nets {
		for at, host := range must(n.HostSubnets(other.ID))(f.t) {
			out = append(out, ImportedRoute{Prefix: host, NextHops: []netip.Addr{other.Addresses[at].Addr()}})
		}
	}
	return out
}

// bgp returns the inputs of the cluster default network for these networks without an overlay.
func (f *fabric) bgp(nets ...network.Network) (out BGP) {
	for _, n := range nets {
		out.AdvertisedSubnets, out.NoOverlaySubnets = append(out.AdvertisedSubnets, n.CIDRs()...), append(out.NoOverlaySubnets, n.CIDRs()...)
	}
	for _, z := range f.zones {
		for _, p := range z.node.Addresses {
			out.NodeAddresses = append(out.NodeAddresses, p.Addr())
		}
	}
	return out
}

// TestNativeNoOverlayDefault: the cluster default network without an overlay. The nodes
// reach its pods, and its pods the nodes.
func TestNativeNoOverlayDefault(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	plain := testDefault(true)
	plain.Transport, plain.OutboundSNAT = network.TransportNoOverlay, "enabled"
	fab := newFabric(t, zones)
	pod := func(z *zoneUnderTest) PodPort {
		return testPod(plain, z.node, network.DefaultName, "plain", "p", 3, false)
	}
	for i, z := range zones {
		converge(t, z.nb, plain, z.node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", BGP: fab.bgp(plain), ImportedRoutes: fab.imported(i, plain), Pods: []PodPort{pod(z)}})
		z.plugPod(plain, pod(z))
		z.bridgeFlows(gatewayNetwork{net: plain})
		for _, route := range fab.imported(i, plain) { // as FRR does
			mustRun(t, "ip", "-n", z.NS, "route", "add", route.Prefix.String(), "via", route.NextHops[0].String())
		}
		serve(t, z.podNamespace("plain", "p"), 9090, "pod-on-"+z.node.Name)
	}
	fab.learn(plain)
	serve(t, b.NS, 9090, "node2")
	serve(t, fab.router, 9090, "outside")
	from := a.podNamespace("plain", "p")
	type connection struct {
		from string
		to   netip.Addr
		want string
		seen netip.Addr
	}
	check := func(hops string, connections ...connection) {
		t.Helper()
		for _, c := range connections {
			for _, protocol := range []string{"tcp", "udp"} {
				eventually(t, fmt.Sprintf("%s to %s by %s, %s", c.from, c.to, hops, protocol), func() error {
					server, seen, err := ask(c.from, protocol, netip.AddrPortFrom(c.to, 9090))
					if err != nil || server != c.want || seen != c.seen.String() {
						return fmt.Errorf("%q answers and sees %s, want %s and %s: %w", server, seen, c.want, c.seen, err)
					}
					return nil
				})
			}
		}
	}
	for f := range 2 {
		podA, podB, nodeA, nodeB, outside := pod(a).IPs[f].Addr(), pod(b).IPs[f].Addr(), a.node.Addresses[f].Addr(), b.node.Addresses[f].Addr(), a.node.NextHops[f]
		check("addresses", connection{from, podB, "pod-on-node2", podA}, connection{from, nodeB, "node2", nodeA}, connection{from, outside, "outside", nodeA},
			connection{b.NS, podA, "pod-on-node1", nodeB}, connection{fab.router, podA, "pod-on-node1", outside})
	}
	// Unnumbered sessions: the next hop of both IP families' routes is a link-local address.
	for i, z := range zones {
		routes := fab.imported(i, plain)
		for j := range routes {
			hop := network.LinkLocal(zones[1-i].node.BridgeMAC)
			routes[j].NextHops = []netip.Addr{hop}
			mustRun(t, "ip", "-n", z.NS, "route", "replace", routes[j].Prefix.String(), "via", "inet6", hop.String(), "dev", z.node.Bridge)
		}
		converge(t, z.nb, plain, z.node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", BGP: fab.bgp(plain), ImportedRoutes: routes, Pods: []PodPort{pod(z)}})
	}
	for f := range 2 {
		podA, podB, nodeB := pod(a).IPs[f].Addr(), pod(b).IPs[f].Addr(), b.node.Addresses[f].Addr()
		check("link-local addresses", connection{from, podB, "pod-on-node2", podA}, connection{b.NS, podA, "pod-on-node1", nodeB})
	}
}

// TestNativeNoOverlay: pods of networks without an overlay reach each other across nodes by the
// nodes' own link, with their own addresses, while no tunnel works; outside the cluster they have
// these or the node's, as configured; and between networks, and from the nodes, nothing arrives.
func TestNativeNoOverlay(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	noOverlay := func(id int, name, snat string, cidrs ...string) network.Network {
		n := testNetwork(id, name, network.Layer3, network.RolePrimary, "dual")
		for i := range n.Subnets {
			n.Subnets[i].CIDR = netip.MustParsePrefix(cidrs[i])
		}
		n.Transport, n.OutboundSNAT, n.AdvertisedVRFs = network.TransportNoOverlay, snat, "default"
		return n
	}
	blue := noOverlay(1, "blue_net", "disabled", "10.21.0.0/16", "fd21::/48")
	red := noOverlay(2, "red_net", "enabled", "10.22.0.0/16", "fd22::/48")
	// Green is not advertised, and has the addresses of blue.
	green := testNetwork(3, "green_net", network.Layer3, network.RolePrimary, "dual")
	green.Subnets = blue.Subnets
	plain := testDefault(true)
	fab := newFabric(t, zones)
	var nets []nativeNetwork
	for _, n := range []network.Network{blue, red, green} {
		nets = append(nets, nativeNetwork{n, [2][]PodPort{{nativePod(n, a, "a", 3)}, {nativePod(n, b, "b", 3)}}})
	}
	bgp := fab.bgp(blue, red)
	defaults := func(i int, routes []ImportedRoute) {
		in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", BGP: bgp, ImportedRoutes: routes}
		converge(t, zones[i].nb, plain, zones[i].node, in)
	}
	for i := range zones {
		defaults(i, fab.imported(i, blue, red))
	}
	for i, z := range zones {
		for _, n := range nets {
			in := n.inputs(zones, i)
			converge(t, z.nb, n.net, z.node, in)
			z.plugPod(n.net, n.pods[i][0])
		}
		z.bridgeFlows(gatewayNetwork{net: blue}, gatewayNetwork{net: red}, gatewayNetwork{net: green}, gatewayNetwork{net: plain})
	}
	fab.learn(blue)
	fab.learn(red)

	const port = 9090
	serve(t, fab.router, port, "outside")
	serve(t, b.NS, port, "node")
	pods := map[string]string{"blue-a": a.podNamespace("blue", "a"), "blue-b": b.podNamespace("blue", "b"), "red-a": a.podNamespace("red", "a"), "red-b": b.podNamespace("red", "b"), "green-a": a.podNamespace("green", "a")}
	for name, ns := range pods {
		serve(t, ns, port, name)
	}
	address := func(n network.Network, z *zoneUnderTest, name string, f int) netip.Addr {
		return nativePod(n, z, name, 3).IPs[f].Addr()
	}
	for f := range 2 {
		blueA, blueB, redA, redB := address(blue, a, "a", f), address(blue, b, "b", f), address(red, a, "a", f), address(red, b, "b", f)
		node := a.node.Addresses[f].Addr()
		for _, c := range []struct {
			from     string
			to       netip.Addr
			want     string
			seen     netip.Addr
			protocol string
		}{
			{"blue-a", blueB, "blue-b", blueA, "tcp"}, {"blue-b", blueA, "blue-a", blueB, "udp"},
			{"red-a", redB, "red-b", redA, "udp"}, {"red-b", redA, "red-a", redB, "tcp"},
			{"blue-a", a.node.NextHops[f], "outside", blueA, "tcp"}, {"red-a", a.node.NextHops[f], "outside", node, "tcp"}, {"green-a", a.node.NextHops[f], "outside", node, "udp"},
			{"blue-a", b.node.Addresses[f].Addr(), "node", node, "tcp"}, {"red-a", b.node.Addresses[f].Addr(), "node", node, "tcp"},
		} {
			eventually(t, fmt.Sprintf("%s to %s, %s", c.from, c.to, c.protocol), func() error {
				server, seen, err := ask(pods[c.from], c.protocol, netip.AddrPortFrom(c.to, port))
				if err != nil || server != c.want || seen != c.seen.String() {
					return fmt.Errorf("%q answers and sees %s, want %s and %s: %w", server, seen, c.want, c.seen, err)
				}
				return nil
			})
		}
		// Blue's pods are reached from outside, at their own addresses.
		for _, to := range []netip.Addr{blueA, blueB} {
			eventually(t, "outside to "+to.String(), func() error {
				server, seen, err := ask(fab.router, "tcp", netip.AddrPortFrom(to, port))
				if err != nil || seen != a.node.NextHops[f].String() {
					return fmt.Errorf("%q answers and sees %s: %w", server, seen, err)
				}
				return nil
			})
		}
	}
	checkBGPPort(t, a, b, []string{pods["blue-a"], pods["green-a"]})

	// What arrives where, counted by datagrams: of these flows only the controls.
	p := newProbes(t)
	for name, ns := range pods {
		p.listen(name, ns)
	}
	p.listen("outside", fab.router)
	allowed := map[arrival]bool{}
	send := func(from, ns, to string, addr netip.Addr, ok bool) {
		flow := fmt.Sprintf("%s to %s %s", from, to, addr)
		p.send(flow, ns, netip.AddrPortFrom(addr, 9091), true)
		if ok {
			allowed[arrival{flow, to}] = true
		}
	}
	for f := range 2 {
		victims := map[string]netip.Addr{"blue-a": address(blue, a, "a", f), "blue-b": address(blue, b, "b", f), "red-a": address(red, a, "a", f), "red-b": address(red, b, "b", f)}
		for victim, addr := range victims {
			for from, ns := range pods {
				if from != victim && (from != "green-a" || addr.Compare(address(green, a, "a", f)) != 0) {
					send(from, ns, victim, addr, from[:2] == victim[:2])
				}
			}
			send("node", a.NS, victim, addr, false)
			send("outside", fab.router, victim, addr, true)
		}
	}
	p.arrive("what is allowed arrives", allowed)
	seen := p.snapshot()
	p.rounds(20)
	p.arrive("it still arrives", allowed)
	p.only("networks without an overlay", seen, allowed)

	// A withdrawn route: nothing goes to the default gateway instead, which knows the way, and the
	// others go on.
	defaults(0, fab.imported(0, red))
	a.must("ovn-nbctl", "--no-leader-only", "--wait=hv", "--timeout=60", "sync")
	withdrawn := map[arrival]bool{}
	for f := range 2 {
		a := arrival{fmt.Sprintf("blue-a to blue-b %s", address(blue, b, "b", f)), "blue-b"}
		withdrawn[a] = true
		delete(allowed, a)
	}
	eventually(t, "what was sent before has arrived, and Open vSwitch has forgotten the route", func() error {
		seen = p.snapshot()
		p.rounds(3)
		for a, n := range p.since(seen) {
			if withdrawn[a] {
				return fmt.Errorf("%d datagrams arrive of %s", n, a)
			}
		}
		return nil
	})
	seen = p.snapshot()
	p.rounds(20)
	p.arrive("the rest arrives", allowed)
	p.only("a withdrawn route", seen, allowed)
}

// TestNativeNoOverlayLocal: in local gateway mode, what pods and the node's processes of a network without an
// overlay send to pods on other nodes comes out of the management port, with their own addresses. What pods
// send to their own node comes from the gateway router, with its address.
func TestNativeNoOverlayLocal(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	z := zones[0]
	z.node.Mode = network.LocalGateway
	newFabric(t, zones) // for the external bridge's uplink
	serve(t, z.NS, 9090, "node")
	for id, snat := range []string{"disabled", "enabled"} {
		blue := testNetwork(id+1, []string{"blue_net", "red_net"}[id], network.Layer3, network.RolePrimary, "dual")
		blue.Transport, blue.OutboundSNAT, blue.AdvertisedVRFs = network.TransportNoOverlay, snat, "default"
		pod := nativePod(blue, z, "a", 3)
		if id == 0 {
			converge(t, z.nb, testDefault(true), z.node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", BGP: BGP{NodeAddresses: []netip.Addr{z.node.Addresses[0].Addr(), z.node.Addresses[1].Addr()}, AdvertisedSubnets: blue.CIDRs(), NoOverlaySubnets: blue.CIDRs()}})
		}
		converge(t, z.nb, blue, z.node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Pods: []PodPort{pod}})
		z.plugPod(blue, pod)
		own := mapPrefixes(must(blue.HostSubnets(z.node.ID))(t), blue.ManagementIn)
		mgmt, link := namespace(t, z.Name+"m"+snat), fmt.Sprintf("mgmt%d", blue.ID)
		z.plug(blue.ManagementLSP(z.node.Name), "", mgmt, link, network.MACOf(own), own)
		serve(t, mgmt, 9090, "returned")
		for f, remote := range mapPrefixes(must(blue.HostSubnets(zones[1].node.ID))(t), blue.ManagementIn) {
			to, via := remote.Addr().Next(), blue.GatewayIn(own[f]).Addr().String()
			// The namespace has the address of the other node's pod for what arrives, and not for what it sends.
			args := []string{"ip", "-n", mgmt, "address", "add", single(to).String(), "dev", "lo"}
			if f == 1 {
				args = append(args, "nodad")
			}
			mustRun(t, args...)
			sendBeyond(t, mgmt, link, to)
			mustRun(t, "ip", "-n", mgmt, "route", "add", to.String(), "via", via, "dev", link, "src", own[f].Addr().String(), "table", "200")
			for from, seen := range map[string]netip.Addr{mgmt: own[f].Addr(), z.podNamespace(pod.Namespace, pod.Pod): pod.IPs[f].Addr()} {
				eventually(t, fmt.Sprintf("%s to %s", from, to), func() error {
					server, client, err := ask(from, "tcp", netip.AddrPortFrom(to, 9090))
					if err != nil || server != "returned" || client != seen.String() {
						return fmt.Errorf("%q answers and sees %s, want %s: %w", server, client, seen, err)
					}
					return nil
				})
			}
		}
		z.bridgeFlows(gatewayNetwork{net: blue})
		for f, router := range testPlan(true).MasqueradeGateway(blue) {
			from, to := z.podNamespace(pod.Namespace, pod.Pod), netip.AddrPortFrom(z.node.Addresses[f].Addr(), 9090)
			eventually(t, fmt.Sprintf("SNAT %s: a pod to its node at %s", snat, to), func() error {
				server, client, err := ask(from, "tcp", to)
				if err != nil || server != "node" || client != router.Addr().String() {
					return fmt.Errorf("%q answers and sees %s, want the node and %s: %w", server, client, router, err)
				}
				return nil
			})
		}
	}
}

// checkBGPPort has pods connect to the port of BGP of another node, to which they have their own
// node's address, that of a peer. Only the node itself is accepted there.
func checkBGPPort(t *testing.T, from, to *zoneUnderTest, pods []string) {
	t.Helper()
	accepted := make(chan string, 100)
	for f, own := range to.node.Addresses {
		at := netip.AddrPortFrom(own.Addr(), 179)
		var l net.Listener
		if err := openSockets(to.NS, func() (err error) {
			l, err = net.Listen("tcp", at.String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()
				_ = c.Close()
			}
		}()
		connect := func(ns string) error {
			return native.InNamespace(ns, func() error {
				c, err := (&net.Dialer{Timeout: 2 * time.Second}).Dial("tcp", at.String())
				if err == nil {
					_ = c.Close()
				}
				return err
			})
		}
		for _, ns := range pods {
			if err := connect(ns); err == nil {
				t.Errorf("%s connects to %s", ns, at)
			}
		}
		eventually(t, "the node to "+at.String(), func() error { return connect(from.NS) })
		if peer, want := <-accepted, from.node.Addresses[f].Addr().String(); peer != want || len(accepted) > 0 {
			t.Errorf("%s accepted a connection from %s and %d more, want one from %s", at, peer, len(accepted), want)
		}
	}
}

// TestNativeAdvertisedPods: pods of networks with an overlay that are advertised, Layer 3 and
// Layer 2, keep their addresses outside, are reached there, and reach nodes with the node's
// address; those of a network with the same addresses that is not advertised are not reached.
func TestNativeAdvertisedPods(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	fab := newFabric(t, zones)
	red := testNetwork(1, "red_net", network.Layer3, network.RolePrimary, "dual")
	blue := testNetwork(2, "blue_net", network.Layer2, network.RolePrimary, "dual")
	blue.Subnets[0].CIDR, blue.Subnets[1].CIDR = netip.MustParsePrefix("10.23.0.0/24"), netip.MustParsePrefix("fd23::/64")
	red.AdvertisedVRFs, blue.AdvertisedVRFs = "default", "default"
	green := testNetwork(3, "green_net", network.Layer3, network.RolePrimary, "dual")
	plain := testDefault(true)
	bgp := fab.bgp()
	bgp.AdvertisedSubnets = append(red.CIDRs(), blue.CIDRs()...)
	for _, z := range zones {
		converge(t, z.nb, plain, z.node, Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", BGP: bgp})
	}
	b.bridgeFlows(gatewayNetwork{net: plain})
	advertised := map[string]network.Network{"red": red, "blue": blue}
	for _, n := range []network.Network{red, blue, green} {
		net := nativeNetwork{n, [2][]PodPort{{nativePod(n, a, "p", 3)}, {}}}
		converge(t, a.nb, n, a.node, net.inputs(zones, 0))
		a.plugPod(n, net.pods[0][0])
	}
	a.bridgeFlows(gatewayNetwork{net: red}, gatewayNetwork{net: blue}, gatewayNetwork{net: green}, gatewayNetwork{net: plain})
	serve(t, fab.router, 9090, "outside")
	serve(t, b.NS, 9090, "node2")
	serve(t, a.podNamespace("green", "p"), 9090, "green")
	for name, n := range advertised {
		serve(t, a.podNamespace(name, "p"), 9090, name)
		for i, host := range must(n.HostSubnets(a.node.ID))(t) {
			mustRun(t, "ip", "-n", fab.router, "route", "add", host.Masked().String(), "via", a.node.Addresses[i].Addr().String())
		}
	}
	for name, n := range advertised {
		from := a.podNamespace(name, "p")
		for f := range 2 {
			pod, outside := nativePod(n, a, "p", 3).IPs[f].Addr(), a.node.NextHops[f]
			for _, c := range []struct {
				from string
				to   netip.Addr
				want string
				seen netip.Addr
			}{
				{from, outside, "outside", pod}, {fab.router, pod, name, outside}, {from, b.node.Addresses[f].Addr(), "node2", a.node.Addresses[f].Addr()},
			} {
				for _, protocol := range []string{"tcp", "udp"} {
					eventually(t, fmt.Sprintf("%s: %s to %s, %s", name, c.from, c.to, protocol), func() error {
						server, seen, err := ask(c.from, protocol, netip.AddrPortFrom(c.to, 9090))
						if err != nil || server != c.want || seen != c.seen.String() {
							return fmt.Errorf("%q answers and sees %s, want %s and %s: %w", server, seen, c.want, c.seen, err)
						}
						return nil
					})
				}
			}
		}
	}
}
