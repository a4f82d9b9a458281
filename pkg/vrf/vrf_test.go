// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "rewrite goldens")

func testPlan() network.Plan {
	return network.Plan{
		ClusterSubnets: []network.Subnet{{CIDR: netip.MustParsePrefix("10.244.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd10:244::/48"), HostLen: 64}},
		ServiceCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd10:96::/112")},
		Masquerade:     []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17"), netip.MustParsePrefix("fd69::/112")},
		VRFTableBase:   100000, UnderlayMTU: 1500, ClusterMTU: 1400,
	}
}

func testNode() network.Node {
	return network.Node{Name: "n1", ID: 3, Bridge: "br-ex", Mode: network.SharedGateway,
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("2001:db8::10/64"), netip.MustParsePrefix("192.0.2.99/32")},
		NextHops:  []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
}

func testNet(id int, name string, cidrs ...string) network.Network {
	n := network.Network{ID: id, Name: name, Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400}
	for _, c := range cidrs {
		s, err := network.ParseSubnet(c, network.Layer3)
		if err != nil {
			panic(err)
		}
		n.Subnets = append(n.Subnets, s)
	}
	return n
}

func TestBuildGolden(t *testing.T) {
	dflt := network.Network{ID: 0, Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}
	local := testNode()
	local.Mode = network.LocalGateway
	noOverlay := testNet(9, "cluster_udn_flat", "10.40.0.0/16/24")
	noOverlay.Transport, noOverlay.AdvertisedVRFs = network.TransportNoOverlay, "default"
	flatDefault, advertised := dflt, testNet(7, "cluster_udn_blue", "10.20.0.0/16", "fd20::/64")
	flatDefault.Transport = network.TransportNoOverlay
	advertised.Topology, advertised.AdvertisedVRFs = network.Layer2, "default"
	ownVRF := testNet(9, "cluster_udn_flat", "10.40.0.0/16/24")
	ownVRF.Transport, ownVRF.AdvertisedVRFs = network.TransportNoOverlay, network.VRFAuto
	layer2 := testNet(7, "cluster_udn_blue", "10.20.0.0/16", "fd20::/64")
	layer2.Topology = network.Layer2
	for name, tc := range map[string]struct {
		net  network.Network
		node network.Node
		in   Inputs
	}{
		"layer2-dual":      {layer2, testNode(), Inputs{IPv6: true, Exposed: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd10:96::1")}}},
		"v4":               {testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), Inputs{IPv6: true}},
		"v4-kernel-no-v6":  {testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), Inputs{}},
		"dual-appended":    {testNet(8, "ns_a", "10.20.0.0/23/24", "10.30.0.0/16/24", "fd20::/48/64"), testNode(), Inputs{IPv6: true}},
		"whole-cidr-local": {testNet(8, "ns_a", "10.20.0.0/16/24", "fd20::/48/64"), testNode(), Inputs{IPv6: true, Foreign: []string{"x"}}},
		"name-taken":       {testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), Inputs{Foreign: []string{"blue"}}},
		"dual-local":       {testNet(8, "ns_a", "10.20.0.0/16/24", "fd20::/48/64"), local, Inputs{IPv6: true}},
		"no-overlay-local": {noOverlay, local, Inputs{IPv6: true}},
		"default":          {dflt, testNode(), Inputs{IPv6: true}},

		"no-overlay-default-local": {flatDefault, local, Inputs{IPv6: true}},
		"own-vrf-local":            {ownVRF, local, Inputs{IPv6: true}},
		"advertised-layer2-local":  {advertised, local, Inputs{IPv6: true}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.in.Plan = testPlan()
			st, err := Build(tc.net, tc.node, tc.in)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(st.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := st.String(); got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestBuildRefuses(t *testing.T) {
	in := Inputs{Plan: testPlan(), Foreign: []string{"blue", "mp7-udn-vrf"}}
	if _, err := Build(testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), in); err == nil || !strings.Contains(err.Error(), "mp7-udn-vrf") {
		t.Errorf("both names used by other links: %v", err)
	}
	in.Taken = "mgmt"
	in.Foreign = nil
	if _, err := Build(testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), in); err == nil || !strings.Contains(err.Error(), "VRF device mgmt") {
		t.Errorf("its table used by another VRF device: %v", err)
	}
	if _, err := Build(testNet(7, "a_b", "10.20.0.0/24/24"), testNode(), in); err == nil || !strings.Contains(err.Error(), "append a CIDR") {
		t.Errorf("no subnet for node 3: %v", err)
	}
	if _, err := Build(testNet(7, "a_b", "10.20.0.0/16/24"), network.Node{Name: "n1"}, in); err == nil {
		t.Error("node without id accepted")
	}
}

// A VRF device keeps its fallback name when the better name becomes free:
// renaming it would break sockets that are bound to it.
func TestFallbackNameIsKept(t *testing.T) {
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24")
	st, err := Build(net, testNode(), Inputs{Plan: testPlan(), Devices: []Device{{Name: "mp7-udn-vrf", Table: 100007}}})
	if err != nil || st.Devices[0].Name != "mp7-udn-vrf" {
		t.Errorf("%v %v", st.Devices, err)
	}
}

func newFakeNode(ids ...int) *Fake {
	links := []string{"br-ex", "eth0"}
	for _, id := range ids {
		links = append(links, fmt.Sprintf("ovn-k8s-mp%d", id))
	}
	f := NewFake(links...)
	f.Links["br-ex"].Up = true
	return f
}

// text renders a state with the given sysctls only: Read returns more than are
// desired.
func text(st State, sysctls []Sysctl) string {
	st.Sysctls = slices.DeleteFunc(slices.Clone(st.Sysctls), func(s Sysctl) bool {
		return !slices.ContainsFunc(sysctls, func(w Sysctl) bool { return w.Path == s.Path })
	})
	return st.String()
}

func mustReconcile(t testing.TB, f *Fake, net network.Network, node network.Node) Result {
	t.Helper()
	r, err := Reconcile(context.Background(), f, net, node, Inputs{Plan: testPlan(), IPv6: true})
	if err != nil {
		t.Fatalf("reconcile: %v", err)
	}
	return r
}

func assertConverged(t testing.TB, f *Fake, net network.Network, node network.Node) {
	t.Helper()
	r := mustReconcile(t, f, net, node)
	if len(r.Ops) != 0 || len(r.Waiting) != 0 {
		t.Fatalf("not converged: ops %v, waiting for %v", r.Ops, r.Waiting)
	}
	if got, want := text(r.Have, r.Want.Sysctls), r.Want.String(); got != want {
		t.Fatalf("have\n%swant\n%s", got, want)
	}
}

func genNet(t *rapid.T, id int) network.Network {
	cidrs := [][]string{{"10.20.0.0/16/24"}, {"fd20::/48/64"}, {"10.20.0.0/16/24", "fd20::/48/64"}, {"10.20.0.0/23/24", "10.30.0.0/16/26"}}
	name := rapid.SampledFrom([]string{"cluster_udn_blue", "ns_a", "cluster_udn_a-very-long-name-indeed"}).Draw(t, "name")
	net := testNet(id, name, rapid.SampledFrom(cidrs).Draw(t, "cidrs")...)
	net.MTU = rapid.SampledFrom([]int{1400, 8900}).Draw(t, "mtu")
	net.Topology = rapid.SampledFrom([]network.Topology{network.Layer3, network.Layer2}).Draw(t, "topology")
	return net
}

func genNode(t *rapid.T) network.Node {
	n := testNode()
	n.ID = rapid.IntRange(1, 5).Draw(t, "node")
	n.NextHops = n.NextHops[:rapid.IntRange(0, 2).Draw(t, "hops")]
	return n
}

// Reconcile and Remove converge from any state, are idempotent and leave foreign
// objects unchanged. The state comes from earlier, interrupted reconciles and
// changes by others.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFakeNode(7)
		f.Routes[Route{Table: 100007, Dst: netip.MustParsePrefix("10.99.0.0/16"), Via: netip.MustParseAddr("192.0.2.9"), Dev: "br-ex", Metric: 20}] = "bgp"
		f.Rules[Rule{Priority: 2000, Mark: 0x77, Table: 100007}] = "foreign"
		f.Links["eth0"].Alias = "foreign"
		if rapid.Bool().Draw(rt, "name in use") {
			f.AddLink("blue")
		}
		for range rapid.IntRange(0, 3).Draw(rt, "earlier") {
			crash := errors.New("crash")
			remaining := rapid.IntRange(0, 25).Draw(rt, "ops before crash")
			f.Fail = func(Op) error {
				if remaining--; remaining < 0 {
					return crash
				}
				return nil
			}
			if rapid.Bool().Draw(rt, "remove") {
				_, _ = Remove(context.Background(), f, 7, testNode(), testPlan())
			} else {
				_, _ = Reconcile(context.Background(), f, genNet(rt, 7), genNode(rt), Inputs{Plan: testPlan(), IPv6: true})
			}
			switch rapid.IntRange(0, 3).Draw(rt, "disturb") {
			case 1: // OVS recreates the port
				f.DelLink("ovn-k8s-mp7")
				f.AddLink("ovn-k8s-mp7")
			case 2:
				f.Links["ovn-k8s-mp7"].Up = false
				f.flush("ovn-k8s-mp7")
			case 3:
				for r := range f.Rules {
					delete(f.Rules, r)
					break
				}
			}
		}
		f.Fail = nil
		foreign := foreignText(f)
		net, node := genNet(rt, 7), genNode(rt)
		if rapid.Bool().Draw(rt, "finally removed") {
			if _, err := Remove(context.Background(), f, 7, node, testPlan()); err != nil {
				rt.Fatal(err)
			}
			r, err := Remove(context.Background(), f, 7, node, testPlan())
			if err != nil || len(r.Ops) != 0 || !r.Have.Empty() {
				rt.Fatalf("leftover state after removal: %v %v\n%s", r.Ops, err, r.Have)
			}
		} else {
			if _, err := Reconcile(context.Background(), f, net, node, Inputs{Plan: testPlan(), IPv6: true}); err != nil {
				rt.Fatal(err)
			}
			r, err := Reconcile(context.Background(), f, net, node, Inputs{Plan: testPlan(), IPv6: true})
			if err != nil || len(r.Ops) != 0 {
				rt.Fatalf("second run: %v %v", r.Ops, err)
			}
			if got, want := text(r.Have, r.Want.Sysctls), r.Want.String(); got != want {
				rt.Fatalf("have\n%swant\n%s", got, want)
			}
		}
		if got := foreignText(f); got != foreign {
			rt.Fatalf("changed foreign objects: %s, was %s", got, foreign)
		}
	})
}

