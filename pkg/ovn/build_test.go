// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestBuildGolden(t *testing.T) {
	for _, dual := range []bool{false, true} {
		for _, peers := range []int{0, 2} {
			for _, mode := range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
				if mode == network.LocalGateway && (!dual || peers > 0) {
					continue // differs by three rows
				}
				for _, n := range []network.Network{testDefault(dual), testTenant(7, "blue_net", dual)} {
					name := fmt.Sprintf("%s-%s-%d-peers-%s", n.Name, map[bool]string{false: "ipv4", true: "dual"}[dual], peers, mode)
					t.Run(name, func(t *testing.T) { golden(t, name, n, dual, peers, mode) })
				}
			}
		}
	}
}

func golden(t *testing.T, name string, n network.Network, dual bool, peers int, mode network.GatewayMode) {
	node := testNode(1, "node1", mode)
	in := Inputs{Plan: testPlan(dual), PhysicalNetwork: "physnet"}
	in.OneNode = peers == 0
	for i := range peers {
		in.Peers = append(in.Peers, testNode(i+2, fmt.Sprintf("node%d", i+2), mode))
	}
	if n.IsDefault() {
		in.Pods = []PodPort{testPod(n, node, "default", "plain", "p", 3, false), testPod(n, node, "default", "blue", "p", 4, true)}
		in.Pods[1].Open = []network.OpenPort{{Protocol: "icmp"}, {Protocol: "tcp", Port: 80}, {Protocol: "tcp", Port: 443}, {Protocol: "udp", Port: 53}}
	} else {
		in.Pods = []PodPort{testPod(n, node, "blue/net", "blue", "p", 3, false)}
	}
	state, err := Build(n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, name, state)
}

