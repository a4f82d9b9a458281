// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
	"bulkhead/pkg/ovsdb"
	"bulkhead/test/native"
)

// Tests against a real ovsdb-server with OVN's schemas, without root or northd.

func TestDatabase(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	h.database("nb")
	h.database("sb")
	h.must("ovn-nbctl", "--no-leader-only", "init")
	h.must("ovn-nbctl", "--no-leader-only", "ls-add", "theirs", "--", "lsp-add", "theirs", "blue.net_blue_p", "--", "lr-add", "theirs")
	nb, sb := h.databases()
	ctx := context.Background()
	node := testNode(1, "node1", network.SharedGateway)
	peers := []network.Node{testNode(2, "node2", network.SharedGateway), testNode(3, "node3", network.SharedGateway)}
	cdn, red, blue := testDefault(true), testTenant(1, "red_net", true), testTenant(2, "blue_net", true)
	in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Peers: peers}
	withPods := func(pods ...PodPort) Inputs { x := in; x.Pods = pods; return x }

	// A locked pod whose port group does not exist gets no port.
	locked := withPods(testPod(cdn, node, "default", "red", "p", 3, true))
	rows, err := Build(cdn, node, locked)
	if err != nil {
		t.Fatal(err)
	}
	err = nb.Apply(ctx, Diff(slices.DeleteFunc(rows, func(r Row) bool { return r.Effect == Closes || r.Table == nbdb.ACLTable }), nil))
	if err == nil || !strings.Contains(err.Error(), "insert Logical_Switch_Port red_p") {
		t.Errorf("port of a locked pod without its port group: %v", err)
	}
	if out := strings.TrimSpace(h.must("ovn-nbctl", "--no-leader-only", "--bare", "--columns=name", "find", "Logical_Switch_Port", "name=red_p")); out != "" {
		t.Errorf("port %s exists without its port group", out)
	}
	converge(t, nb, cdn, node, locked)
	before := nb.Transactions()
	converge(t, nb, red, node, withPods(testPod(red, node, "red/net", "red", "p", 3, false)))
	if n := nb.Transactions() - before; n != 1 {
		t.Errorf("a new network took %d transactions", n)
	}
	// A port gets locked, a peer and a pod are deleted, the gateway mode changes.
	converge(t, nb, cdn, node, withPods(testPod(cdn, node, "default", "red", "p", 3, false), testPod(cdn, node, "default", "red", "q", 4, true)))
	in.Peers = peers[:1]
	converge(t, nb, cdn, node, withPods(testPod(cdn, node, "default", "red", "p", 3, true)))
	local := node
	local.Mode = network.LocalGateway
	converge(t, nb, red, local, in)

	// A port name is taken by another client: the insert of that row fails with an
	// error that names the row, the other rows are inserted.
	want, err := Build(blue, node, withPods(testPod(blue, node, "blue/net", "blue", "p", 3, false), testPod(blue, node, "blue/net", "blue", "q", 4, false)))
	if err != nil {
		t.Fatal(err)
	}
	err = nb.Apply(ctx, Diff(want, nil))
	if err == nil || !strings.Contains(err.Error(), "insert Logical_Switch_Port blue.net_blue_p") || strings.Contains(err.Error(), "blue_q") {
		t.Errorf("taken name: %v", err)
	}
	owner := Selection{Network: blue.Name, Node: node.Name}
	have, err := nb.Read(ctx, owner)
	if err != nil {
		t.Fatal(err)
	}
	if left := Diff(want, have); len(left) != 1 {
		t.Errorf("missing after a taken name: %v", left)
	}
	if names, err := nb.Networks(ctx); err != nil || fmt.Sprint(names) != "[blue_net default red_net]" {
		t.Errorf("networks: %v, %v", names, err)
	}
	for _, n := range []network.Network{red, blue, cdn} {
		o := Selection{Network: n.Name, Node: node.Name}
		if have, err = nb.Read(ctx, o); err != nil {
			t.Fatal(err)
		}
		if err := nb.Apply(ctx, Diff(nil, have)); err != nil {
			t.Error(err)
		}
	}
	for _, table := range []string{"Logical_Switch", "Logical_Router", "Logical_Switch_Port"} {
		if out := strings.Fields(h.must("ovn-nbctl", "--no-leader-only", "--bare", "--columns=name", "list", table)); len(out) != 1 {
			t.Errorf("%s: %v remain, want only the other client's", table, out)
		}
	}
	for table := range tables {
		if out := strings.TrimSpace(h.must("ovn-nbctl", "--no-leader-only", "--bare", "--columns=_uuid", "find", table)); out != "" && !strings.HasPrefix(table, "Logical_Switch") && table != "Logical_Router" {
			t.Errorf("%s: leftover rows %s", table, out)
		}
	}
	if err := nb.SetName(ctx, "node1"); err != nil {
		t.Error(err)
	}

	testChassis(t, sb, node, peers)
}