func foreignText(f *Fake) string {
	var out []string
	for r, o := range f.Routes {
		if o != "" {
			out = append(out, r.String())
		}
	}
	for r, o := range f.Rules {
		if o != "" {
			out = append(out, r.String())
		}
	}
	for n, l := range f.Links {
		if !l.Ours && n != "ovn-k8s-mp7" {
			out = append(out, fmt.Sprintf("%s %+v", n, *l))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// A network is never reachable without its isolation: before each operation of
// Reconcile and Remove, other routes exist only with the unreachable defaults,
// the rules and the VRF device, and the port is up with an address only inside
// the VRF.
func TestIsolationBeforeReachability(t *testing.T) {
	f := newFakeNode(7)
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	removing := false
	check := func(Op) error {
		var reach, deny bool
		for r := range f.Routes {
			reach = reach || !r.Unreachable
			deny = deny || r.Unreachable && r.Dst.Bits() == 0
		}
		if reach && (!deny || len(f.Rules) == 0 || f.Links["blue"] == nil) {
			t.Fatalf("reachable without isolation after %v", f.Log)
		}
		if p := f.Links["ovn-k8s-mp7"]; len(p.Addrs) > 0 && p.Master == "" && p.Up {
			t.Fatalf("port reachable in the default VRF after %v", f.Log)
		}
		// What is bound to a device that is still down has the network's mark, and the node's
		// shared rules refuse marked packets without a route.
		if l := f.Links["blue"]; l != nil && l.Up && !deny {
			t.Fatalf("VRF without unreachable default after %v", f.Log)
		}
		for r := range f.Routes {
			if r.Unreachable && r.Table == 100007 && f.Links["blue"] == nil && !removing {
				t.Fatalf("route without a VRF after %v", f.Log)
			}
		}
		return nil
	}
	f.Fail = check
	mustReconcile(t, f, net, testNode())
	assertConverged(t, f, net, testNode())
	removing = true
	if _, err := Remove(context.Background(), f, 7, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	_ = check(Op{})
	if len(f.Routes)+len(f.Rules) != 0 || f.Links["blue"] != nil {
		t.Errorf("leftovers: %v %v", f.Routes, f.Rules)
	}
}

// If another program deletes the VRF device, the port is in the default VRF with
// its addresses. It must go down, even if the device cannot be recreated.
func TestPortOutsideItsVRF(t *testing.T) {
	f := newFakeNode(7)
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	mustReconcile(t, f, net, testNode())
	f.DelLink("blue")
	f.NoVRF = true
	_, _ = Reconcile(context.Background(), f, net, testNode(), Inputs{Plan: testPlan(), IPv6: true})
	if f.Links["ovn-k8s-mp7"].Up {
		t.Error("reachable outside its VRF")
	}
	f.NoVRF = false
	mustReconcile(t, f, net, testNode())
	assertConverged(t, f, net, testNode())
}

// A reconcile without the port creates everything that does not need the port.
func TestWaitsForPort(t *testing.T) {
	f := newFakeNode()
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24")
	r := mustReconcile(t, f, net, testNode())
	if !slices.Equal(r.Waiting, []string{"ovn-k8s-mp7"}) {
		t.Errorf("waiting for %v", r.Waiting)
	}
	if r = mustReconcile(t, f, net, testNode()); len(r.Ops) != 0 {
		t.Errorf("while waiting: %v", r.Ops)
	}
	f.AddLink("ovn-k8s-mp7")
	mustReconcile(t, f, net, testNode())
	assertConverged(t, f, net, testNode())
}

// DeviceFirst creates a missing VRF device alone, and changes nothing else in that reconcile. If
// the device cannot be created, the rest is, as without DeviceFirst.
func TestDeviceFirst(t *testing.T) {
	f := newFakeNode(7)
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	in := Inputs{Plan: testPlan(), IPv6: true, DeviceFirst: true}
	reconcile := func() (Result, error) { return Reconcile(context.Background(), f, net, testNode(), in) }
	for range 2 { // also if the device was deleted
		rules, routes := len(f.Rules), len(f.Routes)
		r, err := reconcile()
		if err != nil || !r.DeviceOnly || !slices.Contains(r.Waiting, "blue") || f.Links["blue"] == nil || f.Links["blue"].Up {
			t.Fatalf("first reconcile: %+v, %v", r, err)
		}
		if len(f.Rules) != rules || len(f.Routes) > routes || f.Links["ovn-k8s-mp7"].Master != "" {
			t.Errorf("with the device alone: rules %v, routes %v, port %+v", f.Rules, f.Routes, *f.Links["ovn-k8s-mp7"])
		}
		if r, err = reconcile(); err != nil || r.DeviceOnly || len(r.Waiting) > 0 {
			t.Errorf("second reconcile: %+v, %v", r, err)
		}
		assertConverged(t, f, net, testNode())
		f.DelLink("blue")
	}
	f.NoVRF = true
	if r, err := reconcile(); !errors.Is(err, ErrNoVRF) || r.DeviceOnly || len(f.Rules) == 0 {
		t.Errorf("without VRF: %+v, %v", r, err)
	}
}

// The cluster default network's state has the external bridge's sysctls.
func TestBridgeSysctls(t *testing.T) {
	f := newFakeNode(0)
	net := network.Network{Name: network.DefaultName, Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}
	for _, change := range []func(){func() {}, func() { f.Sysctls["net/ipv4/conf/br-ex/forwarding"] = "0" }, func() { f.Sysctls["net/ipv4/conf/br-ex/rp_filter"] = "1" }} {
		change()
		mustReconcile(t, f, net, testNode())
		assertConverged(t, f, net, testNode())
		if a, b := f.Sysctls["net/ipv4/conf/br-ex/forwarding"], f.Sysctls["net/ipv4/conf/br-ex/rp_filter"]; a != "1" || b != "2" {
			t.Errorf("forwarding %s, rp_filter %s", a, b)
		}
	}
	f.Links["br-ex"].Up = false
	f.Sysctls["net/ipv4/conf/br-ex/forwarding"] = "0"
	if r := mustReconcile(t, f, net, testNode()); slices.ContainsFunc(r.Ops, func(o Op) bool { return o.Verb == SetSysctl }) {
		t.Errorf("of a bridge that is down: %v", r.Ops)
	}
}

// A link that only has the name of a management port stays unchanged.
func TestForeignPort(t *testing.T) {
	f := newFakeNode(7)
	l := f.Links["ovn-k8s-mp7"]
	l.Addrs, l.Up = []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")}, true
	r, err := Remove(context.Background(), f, 7, testNode(), testPlan())
	if err != nil || len(r.Ops) != 0 {
		t.Errorf("%v %v", r.Ops, err)
	}
}

// A failed operation does not stop the others, and the error names it.
func TestApplyContinuesAfterFailure(t *testing.T) {
	f := newFakeNode(7)
	f.NoVRF = true
	r, err := Reconcile(context.Background(), f, testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), Inputs{Plan: testPlan(), IPv6: true})
	if !errors.Is(err, ErrNoVRF) || !strings.Contains(err.Error(), "add VRF blue table 100007") {
		t.Errorf("error %v", err)
	}
	if len(f.Rules) == 0 || len(r.Ops) == 0 {
		t.Error("stopped at the first failure")
	}
	// Without its VRF the port stays down and has no address.
	if p := f.Links["ovn-k8s-mp7"]; p.Up || len(p.Addrs) > 0 || strings.Contains(err.Error(), "alias") {
		t.Errorf("port %+v, error %v", *p, err)
	}
}

// Without its unreachable routes a VRF's table leads on to the main table: the network stays closed.
func TestClosedWithoutUnreachableRoutes(t *testing.T) {
	f := newFakeNode(7)
	f.Fail = func(o Op) error {
		if o.Verb == AddRoute && o.Route.Unreachable {
			return errors.New("no memory")
		}
		return nil
	}
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24")
	if _, err := Reconcile(context.Background(), f, net, testNode(), Inputs{Plan: testPlan(), IPv6: true}); err == nil {
		t.Fatal("no error")
	}
	if p := f.Links["ovn-k8s-mp7"]; p.Up || len(p.Addrs) > 0 || p.Master != "" || f.Links["blue"].Up || len(f.Routes) > 0 {
		t.Errorf("port %+v, VRF %+v, routes %v", *p, *f.Links["blue"], f.Routes)
	}
	f.Fail = nil
	mustReconcile(t, f, net, testNode())
	assertConverged(t, f, net, testNode())
}

func TestLeftovers(t *testing.T) {
	f := newFakeNode(7, 8)
	for id := range 2 {
		mustReconcile(t, f, testNet(7+id, fmt.Sprintf("ns_%d", id), "10.20.0.0/16/24"), testNode())
	}
	f.Rules[Rule{Priority: 2000, Mark: 5, Table: 4242}] = ""
	ids, tables, err := Leftovers(context.Background(), f, testPlan(), func(id int) bool { return id == 7 })
	if err != nil || !slices.Equal(ids, []int{8}) || !slices.Equal(tables, []int{4242}) {
		t.Fatalf("%v %v %v", ids, tables, err)
	}
	if _, err := Remove(context.Background(), f, 8, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	if _, err := RemoveTable(context.Background(), f, 4242); err != nil {
		t.Fatal(err)
	}
	if ids, tables, _ := Leftovers(context.Background(), f, testPlan(), func(id int) bool { return id == 7 }); len(ids)+len(tables) != 0 {
		t.Errorf("leftovers %v %v", ids, tables)
	}
	assertConverged(t, f, testNet(7, "ns_0", "10.20.0.0/16/24"), testNode())
}

// The number of operations does not depend on the number of networks.
func TestConstantOps(t *testing.T) {
	f := NewFake("br-ex")
	f.Links["br-ex"].Up = true
	var first int
	for id := 1; id <= 300; id++ {
		f.AddLink(fmt.Sprintf("ovn-k8s-mp%d", id))
		n := len(mustReconcile(t, f, testNet(id, fmt.Sprintf("ns_%d", id), "10.20.0.0/16/24", "fd20::/48/64"), testNode()).Ops)
		if id == 1 {
			first = n
		} else if n != first {
			t.Fatalf("network %d took %d operations, the first %d", id, n, first)
		}
	}
	t.Logf("%d operations per network", first)
}

// The kernel admits an alias of 255 bytes. Networks whose names begin alike have different ones.
func TestAliasOf(t *testing.T) {
	long := "shop_" + strings.Repeat("a", 248)
	for name, want := range map[string]int{"red": len("bulkhead:red"), long[:246]: 255, long: 255} {
		if a := AliasOf(name); len(a) != want || !strings.HasPrefix(a, AliasPrefix) {
			t.Errorf("%s has the alias %s of %d bytes, want %d", name, a, len(a), want)
		}
	}
	if AliasOf(long) == AliasOf(long[:252]) {
		t.Error("two networks have one alias")
	}
}
