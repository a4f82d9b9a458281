// SPDX-License-Identifier: Apache-2.0

// Package nodeid gives every node a small number that stays the node's until
// the node is deleted. Addresses and subnets of all networks follow from it.
package nodeid

import (
	"strconv"

	"bulkhead/pkg/network"
)

// State is a node's id, 0 for none.
type State struct {
	Node string
	ID   int
}

// Build is the id that the node should have: the one allocated.
func Build(node string, allocated int) State { return State{node, allocated} }

// Parse is the id in a node's annotations, 0 for none or an unusable one.
func Parse(annotations map[string]string) int {
	id, err := strconv.Atoi(annotations[network.AnnotationNodeID])
	if err != nil || id < 1 || id > network.MaxNodeID {
		return 0
	}
	return id
}
