// SPDX-License-Identifier: Apache-2.0

package systemid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Reconciler maintains the annotation of nodes whose system-id others have too.
type Reconciler struct {
	cache  client.Reader
	client client.Client
	log    *slog.Logger

	mu    sync.Mutex
	nodes index
}

// NewReconciler returns a reconciler.
func NewReconciler(cache client.Reader, c client.Client, log *slog.Logger) *Reconciler {
	return &Reconciler{cache: cache, client: c, log: log, nodes: newIndex()}
}

// Watch adds c's source.
func (r *Reconciler) Watch(c controller.Controller, nodes cache.Cache) error {
	if err := c.Watch(source.Kind(nodes, kube.Metadata("Node"), r.events())); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// events enqueues the nodes whose annotation may have to change.
func (r *Reconciler) events() handler.TypedFuncs[*metav1.PartialObjectMetadata, reconcile.Request] {
	type meta = *metav1.PartialObjectMetadata
	set := func(name, id string, q queue) (changed bool) {
		r.mu.Lock()
		changed = r.nodes.systemIDs[name] != id
		affected := r.nodes.set(name, id)
		r.mu.Unlock()
		for _, other := range affected {
			q.Add(request(other))
		}
		return changed
	}
	stored := func(n meta, q queue) {
		if set(n.Name, n.Annotations[network.AnnotationChassisID], q) || n.Annotations[network.AnnotationSystemIDShared] != "" {
			q.Add(request(n.Name))
		}
	}
	return handler.TypedFuncs[meta, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[meta], q queue) { stored(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[meta], q queue) {
			stored(e.ObjectNew, q)
			if e.ObjectOld.Annotations[network.AnnotationSystemIDShared] != e.ObjectNew.Annotations[network.AnnotationSystemIDShared] {
				q.Add(request(e.ObjectNew.Name)) // somebody removed it, or this is our write
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[meta], q queue) { set(e.Object.Name, "", q) },
	}
}

func request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: node}}
}

// Reconcile writes one node's annotation.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := kube.Metadata("Node")
	if err := r.cache.Get(ctx, req.NamespacedName, node); err != nil {
		if err = client.IgnoreNotFound(err); err != nil {
			err = fmt.Errorf("get node %s: %w", req.Name, err)
		}
		return reconcile.Result{}, err
	}
	r.mu.Lock()
	others := r.nodes.others(req.Name)
	r.mu.Unlock()
	return reconcile.Result{}, r.Apply(ctx, Diff(Build(req.Name, others), State{req.Name, node.Annotations[network.AnnotationSystemIDShared]}))
}

// Apply writes the annotations of the nodes.
func (r *Reconciler) Apply(ctx context.Context, ops []Op) error {
	var errs []error
	for _, op := range ops {
		var value any // null removes the annotation
		if op.SharedWith != "" {
			value = op.SharedWith
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{network.AnnotationSystemIDShared: value}}})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: render patch: %w", op, err))
			continue
		}
		node := kube.Metadata("Node")
		node.Name = op.Node
		if err := r.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
			continue
		}
		r.log.Warn(op.String(), "node", op.Node)
	}
	return errors.Join(errs...)
}
