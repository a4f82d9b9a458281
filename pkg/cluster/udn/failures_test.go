// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// A network's failures name the first few nodes; a failure that a node stops
// reporting is removed.
func TestFailures(t *testing.T) {
	var f failures
	log := slog.New(slog.DiscardHandler)
	inUse := map[int]bool{}
	set := func(node string, n client.Object, want ...int) {
		t.Helper()
		change := f.update(node, n, log)
		if !slices.Equal(change.IDs, want) {
			t.Errorf("node %s: changed %v, want %v", node, change.IDs, want)
		}
		for _, id := range change.Used {
			if inUse[id] {
				t.Errorf("node %s: id %d was in use", node, id)
			}
			inUse[id] = true
		}
		for _, id := range change.Unused {
			if !inUse[id] {
				t.Errorf("node %s: id %d was not in use", node, id)
			}
			delete(inUse, id)
		}
	}
	set("a", reportingNode("a", ""))
	set("b", reportingNode("b", `[{"ids":"3-4","why":"no VRF"}]`), 3, 4)
	set("b", reportingNode("b", `[{"ids":"3-4","why":"no VRF"}]`))
	both := reportingNode("b", `[{"ids":"3","why":"no VRF"}]`)
	both.SetAnnotations(map[string]string{network.AnnotationAgentFailures: both.GetAnnotations()[network.AnnotationAgentFailures], network.AnnotationZoneFailures: `[{"ids":"3","why":"no subnet"}]`})
	set("b", both, 3, 4)
	if got := f.nodesOf(3).String(); got != "[b]: node b: no VRF; no subnet" {
		t.Errorf("id 3: got %q", got)
	}
	if got := f.nodesOf(4); got.Nodes != nil || inUse[4] {
		t.Errorf("id 4: got %v, in use %t; want none", got, inUse[4])
	}
	for i := range 20 {
		name := fmt.Sprintf("c%02d", i)
		set(name, reportingNode(name, `[{"ids":"3","why":"other"}]`), 3)
	}
	if got := f.nodesOf(3).String(); got != "[b, c00, c01, c02, c03] and others: node b: no VRF; no subnet" {
		t.Errorf("id 3: got %q", got)
	}
	// An annotation that cannot be parsed reports no failure.
	if set("b", reportingNode("b", `{`), 3); !inUse[3] {
		t.Error("id 3 is not in use, and other nodes report it")
	}
	// A compromised node blocks a limited number of ids.
	var all []int
	for id := 1; id <= network.MaxID; id++ {
		all = append(all, id)
	}
	if set("liar", reportingNode("liar", `[{"ids":"1-10000","why":"mine"}]`), all...); len(inUse) != maxInUsePerNode {
		t.Errorf("%d ids are in use, want %d", len(inUse), maxInUsePerNode)
	}
	if set("liar", nil, all...); len(inUse) != 1 {
		t.Errorf("deleted node: %d ids in use", len(inUse))
	}
	for i := range 20 {
		set(fmt.Sprintf("c%02d", i), nil, 3)
	}
	if len(inUse)+len(f.byNode)+len(f.byID)+len(f.users) != 0 {
		t.Errorf("something is left: %v, %v", inUse, f.users)
	}
}

// reportingNode is a node whose agent reports failures.
func reportingNode(name, raw string) client.Object {
	n := kube.Metadata("Node")
	n.Name, n.Annotations = name, map[string]string{network.AnnotationAgentFailures: raw}
	return n
}

// A node's report costs the same however many nodes report failures.
func TestFailuresCost(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	cost := func(nodes int) float64 {
		var f failures
		for i := range nodes {
			name := fmt.Sprintf("other%d", i)
			f.update(name, reportingNode(name, `[{"ids":"1-100","why":"no VRF"}]`), log)
		}
		reasons := []client.Object{reportingNode("n", `[{"ids":"1-10","why":"a"}]`), reportingNode("n", `[{"ids":"1-10","why":"b"}]`)}
		i := 0
		return testing.AllocsPerRun(100, func() { i++; f.update("n", reasons[i%2], log) })
	}
	if one, many := cost(1), cost(200); many > one*1.5 {
		t.Errorf("a report allocates %v times beside one node that reports failures, and %v times beside 200", one, many)
	}
}

// A fault affects all networks on all nodes, which report it within 20 seconds: each network's status is written a few times.
func TestFailuresWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, networks = 200, 50
		ids := netid.New(networks, time.Hour, &idlease.Memory{}, time.Now)
		for id := 1; id <= networks; id++ {
			if err := ids.RestoreID(Owner{Name: fmt.Sprintf("net%d", id)}.Network(), id); err != nil {
				t.Fatal(err)
			}
		}
		r := &Reconciler{networkIDs: ids, log: slog.New(slog.DiscardHandler)}
		q := process.NewQueue[Owner]("test", nil)
		status, writes := map[Owner]string{}, 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.Run(ctx, 1, func(_ context.Context, o Owner) error {
				if now := r.failures.nodesOf(ids.IDOf(o.Network())).String(); status[o] != now {
					status[o] = now
					writes++
				}
				return nil
			}, func(Owner, int, error) {})
		}()
		events := r.nodeEvents()
		for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(nodes) {
			name := fmt.Sprintf("node%03d", i)
			before, after := reportingNode(name, "").(*metav1.PartialObjectMetadata), reportingNode(name, `[{"ids":"1-50","why":"no VRF"}]`).(*metav1.PartialObjectMetadata)
			events.UpdateFunc(ctx, event.TypedUpdateEvent[*metav1.PartialObjectMetadata]{ObjectOld: before, ObjectNew: after}, q)
			time.Sleep(20 * time.Second / nodes)
		}
		time.Sleep(failureDelay)
		cancel()
		<-done
		for id := 1; id <= networks; id++ {
			o := Owner{Name: fmt.Sprintf("net%d", id)}
			if got, want := status[o], "[node000, node001, node002, node003, node004] and others: node node000: no VRF"; got != want {
				t.Fatalf("%s: %q, want %q", o, got, want)
			}
		}
		if most := networks * int(20*time.Second/failureDelay+1); writes > most {
			t.Errorf("%d writes, want %d at most", writes, most)
		}
		t.Logf("%d nodes, %d networks: %d writes", nodes, networks, writes)
	})
}

func TestOwnerOfNetwork(t *testing.T) {
	for _, o := range []Owner{{Name: "red"}, {Namespace: "a", Name: "b.c"}, {Namespace: "cluster", Name: "udn"}} {
		if got, ok := ownerOfNetwork(o.Network()); !ok || got != o {
			t.Errorf("owner of %s: got %v, %v", o.Network(), got, ok)
		}
	}
	if o, ok := ownerOfNetwork("hand-written"); ok {
		t.Errorf("owner of a hand-written NAD's network: got %v", o)
	}
}
