// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// nodeIndex is what the nodes are by their annotations. A fact that is missing,
// malformed or another node's leaves the last good one in its place, so that a
// mistake tears nothing down, and what a node has, no other takes by saying so.
type nodeIndex struct {
	own     string // this node's name
	settled bool   // all nodes that there were have been recorded
	// podIDs are the ids of this node that its pods' addresses tell.
	podIDs map[int]struct{}
	nodes  map[string]*indexedNode
	holder map[string]string              // by claim, the node whose good facts make it
	claims map[string]map[string]struct{} // by claim, the nodes whose annotations make it
}

type indexedNode struct {
	uid   string
	said  network.Node // as annotated, without what is malformed
	err   error        // what is malformed
	good  network.Node
	wrong string
}

// nodeChange is what became of a node.
type nodeChange struct {
	name  string
	facts bool // its good facts are others
	wrong bool // what is wrong with its annotations is another thing
}

func newNodeIndex(own string) *nodeIndex {
	return &nodeIndex{own: own, nodes: map[string]*indexedNode{}, holder: map[string]string{}, claims: map[string]map[string]struct{}{}}
}

// fact is a part of what a node says of itself that is right or wrong as a whole.
type fact struct {
	annotation string
	there      func(network.Node) bool
	take       func(to *network.Node, from network.Node)
	// claims are what no two nodes have, in words.
	claims func(network.Node) []string
}

var facts = []fact{
	{
		annotation: network.AnnotationNodeID,
		there:      func(n network.Node) bool { return n.ID != 0 },
		take:       func(to *network.Node, from network.Node) { to.ID = from.ID },
		claims:     func(n network.Node) []string { return []string{"node id " + strconv.Itoa(n.ID)} },
	}, {
		annotation: network.AnnotationChassisID,
		there:      func(n network.Node) bool { return n.Chassis != "" },
		take:       func(to *network.Node, from network.Node) { to.Chassis = from.Chassis },
		claims:     func(n network.Node) []string { return []string{"chassis " + n.Chassis} },
	}, {
		annotation: network.AnnotationEncapIPs,
		there:      func(n network.Node) bool { return len(n.EncapIPs) > 0 },
		take:       func(to *network.Node, from network.Node) { to.EncapIPs = from.EncapIPs },
		claims: func(n network.Node) []string {
			var out []string
			for _, ip := range n.EncapIPs {
				out = append(out, "tunnel address "+ip.String())
			}
			return out
		},
	}, {
		annotation: network.AnnotationGatewayConfig,
		there:      hasGatewayFacts,
		take: func(to *network.Node, from network.Node) {
			to.Mode, to.Bridge, to.BridgeMAC, to.Addresses, to.NextHops = from.Mode, from.Bridge, from.BridgeMAC, from.Addresses, from.NextHops
		},
		claims: func(n network.Node) []string {
			var out []string
			for _, p := range n.Addresses {
				// Nodes that share no link may have the same MAC.
				out = append(out, "address "+p.Addr().String(), "MAC "+n.BridgeMAC+" in "+p.Masked().String())
			}
			slices.Sort(out)
			return slices.Compact(out)
		},
	},
}

func hasGatewayFacts(n network.Node) bool { return n.BridgeMAC != "" && len(n.Addresses) > 0 }

func claimsOf(n network.Node) []string {
	var out []string
	for _, f := range facts {
		if f.there(n) {
			out = append(out, f.claims(n)...)
		}
	}
	return out
}

// set records a node's annotations. Before settle it only records.
func (b *nodeIndex) set(name, uid string, said network.Node, err error) []nodeChange {
	var changes []nodeChange
	n, ok := b.nodes[name]
	if ok && n.uid != uid {
		changes = b.remove(name) // another node of that name
		ok = false
	}
	if !ok {
		n = &indexedNode{uid: uid, good: network.Node{Name: name}}
		b.nodes[name] = n
	}
	before := claimsOf(n.said)
	n.said, n.err = said, err
	for _, c := range before {
		b.unclaim(c, name)
	}
	for _, c := range claimsOf(said) {
		if b.claims[c] == nil {
			b.claims[c] = map[string]struct{}{}
		}
		b.claims[c][name] = struct{}{}
	}
	if !b.settled {
		return changes
	}
	return merge(changes, b.look(append([]string{name}, b.claimants(before)...)))
}

