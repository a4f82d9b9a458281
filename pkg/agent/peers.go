// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// peers caches the other nodes, from whose addresses no Localnet network on the external bridge may send, and whose
// addresses no Service gets on this node. It watches them only once there is a Localnet network, or a Service to which a load
// balancer has given an address: for other clusters they are not needed.
type peers struct {
	own   string // this node's name
	queue *Queue
	log   *slog.Logger

	start  sync.Once
	wanted chan struct{} // closed when they are needed
	// addressesChanged is called when what hasAddress returns may have changed.
	addressesChanged func()

	mu        sync.Mutex
	nodes     map[string]network.Node // by name
	addresses map[netip.Addr]int      // number of nodes that have an address
	asked     bool                    // hasAddress was called
	synced    bool
}

func newPeers(own string, queue *Queue, addressesChanged func(), log *slog.Logger) *peers {
	return &peers{own: own, queue: queue, addressesChanged: addressesChanged, log: log, wanted: make(chan struct{}), nodes: map[string]network.Node{}, addresses: map[netip.Addr]int{}}
}

// hasAddress reports whether another node publishes an address, false as long as the nodes are not known.
func (p *peers) hasAddress(a netip.Addr) bool {
	p.start.Do(func() { close(p.wanted) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	return p.addresses[a] > 0
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
	asked := p.asked
	p.mu.Unlock()
	p.queue.EnqueueNode()
	if asked {
		p.addressesChanged()
	}
	return nil
}

func (p *peers) set(o *metav1.PartialObjectMetadata) {
	if p.store(o) {
		p.addressesChanged() // without the lock: it reads the cache, which is locked while hasAddress is asked
	}
}

// store stores a node, and reports whether what hasAddress returns may have changed.
func (p *peers) store(o *metav1.PartialObjectMetadata) bool {
	if o.Name == p.own {
		return false
	}
	n, err := network.ParseNode(o.Name, o.Annotations)
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.nodes[n.Name]
	if known && (err != nil || samePeer(old, n)) { // a node whose annotations are malformed keeps its addresses
		return false
	}
	if err != nil {
		p.log.Warn("annotations of another node are malformed: Localnet networks may send from its addresses", "peer", o.Name, "error", err)
	}
	p.nodes[n.Name] = n
	return p.changed(old.Addresses, n.Addresses)
}

func (p *peers) delete(name string) {
	p.mu.Lock()
	old, ok := p.nodes[name]
	delete(p.nodes, name)
	changed := ok && p.changed(old.Addresses, nil)
	p.mu.Unlock()
	if changed {
		p.addressesChanged()
	}
}

// changed records a node's addresses, and enqueues the node. It reports whether what hasAddress returns may have changed.
func (p *peers) changed(before, now []netip.Prefix) bool {
	for _, a := range before {
		if p.addresses[a.Addr()]--; p.addresses[a.Addr()] == 0 {
			delete(p.addresses, a.Addr())
		}
	}
	for _, a := range now {
		p.addresses[a.Addr()]++
	}
	if p.synced {
		p.queue.EnqueueNode()
	}
	return p.synced && p.asked && !slices.Equal(before, now)
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
