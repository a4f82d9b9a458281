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
	"time"

	"bulkhead/pkg/network"
)

// nodeIndex indexes the nodes' facts, which come from annotations. A node keeps
// its last accepted fact while the annotation is missing, malformed or claims what
// another node has: a wrong annotation tears nothing down, and no node can take
// over another's addresses by claiming them. Only this node takes its own first ones
// from others, as its agent has read them from the machine.
type nodeIndex struct {
	own    string // this node's name
	synced bool   // the nodes of the first list are recorded
	// podIDs are the ids of this node that its pods' addresses imply.
	podIDs map[int]struct{}
	nodes  map[string]*indexedNode
	holder map[string]string              // by claim: the node that has it by its accepted facts
	claims map[string]map[string]struct{} // by claim: the nodes whose annotations make it
	moved  map[netip.Addr]bool            // addresses that a node has gained or lost
}

// claimAddress precedes an address in the claim of it.
const claimAddress = "address "

type indexedNode struct {
	uid       string
	created   time.Time
	annotated network.Node // the well-formed annotations
	err       error        // the malformed annotations
	accepted  network.Node
	problem   string
	contested string // of this node: which of its accepted facts other nodes claim too
}

// nodeChange is a change of a node in the index.
type nodeChange struct {
	name           string
	factsChanged   bool // its accepted facts
	problemChanged bool // the problem with its annotations, or with others' that claim its facts
}

func newNodeIndex(own string) *nodeIndex {
	return &nodeIndex{own: own, nodes: map[string]*indexedNode{}, holder: map[string]string{}, claims: map[string]map[string]struct{}{}, moved: map[netip.Addr]bool{}}
}

// fact is a part of a node's description that is accepted or rejected as a whole.
type fact struct {
	annotation string
	present    func(network.Node) bool
	copy       func(to *network.Node, from network.Node)
	// claims are the values that no two nodes may share, as text.
	claims func(network.Node) []string
	// ofMachine: the node's agent reads it from the machine.
	ofMachine bool
	// cloned is what to do on a machine that has another one's, because it was cloned; "" for nothing.
	cloned string
}

