// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
)

// nodeReconciler makes this node a chassis and publishes the node's facts.
type nodeReconciler struct {
	config config.Config
	cache  *Cache
	queue  *Queue
	ovs    OVS
	flows  Flows // may be nil
	peers  *peers
	api    API
	log    *slog.Logger

	first   sync.Once
	flushed atomic.Bool // the kernel may have deleted routes through the external bridge
	mu      sync.Mutex
	facts   ovs.Facts // as read last; without a name: never
}

// Node is this node as far as it is known.
func (r *nodeReconciler) Node() network.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.facts.Node
	n.ID = r.cache.NodeID()
	return n
}

// lastKnown is the node by its facts or, until these have been read, by the Node's annotations. So an agent that starts
// while the facts cannot be read keeps what nftables and the eBPF maps have for the node.
func (r *nodeReconciler) lastKnown() network.Node {
	if n := r.Node(); n.Name != "" {
		return n
	}
	published, _ := network.ParseNode(r.config.Kubernetes.NodeName, r.cache.Annotations()) // eventHandlers.setNode reports the error
	return published
}

// addresses are the node's addresses on the external bridge.
func (r *nodeReconciler) addresses() []netip.Prefix { return r.lastKnown().Addresses }

// has reports whether an address is the node's, on any interface.
func (r *nodeReconciler) has(a netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.facts.Has(a)
}

// otherAddresses are the node's addresses besides those that it publishes.
func (r *nodeReconciler) otherAddresses() []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.facts.Floating, r.facts.Elsewhere)
}

// known reports whether the node has its id and its facts have been read. Until then no network is
// reconciled: it would lose its routes through the external bridge.
func (r *nodeReconciler) known() bool {
	n := r.Node()
	return n.ID != 0 && n.Name != ""
}

// readFirst reads the node's facts, before anything else is reconciled: what is built
// without them lacks the routes through the external bridge. If they cannot be read, reconcile
// reports it, and enqueues everything once they can.
func (r *nodeReconciler) readFirst(ctx context.Context) {
	r.first.Do(func() {
		if node, err := r.read(ctx); err == nil {
			r.setFacts(node)
		}
	})
}

func (r *nodeReconciler) read(ctx context.Context) (ovs.Facts, error) {
	facts, err := r.ovs.ReadNode(ctx, r.config.Kubernetes.NodeName, r.config.OVS, r.config.Plan)
	facts.Node = ovs.KeepOrder(facts.Node, r.lastKnown(), r.config.OVS)
	return facts, err
}

// setFacts stores the node's facts. It returns whether those that it publishes have changed, and whether
// its other addresses have.
func (r *nodeReconciler) setFacts(facts ovs.Facts) (published, others bool) {
	r.mu.Lock()
	published = !reflect.DeepEqual(r.facts.Node, facts.Node)
	others = !slices.Equal(r.facts.Floating, facts.Floating) || !slices.Equal(r.facts.Elsewhere, facts.Elsewhere)
	r.facts = facts
	r.mu.Unlock()
	if published || others {
		r.log.Info("node facts changed", "addresses", facts.Addresses, "otherBridgeAddresses", facts.Floating, "otherInterfaceAddresses", facts.Elsewhere,
			"nextHops", facts.NextHops, "encap", facts.EncapIPs, "chassis", facts.Chassis)
	}
	return published, others
}

// reconcile configures the chassis and writes the annotations that other nodes
// and this node's zone read, where they differ.
func (r *nodeReconciler) reconcile(ctx context.Context) error {
	node, err := r.read(ctx)
	if err != nil {
		return err
	}
	if r.flows != nil {
		localnets, peers := r.localnets()
		r.flows.SetNode(node, localnets, peers)
		if err := r.flows.Isolate(ctx); err != nil {
			return fmt.Errorf("block traffic between networks on the external bridge before they are connected: %w", err)
		}
	}
	in := ovs.Inputs{SBAddress: r.config.SBAddress, ExternalBridge: r.config.OVS.ExternalBridge, PhysicalNetwork: r.config.OVS.PhysicalNetwork}
	if err := r.ovs.SyncChassis(ctx, node.Node, in); err != nil {
		return err
	}
	flushed := r.flushed.Swap(false)
	published, others := r.setFacts(node)
	switch {
	case published || flushed:
		r.queue.EnqueueAll() // networks' routes use the node's next hops
		r.queue.EnqueueReport()
	case others: // services may have claimed them
		enqueueAllGateways(r.queue, r.cache)
		r.queue.EnqueueHosts()
	}
	return r.annotate(ctx, node.Node)
}

// watchPeers watches the other nodes once they are needed. If there is a Localnet network already, it
// returns when the nodes are known: the network may be connected, and must stay so.
func (r *nodeReconciler) watchPeers(ctx context.Context, informer cache.SharedIndexInformer) error {
	if len(r.cache.Localnets(r.config.OVS.PhysicalNetwork)) > 0 {
		return r.peers.watch(ctx, informer)
	}
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-r.peers.wanted:
		}
		if err := r.peers.watch(ctx, informer); err != nil && ctx.Err() == nil {
			r.log.Error("cannot watch the other nodes: Localnet networks stay disconnected from the external bridge", "error", err)
		}
	}()
	return nil
}

// localnets returns the Localnet networks that the external bridge may connect to the wire, and the
// other nodes. It returns none as long as it does not know the other nodes: until then nothing
// prevents pods from sending with those nodes' addresses.
func (r *nodeReconciler) localnets() (localnets []network.Network, peers []network.Node) {
	localnets = r.cache.Localnets(r.config.OVS.PhysicalNetwork)
	if len(localnets) == 0 {
		return nil, nil
	}
	peers, known := r.peers.list()
	if !known {
		return nil, nil
	}
	return localnets, peers
}

func (r *nodeReconciler) annotate(ctx context.Context, node network.Node) error {
	want, err := node.AgentAnnotations()
	if err != nil {
		return err
	}
	have := r.cache.Annotations()
	differ := map[string]string{}
	for k, v := range want {
		if have[k] != v {
			differ[k] = v
		}
	}
	if len(differ) == 0 {
		return nil
	}
	if err := r.api.Annotate(ctx, differ); err != nil {
		return fmt.Errorf("annotate node %s: %w", node.Name, err)
	}
	r.cache.SetWrittenAnnotations(differ)
	return nil
}

// checkAnnotations enqueues the node if somebody else changed the agent's
// annotations.
func (r *nodeReconciler) checkAnnotations(have network.Node) {
	want := r.Node()
	want.ID = have.ID
	if !reflect.DeepEqual(want, have) {
		r.queue.EnqueueNode()
	}
}
