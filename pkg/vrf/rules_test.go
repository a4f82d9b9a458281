// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

// lookup walks sorted rules as the kernel does, and returns the rule that ends the walk, or
// none, and how many rules it compared.
func lookup(rules []Rule, mark uint32) (found *Rule, compared int) {
	for i := 0; i < len(rules); i++ {
		r := rules[i]
		compared++
		if (mark^r.Mark)&r.Mask != 0 || r.To.IsValid() || r.From != "" && r.From != "lo" {
			continue
		}
		switch r.Action {
		case Lookup, Unreachable:
			return &r, compared
		case Goto:
			i = slices.IndexFunc(rules, func(x Rule) bool { return x.Priority == r.Goto }) - 1
		}
	}
	return nil, compared
}

// treeOf returns the rules of one IP family of a node with these networks.
func treeOf(ids []int) []Rule {
	st := State{Rules: sharedRules(testPlan(), "ovn-k8s-mp0", false)}
	for _, id := range ids {
		for _, r := range markRules(network.Network{ID: id}, false, 100000+id) {
			st.Rules = append(append(st.Rules, r), r.branches()...)
		}
	}
	st.normalise()
	return st.Rules
}

// A mark leads to its network's table, whatever other programs have set, and to nothing if the
// node does not have the network. Other packets leave at the first rules.
func TestRuleTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.IntRange(1, network.MaxID), 0, 300, rapid.ID).Draw(t, "ids")
		rules := treeOf(ids)
		others := rapid.Uint32Range(0, 0xffff).Draw(t, "marks of other programs")
		for _, id := range append(ids, rapid.IntRange(1, 1<<network.MarkBits-1).Draw(t, "id")) {
			r, _ := lookup(rules, network.PacketMark(id)|others)
			if known := slices.Contains(ids, id); r == nil || known != (r.Table == 100000+id) || known == (r.Action == Unreachable) {
				t.Fatalf("the mark of network %d (known: %t) leads to %v", id, known, r)
			}
		}
		for _, mark := range []uint32{0, network.KubeletMark, network.MarkKindEgressIP, network.MarkKindEgressIP | 1<<16, network.MarkKindService | 3<<20, 0xffff0000} {
			if r, n := lookup(rules, mark|others); r != nil || n > 8 {
				t.Fatalf("mark %#x leads to %v after %d rules", mark, r, n)
			}
			// Also when somebody has deleted the rules by which they skip the tree.
			if mark&network.MarkKindOther == network.MarkKindService {
				continue // has a network's number, and is our own
			}
			rest := slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return r.Priority <= skipPriority+2 })
			if r, _ := lookup(rest, mark|others); r != nil {
				t.Fatalf("mark %#x leads to %v without the first rules", mark, r)
			}
		}
	})
}

// A packet is compared with few rules, however many networks there are.
func TestRuleTreeDepth(t *testing.T) {
	for _, n := range []int{1, 10, 500, network.MaxID} {
		var ids []int
		for id := 1; id <= n; id++ {
			ids = append(ids, id)
		}
		rules, sum, most := treeOf(ids), 0, 0
		for _, id := range ids {
			_, compared := lookup(rules, network.PacketMark(id))
			sum, most = sum+compared, max(most, compared)
		}
		_, unmarked := lookup(rules, 0)
		t.Logf("%d networks: %d rules; a marked packet is compared with %d on average, %d at most, an unmarked one with %d", n, len(rules), sum/n, most, unmarked)
		if most > 50 || n <= 500 && most > 30 {
			t.Errorf("%d networks: a marked packet is compared with up to %d rules", n, most)
		}
	}
}

// kernelTable returns the table whose route the kernel uses for a packet of each IP family, 0
// for an unreachable destination.
func kernelTable(t *testing.T, mark uint32) (v4, v6 int) {
	t.Helper()
	tables := [2]int{}
	for i, to := range []string{"198.51.100.1", "2001:db8:1::1"} {
		routes, err := netlink.RouteGetWithOptions(net.ParseIP(to), &netlink.RouteGetOptions{Mark: mark, FIBMatch: true})
		switch {
		case err == nil && len(routes) == 1:
			tables[i] = routes[0].Table
		case !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH):
			t.Fatalf("look up %s with mark %#x: %v %v", to, mark, routes, err)
		}
	}
	return tables[0], tables[1]
}

