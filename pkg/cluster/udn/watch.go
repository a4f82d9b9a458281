// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/kube"
)

type queue = workqueue.TypedRateLimitingInterface[Owner]

func labelSet(m map[string]string) labels.Set { return labels.Set(m) }

func compare(a, b string) int { return strings.Compare(a, b) }

// Watch adds c's sources: events of the cache and of the id allocator.
func (r *Reconciler) Watch(c controller.TypedController[Owner], from cache.Cache) error {
	for _, s := range []source.TypedSource[Owner]{
		source.TypedKind(from, &udnv1.UserDefinedNetwork{}, ownerEvents[*udnv1.UserDefinedNetwork](r)),
		source.TypedKind(from, &udnv1.ClusterUserDefinedNetwork{}, ownerEvents[*udnv1.ClusterUserDefinedNetwork](r)),
		source.TypedKind(from, &nadv1.NetworkAttachmentDefinition{}, r.nadEvents()),
		source.TypedKind(from, kube.Metadata("Namespace"), r.namespaceEvents()),
		source.TypedKind(from, &corev1.Pod{}, r.waiters.PodEvents()),
		source.TypedKind(from, kube.Metadata("Node"), r.nodeEvents()),
		source.TypedKind(from, &udnv1.RouteAdvertisements{}, r.advertisementEvents()),
		source.TypedFunc[Owner](func(ctx context.Context, q queue) error {
			r.enqueue = q.Add
			r.advertised.start(q.Add)
			r.networkIDs.OnFreed(func(ns string) { r.enqueueByNamespace(ctx, ns, q) })
			return nil
		}),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch %T: %w", s, err)
		}
	}
	return nil
}

// ownerEvents enqueues an owner after every change, except of its status and by our
// own writes.
func ownerEvents[T client.Object](r *Reconciler) handler.TypedFuncs[T, Owner] {
	key := func(o client.Object) Owner { return Owner{o.GetNamespace(), o.GetName()} }
	return handler.TypedFuncs[T, Owner]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], q queue) { q.Add(key(e.Object)) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q queue) {
			o, before, after := key(e.ObjectNew), client.Object(e.ObjectOld), client.Object(e.ObjectNew)
			ours := r.target.writes.observeOwner(o, after.GetResourceVersion())
			if before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID() ||
				(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
				!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
				!ours && !slices.Equal(before.GetFinalizers(), after.GetFinalizers()) {
				q.Add(o)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[T], q queue) {
			r.target.writes.forget(key(e.Object))
			q.Add(key(e.Object))
		},
	}
}

// nadEvents enqueues the owner of a rendered NAD, and for any other NAD the owners
// that select its namespace.
func (r *Reconciler) nadEvents() handler.TypedFuncs[*nadv1.NetworkAttachmentDefinition, Owner] {
	type nad = *nadv1.NetworkAttachmentDefinition
	enqueue := func(ctx context.Context, n nad, q queue) {
		if o, ours := OwnerOf(n); ours {
			q.Add(o)
		} else {
			r.enqueueByNamespace(ctx, n.Namespace, q)
		}
	}
	return handler.TypedFuncs[nad, Owner]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[nad], q queue) {
			if o, ours := OwnerOf(e.Object); ours && r.target.writes.observeNAD(o, e.Object.Namespace, e.Object.ResourceVersion) {
				return
			} else if !ours && e.IsInInitialList {
				return // every owner is enqueued anyway
			}
			enqueue(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[nad], q queue) {
			if o, ours := OwnerOf(e.ObjectNew); ours && r.target.writes.observeNAD(o, e.ObjectNew.Namespace, e.ObjectNew.ResourceVersion) {
				return
			}
			if o, ours := OwnerOf(e.ObjectOld); ours && e.ObjectOld.UID == e.ObjectNew.UID {
				if now, ours := OwnerOf(e.ObjectNew); !ours || now != o {
					r.target.writes.addStripped(o, e.ObjectNew.Namespace, e.ObjectNew.UID)
				}
			}
			enqueue(ctx, e.ObjectOld, q)
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[nad], q queue) {
			if o, ours := OwnerOf(e.Object); ours {
				r.target.writes.forget(o, e.Object.Namespace)
			}
			enqueue(ctx, e.Object, q)
			r.enqueueByNamespace(ctx, e.Object.Namespace, q)
		},
	}
}

