// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// newNetns runs the rest of the test in a new network namespace.
func newNetns(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP: needs root for a network namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	old, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if errors.Is(err, unix.EPERM) {
		t.Skipf("SKIP: no network namespace: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = netns.Set(old)
		_ = ns.Close()
		_ = old.Close()
	})
	if lo, err := netlink.LinkByName("lo"); err != nil || netlink.LinkSetUp(lo) != nil {
		t.Fatalf("loopback: %v", err)
	}
}

func addVeth(t *testing.T, name, peer string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}); err != nil {
		t.Fatalf("veth %s: %v", name, err)
	}
	up(t, peer)
}

func up(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Fatalf("%s up: %v", name, err)
	}
}

func addBridge(t *testing.T) {
	t.Helper()
	addVeth(t, "br-ex", "uplink")
	up(t, "br-ex")
	l, _ := netlink.LinkByName("br-ex")
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/br-ex/disable_ipv6", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"192.0.2.10/24", "2001:db8::10/64"} {
		addr, _ := netlink.ParseAddr(a)
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, addr); err != nil {
			t.Fatal(err)
		}
	}
	// The kernel adds the local route of an IPv6 address asynchronously, in a
	// work queue, even without duplicate address detection.
	for deadline := time.Now().Add(10 * time.Second); ; {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
		if slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.IP.String() == "2001:db8::10" }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node's IPv6 address is not usable: %v %v", routes, err)
		}
	}
}

