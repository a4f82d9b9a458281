// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

// For any annotations in any order, no two nodes have the same accepted id, chassis
// or tunnel address, and no accepted fact is lost, except a tunnel address that this node's
// agent has found on this machine. Once all annotations are correct,
// all are accepted.
func TestNodeIndex(t *testing.T) {
	const nodes = 4
	name := func(i int) string { return fmt.Sprintf("node%d", i) }
	rapid.Check(t, func(t *rapid.T) {
		b := newNodeIndex(name(1))
		syncAfter := rapid.IntRange(0, 20).Draw(t, "sync after")
		last := map[string]network.Node{}
		check := func() {
			t.Helper()
			ready, _ := b.peers()
			ready = append(ready, b.node(b.own))
			for i, x := range ready {
				for _, y := range ready[i+1:] {
					if x.ID != 0 && x.ID == y.ID || x.Chassis != "" && x.Chassis == y.Chassis || len(x.EncapIPs) > 0 && reflect.DeepEqual(x.EncapIPs, y.EncapIPs) {
						t.Fatalf("%+v and %+v are both accepted", x, y)
					}
				}
			}
			for n := range b.nodes {
				if accepted := b.node(n); last[n].Ready() && !accepted.Ready() && !reflect.DeepEqual(last[n].EncapIPs, b.node(b.own).EncapIPs) {
					t.Fatalf("%s was %+v, is %+v", n, last[n], accepted)
				}
				last[n] = b.node(n)
			}
		}
		for step := range rapid.IntRange(0, 40).Draw(t, "steps") {
			if step == syncAfter {
				b.markSynced()
				check()
			}
			i := rapid.IntRange(1, nodes).Draw(t, "node")
			if rapid.IntRange(0, 9).Draw(t, "gone") == 0 {
				b.remove(name(i))
				delete(last, name(i))
				check()
				continue
			}
			annotated, err := network.Node{Name: name(i)}, error(nil)
			part := func(label string) int { return rapid.IntRange(0, nodes).Draw(t, label) }
			annotated.ID = part("id")
			if of := part("chassis"); of > 0 {
				annotated.Chassis = fmt.Sprintf("chassis-%d", of)
			}
			if of := part("encap"); of > 0 {
				annotated.EncapIPs = []netip.Addr{testNode(of, "", network.SharedGateway).EncapIPs[0]}
			} else {
				err = errors.New("annotation " + network.AnnotationEncapIPs)
			}
			b.set(name(i), "uid", annotated, err)
			check()
		}
		b.markSynced()
		for i := 1; i <= nodes; i++ {
			b.set(name(i), "uid", testNode(i, name(i), network.SharedGateway), nil)
		}
		for i := 1; i <= nodes; i++ {
			if want, got := testNode(i, name(i), network.SharedGateway), b.node(name(i)); !reflect.DeepEqual(got, want) || b.problem(name(i)) != nil {
				t.Fatalf("%s is %+v (%v), want %+v", name(i), got, b.problem(name(i)), want)
			}
		}
		for c := range b.claims {
			if len(b.claims[c]) != 1 || b.holder[c] == "" {
				t.Errorf("%s: claimed by %v, holder %q", c, b.claims[c], b.holder[c])
			}
		}
		for i := 1; i <= nodes; i++ {
			b.remove(name(i))
		}
		if len(b.claims)+len(b.holder)+len(b.nodes) > 0 {
			t.Errorf("leftover entries: %v %v %v", b.claims, b.holder, b.nodes)
		}
	})
}
