// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

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
	api    API
	log    *slog.Logger

	first sync.Once
	mu    sync.Mutex
	facts network.Node // as read last
}

// Node is this node as far as it is known.
func (r *nodeReconciler) Node() network.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.facts
	n.ID = r.cache.NodeID()
	return n
}

// readFirst reads the node's facts, before anything else is reconciled: what is built
// without them lacks the routes by the external bridge, and a restart must not remove
// those. If they cannot be read, reconcile reports it.
func (r *nodeReconciler) readFirst(ctx context.Context) {
	r.first.Do(func() {
		if node, err := r.read(ctx); err == nil {
			r.setFacts(node)
		}
	})
}

func (r *nodeReconciler) read(ctx context.Context) (network.Node, error) {
	return r.ovs.ReadNode(ctx, r.config.Kubernetes.NodeName, r.config.OVS, r.config.Plan)
}

// setFacts stores the node's facts and returns whether they changed.
func (r *nodeReconciler) setFacts(node network.Node) (changed bool) {
	r.mu.Lock()
	changed = !reflect.DeepEqual(r.facts, node)
	r.facts = node
	r.mu.Unlock()
	if changed {
		r.log.Info("node facts changed", "addresses", node.Addresses, "nextHops", node.NextHops, "encap", node.EncapIPs, "chassis", node.Chassis)
	}
	return changed
}

// reconcile configures the chassis and writes the annotations that other nodes
// and this node's zone read, where they differ.
func (r *nodeReconciler) reconcile(ctx context.Context) error {
	node, err := r.read(ctx)
	if err != nil {
		return err
	}
	if r.flows != nil {
		r.flows.SetNode(node, r.cache.Localnets(r.config.OVS.PhysicalNetwork))
		if err := r.flows.Isolate(ctx); err != nil {
			return fmt.Errorf("close the external bridge before networks are connected to it: %w", err)
		}
	}
	in := ovs.Inputs{SBAddress: r.config.SBAddress, ExternalBridge: r.config.OVS.ExternalBridge, PhysicalNetwork: r.config.OVS.PhysicalNetwork}
	if err := r.ovs.SyncChassis(ctx, node, in); err != nil {
		return err
	}
	if r.setFacts(node) {
		r.queue.EnqueueAll() // networks' routes use the node's next hops
		r.queue.EnqueueReport()
	}
	return r.annotate(ctx, node)
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