func (r *Reconciler) namespaceEvents() handler.TypedFuncs[*metav1.PartialObjectMetadata, Owner] {
	type meta = *metav1.PartialObjectMetadata
	return handler.TypedFuncs[meta, Owner]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[meta], q queue) {
			if !e.IsInInitialList {
				r.enqueueSelecting(ctx, e.Object, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[meta], q queue) {
			deleted := (e.ObjectOld.DeletionTimestamp == nil) != (e.ObjectNew.DeletionTimestamp == nil)
			if deleted || !maps.Equal(e.ObjectOld.Labels, e.ObjectNew.Labels) {
				r.enqueueSelecting(ctx, e.ObjectOld, q)
				r.enqueueSelecting(ctx, e.ObjectNew, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[meta], q queue) {
			r.enqueueSelecting(ctx, e.Object, q)
		},
	}
}

// failureDelay is how long nodes' reports about a network are batched. A fault may affect all nodes, which report it one after
// another, and a network's status names only some of them.
const failureDelay = 5 * time.Second

// nodeEvents enqueues the owners of networks that have no host subnet for the node,
// and of those whose failures on the node changed.
func (r *Reconciler) nodeEvents() handler.TypedFuncs[*metav1.PartialObjectMetadata, Owner] {
	type meta = *metav1.PartialObjectMetadata
	updateID := func(ctx context.Context, id uint64, q queue) {
		r.nodes.markDirty()
		if id > 0 {
			r.enqueueWithoutSubnet(ctx, id, q)
		}
	}
	updateFailures := func(name string, node client.Object, q queue) {
		change := r.failures.update(name, node, r.log)
		r.networkIDs.ChangeInUse(change.Used, change.Unused)
		for _, id := range change.IDs {
			if o, ok := ownerOfNetwork(r.networkIDs.NetworkOf(id)); ok {
				q.AddAfter(o, failureDelay)
			}
		}
	}
	return handler.TypedFuncs[meta, Owner]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[meta], q queue) {
			if updateFailures(e.Object.Name, e.Object, q); !e.IsInInitialList {
				updateID(ctx, idOf(e.Object), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[meta], q queue) {
			updateFailures(e.ObjectNew.Name, e.ObjectNew, q)
			if before, after := idOf(e.ObjectOld), idOf(e.ObjectNew); before != after {
				updateID(ctx, max(before, after), q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[meta], q queue) {
			updateFailures(e.Object.Name, nil, q)
			updateID(ctx, idOf(e.Object), q)
		},
	}
}

// advertisementEvents enqueues all networks of transport NoOverlay.
func (r *Reconciler) advertisementEvents() handler.TypedFuncs[*udnv1.RouteAdvertisements, Owner] {
	type ra = *udnv1.RouteAdvertisements
	enqueue := func(ctx context.Context, q queue) {
		var cudns udnv1.ClusterUserDefinedNetworkList
		if !r.readOK(r.cache.List(ctx, &cudns, client.MatchingFields{indexTransport: string(udnv1.TransportOptionNoOverlay)}, client.UnsafeDisableDeepCopy)) {
			return
		}
		for i := range cudns.Items {
			q.Add(Owner{Name: cudns.Items[i].Name})
		}
	}
	return handler.TypedFuncs[ra, Owner]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[ra], q queue) {
			if !e.IsInInitialList {
				enqueue(ctx, q)
			}
		},
		UpdateFunc: func(ctx context.Context, _ event.TypedUpdateEvent[ra], q queue) { enqueue(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.TypedDeleteEvent[ra], q queue) { enqueue(ctx, q) },
	}
}

// advertises tells whether ra advertises the routes to the pods of a
// ClusterUserDefinedNetwork with those labels.
func advertises(ra *udnv1.RouteAdvertisements, cudn map[string]string) bool {
	if !slices.Contains(ra.Spec.Advertisements, udnv1.PodNetwork) {
		return false
	}
	for _, s := range ra.Spec.NetworkSelectors {
		c := s.CUDNs()
		if c == nil {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&c.NetworkSelector)
		if err == nil && selector.Matches(labelSet(cudn)) {
			return true
		}
	}
	return false
}

// enqueueWithoutSubnet enqueues the networks that have no host subnet for the node
// with that id. It computes the capacity of every network, which is cheap.
func (r *Reconciler) enqueueWithoutSubnet(ctx context.Context, id uint64, q queue) {
	check := func(req *Request) {
		if _, n, err := req.NetConf(r.cfg.Plan); err == nil && n.HostCapacity() < id {
			q.Add(req.Owner)
		}
	}
	var udns udnv1.UserDefinedNetworkList
	if r.readOK(r.cache.List(ctx, &udns, client.UnsafeDisableDeepCopy)) {
		for i := range udns.Items {
			check(FromUDN(&udns.Items[i]))
		}
	}
	var cudns udnv1.ClusterUserDefinedNetworkList
	if r.readOK(r.cache.List(ctx, &cudns, client.UnsafeDisableDeepCopy)) {
		for i := range cudns.Items {
			check(FromCUDN(&cudns.Items[i]))
		}
	}
}

// enqueueByNamespace is enqueueSelecting for the namespace of that name.
func (r *Reconciler) enqueueByNamespace(ctx context.Context, name string, q queue) {
	ns := kube.Metadata("Namespace")
	if err := r.cache.Get(ctx, client.ObjectKey{Name: name}, ns); err != nil {
		return // deleted: the namespace's delete event enqueues the owners
	}
	r.enqueueSelecting(ctx, ns, q)
}

// enqueueSelecting enqueues the owners that select a namespace or have a NAD in it.
// It finds them in the indexes.
func (r *Reconciler) enqueueSelecting(ctx context.Context, ns *metav1.PartialObjectMetadata, q queue) {
	keys := []string{anyLabel}
	for k, v := range ns.Labels {
		keys = append(keys, k+"="+v)
	}
	for _, key := range keys {
		var cudns udnv1.ClusterUserDefinedNetworkList
		if !r.readOK(r.cache.List(ctx, &cudns, client.MatchingFields{indexSelects: key}, client.UnsafeDisableDeepCopy)) {
			continue
		}
		for i := range cudns.Items {
			s, err := metav1.LabelSelectorAsSelector(&cudns.Items[i].Spec.NamespaceSelector)
			if err == nil && s.Matches(labelSet(ns.Labels)) {
				q.Add(Owner{Name: cudns.Items[i].Name})
			}
		}
	}
	var udns udnv1.UserDefinedNetworkList
	if r.readOK(r.cache.List(ctx, &udns, client.InNamespace(ns.Name), client.UnsafeDisableDeepCopy)) {
		for i := range udns.Items {
			q.Add(Owner{ns.Name, udns.Items[i].Name})
		}
	}
	var nads nadv1.NetworkAttachmentDefinitionList
	if r.readOK(r.cache.List(ctx, &nads, client.InNamespace(ns.Name), client.UnsafeDisableDeepCopy)) {
		for i := range nads.Items {
			if o, ours := OwnerOf(&nads.Items[i]); ours {
				q.Add(o)
			}
		}
	}
}

// readOK tells whether a read of the cache succeeded, and logs its error. Reads fail
// only during shutdown.
func (r *Reconciler) readOK(err error) bool {
	if err != nil {
		r.log.Warn("cannot read the cache; waiting for the next event", "error", err)
	}
	return err == nil
}
