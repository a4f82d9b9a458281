// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

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
	created := func(i int) time.Time { return time.Unix(int64(i/2), 0) }
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
			b.set(name(i), "uid", created(i), annotated, err)
			check()
		}
		b.markSynced()
		for i := 1; i <= nodes; i++ {
			b.set(name(i), "uid", created(i), testNode(i, name(i), network.SharedGateway), nil)
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

// Of the nodes that claim an address that none has, the oldest gets it, whatever the order of their events: a node displaces
// younger ones only.
func TestNodeIndexOlderClaimant(t *testing.T) {
	type claim struct {
		node    string
		created int64
		of      string // numbers of the addresses
	}
	old, attacker, young := claim{"old", 1, "1"}, func(of string) claim { return claim{"attacker", 2, of} }, claim{"young", 3, "3"}
	twin := claim{"bttacker", 2, "2"}
	for name, c := range map[string]struct {
		claims  []claim
		removed string
		want    map[string]string // addresses by node
	}{
		"of an older node":             {[]claim{old, attacker("1"), young}, "", map[string]string{"old": "1", "young": "3"}},
		"of a younger node":            {[]claim{old, attacker("3"), young}, "", map[string]string{"old": "1", "attacker": "3"}},
		"of both":                      {[]claim{old, attacker("123"), young}, "", map[string]string{"old": "1", "young": "3"}},
		"of one of the same age":       {[]claim{attacker("2"), twin}, "", map[string]string{"attacker": "2"}},
		"of a node that is deleted":    {[]claim{old, attacker("1"), {"young", 3, "1"}}, "old", map[string]string{"attacker": "1"}},
		"of this node":                 {[]claim{{"own", 9, "1"}, old}, "", map[string]string{"own": "1"}},
		"of this node, after deletion": {[]claim{{"own", 9, "4"}, {"older", 0, "4"}, attacker("4")}, "older", map[string]string{"own": "4"}},
	} {
		for _, reverse := range []bool{false, true} {
			x := newNodeIndex("own")
			for i := range c.claims {
				if reverse {
					i = len(c.claims) - 1 - i
				}
				n := network.Node{Name: c.claims[i].node}
				for _, digit := range c.claims[i].of {
					n.EncapIPs = append(n.EncapIPs, netip.MustParseAddr("172.30.0."+string(digit)))
				}
				x.set(n.Name, "uid", time.Unix(c.claims[i].created, 0), n, nil)
			}
			x.markSynced()
			x.remove(c.removed)
			got := map[string]string{}
			for node := range x.nodes {
				for _, ip := range x.node(node).EncapIPs {
					got[node] += strings.TrimPrefix(ip.String(), "172.30.0.")
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s, reverse=%v: %v, want %v", name, reverse, got, c.want)
			}
		}
	}
}
