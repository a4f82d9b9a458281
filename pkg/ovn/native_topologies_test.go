// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/test/native"
)

// nativeNetwork is a network in both zones with its pods.
type nativeNetwork struct {
	net  network.Network
	pods [2][]PodPort // by zone
}

// nativeZones starts two zones, or skips the test.
func nativeZones(t *testing.T) (native.Tree, []*zoneUnderTest) {
	t.Helper()
	r := debianTree(t)
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	a, b := startZones(t, r)
	t.Cleanup(func() {
		for _, z := range []*zoneUnderTest{a, b} {
			for _, w := range z.warnings() {
				t.Errorf("%s: %s", z.Name, w)
			}
		}
	})
	return r, []*zoneUnderTest{a, b}
}

// inputs returns the inputs of the network in zone i.
func (n nativeNetwork) inputs(zones []*zoneUnderTest, i int) Inputs {
	other := zones[1-i].node
	in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Peers: []network.Node{other}, Pods: n.pods[i]}
	if n.net.Topology == network.Layer2 {
		for _, p := range n.pods[1-i] {
			in.RemotePods = append(in.RemotePods, RemotePod{NADKey: p.NADKey, Namespace: p.Namespace, Pod: p.Pod,
				Node: other.Name, Chassis: other.Chassis, MAC: p.MAC, IPs: p.IPs, TunnelKey: p.TunnelKey})
		}
	}
	return in
}

// connect adds networks to both zones and connects their pods. The pods of networks
// without subnets get the addresses of own.
func connect(t *testing.T, zones []*zoneUnderTest, own func(PodPort) []netip.Prefix, nets ...nativeNetwork) {
	t.Helper()
	for i, z := range zones {
		for _, n := range nets {
			converge(t, z.nb, n.net, z.node, n.inputs(zones, i))
			for _, p := range n.pods[i] {
				if len(p.IPs) == 0 {
					p.IPs = own(p)
				}
				z.plugPod(n.net, p)
			}
		}
	}
	for _, z := range zones {
		z.waitRemotePorts()
	}
}

// reach is a ping between a pod and an address.
type reach struct {
	desc string
	from string // network namespace
	to   netip.Addr
}

// checkReach checks that all of yes succeed, and then none of no.
func checkReach(t *testing.T, r native.Tree, yes, no []reach) {
	t.Helper()
	for _, c := range yes {
		eventually(t, c.desc, func() error { return r.Ping(c.from, c.to.String(), 1) })
	}
	for _, c := range no {
		if r.Ping(c.from, c.to.String(), 2) == nil {
			t.Errorf("%s (%s)", c.desc, c.to)
		}
	}
}

// pod returns a pod of the network "<namespace>_net".
func nativePod(n network.Network, z *zoneUnderTest, name string, i int) PodPort {
	namespace := strings.TrimSuffix(n.Name, "_net")
	return testPod(n, z.node, namespace+"/net", namespace, name, i, false)
}

func TestNativeLayer3Secondary(t *testing.T) {
	t.Parallel()
	r, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	red := testNetwork(1, "red_net", network.Layer3, network.RoleSecondary, "dual")
	blue := testNetwork(2, "blue_net", network.Layer3, network.RoleSecondary, "dual")
	// The second zone's IPv4 subnet is in an appended CIDR.
	red.Subnets = []network.Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/24"), HostLen: 24}, {CIDR: netip.MustParsePrefix("10.20.1.0/24"), HostLen: 24}, red.Subnets[1]}
	again := nativePod(red, a, "p", 5)
	again.NADKey, again.MAC = "red/net/1", "0a:58:00:00:00:05"
	redPods := [2][]PodPort{{nativePod(red, a, "p", 3), nativePod(red, a, "q", 6), again}, {nativePod(red, b, "p", 3), nativePod(red, b, "only", 4)}}
	bluePods := [2][]PodPort{{nativePod(blue, a, "p", 3)}, {nativePod(blue, b, "p", 3)}}
	connect(t, zones, nil, nativeNetwork{red, redPods}, nativeNetwork{blue, bluePods})
	for f := range 2 {
		to := func(p PodPort) netip.Addr { return p.IPs[f].Addr() }
		checkReach(t, r, []reach{
			{"red pods in a zone", a.podNamespace("red", "q"), to(redPods[0][0])},
			{"red pods across zones", a.podNamespace("red", "p"), to(redPods[1][0])},
			{"red pods back", b.podNamespace("red", "p"), to(redPods[0][0])},
			{"red's only pod", a.podNamespace("red", "p"), to(redPods[1][1])},
			{"a pod's second interface from its zone", a.podNamespace("red", "q"), to(again)},
			{"blue pods across zones, same addresses", a.podNamespace("blue", "p"), to(bluePods[1][0])},
		}, []reach{{"blue reaches red's only pod", a.podNamespace("blue", "p"), to(redPods[1][1])}})
	}
}