// The kernel finds each network's table through the tree while networks come and go, others
// delete rules, and a change is interrupted.
func TestKernelRuleTree(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	ctx := context.Background()
	dflt := network.Network{ID: 0, Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}
	reconcile := func(n network.Network) {
		t.Helper()
		// Without VRF devices and management ports not everything succeeds.
		_, _ = Reconcile(ctx, k, n, testNode(), Inputs{Plan: testPlan(), IPv6: true})
	}
	reconcile(dflt)
	for _, gw := range testNode().NextHops { // the main table's default routes
		if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(gw, 0).Masked()), Gw: gw.AsSlice(), LinkIndex: index(t, "br-ex")}); err != nil {
			t.Fatal(err)
		}
	}
	tenant := func(id int) network.Network {
		return testNet(id, fmt.Sprintf("ns_%d", id), "10.20.0.0/16/24", "fd20::/48/64")
	}
	present := map[int]bool{}
	check := func(when string) {
		t.Helper()
		for _, id := range []int{1, 2, 8, 9, 63, 64, 511, 512, 600, 5000, 9999, 10000} {
			want := 0
			if present[id] {
				want = 100000 + id
			}
			if v4, v6 := kernelTable(t, network.PacketMark(id)|0x4000); v4 != want || v6 != want {
				t.Errorf("%s: network %d (present: %t) uses tables %d and %d", when, id, present[id], v4, v6)
			}
		}
		for _, mark := range []uint32{0, 0x4000, network.KubeletMark, network.MarkKindEgressIP | 7<<16} {
			if v4, v6 := kernelTable(t, mark); v4 != MainTable || v6 != MainTable {
				t.Errorf("%s: mark %#x uses tables %d and %d, want the main table", when, mark, v4, v6)
			}
		}
	}
	check("without networks")
	for _, id := range []int{1, 9, 64, 512, 600, 10000} {
		reconcile(tenant(id))
		present[id] = true
	}
	check("six networks")
	for _, id := range []int{1, 512} {
		if _, err := Remove(ctx, k, id, testNode(), testPlan()); err != nil {
			t.Fatal(err)
		}
		present[id] = false
	}
	check("two networks were removed")

	// Somebody deletes a branch: the agent that starts next adds it, and nothing else.
	leaf := markRules(network.Network{ID: 10000}, true, 110000)[1]
	if err := netlink.RuleDel(netlinkRule(leaf.branches()[1])); err != nil {
		t.Fatal(err)
	}
	k = openKernel(t)
	r, _ := Reconcile(ctx, k, tenant(10000), testNode(), Inputs{Plan: testPlan(), IPv6: true})
	var rules []Rule
	for _, op := range r.Ops {
		if op.Verb == AddRule {
			rules = append(rules, op.Rule)
		}
	}
	if !slices.Equal(rules, []Rule{leaf}) {
		t.Errorf("a branch was deleted: rules added: %v", rules)
	}
	check("a branch was deleted")

	// The agent dies while it deletes a network: the leaf is gone and its branches are not.
	if err := netlink.RuleDel(netlinkRule(leaf)); err != nil {
		t.Fatal(err)
	}
	present[10000] = false
	if _, err := Remove(ctx, k, 10000, testNode(), testPlan()); err != nil {
		t.Fatal(err)
	}
	k = openKernel(t)
	reconcile(dflt)
	check("a change was interrupted")
	for id := range present {
		if _, err := Remove(ctx, k, id, testNode(), testPlan()); err != nil {
			t.Fatal(err)
		}
		present[id] = false
	}
	check("every network was removed")
	st, err := openKernel(t).Read(ctx, OwnerOf(dflt, testNode(), testPlan()))
	if want := sharedRules(testPlan(), "ovn-k8s-mp0", true); err != nil || len(st.Rules) != len(want) {
		t.Errorf("%d rules are left, want the %d of the node: %v\n%s", len(st.Rules), len(want), err, st)
	}
}

