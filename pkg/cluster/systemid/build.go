// SPDX-License-Identifier: Apache-2.0

// Package systemid tells nodes that have the same system-id of Open vSwitch, because their machine was cloned, of each other:
// other nodes have a tunnel to one of them only. The node's agent reports it.
package systemid

import (
	"maps"
	"slices"
	"strings"
)

// State is what a node's annotation says.
type State struct {
	Node string
	// SharedWith are other nodes with the node's system-id, comma-separated; "": none.
	SharedWith string
}

// maxNamed is how many nodes an annotation names.
const maxNamed = 5

// Build returns the desired state. others are the nodes with the node's system-id.
func Build(node string, others []string) State {
	return State{node, strings.Join(others[:min(len(others), maxNamed)], ",")}
}

// index holds nodes by system-id.
type index struct {
	bySystemID map[string]map[string]struct{}
	systemIDs  map[string]string // by node
}

func newIndex() index {
	return index{map[string]map[string]struct{}{}, map[string]string{}}
}

// set stores a node's system-id, "" for none, and returns the other nodes that have its former or its new one.
func (x index) set(node, id string) (affected []string) {
	old := x.systemIDs[node]
	if old == id {
		return nil
	}
	affected = x.others(node)
	delete(x.bySystemID[old], node)
	if len(x.bySystemID[old]) == 0 {
		delete(x.bySystemID, old)
	}
	delete(x.systemIDs, node)
	if id == "" {
		return affected
	}
	x.systemIDs[node] = id
	if x.bySystemID[id] == nil {
		x.bySystemID[id] = map[string]struct{}{}
	}
	x.bySystemID[id][node] = struct{}{}
	return append(affected, x.others(node)...)
}

// others returns the other nodes with a node's system-id, by name.
func (x index) others(node string) []string {
	id, ok := x.systemIDs[node]
	if !ok || len(x.bySystemID[id]) < 2 {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(x.bySystemID[id])), func(name string) bool { return name == node })
}