var facts = []fact{
	{
		annotation: network.AnnotationNodeID,
		present:    func(n network.Node) bool { return n.ID != 0 },
		copy:       func(to *network.Node, from network.Node) { to.ID = from.ID },
		claims:     func(n network.Node) []string { return []string{"node id " + strconv.Itoa(n.ID)} },
	}, {
		annotation: network.AnnotationChassisID,
		present:    func(n network.Node) bool { return n.Chassis != "" },
		copy:       func(to *network.Node, from network.Node) { to.Chassis = from.Chassis },
		claims:     func(n network.Node) []string { return []string{"chassis " + n.Chassis} },
		cloned:     "; on a machine that was cloned, remove /etc/openvswitch/system-id.conf and Open vSwitch's conf.db, and restart Open vSwitch",
	}, {
		annotation: network.AnnotationEncapIPs,
		ofMachine:  true,
		present:    func(n network.Node) bool { return len(n.EncapIPs) > 0 },
		copy:       func(to *network.Node, from network.Node) { to.EncapIPs = from.EncapIPs },
		claims: func(n network.Node) []string {
			var out []string
			for _, ip := range n.EncapIPs {
				out = append(out, "tunnel address "+ip.String())
			}
			return out
		},
	}, {
		annotation: network.AnnotationGatewayConfig,
		ofMachine:  true,
		present:    hasGatewayFacts,
		copy: func(to *network.Node, from network.Node) {
			to.Mode, to.Bridge, to.BridgeMAC, to.Addresses, to.NextHops = from.Mode, from.Bridge, from.BridgeMAC, from.Addresses, from.NextHops
		},
		claims: func(n network.Node) []string {
			var out []string
			for _, p := range n.Addresses {
				// Nodes on different links may have the same MAC.
				out = append(out, claimAddress+p.Addr().String(), "MAC "+n.BridgeMAC+" in "+p.Masked().String())
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
		if f.present(n) {
			out = append(out, f.claims(n)...)
		}
	}
	return out
}

// set records a node's annotations. After markSynced it also evaluates them.
func (x *nodeIndex) set(name, uid string, created time.Time, annotated network.Node, err error) []nodeChange {
	var changes []nodeChange
	n, ok := x.nodes[name]
	if ok && n.uid != uid {
		changes = x.remove(name) // a recreated node
		ok = false
	}
	if !ok {
		n = &indexedNode{uid: uid, created: created, accepted: network.Node{Name: name}}
		x.nodes[name] = n
	}
	before := claimsOf(n.annotated)
	n.annotated, n.err = annotated, err
	for _, c := range before {
		x.removeClaim(c, name)
	}
	for _, c := range claimsOf(annotated) {
		if x.claims[c] == nil {
			x.claims[c] = map[string]struct{}{}
		}
		x.claims[c][name] = struct{}{}
	}
	if !x.synced {
		return changes
	}
	return mergeChanges(changes, x.evaluate(append([]string{name}, x.claimingNodes(before)...)))
}

// remove removes a deleted node.
func (x *nodeIndex) remove(name string) []nodeChange {
	n, ok := x.nodes[name]
	if !ok {
		return nil
	}
	delete(x.nodes, name)
	freed := slices.Concat(claimsOf(n.annotated), claimsOf(n.accepted))
	for _, c := range claimsOf(n.annotated) {
		x.removeClaim(c, name)
	}
	for _, c := range claimsOf(n.accepted) {
		delete(x.holder, c)
		x.noteMoved(c)
	}
	changes := []nodeChange{{name: name, factsChanged: true}}
	if !x.synced {
		return changes
	}
	return mergeChanges(changes, x.evaluate(x.claimingNodes(freed)))
}

// markSynced evaluates all nodes of the first list.
func (x *nodeIndex) markSynced() []nodeChange {
	x.synced = true
	return x.evaluate(x.inOrder(slices.Collect(maps.Keys(x.nodes))))
}

// inOrder returns nodes in the order in which they get what several of them claim: this one, then the older before
// the younger ones.
func (x *nodeIndex) inOrder(names []string) []string {
	others := func(name string) int {
		if name == x.own {
			return 0
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(others(a), others(b)), x.nodes[a].created.Compare(x.nodes[b].created), cmp.Compare(a, b))
	})
	return slices.Compact(names)
}

// evaluate evaluates nodes, and then the nodes that claim what became free.
func (x *nodeIndex) evaluate(names []string) []nodeChange {
	var changes []nodeChange
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		n, ok := x.nodes[name]
		if !ok {
			continue
		}
		before, problem := n.accepted, n.problem
		freed, others := x.evaluateNode(name, n)
		changes = mergeChanges(changes, []nodeChange{{name: name, factsChanged: !reflect.DeepEqual(before, n.accepted), problemChanged: problem != n.problem}})
		for _, o := range others {
			changes = mergeChanges(changes, []nodeChange{{name: o, factsChanged: true}})
		}
		names = append(append(names, others...), x.claimingNodes(freed)...)
	}
	if n, ok := x.nodes[x.own]; ok {
		before := n.contested
		n.contested = x.contestedFacts(n)
		changes = mergeChanges(changes, []nodeChange{{name: x.own, problemChanged: before != n.contested}})
	}
	return changes
}

// contestedFacts says which of this node's accepted facts other nodes claim too. Zones
// that knew another node first refuse this one's.
func (x *nodeIndex) contestedFacts(n *indexedNode) string {
	var out []string
	for _, f := range facts {
		if !f.present(n.accepted) {
			continue
		}
		for _, c := range f.claims(n.accepted) {
			if others := x.otherClaimants(c, x.own); len(others) > 0 {
				out = append(out, fmt.Sprintf("%s is also claimed by node %s%s", c, strings.Join(others, ", "), f.cloned))
			}
		}
	}
	return strings.Join(out, "; ")
}