func openKernel(t *testing.T) *Kernel {
	t.Helper()
	k, err := Open("/proc/sys", "br-ex", nil) // shows the namespace of the reading thread
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// hasVRF reports whether this kernel supports VRF devices.
func hasVRF(t *testing.T) bool {
	t.Helper()
	err := Probe()
	if err != nil && !errors.Is(err, ErrNoVRF) {
		t.Fatalf("probe for VRF: %v", err)
	}
	return err == nil
}

func reconcileKernel(t *testing.T, k *Kernel, net network.Network, vrf bool) Result {
	t.Helper()
	r, err := Reconcile(context.Background(), k, net, testNode(), Inputs{Plan: testPlan(), IPv6: true})
	if err != nil && (vrf || !errors.Is(err, ErrNoVRF)) {
		t.Fatalf("reconcile: %v", err)
	}
	return r
}

// A network's whole state, on a kernel with VRF devices.
func TestKernelVRF(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	if !hasVRF(t) {
		t.Skipf("SKIP: %v", ErrNoVRF)
	}
	addBridge(t)
	addVeth(t, "ovn-k8s-mp7", "peer7")
	blue := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	reconcileKernel(t, k, blue, true)
	r := reconcileKernel(t, k, blue, true)
	if len(r.Ops) != 0 {
		t.Errorf("second run: %v", r.Ops)
	}
	if got, want := text(r.Have, r.Want.Sysctls), r.Want.String(); got != want {
		t.Errorf("have\n%swant\n%s", got, want)
	}
	// After a restart of the agent.
	k2 := openKernel(t)
	if r := reconcileKernel(t, k2, blue, true); len(r.Ops) != 0 {
		t.Errorf("after restart: %v", r.Ops)
	}
	// A packet that matches no route must not fall through to the main table.
	if _, err := netlink.RouteGetWithOptions(netip.MustParseAddr("10.244.0.9").AsSlice(), &netlink.RouteGetOptions{VrfName: "blue"}); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("lookup of a foreign pod in the VRF: %v", err)
	}
	// OVS recreates the management port.
	if l, err := netlink.LinkByName("ovn-k8s-mp7"); err != nil || netlink.LinkDel(l) != nil {
		t.Fatal("delete port")
	}
	addVeth(t, "ovn-k8s-mp7", "peer7")
	reconcileKernel(t, k, blue, true)
	if r := reconcileKernel(t, k, blue, true); len(r.Ops) != 0 || len(r.Have.Port.Addrs) != 2 {
		t.Errorf("after the port was recreated: %v\n%s", r.Ops, r.Have)
	}
	// A network with the same id and another name.
	green := testNet(7, "cluster_udn_green", "10.30.0.0/16/24")
	reconcileKernel(t, k, green, true)
	r = reconcileKernel(t, k, green, true)
	if len(r.Ops) != 0 || len(r.Have.Devices) != 1 || r.Have.Devices[0].Name != "green" {
		t.Errorf("id reused by another network: %v\n%s", r.Ops, r.Have)
	}
	if _, err := Remove(context.Background(), k, 7, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	if r, err := Remove(context.Background(), k, 7, testNode(), testPlan()); err != nil || !r.Have.Empty() {
		t.Errorf("leftover state: %v\n%s", err, r.Have)
	}
}

// A network that was created again, with another id, has the VRF device's name. The old one's port is not up
// outside a VRF, and its removal leaves the new device.
func TestKernelVRFOfSameName(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	if !hasVRF(t) {
		t.Skipf("SKIP: %v", ErrNoVRF)
	}
	addBridge(t)
	addVeth(t, "ovn-k8s-mp7", "peer7")
	addVeth(t, "ovn-k8s-mp9", "peer9")
	before, after := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNet(9, "cluster_udn_blue", "10.20.0.0/16/24")
	reconcileKernel(t, k, before, true)
	reconcileKernel(t, k, after, true)
	if l, err := netlink.LinkByName("ovn-k8s-mp7"); err != nil || l.Attrs().Flags&net.FlagUp != 0 || l.Attrs().MasterIndex != 0 {
		t.Errorf("the old network's port: %v, %v", l, err)
	}
	if _, err := Remove(context.Background(), k, before.ID, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName("blue")
	if v, ok := l.(*netlink.Vrf); err != nil || !ok || int(v.Table) != testPlan().VRFTable(after) {
		t.Fatalf("VRF device %v, %v, want one of table %d", l, err, testPlan().VRFTable(after))
	}
	if r := reconcileKernel(t, k, after, true); len(r.Ops) != 0 {
		t.Errorf("the new network, after the old one's removal: %v", r.Ops)
	}
}

// A VRF device that is not ours stays unchanged.
func TestKernelForeignVRF(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	if !hasVRF(t) {
		// Any link can occupy the name.
		addVeth(t, "blue", "bluepeer")
	} else {
		addForeignVRF(t, "blue", 10)
	}
	r, _ := Reconcile(context.Background(), k, testNet(7, "cluster_udn_blue", "10.20.0.0/16/24"), testNode(), Inputs{Plan: testPlan(), IPv6: true})
	if !slices.Equal(r.Have.Foreign, []string{"blue"}) || r.Want.Devices[0].Name != "mp7-udn-vrf" {
		t.Errorf("foreign links %v, VRF device %v", r.Have.Foreign, r.Want.Devices)
	}
	if _, err := Remove(context.Background(), k, 7, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName("blue"); err != nil {
		t.Error("the foreign link was deleted")
	}
}

// On a kernel without VRF devices, rules, sysctls and the routes that do not use
// the management port are still created.
func TestKernelWithoutVRF(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	if hasVRF(t) {
		t.Skip("SKIP: this kernel has VRF; TestKernelVRF covers all of it")
	}
	addBridge(t)
	addVeth(t, "ovn-k8s-mp7", "peer7")
	net := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	foreign := &netlink.Route{Table: 100007, Dst: ipNet(netip.MustParsePrefix("198.51.100.0/24")), Type: unix.RTN_BLACKHOLE, Protocol: 186}
	if err := netlink.RouteAdd(foreign); err != nil {
		t.Fatal(err)
	}
	reconcileKernel(t, k, net, false)
	r := reconcileKernel(t, k, net, false)
	// Everything but the VRF device and the routes via the port must match. The
	// port must have no address: it would be in the default VRF.
	want, have := r.Want, r.Have
	want.Devices, want.Port.Master, want.Port.Up, want.Port.Addrs = nil, "", false, nil
	want.Sysctls = slices.DeleteFunc(want.Sysctls, func(s Sysctl) bool { return !slices.Contains(have.Sysctls, s) })
	want.Routes = slices.DeleteFunc(want.Routes, func(r Route) bool { return r.Dev == "ovn-k8s-mp7" })
	if got, exp := text(have, want.Sysctls), want.String(); got != exp {
		t.Errorf("have\n%swant\n%s", got, exp)
	}
	if _, err := Remove(context.Background(), k, 7, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	r2, err := Remove(context.Background(), k, 7, testNode(), testPlan())
	if err != nil || !r2.Have.Empty() {
		t.Errorf("leftover state: %v\n%s", err, r2.Have)
	}
	if remaining, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: 100007}, netlink.RT_FILTER_TABLE); len(remaining) != 1 || remaining[0].Protocol != 186 {
		t.Errorf("remaining routes %v, want the foreign one", remaining)
	}
}

// disableIPv6 does what is usual to harden a node: of all interfaces, or of new ones by default.
func disableIPv6(t *testing.T, of string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+of+"/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
}

// The cluster default network: main table, no VRF. IPv6 is disabled by default.
func TestKernelDefaultNetwork(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	disableIPv6(t, "default")
	addVeth(t, "ovn-k8s-mp0", "peer0")
	dflt := network.Network{ID: 0, Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}
	reconcileKernel(t, k, dflt, true)
	r := reconcileKernel(t, k, dflt, true)
	if len(r.Ops) != 0 {
		t.Errorf("second run: %v", r.Ops)
	}
	if got, want := text(r.Have, r.Want.Sysctls), r.Want.String(); got != want {
		t.Errorf("have\n%swant\n%s", got, want)
	}
	routes, err := netlink.RouteGet(net.ParseIP("10.244.9.9"))
	if err != nil || len(routes) != 1 || routes[0].Gw.String() != "10.244.2.1" {
		t.Errorf("route to another node's pod: %v %v", routes, err)
	}
}

// A marked packet that matches no route in the network's table is unreachable in
// both IP families, while the node's own addresses stay reachable. IPv6 is disabled, except on the bridge.
func TestKernelMarkRouting(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	disableIPv6(t, "all")
	addBridge(t)
	for _, gw := range []string{"192.0.2.1", "2001:db8::1"} { // the main table's default routes
		if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(netip.MustParseAddr(gw), 0).Masked()), Gw: net.ParseIP(gw)}); err != nil {
			t.Fatal(err)
		}
	}
	addVeth(t, "ovn-k8s-mp7", "peer7")
	node := testNode()
	node.NextHops = nil
	n := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24") // no IPv6 subnets
	_, _ = Reconcile(context.Background(), k, n, node, Inputs{Plan: testPlan(), IPv6: k.HasIPv6()})
	for dst, ok := range map[string]bool{
		"198.51.100.1": false, "2001:db8:1::1": false, "10.244.0.9": false,
		"127.0.0.1": true, "192.0.2.10": true, "2001:db8::10": true, "10.20.9.9": hasVRF(t), "10.96.0.1": hasVRF(t), // into the network
	} {
		_, err := netlink.RouteGetWithOptions(net.ParseIP(dst), &netlink.RouteGetOptions{Mark: n.PacketMark()})
		if ok && err != nil || !ok && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s with the network's mark: %v", dst, err)
		}
		if _, err := netlink.RouteGet(net.ParseIP(dst)); err != nil && dst != "10.20.9.9" {
			t.Errorf("%s without a mark: %v", dst, err)
		}
	}
}

