// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"fmt"
	"net/netip"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"bulkhead/pkg/network"
)

type (
	queue = workqueue.TypedRateLimitingInterface[Source]
	slice = *discoveryv1.EndpointSlice
	nad   = *nadv1.NetworkAttachmentDefinition
	meta  = *metav1.PartialObjectMetadata
)

// indexMirror is the index of mirrors by the source's name.
const indexMirror = "mirror-of"

// AddIndexes adds the indexes to a cache that has not been started.
func AddIndexes(ctx context.Context, c client.FieldIndexer) error {
	if err := c.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexMirror, mirrorKeys); err != nil {
		return fmt.Errorf("index %s of EndpointSlices: %w", indexMirror, err)
	}
	return nil
}

func mirrorKeys(o client.Object) []string {
	if s, mirror := SourceOf(o.(slice)); mirror {
		return []string{s.Name}
	}
	return nil
}

// Watch adds the watches of c. Their events enqueue sources.
func (r *Reconciler) Watch(c controller.TypedController[Source], from cache.Cache) error {
	for _, s := range []source.TypedSource[Source]{
		source.TypedKind(from, &discoveryv1.EndpointSlice{}, r.sliceEvents()),
		source.TypedKind(from, &corev1.Pod{}, r.podEvents()),
		source.TypedKind(from, &nadv1.NetworkAttachmentDefinition{}, r.nadEvents()),
		source.TypedKind(from, namespaceMeta(), r.namespaceEvents()),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch %T: %w", s, err)
		}
	}
	return nil
}

// sliceEvents enqueues the source of a mirror, and any other slice if its
// namespace has a primary network. Other slices cost nothing more.
func (r *Reconciler) sliceEvents() handler.TypedFuncs[slice, Source] {
	return handler.TypedFuncs[slice, Source]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[slice], q queue) {
			if s, mirror := SourceOf(e.Object); !mirror || !r.target.writes.observe(s, e.Object.Name, e.Object.ResourceVersion) {
				r.enqueue(ctx, e.Object, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[slice], q queue) {
			if s, mirror := SourceOf(e.ObjectNew); mirror && r.target.writes.observe(s, e.ObjectNew.Name, e.ObjectNew.ResourceVersion) {
				return
			}
			r.enqueue(ctx, e.ObjectOld, q)
			r.enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[slice], q queue) {
			if s, mirror := SourceOf(e.Object); !mirror || !r.target.writes.observeDelete(s, mirrorOf(e.Object)) {
				r.enqueue(ctx, e.Object, q)
			}
		},
	}
}

func (r *Reconciler) enqueue(ctx context.Context, s slice, q queue) {
	key, mirror := SourceOf(s)
	if !mirror {
		if key = (Source{s.Namespace, s.Name}); !r.deps.has(key) && (ServiceOf(s) == "" || !r.hasPrimaryLabel(ctx, s.Namespace)) {
			return
		}
	}
	q.Add(key)
}

// hasPrimaryLabel reports whether a namespace has the label for primary networks.
// If the cache lacks the namespace, its create event enqueues its slices.
func (r *Reconciler) hasPrimaryLabel(ctx context.Context, namespace string) bool {
	ns, err := r.namespace(ctx, namespace)
	return r.checkRead(err) && ns != nil && labelled(ns)
}

func labelled(ns meta) bool {
	_, ok := ns.Labels[network.LabelPrimaryUDN]
	return ok
}

// podEvents enqueues the sources that depend on a pod or its addresses. Most pod
// updates do not change them.
func (r *Reconciler) podEvents() handler.TypedFuncs[*corev1.Pod, Source] {
	changed := func(p *corev1.Pod, updateIndex func(PodRef, []netip.Addr), q queue) {
		ref, addrs := PodRef{p.Namespace, p.Name}, defaultAddresses(p)
		updateIndex(ref, addrs)
		r.enqueueDependents(q, dependency{PodRef: ref})
		for _, a := range addrs {
			r.enqueueDependents(q, dependency{addr: a})
		}
	}
	return handler.TypedFuncs[*corev1.Pod, Source]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*corev1.Pod], q queue) {
			changed(e.Object, r.deps.addPod, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Pod], q queue) {
			const key = network.AnnotationPodNetworks
			if e.ObjectOld.UID != e.ObjectNew.UID || e.ObjectOld.Annotations[key] != e.ObjectNew.Annotations[key] {
				changed(e.ObjectOld, r.deps.removePod, q)
				changed(e.ObjectNew, r.deps.addPod, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.Pod], q queue) {
			changed(e.Object, r.deps.removePod, q)
		},
	}
}

func (r *Reconciler) enqueueDependents(q queue, x dependency) {
	for _, s := range r.deps.sources(x) {
		q.Add(s)
	}
}

// nadEvents enqueues the sources in a NAD's namespace, and those in other
// namespaces with endpoints there.
func (r *Reconciler) nadEvents() handler.TypedFuncs[nad, Source] {
	return handler.TypedFuncs[nad, Source]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[nad], q queue) {
			if !e.IsInInitialList { // all slices are enqueued initially anyway
				r.enqueueNamespace(ctx, e.Object.Namespace, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[nad], q queue) {
			const id = network.AnnotationNetworkID
			if e.ObjectOld.Spec.Config != e.ObjectNew.Spec.Config || e.ObjectOld.Annotations[id] != e.ObjectNew.Annotations[id] {
				r.enqueueNamespace(ctx, e.ObjectNew.Namespace, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[nad], q queue) {
			r.enqueueNamespace(ctx, e.Object.Namespace, q)
		},
	}
}

// namespaceEvents enqueues the sources in a namespace when its label for primary
// networks changes, or when it is created with that label.
func (r *Reconciler) namespaceEvents() handler.TypedFuncs[meta, Source] {
	return handler.TypedFuncs[meta, Source]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[meta], q queue) {
			if labelled(e.Object) {
				r.enqueueNamespace(ctx, e.Object.Name, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[meta], q queue) {
			recreated := e.ObjectOld.DeletionTimestamp != nil && e.ObjectNew.DeletionTimestamp == nil
			if labelled(e.ObjectOld) != labelled(e.ObjectNew) || labelled(e.ObjectNew) && recreated {
				r.enqueueNamespace(ctx, e.ObjectNew.Name, q)
			}
		},
	}
}

// enqueueNamespace enqueues the sources in a namespace, including those of its
// mirrors, and the sources with endpoints in it.
func (r *Reconciler) enqueueNamespace(ctx context.Context, namespace string, q queue) {
	r.enqueueDependents(q, dependency{PodRef: PodRef{Namespace: namespace}})
	var l discoveryv1.EndpointSliceList
	if !r.checkRead(r.cache.List(ctx, &l, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)) {
		return
	}
	for i := range l.Items {
		r.enqueue(ctx, &l.Items[i], q)
	}
}

// checkRead logs a failed read of the cache and returns whether it succeeded.
// Reads fail only while the process stops.
func (r *Reconciler) checkRead(err error) bool {
	if err != nil {
		r.log.Warn("cannot read the cache; the next event enqueues the EndpointSlices", "error", err)
	}
	return err == nil
}
