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

// FailingNodes are nodes that have not built a network: the first few by name, and
// the reason of the first. As in NodesWithoutSubnet, the total does not matter.
type FailingNodes struct {
	Nodes  []string
	More   bool
	Reason string // of the first node
}

func (f FailingNodes) String() string {
	nodes := list(f.Nodes)
	if f.More {
		nodes += " and others"
	}
	return nodes + ": node " + f.Nodes[0] + ": " + f.Reason
}

// failures indexes the failures that nodes report of networks, by node and by
// network id.
type failures struct {
	mu     sync.Mutex
	byNode map[string]network.Failures
	byID   map[int]map[string]string // node → reason
	users  map[int]int               // number of nodes that use an id
}

// failureChange is what a node's report changes.
type failureChange struct {
	IDs    []int // whose failures changed
	Used   []int // that a node uses now, and none did before
	Unused []int // that no node uses any more
}

// maxInUsePerNode limits how many ids one node can report as in use: a compromised
// node must not exhaust the cluster's network ids.
const maxInUsePerNode = 256

// update replaces the failures that a node reports; node is nil if it was deleted. What other nodes report does not matter
// for its cost: a fault may affect all nodes at once.
func (f *failures) update(name string, node client.Object, log *slog.Logger) (change failureChange) {
	now := reportedFailures(name, node, log)
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.byNode[name]
	for id := range before {
		if _, still := now[id]; !still {
			change.IDs = append(change.IDs, id)
			delete(f.byID[id], name)
			if len(f.byID[id]) == 0 {
				delete(f.byID, id)
			}
		}
	}
	for id, reason := range now {
		if old, ok := before[id]; ok && old == reason {
			continue
		}
		change.IDs = append(change.IDs, id)
		if f.byID == nil {
			f.byNode, f.byID, f.users = map[string]network.Failures{}, map[int]map[string]string{}, map[int]int{}
		}
		if f.byID[id] == nil {
			f.byID[id] = map[string]string{}
		}
		f.byID[id][name] = reason
	}
	if len(change.IDs) == 0 {
		return change
	}
	if len(now) == 0 {
		delete(f.byNode, name)
	} else {
		f.byNode[name] = now
	}
	slices.Sort(change.IDs)
	for _, id := range idsInUse(now) {
		if f.users[id]++; f.users[id] == 1 {
			change.Used = append(change.Used, id)
		}
	}
	for _, id := range idsInUse(before) {
		if f.users[id]--; f.users[id] == 0 {
			delete(f.users, id)
			change.Unused = append(change.Unused, id)
		}
	}
	return change
}

// idsInUse returns the ids that a node uses by its report.
func idsInUse(reported network.Failures) []int {
	ids := slices.Sorted(maps.Keys(reported))
	return ids[:min(len(ids), maxInUsePerNode)]
}

// reportedFailures returns the failures in a node's annotations.
func reportedFailures(name string, node client.Object, log *slog.Logger) network.Failures {
	now := network.Failures{}
	if node == nil {
		return now
	}
	for _, key := range []string{network.AnnotationAgentFailures, network.AnnotationZoneFailures} {
		reported, err := network.ParseFailures(node.GetAnnotations()[key])
		if err != nil {
			log.Warn("cannot parse the network failures that a node reports", "node", name, "annotation", key, "error", err)
		}
		for id, reason := range reported {
			if now[id] != "" {
				reason = now[id] + "; " + reason
			}
			now[id] = reason
		}
	}
	return now
}

// nodesOf returns the nodes that have not built the network with that id.
func (f *failures) nodesOf(id int) FailingNodes {
	f.mu.Lock()
	defer f.mu.Unlock()
	nodes := slices.Sorted(maps.Keys(f.byID[id]))
	if len(nodes) == 0 {
		return FailingNodes{}
	}
	return FailingNodes{Nodes: nodes[:min(len(nodes), maxNamed)], More: len(nodes) > maxNamed, Reason: f.byID[id][nodes[0]]}
}

// ownerOfNetwork returns the owner of the network of that name; ok is false for
// networks of hand-written NADs.
func ownerOfNetwork(name string) (o Owner, ok bool) {
	if !network.IsUDNName(name) {
		return o, false
	}
	if rest, cluster := network.CutCUDN(name); cluster {
		return Owner{Name: rest}, true
	}
	ns, rest, _ := strings.Cut(name, "_")
	return Owner{ns, rest}, true
}
