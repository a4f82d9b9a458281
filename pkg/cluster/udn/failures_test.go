// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// A network's failures name the first few nodes; a failure that a node stops
// reporting is removed.
func TestFailures(t *testing.T) {
	var f failures
	log := slog.New(slog.DiscardHandler)
	set := func(node string, annotations map[string]string, want ...int) map[int]string {
		t.Helper()
		n := kube.Metadata("Node")
		n.Annotations = annotations
		changed, inUse := f.update(node, n, log)
		if !slices.Equal(changed, want) {
			t.Errorf("node %s: changed %v, want %v", node, changed, want)
		}
		return inUse
	}
	agent := func(raw string) map[string]string {
		return map[string]string{network.AnnotationAgentFailures: raw}
	}
	set("a", nil)
	set("b", agent(`[{"ids":"3-4","why":"no VRF"}]`), 3, 4)
	set("b", agent(`[{"ids":"3-4","why":"no VRF"}]`))
	both := agent(`[{"ids":"3","why":"no VRF"}]`)
	both[network.AnnotationZoneFailures] = `[{"ids":"3","why":"no subnet"}]`
	set("b", both, 3, 4)
	if got := f.nodesOf(3).String(); got != "[b]: node b: no VRF; no subnet" {
		t.Errorf("id 3: got %q", got)
	}
	if got := f.nodesOf(4); got.Nodes != nil {
		t.Errorf("id 4: got %v, want none", got)
	}
	for i := range 20 {
		set(fmt.Sprintf("c%02d", i), agent(`[{"ids":"3","why":"other"}]`), 3)
	}
	if got := f.nodesOf(3).String(); got != "[b, c00, c01, c02, c03] and others: node b: no VRF; no subnet" {
		t.Errorf("id 3: got %q", got)
	}
	// An annotation that cannot be parsed reports no failure.
	if inUse := set("b", agent(`{`), 3); inUse[3] != "c19" && inUse[3] == "" {
		t.Errorf("id 3 is in use on %q", inUse[3])
	}
	// A compromised node blocks a limited number of ids.
	if inUse := set("liar", agent(`[{"ids":"1-10000","why":"mine"}]`), func() (all []int) {
		for id := 1; id <= network.MaxID; id++ {
			all = append(all, id)
		}
		return all
	}()...); len(inUse) > maxInUsePerNode {
		t.Errorf("%d ids are in use, want %d at most", len(inUse), maxInUsePerNode)
	}
	if changed, inUse := f.update("liar", nil, log); len(changed) != network.MaxID || len(inUse) != 1 {
		t.Errorf("deleted node: %d ids changed, %d in use", len(changed), len(inUse))
	}
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
