// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// goldenCase is a network on node 1 of three, with a pod on nodes 1 and 2.
type goldenCase struct {
	name string
	net  network.Network
	mode network.GatewayMode
	edit func(*network.Node, *Inputs)
}

func TestTopologiesGolden(t *testing.T) {
	for _, c := range slices.Concat(topologyCases(), advertisedCases(), serviceCases()) {
		t.Run(c.name, func(t *testing.T) {
			node := testNode(1, "node1", c.mode)
			in := goldenInputs(c.net, node, c.mode)
			if c.edit != nil {
				c.edit(&node, &in)
			}
			state, err := Build(c.net, node, in)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, c.name, state)
		})
	}
}

func goldenInputs(n network.Network, node network.Node, mode network.GatewayMode) Inputs {
	peers := []network.Node{testNode(2, "node2", mode), testNode(3, "node3", mode)}
	in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Peers: peers,
		Pods: []PodPort{testPod(n, node, "blue/net", "blue", "p", 3, false)}}
	if n.Topology == network.Layer2 {
		in.RemotePods = []RemotePod{testRemotePod(n, peers[0], "blue/net", "blue", "q", 4)}
	}
	return in
}

func topologyCases() []goldenCase {
	shared, local := network.SharedGateway, network.LocalGateway
	build := func(topology network.Topology, role network.Role, families string) network.Network {
		return testNetwork(7, "blue_net", topology, role, families)
	}
	with := func(n network.Network, edit func(*network.Network)) network.Network { edit(&n); return n }
	var out []goldenCase
	for _, k := range []struct {
		topology network.Topology
		role     network.Role
	}{{network.Layer3, network.RolePrimary}, {network.Layer3, network.RoleSecondary}, {network.Layer2, network.RolePrimary},
		{network.Layer2, network.RoleSecondary}, {network.Localnet, network.RoleSecondary}} {
		for _, families := range []string{"ipv4", "ipv6", "dual"} {
			out = append(out, goldenCase{name: string(k.topology) + "-" + string(k.role) + "-" + families, net: build(k.topology, k.role, families), mode: shared})
		}
	}
	// The second node of an IP family has its host subnet in the appended CIDR.
	appended := func(n *network.Network) {
		n.Subnets = []network.Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/24"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd20::/48"), HostLen: 64},
			{CIDR: netip.MustParsePrefix("10.21.0.0/16"), HostLen: 24}}
	}
	second := func(_ *network.Node, in *Inputs) {
		again := in.Pods[0]
		again.NADKey, again.MAC = "blue/net/1", "0a:58:00:00:00:01"
		again.IPs = nil
		for _, ip := range in.Pods[0].IPs {
			again.IPs = append(again.IPs, netip.PrefixFrom(ip.Addr().Next(), ip.Bits()))
		}
		in.Pods = append(in.Pods, again)
	}
	return append(out,
		goldenCase{name: "layer3-primary-dual-appended", net: with(build(network.Layer3, network.RolePrimary, "dual"), appended), mode: shared},
		goldenCase{name: "layer3-secondary-dual-appended", net: with(build(network.Layer3, network.RoleSecondary, "dual"), appended), mode: shared},
		goldenCase{name: "layer3-secondary-ipv4-attached-twice", net: build(network.Layer3, network.RoleSecondary, "ipv4"), mode: shared, edit: second},
		goldenCase{name: "layer2-primary-dual-local", net: build(network.Layer2, network.RolePrimary, "dual"), mode: local},
		goldenCase{name: "layer2-primary-ipv4-gateway-ip", mode: shared, net: with(build(network.Layer2, network.RolePrimary, "ipv4"), func(n *network.Network) {
			n.DefaultGatewayIPs = []netip.Addr{netip.MustParseAddr("10.20.0.2")}
		})},
		goldenCase{name: "layer2-primary-ipv4-no-bridge", net: build(network.Layer2, network.RolePrimary, "ipv4"), mode: shared,
			edit: func(node *network.Node, _ *Inputs) { node.BridgeMAC = "" }},
		goldenCase{name: "layer2-primary-ipv4-migration", net: build(network.Layer2, network.RolePrimary, "ipv4"), mode: shared, edit: func(_ *network.Node, in *Inputs) {
			in.Pods[0].MAC, in.RemotePods[0].MAC = "0a:58:00:00:00:01", "0a:58:00:00:00:01"
			in.RemotePods[0].IPs, in.Pods[0].Disabled = in.Pods[0].IPs, true
		}},
		goldenCase{name: "layer2-primary-dual-virtual-machine", net: build(network.Layer2, network.RolePrimary, "dual"), mode: shared, edit: func(_ *network.Node, in *Inputs) {
			in.Pods[0].VirtualMachine = "web"
			in.Exposed = []ExposedService{
				{Namespace: "default", Name: "kubernetes", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}},
				{Namespace: "kube-system", Name: "kube-dns", DNS: true, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd10:96::a")}},
			}
		}},
		goldenCase{name: "layer2-secondary-no-subnets", net: build(network.Layer2, network.RoleSecondary, ""), mode: shared},
		goldenCase{name: "localnet-secondary-no-subnets", net: build(network.Localnet, network.RoleSecondary, ""), mode: shared},
		goldenCase{name: "localnet-secondary-ipv4-vlan", net: with(build(network.Localnet, network.RoleSecondary, "ipv4"), func(n *network.Network) { n.VLAN = 20 }), mode: shared},
	)
}