// A foreign route with our destination and metric is not replaced.
func TestKernelForeignRoute(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	theirs := &netlink.Route{Table: 100007, Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Priority: RouteMetric, Protocol: 4,
		Gw: net.ParseIP("192.0.2.77"), LinkIndex: index(t, "br-ex")}
	if err := netlink.RouteAdd(theirs); err != nil {
		t.Fatal(err)
	}
	op := Op{Verb: AddRoute, Route: Route{Table: 100007, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("192.0.2.1"), Dev: "br-ex", Metric: RouteMetric}}
	if err := k.Do(context.Background(), op); !errors.Is(err, unix.EEXIST) {
		t.Errorf("adding a conflicting route: %v", err)
	}
	op.Verb = DelRoute
	if err := k.Do(context.Background(), op); err != nil {
		t.Error(err)
	}
	remaining, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: 100007}, netlink.RT_FILTER_TABLE)
	if err != nil || len(remaining) != 1 || remaining[0].Gw.String() != "192.0.2.77" {
		t.Errorf("remaining routes %v %v", remaining, err)
	}
}

func index(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Index
}

// Watch reports a deletion by another program in any table, for that network
// only.
func TestKernelWatch(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	addVeth(t, "ovn-k8s-mp7", "peer7")
	n := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	_, _ = Reconcile(context.Background(), k, n, testNode(), Inputs{Plan: testPlan(), IPv6: true})
	addVeth(t, "ovn-k8s-mp0", "peer0")
	dflt := network.Network{ID: 0, Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}
	reconcileKernel(t, k, dflt, true)
	changes := make(chan Change, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- k.Watch(ctx, TableRange{TableBase: 100000, MaxID: network.MaxID}, func(c Change) { changes <- c })
	}()
	// collectUntil collects changes until it has the wanted ones and no more arrive.
	collectUntil := func(want ...Change) (seen []Change) {
		deadline := time.After(time.Minute)
		quiet := time.NewTimer(300 * time.Millisecond)
		for {
			select {
			case c := <-changes:
				if !slices.Contains(seen, c) {
					seen = append(seen, c)
				}
				quiet.Reset(300 * time.Millisecond)
			case <-quiet.C:
				if !slices.ContainsFunc(want, func(c Change) bool { return !slices.Contains(seen, c) }) {
					return seen
				}
				quiet.Reset(300 * time.Millisecond)
			case <-deadline:
				return seen
			}
		}
	}
	collectUntil()
	for _, tc := range []struct {
		name string
		net  network.Network
		do   func() error
	}{
		{"route deleted", n, func() error {
			return netlink.RouteDel(&netlink.Route{Table: 100007, Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Priority: UnreachableMetric})
		}},
		{"rule deleted", n, func() error {
			return netlink.RuleDel(netlinkRule(Rule{Priority: 2500, Mark: 0x70000, Mask: numberMask, Table: 100007}))
		}},
		{"IPv6 rule deleted", n, func() error {
			return netlink.RuleDel(netlinkRule(Rule{IPv6: true, Priority: 2500, Mark: 0x70000, Mask: numberMask, Table: 100007}))
		}},
		{"shared rule deleted", dflt, func() error { return netlink.RuleDel(netlinkRule(sharedRules(testPlan(), "ovn-k8s-mp0", false)[0])) }},
		{"address deleted", dflt, func() error {
			l, _ := netlink.LinkByName("ovn-k8s-mp0")
			a, _ := netlink.ParseAddr("10.244.2.2/24")
			return netlink.AddrDel(l, a)
		}},
		{"port down", dflt, func() error { l, _ := netlink.LinkByName("ovn-k8s-mp0"); return netlink.LinkSetDown(l) }},
	} {
		if err := tc.do(); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		want := Change{ID: tc.net.ID}
		if got := collectUntil(want); !slices.Equal(got, []Change{want}) {
			t.Errorf("%s: %+v", tc.name, got)
		}
		r, _ := Reconcile(context.Background(), k, tc.net, testNode(), Inputs{Plan: testPlan(), IPv6: true})
		if len(r.Ops) == 0 {
			t.Errorf("%s: no operations to repair it", tc.name)
		}
		collectUntil()
	}
	if l, _ := netlink.LinkByName("br-ex"); netlink.LinkSetDown(l) != nil || !slices.Contains(collectUntil(Change{Bridge: true, Flushed: true}), Change{Bridge: true, Flushed: true}) {
		t.Error("no change reported when the bridge goes down")
	}
	collectUntil()
	for _, what := range []struct {
		name string
		do   func(netlink.Link, *netlink.Addr) error
		want Change
	}{
		{"the bridge goes up", func(l netlink.Link, _ *netlink.Addr) error { return netlink.LinkSetUp(l) }, Change{Bridge: true, Flushed: true}},
		{"the bridge gets an address", netlink.AddrAdd, Change{Bridge: true}},
		{"the bridge loses an address", netlink.AddrDel, Change{Bridge: true, Flushed: true}},
	} {
		l, err := netlink.LinkByName("br-ex")
		if err != nil {
			t.Fatal(err)
		}
		a, _ := netlink.ParseAddr("198.51.100.7/24")
		if err := what.do(l, a); err != nil {
			t.Fatalf("%s: %v", what.name, err)
		}
		if got := collectUntil(what.want); !slices.Contains(got, what.want) {
			t.Errorf("%s: %+v", what.name, got)
		}
		collectUntil()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v", err)
	}
}

// The time to read one network must not depend on the number of networks.
func TestKernelReadIsConstantTime(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP: -short")
	}
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	node := testNode()
	read := func() time.Duration {
		best := time.Hour
		for range 20 {
			start := time.Now()
			if _, err := k.Read(context.Background(), OwnerOf(testNet(1, "ns_1", "10.20.0.0/16/24"), node, testPlan())); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	start := time.Now()
	var one time.Duration
	const networks = 500
	for id := 1; id <= networks; id++ {
		_, _ = Reconcile(context.Background(), k, testNet(id, fmt.Sprintf("ns_%d", id), "10.20.0.0/16/24", "fd20::/48/64"), node, Inputs{Plan: testPlan(), IPv6: true})
		if id == 1 {
			one = read()
		}
	}
	all := time.Since(start)
	many := read()
	start = time.Now()
	if _, err := k.Tables(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d networks created in %v; reading one: %v alone, %v among them; tables listed in %v", networks, all, one, many, time.Since(start))
	if many > 4*one+2*time.Millisecond {
		t.Errorf("reading one network: %v alone, %v among %d", one, many, networks)
	}
}