func TestNativeLayer2Primary(t *testing.T) {
	t.Parallel()
	r, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	red := testNetwork(1, "red_net", network.Layer2, network.RolePrimary, "dual")
	blue := testNetwork(2, "blue_net", network.Layer2, network.RolePrimary, "dual")
	redPods := [2][]PodPort{{nativePod(red, a, "p", 3), nativePod(red, a, "only", 4)}, {nativePod(red, b, "q", 5)}}
	bluePods := [2][]PodPort{{nativePod(blue, a, "p", 3)}, {nativePod(blue, b, "q", 5)}}
	connect(t, zones, nil, nativeNetwork{red, redPods}, nativeNetwork{blue, bluePods})
	t.Logf("%s", a.must("ovn-nbctl", "--no-leader-only", "show"))
	for _, z := range zones {
		z.outside(gatewayNetwork{net: red}, gatewayNetwork{net: blue})
		z.layer2Node(red)
	}
	host1, host2 := a.podNamespace("", "m"), b.podNamespace("", "m")
	serve(t, host1, 9090, "host1")
	serve(t, host2, 9090, "host2")
	serve(t, b.podNamespace("red", "q"), 9090, "q")
	serve(t, a.podNamespace("red", "p"), 9090, "p")
	p, q, bluep := a.podNamespace("red", "p"), b.podNamespace("red", "q"), a.podNamespace("blue", "p")
	for f := range 2 {
		to := func(p PodPort) netip.Addr { return p.IPs[f].Addr() }
		gateway := red.GatewayIn(red.Subnets[f].CIDR).Addr()
		checkReach(t, r, []reach{
			{"red pods in a zone", p, to(redPods[0][1])},
			{"red pods across zones", p, to(redPods[1][0])},
			{"red pods back", q, to(redPods[0][0])},
			{"red's only pod across zones", q, to(redPods[0][1])},
			{"blue pods across zones, same addresses", bluep, to(bluePods[1][0])},
			{"the gateway in the first zone", p, gateway},
			{"the gateway in the second zone", q, gateway},
			{"this node's gateway router", p, red.JoinGateway(1)[f].Addr()},
			{"the other node's gateway router", p, red.JoinGateway(2)[f].Addr()},
			{"the other node's gateway router back", q, red.JoinGateway(1)[f].Addr()},
			{"outside, by the first node", p, outsideAddr(1, f)},
			{"outside, by the second node", q, outsideAddr(2, f)},
		}, []reach{
			{"blue reaches red's only pod", bluep, to(redPods[0][1])},
			{"the first node's pod leaves by the second node", p, outsideAddr(2, f)},
			{"the second node's pod leaves by the first node", q, outsideAddr(1, f)},
		})
		// The nodes' processes, whose address is the same on both.
		for _, c := range []struct {
			desc, from   string
			to           netip.Addr
			server, seen string
		}{
			{"the first node's process to its node's pod", host1, to(redPods[0][0]), "p", red.JoinGateway(1)[f].Addr().String()},
			{"the first node's process to the other node's pod", host1, to(redPods[1][0]), "q", red.JoinGateway(1)[f].Addr().String()},
			{"the second node's process to the other node's pod", host2, to(redPods[0][0]), "p", red.JoinGateway(2)[f].Addr().String()},
			{"a pod to its node's process", p, red.ManagementIn(red.Subnets[f].CIDR).Addr(), "host1", to(redPods[0][0]).String()},
			{"the other pod to its node's process", q, red.ManagementIn(red.Subnets[f].CIDR).Addr(), "host2", to(redPods[1][0]).String()},
		} {
			eventually(t, c.desc, func() error {
				server, seen, err := ask(c.from, "tcp", netip.AddrPortFrom(c.to, 9090))
				if err != nil || server != c.server || seen != c.seen {
					return fmt.Errorf("%q answers and sees %q, want %s and %s: %w", server, seen, c.server, c.seen, err)
				}
				return nil
			})
		}
		for _, ns := range []string{p, q} {
			want, got := network.MACOf(mapPrefixes(red.CIDRs(), red.GatewayIn)), mustRun(t, "ip", "-n", ns, "neigh", "show", gateway.String())
			if !strings.Contains(got, "lladdr "+want+" ") {
				t.Errorf("%s: the gateway is %q, want %s", ns, strings.TrimSpace(got), want)
			}
		}
	}
}