// remove forgets a node that is gone.
func (b *nodeIndex) remove(name string) []nodeChange {
	n, ok := b.nodes[name]
	if !ok {
		return nil
	}
	delete(b.nodes, name)
	freed := slices.Concat(claimsOf(n.said), claimsOf(n.good))
	for _, c := range claimsOf(n.said) {
		b.unclaim(c, name)
	}
	for _, c := range claimsOf(n.good) {
		delete(b.holder, c)
	}
	changes := []nodeChange{{name: name, facts: true}}
	if !b.settled {
		return changes
	}
	return merge(changes, b.look(b.claimants(freed)))
}

// settle judges all nodes that there were at the start, this one first: of what
// two others both claim, none is believed.
func (b *nodeIndex) settle() []nodeChange {
	b.settled = true
	return b.look(append([]string{b.own}, slices.Sorted(maps.Keys(b.nodes))...))
}

// look judges nodes anew, and those for which that makes room.
func (b *nodeIndex) look(names []string) []nodeChange {
	var changes []nodeChange
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		n, ok := b.nodes[name]
		if !ok {
			continue
		}
		before, wrong := n.good, n.wrong
		freed, others := b.judge(name, n)
		changes = merge(changes, []nodeChange{{name: name, facts: !reflect.DeepEqual(before, n.good), wrong: wrong != n.wrong}})
		for _, o := range others {
			changes = merge(changes, []nodeChange{{name: o, facts: true}})
		}
		names = append(append(names, others...), b.claimants(freed)...)
	}
	return changes
}

// judge takes over what is right of what a node says, and returns the claims
// that were given up for it and the other nodes whose facts changed with it.
func (b *nodeIndex) judge(name string, n *indexedNode) (freed, others []string) {
	var wrong []string
	if n.err != nil {
		wrong = append(wrong, n.err.Error())
	}
	for _, f := range facts {
		had := f.there(n.good)
		if !f.there(n.said) {
			if malformed := n.err != nil && strings.Contains(n.err.Error(), f.annotation); had && !malformed {
				wrong = append(wrong, fmt.Sprintf("node %s: annotation %s is gone", name, f.annotation))
			}
			continue
		}
		with := []string{name}
		if err := b.refuses(name, f, n, f.claims(n.said)); err != nil {
			if with = b.exchange(name, f); with == nil {
				wrong = append(wrong, fmt.Sprintf("node %s: annotation %s: %v", name, f.annotation, err))
				continue
			}
			others = append(others, with[1:]...)
		}
		freed = append(freed, b.believe(f, with)...)
	}
	n.wrong = strings.Join(wrong, "; ")
	return freed, others
}

// believe takes over a fact of nodes, and returns the claims given up for it.
func (b *nodeIndex) believe(f fact, names []string) (freed []string) {
	for _, name := range names {
		n := b.nodes[name]
		if f.there(n.good) {
			for _, c := range f.claims(n.good) {
				if b.holder[c] == name {
					delete(b.holder, c)
					freed = append(freed, c)
				}
			}
		}
		f.take(&n.good, n.said)
	}
	for _, name := range names {
		for _, c := range f.claims(b.nodes[name].good) {
			b.holder[c] = name
		}
	}
	return slices.DeleteFunc(freed, func(c string) bool { _, held := b.holder[c]; return held })
}

// exchange finds the nodes, that one first, that can be believed only
// together: each says that it is what another of them was, and nobody else
// says so. Two nodes that swap their addresses are such.
func (b *nodeIndex) exchange(name string, f fact) []string {
	with := []string{name}
	for i := 0; i < len(with); i++ {
		n, ok := b.nodes[with[i]]
		if !ok || !f.there(n.said) || b.againstPods(with[i], f, n) != nil {
			return nil
		}
		for _, c := range f.claims(n.said) {
			if len(b.claims[c]) > 1 {
				return nil
			}
			if holder, held := b.holder[c]; held && !slices.Contains(with, holder) {
				with = append(with, holder)
			}
		}
	}
	return with
}

// againstPods says why an id of this node is not the one that its pods tell.
func (b *nodeIndex) againstPods(name string, f fact, n *indexedNode) error {
	if _, ok := b.podIDs[n.said.ID]; ok || len(b.podIDs) == 0 || name != b.own || f.annotation != network.AnnotationNodeID {
		return nil
	}
	return fmt.Errorf("the node's pods have addresses of node id %d, not %d", slices.Sorted(maps.Keys(b.podIDs))[0], n.said.ID)
}

