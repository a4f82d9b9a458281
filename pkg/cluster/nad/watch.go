// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"fmt"
	"slices"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"bulkhead/pkg/cluster/udn"
	"bulkhead/pkg/network"
)

type queue = workqueue.TypedRateLimitingInterface[Key]

// indexNetwork indexes hand-written NADs by the names of the networks that they configure and
// whose id they have. The two differ while a changed configuration is refused.
const indexNetwork = "network"

// AddIndexes adds the index to a cache that has not been started.
func AddIndexes(ctx context.Context, c client.FieldIndexer) error {
	err := c.IndexField(ctx, &nadv1.NetworkAttachmentDefinition{}, indexNetwork, func(o client.Object) []string {
		if _, rendered := udn.OwnerOf(o); rendered {
			return nil
		}
		var names []string
		if name := o.GetAnnotations()[network.AnnotationNetworkName]; name != "" {
			names = append(names, name)
		}
		conf, err := network.ParseNetConf(o.(*nadv1.NetworkAttachmentDefinition).Spec.Config)
		if err == nil && !slices.Contains(names, conf.Name) {
			names = append(names, conf.Name)
		}
		return names
	})
	if err != nil {
		return fmt.Errorf("index %s of NetworkAttachmentDefinitions: %w", indexNetwork, err)
	}
	return nil
}

// Watch adds c's sources: events of the cache and of the id allocator.
func (r *Reconciler) Watch(c controller.TypedController[Key], from cache.Cache) error {
	for _, s := range []source.TypedSource[Key]{
		source.TypedFunc[Key](func(ctx context.Context, q queue) error {
			r.enqueue = q.Add
			r.networkIDs.OnFreed(func(ns string) { r.enqueueWithoutID(ctx, ns, q) })
			return nil
		}),
		source.TypedKind(from, &nadv1.NetworkAttachmentDefinition{}, r.nadEvents()),
		source.TypedKind(from, &corev1.Pod{}, r.waiters.PodEvents()),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch %T: %w", s, err)
		}
	}
	return nil
}

func (r *Reconciler) nadEvents() handler.TypedFuncs[*nadv1.NetworkAttachmentDefinition, Key] {
	type nad = *nadv1.NetworkAttachmentDefinition
	add := func(n nad, q queue) {
		if _, rendered := udn.OwnerOf(n); !rendered {
			q.Add(Key{n.Namespace, n.Name})
		}
	}
	return handler.TypedFuncs[nad, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[nad], q queue) { add(e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[nad], q queue) {
			add(e.ObjectOld, q) // a UserDefinedNetwork may own the new one
			add(e.ObjectNew, q)
			if e.ObjectOld.Spec.Config != e.ObjectNew.Spec.Config {
				r.enqueueWithoutID(ctx, e.ObjectNew.Namespace, q)
				r.enqueueSiblings(ctx, e.ObjectOld, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[nad], q queue) {
			add(e.Object, q)
			r.enqueueWithoutID(ctx, e.Object.Namespace, q) // the namespace may be below its limit now
			r.enqueueSiblings(ctx, e.Object, q)
		},
	}
}

// enqueueWithoutID enqueues the NADs of a namespace that have no id.
func (r *Reconciler) enqueueWithoutID(ctx context.Context, namespace string, q queue) {
	r.enqueueList(ctx, q, client.InNamespace(namespace))
}

// enqueueSiblings enqueues the NADs without an id that configure the same network.
func (r *Reconciler) enqueueSiblings(ctx context.Context, n *nadv1.NetworkAttachmentDefinition, q queue) {
	if conf, err := network.ParseNetConf(n.Spec.Config); err == nil {
		r.enqueueList(ctx, q, client.MatchingFields{indexNetwork: conf.Name})
	}
}

func (r *Reconciler) enqueueList(ctx context.Context, q queue, filter client.ListOption) {
	var l nadv1.NetworkAttachmentDefinitionList
	if err := r.cache.List(ctx, &l, filter, client.UnsafeDisableDeepCopy); err != nil {
		r.log.Warn("cannot read the cache; waiting for the next event", "error", err) // only during shutdown
		return
	}
	for i := range l.Items {
		n := &l.Items[i]
		if _, rendered := udn.OwnerOf(n); !rendered && n.Annotations[network.AnnotationNetworkID] == "" {
			q.Add(Key{n.Namespace, n.Name})
		}
	}
}