// layer2Node adds the management port with addresses and routes as package vrf does.
func (z *zoneUnderTest) layer2Node(n network.Network) {
	z.t.Helper()
	ns, mgmt := namespace(z.t, z.Name+"m"), mapPrefixes(n.CIDRs(), n.ManagementIn)
	own := testPlan(true).MasqueradeFixed(network.MasqueradeNode)
	mustRun(z.t, "ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv6.conf.default.accept_ra=0")
	z.plug(n.ManagementLSP(z.node.Name), "", ns, "mgmt", network.MACOf(mgmt), append(singles(mgmt), singles(own)...))
	for f, cidr := range n.CIDRs() {
		mustRun(z.t, "ip", "-n", ns, "route", "add", cidr.String(), "via", n.GatewayIn(cidr).Addr().String(), "dev", "mgmt", "onlink", "src", own[f].Addr().String())
	}
}

// In local gateway mode each node's pods leave by the node's own management port, which
// on Layer 2 has the same address on all nodes.
func TestNativeLocalGateway(t *testing.T) {
	t.Parallel()
	for _, topology := range []network.Topology{network.Layer2, network.Layer3} {
		t.Run(string(topology), func(t *testing.T) { testLocalGateway(t, topology) })
	}
}

// unequalSubnets are subnets in which the first node has a smaller host subnet than the others.
func unequalSubnets(dual bool) []network.Subnet {
	out := []network.Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/26"), HostLen: 26}, {CIDR: netip.MustParsePrefix("10.21.0.0/16"), HostLen: 24}}
	if dual {
		out = append(out, network.Subnet{CIDR: netip.MustParsePrefix("fd20::/72"), HostLen: 72}, network.Subnet{CIDR: netip.MustParsePrefix("fd21::/48"), HostLen: 64})
	}
	return out
}

func testLocalGateway(t *testing.T, topology network.Topology) {
	r, zones := nativeZones(t)
	red := testNetwork(1, "red_net", topology, network.RolePrimary, "dual")
	if topology == network.Layer3 {
		red.Subnets = unequalSubnets(true)
	}
	n := nativeNetwork{red, [2][]PodPort{{nativePod(red, zones[0], "p", 3)}, {nativePod(red, zones[1], "q", 5)}}}
	for _, z := range zones {
		z.node.Mode = network.LocalGateway
	}
	connect(t, zones, nil, n)
	plan := testPlan(true)
	for _, z := range zones {
		hosts, err := red.HostSubnets(z.node.ID)
		if err != nil {
			t.Fatal(err)
		}
		ns, mgmt := namespace(t, z.Name+"m"), mapPrefixes(hosts, red.ManagementIn)
		z.plug(red.ManagementLSP(z.node.Name), "", ns, "mgmt", network.MACOf(mgmt), mgmt)
		for f := range 2 {
			mustRun(t, "ip", "-n", ns, "addr", "add", single(outsideAddr(z.node.ID, f)).String(), "dev", "lo")
			// Pods arrive with an address that identifies their network, and only with it.
			mustRun(t, "ip", "-n", ns, "route", "add", plan.MasqueradeManagement(red)[f].Addr().String(), "via", red.GatewayIn(hosts[f]).Addr().String(), "dev", "mgmt")
			mustRun(t, "ip", "-n", ns, "route", "add", "blackhole", n.pods[z.node.ID-1][0].IPs[f].Addr().String())
		}
		mustRun(t, "ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.mgmt.rp_filter=0")
	}
	p, q := zones[0].podNamespace("red", "p"), zones[1].podNamespace("red", "q")
	for f := range 2 {
		checkReach(t, r, []reach{
			{"outside, by the first node", p, outsideAddr(1, f)},
			{"outside, by the second node", q, outsideAddr(2, f)},
			{"pods across zones", p, n.pods[1][0].IPs[f].Addr()},
		}, []reach{
			{"the first node's pod leaves by the second node", p, outsideAddr(2, f)},
			{"the second node's pod leaves by the first node", q, outsideAddr(1, f)},
		})
	}
}

