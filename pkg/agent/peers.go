// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// peers caches the other nodes, from whose addresses no Localnet network on the external bridge may send.
// It watches them only once there is a Localnet network: for most clusters they are not needed.
type peers struct {
	own   string // this node's name
	queue *Queue
	log   *slog.Logger

	start  sync.Once
	wanted chan struct{} // closed when there is a Localnet network

	mu     sync.Mutex
	nodes  map[string]network.Node // by name
	synced bool
}

func newPeers(own string, queue *Queue, log *slog.Logger) *peers {
	return &peers{own: own, queue: queue, log: log, wanted: make(chan struct{}), nodes: map[string]network.Node{}}
}

// list returns the other nodes by name; known is false as long as the first list of them is not
// complete. A change of what it returns enqueues the node.
func (p *peers) list() (nodes []network.Node, known bool) {
	p.start.Do(func() { close(p.wanted) })
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.nodes), func(a, b network.Node) int { return strings.Compare(a.Name, b.Name) }), p.synced
}

// watch watches the Nodes until ctx ends, and returns when all are known. informer has their metadata.
func (p *peers) watch(ctx context.Context, informer cache.SharedIndexInformer) error {
	err := process.RunInformers(ctx, process.Informer{SharedIndexInformer: informer, Transform: trimPeer, OnChange: onChange(p.set), OnDelete: onDelete(p.delete)})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.synced = true
	p.mu.Unlock()
	p.queue.EnqueueNode()
	return nil
}

func (p *peers) set(o *metav1.PartialObjectMetadata) {
	if o.Name == p.own {
		return
	}
	n, err := network.ParseNode(o.Name, o.Annotations)
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.nodes[n.Name]
	if known && (err != nil || samePeer(old, n)) { // a node whose annotations are malformed keeps its addresses
		return
	}
	if err != nil {
		p.log.Warn("annotations of another node are malformed: Localnet networks may send from its addresses", "peer", o.Name, "error", err)
	}
	p.nodes[n.Name] = n
	p.changed()
}

func (p *peers) delete(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.nodes[name]; ok {
		delete(p.nodes, name)
		p.changed()
	}
}

func (p *peers) changed() {
	if p.synced {
		p.queue.EnqueueNode()
	}
}

func samePeer(a, b network.Node) bool {
	return a.BridgeMAC == b.BridgeMAC && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.EncapIPs, b.EncapIPs) && slices.Equal(a.NextHops, b.NextHops)
}

// trimPeer keeps the annotations that say a node's addresses.
func trimPeer(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	kept := map[string]string{}
	for _, k := range []string{network.AnnotationGatewayConfig, network.AnnotationEncapIPs} {
		if v, ok := o.Annotations[k]; ok {
			kept[k] = v
		}
	}
	return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Annotations: kept}}, nil
}