// Our columns must exist and ids must be unique: the client's indexes and Diff rely
// on it.
func TestRowsAreWellFormed(t *testing.T) {
	for name, tab := range tables {
		m := newModel(name)
		for _, c := range append(slices.Clone(tab.columns), tab.contains...) {
			if !field(m, c).IsValid() {
				t.Errorf("table %s has no column %s", name, c)
			}
		}
	}
	seen := map[string]struct{}{}
	for _, n := range []network.Network{testDefault(true), testTenant(1, "red_net", true), testTenant(2, "blue_net", true)} {
		node := testNode(1, "node1", network.SharedGateway)
		s, err := Build(n, node, Inputs{Plan: testPlan(true), Peers: []network.Node{testNode(2, "node2", network.SharedGateway)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range s {
			if _, dup := seen[r.String()]; dup {
				t.Errorf("%s twice", r)
			}
			seen[r.String()] = struct{}{}
			if reflect.TypeOf(r.Model) != reflect.TypeOf(nbModels[r.Table]) {
				t.Errorf("%s is a %T", r, r.Model)
			}
			for _, ref := range r.In {
				if !slices.Contains(tables[ref.Table].contains, ref.Column) {
					t.Errorf("%s is in %s, which Read does not read", r, ref)
				}
			}
		}
	}
}

// A network keeps its rows' UUIDs, and its successor of the same name has others.
func TestUUIDs(t *testing.T) {
	uuids := func(edit func(*network.Network)) map[string]string {
		n := testTenant(1, "red_net", true)
		edit(&n)
		s, err := Build(n, testNode(1, "node1", network.SharedGateway), Inputs{Plan: testPlan(true)})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, r := range s {
			out[r.UUID] = r.String()
		}
		if len(out) != len(s) {
			t.Errorf("%d UUIDs for %d rows", len(out), len(s))
		}
		return out
	}
	before := uuids(func(*network.Network) {})
	if again := uuids(func(n *network.Network) { n.MTU = 1300 }); !reflect.DeepEqual(again, before) {
		t.Errorf("rows were %v, are %v", before, again)
	}
	for what, edit := range map[string]func(*network.Network){
		"owner": func(n *network.Network) { n.OwnerUID = "another" },
		"id":    func(n *network.Network) { n.ID = 2 },
	} {
		for id, row := range uuids(edit) {
			if before[id] != "" {
				t.Errorf("with another %s, %s has the same UUID", what, row)
			}
		}
	}
}

func TestBuildErrors(t *testing.T) {
	n := testTenant(1, "red_net", false)
	n.Subnets[0].HostLen = 17 // two nodes
	if _, err := Build(n, testNode(3, "node3", network.SharedGateway), Inputs{Plan: testPlan(false)}); err == nil || !strings.Contains(err.Error(), "append a CIDR") {
		t.Errorf("third node of two: %v", err)
	}
	s, err := Build(n, testNode(1, "node1", network.SharedGateway), Inputs{Plan: testPlan(false), Peers: []network.Node{testNode(3, "node3", network.SharedGateway)}})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(s, func(r Row) bool { return strings.Contains(r.ID, "node3") }); i >= 0 {
		t.Errorf("a peer that the network cannot hold has %s", s[i])
	}
	n.Topology = network.Localnet
	if _, err := Build(n, testNode(1, "node1", network.SharedGateway), Inputs{}); err == nil {
		t.Error("no error for a primary localnet network")
	}
	node := testNode(1, "node1", network.SharedGateway)
	node.Addresses, node.BridgeMAC = nil, ""
	if s, err = Build(testDefault(false), node, Inputs{Plan: testPlan(false)}); err != nil || slices.ContainsFunc(s, func(r Row) bool { return strings.HasPrefix(r.ID, "GR_") }) {
		t.Errorf("without gateway facts: %v", err)
	}
}

// genNetworks are the names of the networks that genRows draws.
var genNetworks = []string{network.DefaultName, "layer3_primary", "layer3_secondary", "layer2_primary", "layer2_secondary", "localnet_secondary", "no-overlay_net"}

// genNetwork draws a network of any topology. Its settings change from draw to draw.
func genNetwork(t *rapid.T, label string) network.Network {
	name := rapid.SampledFrom(genNetworks).Draw(t, label+" network")
	if name == network.DefaultName {
		return testDefault(rapid.Bool().Draw(t, label+" dual"))
	}
	topology, role, _ := strings.Cut(name, "_")
	families := []string{"ipv4", "ipv6", "dual"}
	if topology != string(network.Layer3) && role == string(network.RoleSecondary) {
		families = append(families, "")
	}
	id, ipFamilies := slices.Index(genNetworks, name), rapid.SampledFrom(families).Draw(t, label+" families")
	if name == "no-overlay_net" {
		n := testNetwork(id, name, network.Layer3, network.RolePrimary, ipFamilies)
		n.Transport, n.OutboundSNAT = network.TransportNoOverlay, "enabled"
		return n
	}
	n := testNetwork(id, name, network.Topology(topology), network.Role(role), ipFamilies)
	if n.Topology == network.Localnet {
		n.VLAN = rapid.IntRange(0, 2).Draw(t, label+" VLAN")
		n.PhysicalNetworkName = rapid.SampledFrom([]string{"", "physical", "other"}).Draw(t, label+" physical network")
	}
	return n
}

// genRows draws the rows of a network. Pods may be locked, disabled or on another
// node, and the node may have either gateway mode.
func genRows(t *rapid.T, label string) (network.Network, State) {
	n := genNetwork(t, label)
	node := testNode(1, "node1", rapid.SampledFrom([]network.GatewayMode{network.SharedGateway, network.LocalGateway}).Draw(t, label+" mode"))
	if rapid.Bool().Draw(t, label+" no bridge") {
		node.BridgeMAC = ""
	}
	in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet"}
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(2, 5), 0, 4, rapid.ID[int]).Draw(t, label+" peers") {
		in.Peers = append(in.Peers, testNode(i, fmt.Sprintf("node%d", i), network.SharedGateway))
	}
	if n.Transport != "" || rapid.Bool().Draw(t, label+" BGP") {
		in.BGP.Loose = rapid.Bool().Draw(t, label+" loose isolation")
		if rapid.Bool().Draw(t, label+" advertised") {
			n.AdvertisedVRFs = "default"
		}
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 0, 3, rapid.ID[int]).Draw(t, label+" advertised subnets") {
			in.BGP.AdvertisedSubnets = append(in.BGP.AdvertisedSubnets, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
			in.BGP.NoOverlaySubnets = in.BGP.AdvertisedSubnets
			in.ImportedRoutes = append(in.ImportedRoutes, ImportedRoute{Prefix: in.BGP.AdvertisedSubnets[0], NextHops: node.NextHops})
		}
	}
	nadKey := network.NADKey("ns", "net")
	if n.IsDefault() {
		nadKey = network.DefaultName
	}
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(3, 8), 0, 5, rapid.ID[int]).Draw(t, label+" pods") {
		// The same name in all networks would be the same port.
		name := fmt.Sprintf("p%d-%d", n.ID, i)
		disabled := rapid.Bool().Draw(t, label+" disabled")
		if n.Topology == network.Layer2 && rapid.Bool().Draw(t, label+" remote") {
			remote := testRemotePod(n, testNode(2, "node2", node.Mode), nadKey, "ns", name, i)
			remote.Disabled = disabled
			in.RemotePods = append(in.RemotePods, remote)
			continue
		}
		pod := testPod(n, node, nadKey, "ns", name, i, n.IsDefault() && rapid.Bool().Draw(t, label+" locked"))
		pod.Disabled, pod.VirtualMachine = disabled, rapid.SampledFrom([]string{"", "vm"}).Draw(t, label+" virtual machine")
		for port := range rapid.IntRange(0, 2).Draw(t, label+" open") {
			pod.Open = append(pod.Open, network.OpenPort{Protocol: rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, fmt.Sprintf("%s protocol %d", label, port)), Port: uint16(80 + port)})
		}
		in.Pods = append(in.Pods, pod)
	}
	s, err := Build(n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	return n, s
}

// TestConverge checks that from any state and after any failures Apply(Diff) reaches
// the desired state, that a second run is a no-op, that rows of others are unchanged,
// and that a port to be locked never exists unlocked.
func TestConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		f := &Fake{}
		foreign := Row{Table: nbdb.LogicalSwitchTable, ID: "theirs", Model: &nbdb.LogicalSwitch{Name: "theirs"}}
		f.Add(foreign)
		for i := range rapid.IntRange(1, 3).Draw(t, "steps") {
			n, want := genRows(t, fmt.Sprint(i))
			if rapid.Bool().Draw(t, "gone") {
				want = nil
			}
			owner := Selection{Network: n.Name, Node: "node1"}
			locked := map[string]bool{}
			for _, r := range want {
				locked[r.ID] = r.locked()
			}
			open := map[string]bool{}
			for _, r := range f.Rows() {
				open[r.UUID] = !r.locked()
			}
			f.Fail = func(Op) error {
				checkLocked(t, f.rows, locked, open)
				if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
					return errors.New("injected failure")
				}
				return nil
			}
			have, _ := f.Read(ctx, owner)
			_ = f.Apply(ctx, Diff(want, have))
			f.Fail = nil
			have, _ = f.Read(ctx, owner)
			if err := f.Apply(ctx, Diff(want, have)); err != nil {
				t.Fatal(err)
			}
			have, _ = f.Read(ctx, owner)
			if ops := Diff(want, have); len(ops) > 0 {
				t.Fatalf("second run: %v", ops)
			}
			if got := have.Dump(); got != want.Dump() {
				t.Fatalf("rows are\n%s\nwant\n%s", got, want.Dump())
			}
		}
		if !slices.ContainsFunc(f.Rows(), func(r Row) bool { return r.ID == foreign.ID }) {
			t.Fatal("another client's row was deleted")
		}
	})
}

