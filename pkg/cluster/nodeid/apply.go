// SPDX-License-Identifier: Apache-2.0

package nodeid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/ipam"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Reconciler maintains the node-id annotation of nodes.
type Reconciler struct {
	cache  client.Reader
	live   client.Reader // reads from the API server, not from the cache
	client client.Client
	pods   network.Network // the cluster default network, which every pod is on
	marks  idlease.HighWater
	now    func() time.Time
	log    *slog.Logger

	enqueue func(reconcile.Request) // set before the first Reconcile

	mu       sync.Mutex
	ids      *ipam.IDs
	former   map[int]string // the last node of each released id
	restored bool
}

// podsResync is the interval at which a deleted node is checked for pods. That is
// rare, and nothing waits for it.
const podsResync = 10 * time.Second

// indexNode indexes pods by their node.
const indexNode = "node"

// AddIndexes adds the index to a cache that has not been started.
func AddIndexes(ctx context.Context, c client.FieldIndexer) error {
	err := c.IndexField(ctx, &corev1.Pod{}, indexNode, func(o client.Object) []string {
		if p := o.(*corev1.Pod); p.Spec.NodeName != "" && !p.Spec.HostNetwork {
			return []string{p.Spec.NodeName}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index %s of pods: %w", indexNode, err)
	}
	return nil
}

// Usage returns how many node ids are allocated, and the limit.
func (r *Reconciler) Usage() (used, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ids.Len(), network.MaxNodeID
}

// NewReconciler returns a reconciler. pods is the network whose pod addresses give
// the ids of deleted nodes, and whose host subnets limit the ids that are useful. A
// released id is allocated to another node only after age, unless no other id is free.
func NewReconciler(cache, live client.Reader, c client.Client, pods network.Network, age time.Duration, m idlease.HighWater, now func() time.Time, log *slog.Logger) *Reconciler {
	return &Reconciler{
		cache: cache, live: live, client: c, pods: pods, marks: m, now: now, log: log,
		ids: ipam.NewIDs(1, network.MaxNodeID, ipam.LowestFit, age), former: map[int]string{},
	}
}

// Watch adds c's sources: node events, and the deleted nodes that restore finds.
func (r *Reconciler) Watch(c controller.Controller, nodes cache.Cache) error {
	if err := c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.enqueue = q.Add
		return nil
	})); err != nil {
		return fmt.Errorf("add the source of deleted nodes: %w", err)
	}
	if err := c.Watch(source.Kind(nodes, kube.Metadata("Node"), &handler.TypedEnqueueRequestForObject[*metav1.PartialObjectMetadata]{})); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}

// Reconcile writes one node's id, or releases the id of a deleted node.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := r.restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	node := kube.Metadata("Node")
	err := r.cache.Get(ctx, client.ObjectKey{Name: req.Name}, node)
	if apierrors.IsNotFound(err) {
		// Pods of a deleted node keep its addresses until Kubernetes deletes
		// them; a new node with the id would allocate the same addresses.
		var pods corev1.PodList
		if err := r.cache.List(ctx, &pods, client.MatchingFields{indexNode: req.Name}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
			return reconcile.Result{}, fmt.Errorf("list pods of node %s: %w", req.Name, err)
		}
		if len(pods.Items) > 0 {
			return reconcile.Result{RequeueAfter: podsResync}, nil
		}
		r.release(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	if err := network.CheckNodeName(req.Name); err != nil {
		r.log.Error("cannot assign an id to the node", "node", req.Name, "error", err)
		return reconcile.Result{}, nil
	}
	have := State{req.Name, Parse(node.Annotations), node.Annotations[network.AnnotationDefaultTransport]}
	id, err := r.allocate(ctx, have)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.Apply(ctx, Diff(Build(req.Name, id, network.InstalledTransport(r.pods)), have))
}

// Apply writes the annotations of the nodes.
func (r *Reconciler) Apply(ctx context.Context, ops []Op) error {
	var errs []error
	for _, op := range ops {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]string{network.AnnotationNodeID: strconv.Itoa(op.ID), network.AnnotationDefaultTransport: op.Transport},
		}})
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
		r.log.Info(op.String(), "node", op.Node)
	}
	return errors.Join(errs...)
}

// allocate returns the node's id. The annotation is read by restore only, so a changed
// one is overwritten.
func (r *Reconciler) allocate(ctx context.Context, have State) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, ok := r.ids.Get(have.Node); ok {
		return id, nil
	}
	before := r.ids.Mark()
	id, err := r.choose(have.Node)
	if err != nil {
		return 0, err
	}
	if err := r.marks.Raise(ctx, idlease.Nodes, r.ids.Mark(), 0); err != nil {
		if r.ids.Mark() > before {
			r.ids.Cancel(have.Node)
		} else { // the id was another node's, which has perhaps just released it
			r.ids.Release(have.Node, r.now())
		}
		return 0, fmt.Errorf("raise the high-water mark for id %d of node %s: %w", id, have.Node, err)
	}
	delete(r.former, id)
	return id, nil
}

// choose assigns an id to a new node. A node that is registered again gets its former
// id unless another node has it, because it still runs its pods. Any other node gets the
// lowest free id past its minimum age. But with an id for which the cluster default
// network has no host subnet no pod starts on a node. It is assigned only when nodes hold
// all others: an id that was released just before is better.
func (r *Reconciler) choose(node string) (int, error) {
	last := int(r.pods.HostCapacity())
	former := r.formerOf(node)
	if former != 0 && former <= last && r.ids.Reserve(node, former) == nil {
		return former, nil
	}
	if id, err := r.ids.AllocateUpTo(node, last, r.now(), nil); err == nil {
		return id, nil
	}
	if former != 0 && r.ids.Reserve(node, former) == nil {
		return former, nil
	}
	return r.ids.Allocate(node, r.now(), nil)
}

// formerOf returns the id that a node had before it was deleted, 0 for none.
func (r *Reconciler) formerOf(node string) int {
	for id, name := range r.former {
		if name == node {
			return id
		}
	}
	return 0
}

func (r *Reconciler) release(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, ok := r.ids.Get(node); ok {
		r.ids.Release(node, r.now())
		r.former[id] = node
	}
}
