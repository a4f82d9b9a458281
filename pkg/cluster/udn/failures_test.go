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

// What nodes say of a network is told by the first few of them, by name; what
// one says no more is forgotten.
func TestFailures(t *testing.T) {
	var f failures
	log := slog.New(slog.DiscardHandler)
	set := func(node string, annotations map[string]string, want ...int) map[int]string {
		t.Helper()
		n := kube.Metadata("Node")
		n.Annotations = annotations
		changed, left := f.set(node, n, log)
		if !slices.Equal(changed, want) {
			t.Errorf("node %s: changed %v, want %v", node, changed, want)
		}
		return left
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
	if got := f.of(3).String(); got != "[b]: node b: no VRF; no subnet" {
		t.Errorf("said %q", got)
	}
	if got := f.of(4); got.Nodes != nil {
		t.Errorf("still said: %v", got)
	}
	for i := range 20 {
		set(fmt.Sprintf("c%02d", i), agent(`[{"ids":"3","why":"other"}]`), 3)
	}
	if got := f.of(3).String(); got != "[b, c00, c01, c02, c03] and others: node b: no VRF; no subnet" {
		t.Errorf("said %q", got)
	}
	// What cannot be read says nothing.
	if left := set("b", agent(`{`), 3); left[3] != "c19" && left[3] == "" {
		t.Errorf("id 3 is in use on %q", left[3])
	}
	// A node that lies keeps few ids from others.
	if left := set("liar", agent(`[{"ids":"1-10000","why":"mine"}]`), func() (all []int) {
		for id := 1; id <= network.MaxID; id++ {
			all = append(all, id)
		}
		return all
	}()...); len(left) > mostLeft {
		t.Errorf("%d ids are in use", len(left))
	}
	if changed, left := f.set("liar", nil, log); len(changed) != network.MaxID || len(left) != 1 {
		t.Errorf("a node that is gone: %d changed, %d in use", len(changed), len(left))
	}
}

func TestOwnerOfNetwork(t *testing.T) {
	for _, o := range []Owner{{Name: "red"}, {Namespace: "a", Name: "b.c"}, {Namespace: "cluster", Name: "udn"}} {
		if got, ok := ownerOfNetwork(o.Network()); !ok || got != o {
			t.Errorf("%s is %v's, %v", o.Network(), got, ok)
		}
	}
	if o, ok := ownerOfNetwork("written-by-hand"); ok {
		t.Errorf("it is %v's", o)
	}
}