// checkLocked fails if a port to be locked exists unlocked, unless it was unlocked
// when the step began.
func checkLocked(t *rapid.T, rows State, locked, open map[string]bool) {
	for _, r := range rows {
		if r.Table == nbdb.LogicalSwitchPortTable && locked[r.ID] && !open[r.UUID] && !r.locked() {
			t.Fatalf("%s is unlocked", r)
		}
	}
}

// If something cannot be closed, its unit opens nothing, and other units are as usual.
func TestNothingOpensUnlessClosed(t *testing.T) {
	n := testDefault(false)
	node := testNode(1, "node1", network.SharedGateway)
	in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet", Peers: []network.Node{testNode(2, "node2", network.SharedGateway)},
		Pods: []PodPort{testPod(n, node, "default", "plain", "p", 3, false), testPod(n, node, "default", "red", "p", 4, true)}}
	want, err := Build(n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	f := &Fake{}
	f.Fail = func(op Op) error {
		if op.Row.ID == "locked-deny-from" {
			return errors.New("injected failure")
		}
		return nil
	}
	if err := f.Apply(context.Background(), Diff(want, nil)); !errors.Is(err, errClosingFailed) {
		t.Errorf("error %v", err)
	}
	for id, exists := range map[string]bool{
		"node1": true, "plain_p": true, "tstor-node2": true, // a switch, and ports of other units
		LockedPortGroup: false, "locked-deny-to": false, "locked-host-to-ip4": false, "red_p": false,
		"GR_node1 dst-ip 0.0.0.0/0 172.18.255.254": false, // a route of the topology
	} {
		if got := slices.ContainsFunc(f.Rows(), func(r Row) bool { return r.ID == id }); got != exists {
			t.Errorf("%s exists: %t", id, got)
		}
	}
	f.Fail = nil
	if err := f.Apply(context.Background(), Diff(want, f.Rows())); err != nil {
		t.Error(err)
	}
	if got := f.Rows().Dump(); got != want.Dump() {
		t.Errorf("rows are\n%s\nwant\n%s", got, want.Dump())
	}
}

