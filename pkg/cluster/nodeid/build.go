// SPDX-License-Identifier: Apache-2.0

// Package nodeid assigns every node an id that it keeps until it is deleted. The
// node's addresses and subnets in all networks are derived from the id.
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

// Build returns the desired state: the allocated id.
func Build(node string, allocated int) State { return State{node, allocated} }

// Parse returns the id in a node's annotations, 0 if it is missing or invalid.
func Parse(annotations map[string]string) int {
	id, err := strconv.Atoi(annotations[network.AnnotationNodeID])
	if err != nil || id < 1 || id > network.MaxNodeID {
		return 0
	}
	return id
}