func testChassis(t *testing.T, sb *SB, node network.Node, peers []network.Node) {
	ctx := context.Background()
	reinstalled := []network.Node{peers[0]}
	reinstalled[0].Chassis = "chassis-2b" // same address
	exchanged := slices.Clone(peers)
	exchanged[0].EncapIPs, exchanged[1].EncapIPs = peers[1].EncapIPs, peers[0].EncapIPs
	for i, p := range [][]network.Node{peers, peers, exchanged, reinstalled, nil} {
		want := BuildChassis(node, p)
		have, err := sb.ReadChassis(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ops := DiffChassis(want, have)
		if i == 1 && len(ops) > 0 {
			t.Errorf("second run: %v", ops)
		}
		if err := sb.ApplyChassis(ctx, ops); err != nil {
			t.Fatal(err)
		}
		if have, err = sb.ReadChassis(ctx); err != nil || fmt.Sprint(have) != fmt.Sprint(want) {
			t.Errorf("chassis %v, want %v, %v", have, want, err)
		}
	}
}

// Fake has the same rows and errors as a real database after the same operations:
// some of those that Diff returns, in any order.
func TestFakeIsLikeDatabase(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	h.database("nb")
	h.database("sb")
	nb, _ := h.databases()
	ctx := context.Background()
	read := func(t *rapid.T, target Target) State {
		var all State
		for _, name := range genNetworks {
			rows, err := target.Read(ctx, Selection{Network: name, Node: "node1"})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, rows...)
		}
		return all
	}
	rapid.Check(t, func(t *rapid.T) {
		f := &Fake{}
		if err := nb.Apply(ctx, Diff(nil, read(t, nb))); err != nil {
			t.Fatal(err)
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "steps") {
			_, want := genRows(t, fmt.Sprint(i))
			ops := Diff(want, read(t, nb))
			if rapid.Bool().Draw(t, "some") {
				ops = rapid.Permutation(ops).Draw(t, "order")
				ops = ops[:rapid.IntRange(0, len(ops)).Draw(t, "number")]
			}
			for _, op := range ops {
				errNB, errFake := nb.Apply(ctx, []Op{op}), f.Apply(ctx, []Op{op})
				if (errNB == nil) != (errFake == nil) {
					t.Fatalf("%s: database %v, fake %v", op, errNB, errFake)
				}
			}
			if got, want := read(t, f).Dump(), read(t, nb).Dump(); got != want {
				t.Fatalf("after %v the fake has\n%s\nthe database\n%s", ops, got, want)
			}
		}
	})
}