func TestDuplicateRowsAreDeleted(t *testing.T) {
	n := testDefault(false)
	want, err := Build(n, testNode(1, "node1", network.SharedGateway), Inputs{Plan: testPlan(false)})
	if err != nil {
		t.Fatal(err)
	}
	duplicate := want[0].clone()
	duplicate.UUID = "duplicate"
	ops := Diff(want, append(slices.Clone(want), duplicate))
	if len(ops) != 1 || ops[0].Verb != Delete || ops[0].Row.UUID != "duplicate" {
		t.Errorf("operations: %v", ops)
	}
}

func TestOpStrings(t *testing.T) {
	n := testDefault(false)
	node := testNode(1, "node1", network.SharedGateway)
	want, err := Build(n, node, Inputs{Plan: testPlan(false), Pods: []PodPort{testPod(n, node, "default", "blue", "p", 4, true)}})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, op := range Diff(want, nil) {
		lines = append(lines, op.String())
		if strings.Contains(op.String(), "\n") {
			t.Errorf("several lines: %s", op)
		}
	}
	if !slices.ContainsFunc(lines[:3], func(l string) bool { return strings.HasPrefix(l, "insert Port_Group "+LockedPortGroup) }) {
		t.Errorf("the first operations are not isolation: %v", lines[:3])
	}
	if want := "insert Logical_Switch_Port blue_p into Port_Group bulkhead_locked ports and Logical_Switch node1 ports"; !slices.Contains(lines, want) {
		t.Errorf("no line %q in\n%s", want, strings.Join(lines, "\n"))
	}
}

// TestNextHopInAnyOrder: a dual-stack gateway router has one next hop, of IPv6, in whatever order the masquerade
// ranges are configured.
func TestNextHopInAnyOrder(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		plan := testPlan(true)
		if reverse {
			slices.Reverse(plan.Masquerade)
		}
		rows, err := Build(testTenant(1, "red_net", true), testNode(1, "node1", network.SharedGateway), Inputs{Plan: plan, PhysicalNetwork: "physnet"})
		if err != nil {
			t.Fatal(err)
		}
		defaults := 0
		for _, r := range rows {
			route, ok := r.Model.(*nbdb.LogicalRouterStaticRoute)
			if !ok || route.IPPrefix != "0.0.0.0/0" && route.IPPrefix != "::/0" {
				continue
			}
			if defaults++; !netip.MustParseAddr(route.Nexthop).Is6() {
				t.Errorf("masquerade ranges %v: %s via %s", plan.Masquerade, route.IPPrefix, route.Nexthop)
			}
		}
		if defaults != 2 {
			t.Errorf("masquerade ranges %v: %d default routes, want 2", plan.Masquerade, defaults)
		}
	}
}