// otherClaimants returns the nodes besides that one whose annotations make a claim.
func (x *nodeIndex) otherClaimants(claim, name string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(x.claims[claim])), func(s string) bool { return s == name })
}

// evaluateNode accepts the valid facts of a node. It returns the claims that became
// free and the other nodes whose facts changed too.
func (x *nodeIndex) evaluateNode(name string, n *indexedNode) (freed, others []string) {
	var problems []string
	if n.err != nil {
		problems = append(problems, n.err.Error())
	}
	for _, f := range facts {
		had := f.present(n.accepted)
		if !f.present(n.annotated) {
			if malformed := n.err != nil && strings.Contains(n.err.Error(), f.annotation); had && !malformed {
				problems = append(problems, fmt.Sprintf("node %s: annotation %s was deleted", name, f.annotation))
			}
			continue
		}
		with := []string{name}
		if err := x.conflict(name, f, n, f.claims(n.annotated)); err != nil {
			if with = x.findSwap(name, f); with == nil {
				problems = append(problems, fmt.Sprintf("node %s: annotation %s: %v", name, f.annotation, err))
				continue
			}
			others = append(others, with[1:]...)
		}
		losers := x.holders(f.claims(n.annotated), with)
		others = append(others, losers...)
		freed = append(freed, x.accept(f, with, losers)...)
	}
	n.problem = strings.Join(problems, "; ")
	return freed, others
}

