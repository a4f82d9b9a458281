// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// nodeIDs caches the nodes sorted by id. It is rebuilt only after a node was added
// or deleted, or its id changed, so that the cost of reconciling a network does not
// grow with the number of nodes.
type nodeIDs struct {
	mu    sync.Mutex
	dirty bool
	byID  []nodeID // ascending
}

type nodeID struct {
	id   uint64
	name string
}

func (n *nodeIDs) markDirty() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dirty = true
}

// NodesWithoutSubnet are nodes that a network's subnets have no host subnet for:
// the first few by id, and whether there are more. It has no total, so that one more
// node among many does not change a network's status.
type NodesWithoutSubnet struct {
	First []string
	More  bool
}

// maxNamed is how many nodes a message names.
const maxNamed = 5

func (n NodesWithoutSubnet) String() string {
	if n.More {
		return list(n.First) + " and others"
	}
	return list(n.First)
}

// withoutSubnet returns the nodes whose id is above capacity.
func (n *nodeIDs) withoutSubnet(ctx context.Context, cache client.Reader, capacity uint64) (NodesWithoutSubnet, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dirty {
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(kube.Metadata("NodeList").GroupVersionKind())
		if err := cache.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
			return NodesWithoutSubnet{}, fmt.Errorf("list nodes: %w", err)
		}
		n.byID, n.dirty = nil, false
		for i := range l.Items {
			if id := idOf(&l.Items[i]); id > 0 {
				n.byID = append(n.byID, nodeID{id, l.Items[i].Name})
			}
		}
		slices.SortFunc(n.byID, func(a, b nodeID) int { return int(a.id) - int(b.id) })
	}
	first, _ := slices.BinarySearchFunc(n.byID, capacity+1, func(x nodeID, id uint64) int { return int(x.id) - int(id) })
	out := NodesWithoutSubnet{More: len(n.byID)-first > maxNamed}
	for _, x := range n.byID[first:min(first+maxNamed, len(n.byID))] {
		out.First = append(out.First, x.name)
	}
	return out, nil
}

// idOf returns a node's id, 0 for none.
func idOf(node client.Object) uint64 {
	id, err := strconv.ParseUint(node.GetAnnotations()[network.AnnotationNodeID], 10, 16)
	if err != nil || id > network.MaxNodeID {
		return 0
	}
	return id
}