func TestNativeLayer2WithoutSubnets(t *testing.T) {
	t.Parallel()
	r, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	red := testNetwork(1, "red_net", network.Layer2, network.RoleSecondary, "")
	blue := testNetwork(2, "blue_net", network.Layer2, network.RoleSecondary, "")
	redPods := [2][]PodPort{{nativePod(red, a, "p", 3), nativePod(red, a, "only", 4)}, {nativePod(red, b, "q", 5)}}
	bluePods := [2][]PodPort{{nativePod(blue, a, "p", 3)}, {nativePod(blue, b, "q", 5)}}
	own := func(p PodPort) []netip.Prefix { // the pods' own choice
		return prefixes(fmt.Sprintf("192.168.7.%d/24", p.TunnelKey), fmt.Sprintf("fd77::%d/64", p.TunnelKey))
	}
	connect(t, zones, own, nativeNetwork{red, redPods}, nativeNetwork{blue, bluePods})
	p, q := a.podNamespace("red", "p"), b.podNamespace("red", "q")
	for f := range 2 {
		to := func(p PodPort) netip.Addr { return own(p)[f].Addr() }
		checkReach(t, r, []reach{
			{"red pods in a zone", p, to(redPods[0][1])},
			{"red pods across zones", p, to(redPods[1][0])},
			{"red pods back", q, to(redPods[0][1])},
			{"blue pods across zones, same addresses", a.podNamespace("blue", "p"), to(bluePods[1][0])},
		}, []reach{{"blue reaches red's only pod", a.podNamespace("blue", "p"), to(redPods[0][1])}})
	}
	// Port security: with another MAC the pod reaches nobody.
	mustRun(t, "ip", "-n", q, "link", "set", "redq1", "address", "0a:58:00:00:00:99")
	mustRun(t, "ip", "-n", q, "neigh", "flush", "all")
	checkReach(t, r, nil, []reach{{"a pod with a MAC that is not its own reaches another", q, own(redPods[0][1])[0].Addr()}})
	mustRun(t, "ip", "-n", q, "link", "set", "redq1", "address", redPods[1][0].MAC)
	checkReach(t, r, []reach{{"the pod with its own MAC", q, own(redPods[0][1])[0].Addr()}}, nil)
}