// refuses says why a node cannot have what it claims.
func (b *nodeIndex) refuses(name string, f fact, n *indexedNode, claims []string) error {
	if err := b.againstPods(name, f, n); err != nil {
		return err
	}
	own := name == b.own
	for _, c := range claims {
		holder, held := b.holder[c]
		switch {
		case held && holder == name:
		case own && f.annotation == network.AnnotationGatewayConfig && !f.there(n.good):
			// Without its own gateway the node has nothing, and others' rows
			// here do not follow from theirs.
		case held:
			return fmt.Errorf("%s is node %s's", c, holder)
		case own:
			// Of what nobody has yet, this node's agent knows best.
		case len(b.claims[c]) > 1:
			others := slices.DeleteFunc(slices.Sorted(maps.Keys(b.claims[c])), func(s string) bool { return s == name })
			return fmt.Errorf("%s is claimed by node %s as well", c, strings.Join(others, ", "))
		}
	}
	return nil
}

// claimants are the nodes whose annotations make one of the claims.
func (b *nodeIndex) claimants(claims []string) []string {
	var out []string
	for _, c := range claims {
		out = append(out, slices.Sorted(maps.Keys(b.claims[c]))...)
	}
	return out
}

func (b *nodeIndex) unclaim(claim, name string) {
	delete(b.claims[claim], name)
	if len(b.claims[claim]) == 0 {
		delete(b.claims, claim)
	}
}

// node is a node by its good facts.
func (b *nodeIndex) node(name string) network.Node {
	if n, ok := b.nodes[name]; ok {
		return n.good
	}
	return network.Node{Name: name}
}

// wrong is what is wrong with a node's annotations; nil for nothing.
func (b *nodeIndex) wrong(name string) error {
	if n, ok := b.nodes[name]; ok && n.wrong != "" {
		return errors.New(n.wrong)
	}
	return nil
}

// peers are the other nodes: those that are ready, by id, and the names of
// those of which not enough is known.
func (b *nodeIndex) peers() (ready []network.Node, unknown map[string]struct{}) {
	unknown = map[string]struct{}{}
	for name, n := range b.nodes {
		switch {
		case name == b.own:
		case n.good.Ready():
			ready = append(ready, n.good)
		default:
			unknown[name] = struct{}{}
		}
	}
	slices.SortFunc(ready, func(a, c network.Node) int { return cmp.Compare(a.ID, c.ID) })
	return ready, unknown
}

// merge adds changes of nodes to those of others.
func merge(changes, more []nodeChange) []nodeChange {
	for _, c := range more {
		if i := slices.IndexFunc(changes, func(o nodeChange) bool { return o.name == c.name }); i >= 0 {
			changes[i].facts, changes[i].wrong = changes[i].facts || c.facts, changes[i].wrong || c.wrong
		} else if c.facts || c.wrong {
			changes = append(changes, c)
		}
	}
	return changes
}

// asTheyWere are the rows of have, not in want, of nodes of which not enough is
// known: they stay, unless another node now has what they say.
func asTheyWere(self network.Node, want, have State, unknown map[string]struct{}) State {
	if len(unknown) == 0 {
		return nil
	}
	known, keys := map[string]struct{}{}, map[string]struct{}{strconv.Itoa(self.ID): {}}
	for _, r := range want {
		known[r.ID] = struct{}{}
		if key := tunnelKey(r); key != "" {
			keys[key] = struct{}{}
		}
	}
	var out State
	for _, r := range have {
		ids := externalIDs(r.Model)
		_, isUnknown := unknown[cmp.Or(ids[markNode], ids[markPeer])]
		_, taken := keys[tunnelKey(r)]
		if _, ok := known[r.ID]; isUnknown && !ok && !taken {
			out = append(out, r)
		}
	}
	return out
}

// chassisAsTheyWere is asTheyWere of chassis.
func chassisAsTheyWere(want, have []Chassis, unknown map[string]struct{}) []Chassis {
	names, ips := map[string]struct{}{}, map[netip.Addr]struct{}{}
	for _, c := range want {
		names[c.Name] = struct{}{}
		for _, ip := range c.EncapIPs {
			ips[ip] = struct{}{}
		}
	}
	var out []Chassis
	for _, c := range have {
		_, isUnknown := unknown[c.Node]
		_, known := names[c.Name]
		taken := slices.ContainsFunc(c.EncapIPs, func(ip netip.Addr) bool { _, ok := ips[ip]; return ok })
		if isUnknown && !known && !taken {
			out = append(out, c)
		}
	}
	return out
}

// tunnelKey is the key that a port asks for, "" for none.
func tunnelKey(r Row) string {
	if p, ok := r.Model.(*nbdb.LogicalSwitchPort); ok {
		return p.Options["requested-tnl-key"]
	}
	return ""
}
