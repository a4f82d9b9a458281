// SPDX-License-Identifier: Apache-2.0

package nodeid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Reconciler keeps the node-id annotation of nodes.
type Reconciler struct {
	cache  client.Reader
	live   client.Reader
	client client.Client
	log    *slog.Logger

	mu       sync.Mutex
	ids      *ipam.IDs
	restored bool
}

// look is how often a node that is gone is looked at for pods: rare, and
// nothing waits for it.
const look = 10 * time.Second

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

// IDs is how many nodes have an id, and how many can have one.
func (r *Reconciler) IDs() (used, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ids.Len(), network.MaxNodeID
}

// NewReconciler makes a reconciler.
func NewReconciler(cache, live client.Reader, c client.Client, log *slog.Logger) *Reconciler {
	return &Reconciler{cache: cache, live: live, client: c, log: log, ids: ipam.NewIDs(1, network.MaxNodeID)}
}

// Reconcile gives one node its id.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := r.restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	node := kube.Metadata("Node")
	err := r.cache.Get(ctx, client.ObjectKey{Name: req.Name}, node)
	if apierrors.IsNotFound(err) {
		// Pods of a node that is gone keep its addresses until Kubernetes
		// collects them; a new node with the id would hand them out again.
		var pods corev1.PodList
		if err := r.cache.List(ctx, &pods, client.MatchingFields{indexNode: req.Name}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
			return reconcile.Result{}, fmt.Errorf("list pods of node %s: %w", req.Name, err)
		}
		if len(pods.Items) > 0 {
			return reconcile.Result{RequeueAfter: look}, nil
		}
		r.release(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	have := State{req.Name, Parse(node.Annotations)}
	id, err := r.allocate(have)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.Apply(ctx, Diff(Build(req.Name, id), have))
}

// Apply writes ids.
func (r *Reconciler) Apply(ctx context.Context, ops []Op) error {
	var errs []error
	for _, op := range ops {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]string{network.AnnotationNodeID: strconv.Itoa(op.ID)},
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

// allocate is the node's id: what the annotation says where nobody else has
// it, else the lowest free one.
func (r *Reconciler) allocate(have State) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.ids.Get(have.Node); !ok && have.ID != 0 && r.ids.Reserve(have.Node, have.ID) == nil {
		return have.ID, nil
	}
	return r.ids.Allocate(have.Node)
}

func (r *Reconciler) release(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids.Release(node)
}

// restore reads, once after this process has become the leader, which ids
// are taken: from the API server, as the cache may lack the last writes.
func (r *Reconciler) restore(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.restored {
		return nil
	}
	var all []metav1.PartialObjectMetadata
	for token := ""; ; {
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(kube.Metadata("NodeList").GroupVersionKind())
		if err := r.live.List(ctx, l, client.Limit(500), client.Continue(token)); err != nil {
			return fmt.Errorf("read node ids: %w", err)
		}
		all = append(all, l.Items...)
		if token = l.Continue; token == "" {
			break
		}
	}
	// Where two nodes have the same, the older keeps it.
	slices.SortStableFunc(all, func(a, b metav1.PartialObjectMetadata) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, n := range all {
		if id := Parse(n.Annotations); id != 0 {
			if err := r.ids.Reserve(n.Name, id); err != nil {
				r.log.Error("node id is not usable; the node is given another", "node", n.Name, "err", err)
			}
		}
	}
	r.restored = true
	return nil
}