// advertisedCases are the advertised networks and those without an overlay.
func advertisedCases() []goldenCase {
	shared, local := network.SharedGateway, network.LocalGateway
	var out []goldenCase
	advertise := func(loose bool) func(*network.Node, *Inputs) {
		return func(_ *network.Node, in *Inputs) {
			in.BGP.Loose = loose
			in.ImportedRoutes = []ImportedRoute{
				{Prefix: netip.MustParsePrefix("203.0.113.0/24"), NextHops: []netip.Addr{netip.MustParseAddr("172.18.0.9"), netip.MustParseAddr("172.18.0.8")}},
				{Prefix: netip.MustParsePrefix("2001:db8:9::/48"), NextHops: []netip.Addr{netip.MustParseAddr("fc00::9")}},
				{Prefix: netip.MustParsePrefix("10.20.1.0/24"), NextHops: []netip.Addr{netip.MustParseAddr("172.18.0.2")}},
				{Prefix: netip.MustParsePrefix("fd20:0:0:1::/64"), NextHops: []netip.Addr{netip.MustParseAddr("fc00::2")}},
				{Prefix: netip.MustParsePrefix("0.0.0.0/0"), NextHops: []netip.Addr{netip.MustParseAddr("172.18.255.254"), netip.MustParseAddr("172.18.0.9")}},
			}
		}
	}
	advertised := func(topology network.Topology, families string) network.Network {
		n := testNetwork(7, "blue-net", topology, network.RolePrimary, families)
		n.AdvertisedVRFs = "default"
		return n
	}
	noOverlay := func(families, snat string) network.Network {
		n := testNetwork(7, "blue-net", network.Layer3, network.RolePrimary, families)
		n.Transport, n.OutboundSNAT = network.TransportNoOverlay, snat
		return n
	}
	for _, families := range []string{"ipv4", "ipv6", "dual"} {
		out = append(out,
			goldenCase{name: "layer3-primary-" + families + "-no-overlay-snat", net: noOverlay(families, "enabled"), mode: shared, edit: advertise(false)},
			goldenCase{name: "layer3-primary-" + families + "-advertised-strict", net: advertised(network.Layer3, families), mode: shared,
				edit: advertise(false)})
	}
	defaultNet := testDefault(true)
	defaultNet.Transport, defaultNet.OutboundSNAT = network.TransportNoOverlay, "enabled"
	return append(out,
		goldenCase{name: "layer3-primary-dual-no-overlay-snat-local", net: noOverlay("dual", "enabled"), mode: local, edit: advertise(true)},
		goldenCase{name: "layer3-primary-dual-no-overlay", net: noOverlay("dual", "disabled"), mode: shared, edit: advertise(true)},
		goldenCase{name: "layer3-primary-dual-no-overlay-local", net: noOverlay("dual", "disabled"), mode: local, edit: advertise(true)},
		goldenCase{name: "layer3-primary-dual-advertised-loose-local", net: advertised(network.Layer3, "dual"), mode: local, edit: advertise(true)},
		goldenCase{name: "layer2-primary-dual-advertised-strict", net: advertised(network.Layer2, "dual"), mode: shared, edit: advertise(false)},
		goldenCase{name: "default-dual-no-overlay-snat", net: defaultNet, mode: shared, edit: func(node *network.Node, in *Inputs) {
			advertise(false)(node, in)
			in.BGP.NodeAddresses = []netip.Addr{node.Addresses[0].Addr(), node.Addresses[1].Addr(), netip.MustParseAddr("172.18.0.2")}
			in.BGP.DefaultServices = []netip.Addr{netip.MustParseAddr("10.96.0.1")}
			in.BGP.AdvertisedSubnets = prefixes("10.20.0.0/16", "fd20::/48", "10.244.0.0/16")
			in.BGP.NoOverlaySubnets = prefixes("10.20.0.0/16", "fd20::/48")
		}})
}