// holders returns the nodes, except those, that have one of the claims.
func (x *nodeIndex) holders(claims, except []string) []string {
	var out []string
	for _, c := range claims {
		if h, taken := x.holder[c]; taken && !slices.Contains(except, h) && !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}

// accept accepts a fact of nodes, which the losers lose, and returns the claims that became free.
func (x *nodeIndex) accept(f fact, names, losers []string) (freed []string) {
	for _, name := range slices.Concat(names, losers) {
		n := x.nodes[name]
		if f.present(n.accepted) {
			for _, c := range f.claims(n.accepted) {
				if x.holder[c] == name {
					delete(x.holder, c)
					freed = append(freed, c)
				}
			}
		}
		if slices.Contains(losers, name) {
			f.copy(&n.accepted, network.Node{})
		} else {
			f.copy(&n.accepted, n.annotated)
		}
	}
	for _, name := range names {
		for _, c := range f.claims(x.nodes[name].accepted) {
			if _, taken := x.holder[c]; !taken && !slices.Contains(freed, c) {
				x.noteMoved(c)
			}
			x.holder[c] = name
		}
	}
	freed = slices.DeleteFunc(freed, func(c string) bool { _, taken := x.holder[c]; return taken })
	for _, c := range freed {
		x.noteMoved(c)
	}
	return freed
}

// noteMoved records that a node has gained or lost an address.
func (x *nodeIndex) noteMoved(claim string) {
	if text, ok := strings.CutPrefix(claim, claimAddress); ok {
		if a, err := netip.ParseAddr(text); err == nil {
			x.moved[a] = true
		}
	}
}

// takeMoved returns the addresses that a node has gained or lost since the last call.
func (x *nodeIndex) takeMoved() map[netip.Addr]bool {
	moved := x.moved
	x.moved = map[netip.Addr]bool{}
	return moved
}

// findSwap returns the nodes, that one first, whose facts can only be accepted
// together, e.g. two nodes that swapped their addresses: each claims what another
// of them has, and no further node claims it. It returns nil if there are none.
func (x *nodeIndex) findSwap(name string, f fact) []string {
	with := []string{name}
	for i := 0; i < len(with); i++ {
		n, ok := x.nodes[with[i]]
		if !ok || !f.present(n.annotated) || x.checkPodIDs(with[i], f, n) != nil {
			return nil
		}
		for _, c := range f.claims(n.annotated) {
			if len(x.claims[c]) > 1 {
				return nil
			}
			if holder, taken := x.holder[c]; taken && !slices.Contains(with, holder) {
				with = append(with, holder)
			}
		}
	}
	return with
}

// checkPodIDs returns an error if this node's annotated id contradicts the
// addresses of its pods.
func (x *nodeIndex) checkPodIDs(name string, f fact, n *indexedNode) error {
	if _, ok := x.podIDs[n.annotated.ID]; ok || len(x.podIDs) == 0 || name != x.own || f.annotation != network.AnnotationNodeID {
		return nil
	}
	return fmt.Errorf("the addresses of the node's pods belong to node id %d, not %d", slices.Sorted(maps.Keys(x.podIDs))[0], n.annotated.ID)
}

// conflict returns why a node's claims cannot be accepted, nil if they can.
func (x *nodeIndex) conflict(name string, f fact, n *indexedNode, claims []string) error {
	if err := x.checkPodIDs(name, f, n); err != nil {
		return err
	}
	own := name == x.own
	for _, c := range claims {
		holder, taken := x.holder[c]
		switch {
		case taken && holder == name:
		case own && f.ofMachine && !f.present(n.accepted):
			// Without it this node can build nothing. Its agent knows what the machine
			// has; the other Node may be what is left of a machine that is gone.
		case taken:
			return fmt.Errorf("%s belongs to node %s: delete Node %s if its machine is gone%s", c, holder, holder, f.cloned)
		}
	}
	return nil
}

// claimingNodes returns the nodes whose annotations make one of the claims, inOrder.
func (x *nodeIndex) claimingNodes(claims []string) []string {
	var out []string
	for _, c := range claims {
		out = slices.AppendSeq(out, maps.Keys(x.claims[c]))
	}
	return x.inOrder(out)
}

func (x *nodeIndex) removeClaim(claim, name string) {
	delete(x.claims[claim], name)
	if len(x.claims[claim]) == 0 {
		delete(x.claims, claim)
	}
}

// node returns a node with its accepted facts.
func (x *nodeIndex) node(name string) network.Node {
	if n, ok := x.nodes[name]; ok {
		return n.accepted
	}
	return network.Node{Name: name}
}

// withAddress returns the node that has an address, "" for none.
func (x *nodeIndex) withAddress(a netip.Addr) string { return x.holder[claimAddress+a.String()] }

// problem returns the problem with a node's annotations, nil for none.
func (x *nodeIndex) problem(name string) error {
	if n, ok := x.nodes[name]; ok && n.problem != "" {
		return errors.New(n.problem)
	}
	return nil
}

// contested returns which of this node's accepted facts other nodes claim too, "" for none.
func (x *nodeIndex) contested() string {
	if n, ok := x.nodes[x.own]; ok {
		return n.contested
	}
	return ""
}

// peers returns the other nodes: the ready ones, sorted by id, and the names of
// those that lack facts.
func (x *nodeIndex) peers() (ready []network.Node, unknown map[string]struct{}) {
	unknown = map[string]struct{}{}
	for name, n := range x.nodes {
		switch {
		case name == x.own:
		case n.accepted.Ready():
			ready = append(ready, n.accepted)
		default:
			unknown[name] = struct{}{}
		}
	}
	slices.SortFunc(ready, func(a, c network.Node) int { return cmp.Compare(a.ID, c.ID) })
	return ready, unknown
}

// alone reports whether there is no other node.
func (x *nodeIndex) alone() bool {
	_, own := x.nodes[x.own]
	return len(x.nodes) == 0 || len(x.nodes) == 1 && own
}

// mergeChanges adds more to changes, one entry per node.
func mergeChanges(changes, more []nodeChange) []nodeChange {
	for _, c := range more {
		if i := slices.IndexFunc(changes, func(o nodeChange) bool { return o.name == c.name }); i >= 0 {
			changes[i].factsChanged, changes[i].problemChanged = changes[i].factsChanged || c.factsChanged, changes[i].problemChanged || c.problemChanged
		} else if c.factsChanged || c.problemChanged {
			changes = append(changes, c)
		}
	}
	return changes
}