// joinPhysical connects the zones by a physical network of the name "physical".
func joinPhysical(t *testing.T, r native.Tree, zones []*zoneUnderTest) {
	joinZones(t, r, zones[0], zones[1], "phys")
	for _, z := range zones {
		z.must("ovs-vsctl", "--db="+z.Sock("ovs"), "--", "add-br", "br-local", "--", "set", "Bridge", "br-local", "datapath_type=netdev",
			"--", "add-port", "br-local", "phys",
			"--", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=physnet:br-ex,physical:br-local")
	}
}

func TestNativeLocalnet(t *testing.T) {
	t.Parallel()
	r, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	joinPhysical(t, r, zones)
	plain := testNetwork(1, "red_net", network.Localnet, network.RoleSecondary, "dual")
	tagged := testNetwork(2, "blue_net", network.Localnet, network.RoleSecondary, "dual")
	tagged.VLAN = 20
	plainPods := [2][]PodPort{{nativePod(plain, a, "p", 3), nativePod(plain, a, "only", 4)}, {nativePod(plain, b, "q", 5)}}
	taggedPods := [2][]PodPort{{nativePod(tagged, a, "p", 6)}, {nativePod(tagged, b, "q", 7)}}
	connect(t, zones, nil, nativeNetwork{plain, plainPods}, nativeNetwork{tagged, taggedPods})
	q, blueq := b.podNamespace("red", "q"), b.podNamespace("blue", "q")
	for f := range 2 {
		to := func(p PodPort) netip.Addr { return p.IPs[f].Addr() }
		checkReach(t, r, []reach{
			{"untagged pods across nodes", q, to(plainPods[0][1])},
			{"tagged pods across nodes", blueq, to(taggedPods[0][0])},
		}, []reach{
			{"a tagged pod reaches an untagged pod", blueq, to(plainPods[0][1])},
			{"an untagged pod reaches a tagged pod", q, to(taggedPods[0][0])},
		})
	}
	b.checkVLAN(plainPods[0][1], 0)
	b.checkVLAN(taggedPods[0][0], 20)

	// Another VLAN on one node and then on the other.
	from, to := blueq, taggedPods[0][0].IPs[0].Addr()
	for i, z := range zones {
		checkReach(t, r, []reach{{"before the change", from, to}}[:1-i], nil)
		tagged.VLAN = 30
		n := nativeNetwork{tagged, taggedPods}
		converge(t, z.nb, tagged, z.node, n.inputs(zones, i))
		if i == 0 {
			eventually(t, "pods in different VLANs are separate", func() error {
				if r.Ping(from, to.String(), 1) == nil {
					return fmt.Errorf("%s still reaches %s", from, to)
				}
				return nil
			})
		}
	}
	checkReach(t, r, []reach{{"after the change", from, to}}, nil)
	b.checkVLAN(taggedPods[0][0], 30)
	// Without a VLAN the networks are one segment.
	for i, z := range zones {
		tagged.VLAN = 0
		n := nativeNetwork{tagged, taggedPods}
		converge(t, z.nb, tagged, z.node, n.inputs(zones, i))
	}
	checkReach(t, r, []reach{{"without the VLAN", from, to}, {"the other network", from, plainPods[0][1].IPs[0].Addr()}}, nil)
	b.checkVLAN(taggedPods[0][0], 0)
}

// checkVLAN checks the tag of the frames from another node's pod on the physical
// network: by what the bridge has learned.
func (z *zoneUnderTest) checkVLAN(p PodPort, vlan int) {
	z.t.Helper()
	pid := z.Path("vswitchd.ctl")
	eventually(z.t, "VLAN of "+p.Key(), func() error {
		out, err := z.Run("ovs-appctl", "-t", pid, "fdb/show", "br-local")
		if err != nil {
			return err
		}
		mac := network.MACOf(p.IPs)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 4 && f[2] == mac && f[1] == fmt.Sprint(vlan) {
				return nil
			}
		}
		return fmt.Errorf("%s has not been learned in VLAN %d:\n%s", mac, vlan, out)
	})
}

// OVN accepts the rows of advertised networks and of networks without an overlay,
// and the change from one to another.
func TestNativeAdvertised(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	z := zones[0]
	for _, c := range advertisedCases() {
		node := z.node
		node.Mode = c.mode
		in := nativeNetwork{net: c.net}.inputs(zones, 0)
		c.edit(&node, &in)
		nadKey := network.DefaultName
		if !c.net.IsDefault() {
			nadKey = network.NADKey("blue", "net")
			converge(t, z.nb, testDefault(true), node, Inputs{Plan: in.Plan, PhysicalNetwork: in.PhysicalNetwork})
		}
		in.Pods = []PodPort{testPod(c.net, node, nadKey, "blue", "p", 3, false)}
		converge(t, z.nb, c.net, node, in)
		z.must("ovn-nbctl", "--no-leader-only", "--wait=hv", "--timeout=60", "sync")
	}
}