// Whatever somebody does to one of our rows is noticed and undone.
func TestEditedRows(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	h.database("nb")
	type change struct {
		unit    string
		deleted bool
	}
	var mu sync.Mutex
	seen := map[change]bool{}
	nb := NewNB(h.Sock("nb"), quietLog(), func() {}, func(network string, u Unit, deleted bool) {
		mu.Lock()
		defer mu.Unlock()
		seen[change{u.mark(network), deleted}] = true
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "connected", func() error {
		if !nb.Connected() {
			return ovsdb.ErrNotConnected
		}
		return nil
	})
	cdn, node := testDefault(true), testNode(1, "node1", network.SharedGateway)
	in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Peers: []network.Node{testNode(2, "node2", network.SharedGateway)},
		Pods: []PodPort{testPod(cdn, node, "default", "red", "p", 3, true)}}
	edit := func(command ...string) {
		h.must("ovn-nbctl", slices.Concat([]string{"--no-leader-only"}, command)...)
	}
	noticed := func(what string, want change) {
		eventually(t, what+" is noticed", func() error {
			mu.Lock()
			defer mu.Unlock()
			if !seen[want] {
				return fmt.Errorf("changes seen: %v, want %v", seen, want)
			}
			return nil
		})
	}
	// forget waits until the changes so far are reported, which are our own, and
	// forgets them. Changes are reported in order, so the deletion of another row of
	// ours comes after them.
	forget := func() {
		last := podUnit("last/change")
		edit("ls-add", "last", "--", "set", "Logical_Switch", "last", fmt.Sprintf(`external_ids={"%s"="%s","%s"="%s"}`, markOwner, ownerValue, markUnit, last.mark("other")))
		edit("ls-del", "last")
		noticed("the last change", change{last.mark("other"), true})
		mu.Lock()
		defer mu.Unlock()
		clear(seen)
	}
	red := testTenant(1, "red_net", true)
	redIn := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Pods: []PodPort{testPod(red, node, "red/net", "red", "p", 3, false)}}
	converge(t, nb, cdn, node, in)
	converge(t, nb, red, node, redIn)
	redPort := strings.TrimSpace(h.must("ovn-nbctl", "--no-leader-only", "--bare", "--columns=_uuid", "find", "Logical_Switch_Port", "name=red.net_red_p"))
	for _, c := range []struct {
		edit string
		want change
	}{
		// A port on another network's switch, too, and on that alone.
		{"add Logical_Switch node1 ports " + redPort, change{"default/", false}},
		{"remove Logical_Switch red_net_node1 ports " + redPort + " -- add Logical_Switch node1 ports " + redPort, change{"default/", false}},
		{"remove Logical_Switch red_net_node1 ports " + redPort + " -- add Logical_Switch node1 ports " + redPort, change{"red_net/pod/red/p", false}},
		{"set Logical_Switch_Port red_p addresses=unknown", change{"default/pod/red/p", false}},
		{"clear Logical_Switch_Port red_p port_security", change{"default/pod/red/p", false}},
		{"clear Logical_Switch_Port red_p external_ids", change{"default/pod/red/p", false}},
		{"remove Logical_Switch_Port red_p external_ids k8s.ovn.org/unit", change{"default/pod/red/p", false}},
		{"lsp-del red_p", change{"default/pod/red/p", true}},
		{"clear Port_Group bulkhead_locked ports", change{"default/pod/red/p", false}},
		{"pg-del bulkhead_locked", change{"default/topology", true}},
		{"clear Port_Group bulkhead_locked acls", change{"default/topology", true}},
		{"set Port_Group bulkhead_locked external_ids:k8s.ovn.org/effect=none", change{"default/topology", false}},
		{"lsp-set-options tstor-node2 requested-tnl-key=9", change{"default/peer/node2", false}},
		{"lr-route-del ovn_cluster_router 10.244.1.0/24", change{"default/peer/node2", true}},
		{"set Logical_Router_Port rtos-node1 networks=10.0.0.1/24", change{"default/topology", false}},
		{"ls-del node1", change{"default/topology", true}},
		{"lr-del ovn_cluster_router", change{"default/topology", true}},
	} {
		forget()
		edit(strings.Fields(c.edit)...)
		noticed(c.edit, c.want)
		// The cache takes a transaction's rows one by one, and reports each: what is built
		// from half of a transaction may be refused, and the reconciler tries again.
		eventually(t, c.edit+" is undone", func() error {
			_, errDefault := applyOnce(nb, cdn, node, in)
			_, errRed := applyOnce(nb, red, node, redIn)
			return errors.Join(errDefault, errRed)
		})
		converge(t, nb, cdn, node, in)
		converge(t, nb, red, node, redIn)
	}
}