// A network without an overlay whose only host subnet is all of it has the route that BGP has learned,
// and not the discard route of the same prefix.
func TestImportedRouteOfWholeSubnet(t *testing.T) {
	whole, part := netip.MustParsePrefix("10.20.0.0/24"), netip.MustParsePrefix("10.30.0.0/16")
	hop := netip.MustParseAddr("172.18.0.2")
	in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", ImportedRoutes: []ImportedRoute{{Prefix: whole, NextHops: []netip.Addr{hop}}}}
	in.BGP.NoOverlaySubnets = []netip.Prefix{whole, part}
	s, err := Build(testDefault(true), testNode(1, "node1", network.SharedGateway), in)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, r := range s {
		if route, ok := r.Model.(*nbdb.LogicalRouterStaticRoute); ok {
			got[route.IPPrefix] = append(got[route.IPPrefix], route.Nexthop)
		}
	}
	if !slices.Equal(got[whole.String()], []string{hop.String()}) || !slices.Equal(got[part.String()], []string{"discard"}) {
		t.Errorf("routes to %s by %q, to %s by %q", whole, got[whole.String()], part, got[part.String()])
	}
}

func compareGolden(t *testing.T, name string, state State) {
	t.Helper()
	got, file := state.Dump(), filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("rows differ from %s (if intended, run with -update):\n%s", file, got)
	}
}

// A change of a Localnet network's mutable settings updates its port in place.
func TestLocalnetChangesInPlace(t *testing.T) {
	node := testNode(1, "node1", network.SharedGateway)
	n := testNetwork(7, "blue_net", network.Localnet, network.RoleSecondary, "ipv4")
	build := func(edit func(*network.Network)) State {
		n := n
		edit(&n)
		s, err := Build(n, node, Inputs{Plan: testPlan(true), Pods: []PodPort{testPod(n, node, "blue/net", "blue", "p", 3, false)}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := build(func(*network.Network) {})
	for _, c := range []struct {
		name string
		edit func(*network.Network)
		want []string
	}{
		{"VLAN", func(n *network.Network) { n.VLAN = 20 }, []string{`update Logical_Switch_Port blue_net_ovn_localnet_port: tag="20" tag_request="20"`}},
		{"physical network", func(n *network.Network) { n.PhysicalNetworkName = "other" },
			[]string{`update Logical_Switch_Port blue_net_ovn_localnet_port: options="network_name=other"`}},
		{"no physical network", func(n *network.Network) { n.PhysicalNetworkName = "" },
			[]string{`update Logical_Switch_Port blue_net_ovn_localnet_port: options="network_name=blue_net"`}},
		{"MTU", func(n *network.Network) { n.MTU = 1300 }, nil},
		{"excluded subnets", func(n *network.Network) { n.ExcludeSubnets = prefixes("10.20.9.0/24") }, nil},
	} {
		after := build(c.edit)
		for _, direction := range []struct{ want, have State }{{after, before}, {before, after}} {
			ops := Diff(direction.want, direction.have)
			if len(ops) != len(c.want) {
				t.Errorf("%s: %v, want %d operations", c.name, ops, len(c.want))
			}
		}
		for i, op := range Diff(after, before) {
			if op.String() != c.want[i] {
				t.Errorf("%s: %s, want %s", c.name, op, c.want[i])
			}
		}
	}
}

// A live migration's source is disabled before its target is enabled.
func TestMigrationDisablesFirst(t *testing.T) {
	node, peer := testNode(1, "node1", network.SharedGateway), testNode(2, "node2", network.SharedGateway)
	n := testNetwork(7, "blue_net", network.Layer2, network.RolePrimary, "ipv4")
	build := func(localEnabled bool) State {
		pod, remote := testPod(n, node, "blue/net", "blue", "p", 3, false), testRemotePod(n, peer, "blue/net", "blue", "q", 4)
		remote.IPs, pod.Disabled, remote.Disabled = pod.IPs, !localEnabled, localEnabled
		s, err := Build(n, node, Inputs{Plan: testPlan(true), Peers: []network.Node{peer}, Pods: []PodPort{pod}, RemotePods: []RemotePod{remote}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, local := range []bool{false, true} {
		ops := Diff(build(local), build(!local))
		first := map[bool]string{true: "blue.net_blue_q", false: "blue.net_blue_p"}[local]
		if len(ops) != 2 || ops[0].Row.ID != first || ops[0].opens() || !ops[1].opens() {
			t.Errorf("operations are %v, want first %s", ops, first)
		}
	}
}

// A pod that moves to this node keeps its port's UUID: its name is the same.
func TestPodMoves(t *testing.T) {
	node, peer := testNode(1, "node1", network.SharedGateway), testNode(2, "node2", network.SharedGateway)
	n := testNetwork(7, "blue_net", network.Layer2, network.RoleSecondary, "ipv4")
	build := func(in Inputs) State {
		in.Plan = testPlan(true)
		s, err := Build(n, node, in)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	here := build(Inputs{Pods: []PodPort{testPod(n, node, "blue/net", "blue", "p", 3, false)}})
	there := build(Inputs{RemotePods: []RemotePod{testRemotePod(n, peer, "blue/net", "blue", "p", 3)}})
	for _, move := range []struct{ want, have State }{{here, there}, {there, here}} {
		if ops := Diff(move.want, move.have); len(ops) != 1 || ops[0].Verb != Update {
			t.Errorf("operations are %v", ops)
		}
	}
}
