// SPDX-License-Identifier: Apache-2.0

package nbdb

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// decoded returns a route with strings of its own, as a row that has been decoded.
func decoded(id string) *LogicalRouterStaticRoute {
	return &LogicalRouterStaticRoute{UUID: id, Nexthop: strings.Clone("100.88.0.7"), ExternalIDs: map[string]string{
		strings.Clone("k8s.ovn.org/network"): strings.Clone("red"), strings.Clone("k8s.ovn.org/id"): strings.Clone(id)}}
}

func TestClonesShareStrings(t *testing.T) {
	data := func(r *LogicalRouterStaticRoute) map[string]*byte {
		out := map[string]*byte{"next hop": unsafe.StringData(r.Nexthop)}
		for k, v := range r.ExternalIDs {
			out["key "+k] = unsafe.StringData(k)
			if k == "k8s.ovn.org/network" {
				out["network"] = unsafe.StringData(v)
			}
		}
		return out
	}
	one, two := decoded("1"), decoded("2")
	first, second := data(one.DeepCopy()), data(two.DeepCopy())
	if len(first) != 4 {
		t.Fatalf("compares %d strings, want 4", len(first))
	}
	for what, p := range first {
		if second[what] != p {
			t.Errorf("the %s of two clones are two strings", what)
		}
		if data(two)[what] == p {
			t.Errorf("the %s was shared before", what)
		}
	}
}

// Clones are equal to what was cloned, also with more strings than are remembered and when
// several goroutines clone.
func TestClonesAreEqual(t *testing.T) {
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 2 * len(recent) {
				r := decoded(fmt.Sprint(worker, i))
				if c := r.DeepCopy(); !r.Equals(c) {
					t.Errorf("the clone of %+v is %+v", r, c)
					return
				}
			}
		})
	}
	wg.Wait()
}