// TestDatabaseRestart checks that the client reconnects to a restarted database,
// whether the database kept its rows or lost them.
func TestDatabaseRestart(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	server := h.database("nb")
	var connects atomic.Int32
	nb := NewNB(h.Sock("nb"), quietLog(), func() { connects.Add(1) }, func(string, Unit, bool) {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	connected := func(n int32) {
		t.Helper()
		eventually(t, "connected", func() error {
			if connects.Load() != n || !nb.Connected() {
				return fmt.Errorf("connected %d times", connects.Load())
			}
			return nil
		})
	}
	connected(1)
	node, n := testNode(1, "node1", network.SharedGateway), testTenant(1, "red_net", false)
	in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet"}
	converge(t, nb, n, node, in)
	before := nb.Transactions()

	native.Kill(server)
	eventually(t, "loss noticed", func() error {
		if nb.Connected() {
			return fmt.Errorf("still connected")
		}
		return nil
	})
	if err := nb.Apply(context.Background(), []Op{{Verb: Delete}}); err == nil {
		t.Error("no error without a database")
	}
	server = h.serveDatabase("nb")
	connected(2)
	converge(t, nb, n, node, in)
	if nb.Transactions() != before {
		t.Errorf("%d transactions after a restart that lost nothing", nb.Transactions()-before)
	}
	native.Kill(server)
	_ = os.Remove(h.Path("nb.db"))
	h.database("nb")
	connected(3)
	converge(t, nb, n, node, in)
}

// BenchmarkNetworks measures adding one network, two pods on it and deleting all of
// them, with N existing networks and without northd.
func BenchmarkNetworks(b *testing.B) {
	for _, have := range []int{1, 500} {
		b.Run(fmt.Sprint(have), func(b *testing.B) {
			h := newHost(b, debianTree(b), "db", "")
			h.database("nb")
			h.database("sb")
			nb, _ := h.databases()
			node := testNode(1, "node1", network.SharedGateway)
			in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet", Peers: []network.Node{testNode(2, "node2", network.SharedGateway), testNode(3, "node3", network.SharedGateway)}}
			started := time.Now()
			for i := range have {
				apply(b, nb, testTenant(i+1, fmt.Sprintf("net%d_n", i+1), false), node, in)
			}
			b.ReportMetric(float64(time.Since(started).Milliseconds())/float64(have), "ms/network")
			n := testTenant(have+1, "extra_net", false)
			pods := in
			pods.Pods = []PodPort{testPod(n, node, "extra/net", "extra", "a", 3, false), testPod(n, node, "extra/net", "extra", "b", 4, false)}
			for b.Loop() {
				apply(b, nb, n, node, in)
				apply(b, nb, n, node, pods)
				have, err := nb.Read(context.Background(), Selection{Network: n.Name, Node: node.Name})
				if err != nil {
					b.Fatal(err)
				}
				if err := nb.Apply(context.Background(), Diff(nil, have)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func apply(b *testing.B, nb *NB, n network.Network, node network.Node, in Inputs) {
	want, err := Build(n, node, in)
	if err != nil {
		b.Fatal(err)
	}
	have, err := nb.Read(context.Background(), Selection{Network: n.Name, Node: node.Name})
	if err != nil {
		b.Fatal(err)
	}
	if err := nb.Apply(context.Background(), Diff(want, have)); err != nil {
		b.Fatal(err)
	}
}

// differences are those of the sets, whatever the order of their elements, and what they cost does not grow with the members
// that stay where they are.
func TestDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SliceOfNDistinct(rapid.StringMatching("[a-h]{1,2}"), 0, 20, rapid.ID[string])
		before := set.Draw(t, "before")
		after := rapid.OneOf(set, rapid.Permutation(before)).Draw(t, "after")
		without := func(of, other []string) []string {
			return slices.DeleteFunc(slices.Clone(of), func(id string) bool { return slices.Contains(other, id) })
		}
		gone, come := differences(before, after)
		if !slices.Equal(sorted(gone), sorted(without(before, after))) || !slices.Equal(sorted(come), sorted(without(after, before))) {
			t.Errorf("gone %q, come %q", gone, come)
		}
	})
	many := make([]string, 10000)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	// libovsdb puts the last element in the place of one that is deleted.
	fewer := slices.Clone(many[:len(many)-1])
	fewer[7] = many[len(many)-1]
	for _, sets := range [][2][]string{{many, fewer}, {fewer, many}, {many, append(slices.Clone(many), "new")}, {many, many}} {
		if n := testing.AllocsPerRun(10, func() { differences(sets[0], sets[1]) }); n > 10 {
			t.Errorf("%d and %d members: %v allocations", len(sets[0]), len(sets[1]), n)
		}
	}
}
