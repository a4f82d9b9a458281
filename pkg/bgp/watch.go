// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"maps"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	udnv1 "bulkhead/api/v1"
)

type queue = workqueue.TypedRateLimitingInterface[Key]

// CRD returns the metadata of the CustomResourceDefinition of FRRConfigurations.
func CRD() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: frrCRD}}
	m.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return m
}

// Watch adds c's sources. FRRConfigurations are added once the API has them.
func (r *Reconciler) Watch(c controller.TypedController[Key]) error {
	r.controller = c
	for _, s := range []source.TypedSource[Key]{
		source.TypedKind(r.cache, &udnv1.RouteAdvertisements{}, enqueue(func(x, y *udnv1.RouteAdvertisements) bool {
			return sameVersion(x, y) && x.Status.Status == y.Status.Status
		})),
		source.TypedKind(r.cache, &udnv1.ClusterUserDefinedNetwork{}, enqueue(func(x, y *udnv1.ClusterUserDefinedNetwork) bool {
			// A network gets its id before its status.
			return sameVersion(x, y) && len(x.Status.Conditions) == len(y.Status.Conditions) && len(x.Status.ActiveNamespaces) == len(y.Status.ActiveNamespaces)
		})),
		source.TypedKind(r.cache, &corev1.Node{}, enqueue(sameNode)),
		source.TypedKind(r.cache, CRD(), enqueue(func(x, y *metav1.PartialObjectMetadata) bool { return sameVersion(x, y) })),
		source.TypedFunc[Key](func(_ context.Context, q queue) error {
			q.Add(all) // deleted objects may have left something behind
			return nil
		}),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch %T: %w", s, err)
		}
	}
	return nil
}

// watchConfigurations starts the watch of FRRConfigurations if the API has them and it is
// not running. It reports whether FRRConfigurations can be read.
func (r *Reconciler) watchConfigurations(ctx context.Context) (bool, error) {
	err := r.cache.Get(ctx, client.ObjectKey{Name: frrCRD}, CRD())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get CustomResourceDefinition %s: %w", frrCRD, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watching {
		return true, nil
	}
	configs := source.TypedKind(r.cache, &frrv1.FRRConfiguration{}, enqueue(func(x, y *frrv1.FRRConfiguration) bool { return sameVersion(x, y) }))
	if err := r.controller.Watch(configs); err != nil {
		return false, fmt.Errorf("watch FRRConfigurations: %w", err)
	}
	r.watching = true
	return true, nil
}

// sameVersion reports whether two versions of an object differ in their status only.
func sameVersion(x, y client.Object) bool {
	return x.GetGeneration() == y.GetGeneration() && x.GetUID() == y.GetUID() &&
		(x.GetDeletionTimestamp() == nil) == (y.GetDeletionTimestamp() == nil) &&
		maps.Equal(x.GetLabels(), y.GetLabels()) && maps.Equal(x.GetAnnotations(), y.GetAnnotations())
}

// enqueue enqueues the key after every event, except updates to which same applies.
func enqueue[T client.Object](same func(x, y T) bool) handler.TypedFuncs[T, Key] {
	return handler.TypedFuncs[T, Key]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[T], q queue) { q.Add(all) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q queue) {
			if !same(e.ObjectOld, e.ObjectNew) {
				q.Add(all)
			}
		},
		DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[T], q queue) { q.Add(all) },
	}
}
