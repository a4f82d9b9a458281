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

// nodeIDs are the nodes in the order of their ids, read anew only after a node
// has come, gone or got its id: a network's reconciliation costs the same
// however many nodes hold it.
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

// Beyond are nodes that a network's subnets do not hold: the first by id, and
// whether there are more. How many does not matter, so that a node that comes
// to many others changes no network's status.
type Beyond struct {
	First []string
	More  bool
}

// named is how many nodes a message names.
const named = 5

func (b Beyond) String() string {
	if b.More {
		return list(b.First) + " and others"
	}
	return list(b.First)
}

// beyond are the nodes whose id is above capacity.
func (n *nodeIDs) beyond(ctx context.Context, cache client.Reader, capacity uint64) (Beyond, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dirty {
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(kube.Metadata("NodeList").GroupVersionKind())
		if err := cache.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
			return Beyond{}, fmt.Errorf("list nodes: %w", err)
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
	out := Beyond{More: len(n.byID)-first > named}
	for _, x := range n.byID[first:min(first+named, len(n.byID))] {
		out.First = append(out.First, x.name)
	}
	return out, nil
}

// idOf is a node's id, 0 for none.
func idOf(node client.Object) uint64 {
	id, err := strconv.ParseUint(node.GetAnnotations()[network.AnnotationNodeID], 10, 16)
	if err != nil || id > network.MaxNodeID {
		return 0
	}
	return id
}
