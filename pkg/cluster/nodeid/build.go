// SPDX-License-Identifier: Apache-2.0

// Package nodeid assigns every node an id that it keeps until it is deleted. The
// node's addresses and subnets in all networks are derived from the id. With the id it
// writes the transport with which the cluster was installed.
package nodeid

import (
	"strconv"

	"bulkhead/pkg/network"
)

// State is what a node's annotations say.
type State struct {
	Node      string
	ID        int    // 0: none
	Transport string // network.AnnotationDefaultTransport; "": none
}

// Build returns the desired state: the allocated id, and the transport of the cluster
// default network.
func Build(node string, allocated int, transport string) State {
	return State{node, allocated, transport}
}

// Parse returns the id in a node's annotations, 0 if it is missing or invalid.
func Parse(annotations map[string]string) int {
	id, err := strconv.Atoi(annotations[network.AnnotationNodeID])
	if err != nil || id < 1 || id > network.MaxNodeID {
		return 0
	}
	return id
}
