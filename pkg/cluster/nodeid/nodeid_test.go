// SPDX-License-Identifier: Apache-2.0

package nodeid

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/network"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want int
	}{{"", 0}, {"1", 1}, {"4094", 4094}, {"4095", 0}, {"0", 0}, {"-3", 0}, {"x", 0}, {"99999999999999999999", 0}} {
		if got := Parse(map[string]string{network.AnnotationNodeID: c.raw}); got != c.want {
			t.Errorf("%q is %d, want %d", c.raw, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("17")
	f.Fuzz(func(t *testing.T, raw string) {
		if id := Parse(map[string]string{network.AnnotationNodeID: raw}); id < 0 || id > network.MaxNodeID {
			t.Fatalf("%q is %d", raw, id)
		}
	})
}

// Nodes are added and deleted, some with an annotation that somebody else wrote. No
// two nodes have the same id, a node keeps its id and gets it again, no other node
// gets a released id before its minimum age, and a second run writes nothing.
func TestAllocate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const age = time.Minute
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		r := NewReconciler(nil, nil, nil, network.Network{}, age, &idlease.Memory{}, func() time.Time { return now }, slog.New(slog.DiscardHandler))
		nodes, freed, last := map[string]int{}, map[int]time.Time{}, map[int]string{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "node")
			if rapid.IntRange(0, 3).Draw(t, "deleted") == 0 {
				r.release(name)
				if id := nodes[name]; id != 0 {
					freed[id], last[id] = now, name
				}
				delete(nodes, name)
				now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
				continue
			}
			have := State{name, nodes[name], network.TransportGeneve}
			if have.ID == 0 && rapid.Bool().Draw(t, "annotated") {
				have.ID = rapid.IntRange(1, 8).Draw(t, "annotation") // allocate ignores it
			}
			id, err := r.allocate(t.Context(), have)
			if err != nil {
				t.Fatal(err)
			}
			for other, taken := range nodes {
				if other != name && taken == id {
					t.Fatalf("%s and %s have the id %d", other, name, id)
				}
			}
			if was := nodes[name]; was != 0 && was != id {
				t.Fatalf("%s changed its id from %d to %d", name, was, id)
			}
			if at, young := freed[id]; young && nodes[name] == 0 && last[id] != name && now.Sub(at) < age {
				t.Fatalf("%s has the id %d, which %s released %s ago", name, id, last[id], now.Sub(at))
			}
			nodes[name] = id
			if ops := Diff(Build(name, id, network.TransportGeneve), State{name, id, network.TransportGeneve}); len(ops) > 0 {
				t.Fatalf("a second run writes %v", ops)
			}
		}
	})
}

// While the cluster default network has a host subnet for few nodes, a node gets no id above
// them that another one does not need: not after a change of leader, whose successor does not
// know when ids were released, and not a former one.
func TestAllocateWithinDefaultNetwork(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	subnets, err := network.ParseSubnets("10.244.0.0/20/24,fd10:244::/52/64", network.Layer3)
	if err != nil {
		t.Fatal(err)
	}
	pods := network.Network{Name: network.DefaultName, Topology: network.Layer3, Subnets: subnets}
	leader := func() *Reconciler {
		return NewReconciler(nil, nil, nil, pods, time.Minute, &idlease.Memory{}, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	}
	allocate := func(r *Reconciler, name string, want int) {
		t.Helper()
		if id, err := r.allocate(t.Context(), State{Node: name}); err != nil || id != want {
			t.Fatalf("%s has the id %d, %v; want %d", name, id, err, want)
		}
	}
	r := leader()
	for id := 1; id <= 16; id++ {
		allocate(r, fmt.Sprint("node", id), id)
	}
	// Nodes 3 and 5 are replaced while there is no leader.
	mark := r.ids.Mark()
	r = leader()
	r.ids.Restore(mark, now)
	for id := 1; id <= 16; id++ {
		if id != 3 && id != 5 {
			if err := r.ids.Reserve(fmt.Sprint("node", id), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	allocate(r, "new1", 3)
	allocate(r, "new2", 5)
	// A node more than the network holds, which is registered again: it keeps its id until it can have a better one.
	allocate(r, "excess", 17)
	r.release("excess")
	allocate(r, "excess", 17)
	r.release("node9")
	now = now.Add(time.Second)
	r.release("node7")
	r.release("excess")
	allocate(r, "excess", 9) // released first
	r.release("excess")
	allocate(r, "node7", 7)
	allocate(r, "excess", 9)
}