// In local gateway mode the kernel routes what pods send out of the node by the main table's
// routes, and by default routes only where it has no other; what comes from outside for pods of an
// advertised network by theirs. The node's own packets use neither.
func TestKernelOutside(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	addVeth(t, "ovn-k8s-mp0", "peer0")
	addVeth(t, "ovn-k8s-mp7", "peer7")
	ctx, node := context.Background(), testNode()
	node.Mode = network.LocalGateway
	dflt := network.Network{ID: 0, Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}
	blue := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24", "fd20::/48/64")
	blue.Transport, blue.AdvertisedVRFs = network.TransportNoOverlay, "default"
	hosts, err := blue.HostSubnets(node.ID)
	if err != nil {
		t.Fatal(err)
	}
	in := Inputs{Plan: testPlan(), IPv6: true}
	if _, err := Reconcile(ctx, k, dflt, node, in); err != nil {
		t.Fatal(err)
	}
	vrf, err := Build(blue, node, in)
	if err != nil {
		t.Fatal(err)
	}
	// As with a VRF device, which this kernel may lack: the port has no route in the main table.
	up(t, "ovn-k8s-mp7")
	var ops []Op
	for _, a := range vrf.Port.Addrs {
		ops = append(ops, Op{Verb: AddAddr, Port: vrf.Port, Addr: a})
	}
	for _, s := range portSysctls(vrf.Port.Name, true, blue, node) {
		ops = append(ops, Op{Verb: SetSysctl, Sysctl: s})
	}
	for _, r := range vrf.Routes {
		ops = append(ops, Op{Verb: AddRoute, Route: r})
	}
	if err := Apply(ctx, k, ops); err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{"198.51.100.0/24", "2001:db8:1::/64"} { // as FRR does
		if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix(to)), Gw: node.NextHops[i].AsSlice(), LinkIndex: index(t, "br-ex"), Protocol: unix.RTPROT_BGP}); err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(node.NextHops[i], 0).Masked()), Gw: node.NextHops[i].AsSlice(), LinkIndex: index(t, "br-ex")}); err != nil {
			t.Fatal(err)
		}
	}
	// table is that of the rule and route that a packet finds.
	table := func(to, from, iif string, mark uint32) int {
		t.Helper()
		routes, err := netlink.RouteGetWithOptions(net.ParseIP(to), &netlink.RouteGetOptions{Mark: mark, FIBMatch: true, Iif: iif, SrcAddr: net.ParseIP(from)})
		if err != nil || len(routes) != 1 {
			return 0
		}
		return routes[0].Table
	}
	for _, v6 := range []bool{false, true} {
		if err := netlink.RuleAdd(netlinkRule(Rule{IPv6: v6, Priority: 1000, From: vrf.Port.Name, Table: 100007})); err != nil {
			t.Fatal(err)
		}
	}
	if err := Apply(ctx, k, []Op{{Verb: AddRule, Rule: markRules(blue, true, 100007)[0]}, {Verb: AddRule, Rule: markRules(blue, true, 100007)[1]}}); err != nil {
		t.Fatal(err)
	}
	defaultPods := []string{"10.244.2.9", "fd10:244:0:2::9"}
	for i, a := range []struct{ learned, other, client, service string }{{"198.51.100.7", "203.0.113.7", "192.0.2.77", "10.96.3.4"}, {"2001:db8:1::7", "2001:db8:2::7", "2001:db8::77", "fd10:96::34"}} {
		pod := hosts[i].Addr().Next().Next().Next().String()
		for _, c := range []struct {
			what, to, from, iif string
			mark                uint32
			want                int
		}{
			{"a pod to a learned prefix", a.learned, pod, "ovn-k8s-mp7", network.OutMark, MainTable},
			{"a pod to anything else", a.other, pod, "ovn-k8s-mp7", network.OutMark, 100007},
			{"a pod to a learned prefix, unmarked", a.learned, pod, "ovn-k8s-mp7", 0, 100007},
			// The firewall refuses what would return to the network's router.
			{"a pod to a pod that no route leads to", hosts[i].Addr().Prev().String(), pod, "ovn-k8s-mp7", network.OutMark, 100007},
			{"a process of the network to a pod", hosts[i].Addr().Prev().String(), "", "", blue.PacketMark(), 100007},
			{"a pod to a service", a.service, pod, "ovn-k8s-mp7", network.OutMark, MainTable},
			{"a pod to a service, unmarked", a.service, pod, "ovn-k8s-mp7", 0, MainTable},
			{"a process of the network to a service", a.service, "", "", blue.PacketMark(), 100007},
			{"an ingress pod to a network's service", a.service, defaultPods[i], "ovn-k8s-mp0", blue.IngressMark(), 100007},
			{"a pod of the default network to a service", a.service, defaultPods[i], "ovn-k8s-mp0", 0, MainTable},
			{"a reply to an ingress pod", defaultPods[i], a.service, "ovn-k8s-mp7", network.MarkKindService, MainTable},
			{"the same without our mark", defaultPods[i], a.service, "ovn-k8s-mp7", 0, 0},
			{"the node to a service", a.service, "", "", 0, MainTable},
			{"from outside to a pod", pod, a.client, "br-ex", 0, network.AdvertisedTable},
			{"the node to a pod", pod, "", "", 0, MainTable},
			{"the node to a pod, marked", pod, "", "", network.OutMark, MainTable},
			{"from elsewhere to a pod", pod, a.client, "ovn-k8s-mp0", 0, MainTable},
		} {
			if got := table(c.to, c.from, c.iif, c.mark); got != c.want {
				t.Errorf("%s (%s): table %d, want %d", c.what, c.to, got, c.want)
			}
		}
	}
	for range 2 { // restarted: nothing to do
		if r, err := Reconcile(ctx, openKernel(t), dflt, node, in); err != nil || len(r.Ops) != 0 {
			t.Errorf("once more: %v: %v", r.Ops, err)
		}
	}
	// In shared gateway mode the rules go.
	if r, err := Reconcile(ctx, k, dflt, testNode(), in); err != nil || len(r.Ops) == 0 {
		t.Errorf("shared gateway mode: %v: %v", r.Ops, err)
	}
	if got := table("198.51.100.7", "10.20.2.3", "ovn-k8s-mp7", network.OutMark); got != 100007 {
		t.Errorf("shared gateway mode: table %d", got)
	}
	for _, to := range []string{"10.96.3.4", "fd10:96::34"} {
		from := hosts[0].Addr().Next().Next().Next()
		if strings.Contains(to, ":") {
			from = hosts[1].Addr().Next().Next().Next()
		}
		if got := table(to, from.String(), "ovn-k8s-mp7", 0); got != MainTable {
			t.Errorf("shared gateway mode, a pod to service %s: table %d", to, got)
		}
		if got := table(to, "", "", blue.PacketMark()); got != 100007 {
			t.Errorf("shared gateway mode, a process of the network to service %s: table %d", to, got)
		}
	}
}
