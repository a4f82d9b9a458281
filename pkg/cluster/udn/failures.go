// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// Failing are nodes that have not built a network: the first by name, with the
// reason of one of them. As with Beyond, how many does not matter.
type Failing struct {
	Nodes []string
	More  bool
	Why   string // of the first node
}

func (f Failing) String() string {
	nodes := list(f.Nodes)
	if f.More {
		nodes += " and others"
	}
	return nodes + ": node " + f.Nodes[0] + ": " + f.Why
}

// failures are what nodes say of networks, by node and by network id. What is
// kept is as much as fails.
type failures struct {
	mu     sync.Mutex
	byNode map[string]network.Failures
	byID   map[int]map[string]string // node → reason
}

// mostLeft bounds for how many ids a node's word counts that they are in use: a
// node that lies must not keep a cluster from making networks.
const mostLeft = 256

// set takes what a node says, nil where it is gone. It returns the ids of which
// that says something new, nil for none, and where each id is in use.
func (f *failures) set(name string, node client.Object, log *slog.Logger) (changed []int, left map[int]string) {
	now := network.Failures{}
	if node != nil {
		for _, key := range []string{network.AnnotationAgentFailures, network.AnnotationZoneFailures} {
			one, err := network.ParseFailures(node.GetAnnotations()[key])
			if err != nil {
				log.Warn("what a node says of its networks is unreadable", "node", name, "annotation", key, "err", err)
			}
			for id, why := range one {
				if now[id] != "" {
					why = now[id] + "; " + why
				}
				now[id] = why
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.byNode[name]
	for id := range before {
		if _, still := now[id]; !still {
			changed = append(changed, id)
			delete(f.byID[id], name)
			if len(f.byID[id]) == 0 {
				delete(f.byID, id)
			}
		}
	}
	for id, why := range now {
		if was, ok := before[id]; ok && was == why {
			continue
		}
		changed = append(changed, id)
		if f.byID == nil {
			f.byNode, f.byID = map[string]network.Failures{}, map[int]map[string]string{}
		}
		if f.byID[id] == nil {
			f.byID[id] = map[string]string{}
		}
		f.byID[id][name] = why
	}
	if len(changed) == 0 {
		return nil, nil
	}
	if len(now) == 0 {
		delete(f.byNode, name)
	} else {
		f.byNode[name] = now
	}
	left = map[int]string{}
	for node, said := range f.byNode {
		ids := slices.Sorted(maps.Keys(said))
		for _, id := range ids[:min(len(ids), mostLeft)] {
			left[id] = node
		}
	}
	slices.Sort(changed)
	return changed, left
}

// of are the nodes that have not built the network with that id.
func (f *failures) of(id int) Failing {
	f.mu.Lock()
	defer f.mu.Unlock()
	nodes := slices.Sorted(maps.Keys(f.byID[id]))
	if len(nodes) == 0 {
		return Failing{}
	}
	return Failing{Nodes: nodes[:min(len(nodes), named)], More: len(nodes) > named, Why: f.byID[id][nodes[0]]}
}

// ownerOfNetwork is whose network has that name; ok is false for those of
// NADs that were written by hand.
func ownerOfNetwork(name string) (o Owner, ok bool) {
	if !network.IsUDNName(name) {
		return o, false
	}
	if rest, cluster := strings.CutPrefix(name, network.CUDNName("")); cluster {
		return Owner{Name: rest}, true
	}
	ns, rest, _ := strings.Cut(name, "_")
	return Owner{ns, rest}, true
}
