// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
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

type queue = workqueue.TypedRateLimitingInterface[Key]

// Watch adds the watches of c. Their events enqueue keys.
func (r *Reconciler) Watch(c controller.TypedController[Key], from cache.Cache) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	for _, s := range []source.TypedSource[Key]{
		source.TypedFunc[Key](func(_ context.Context, q queue) error {
			r.setEnqueue(q.Add)
			return nil
		}),
		source.TypedKind(from, &corev1.Pod{}, podEvents()),
		source.TypedKind(from, &nadv1.NetworkAttachmentDefinition{}, r.nadEvents()),
		source.TypedKind(from, namespace, r.namespaceEvents()),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch %T: %w", s, err)
		}
	}
	return nil
}

// WatchClaims makes Restore and DiscoverClaims add the watch of IPAMClaims to c once installed finds
// their CRD, which belongs to another project.
func (r *Reconciler) WatchClaims(c controller.TypedController[Key], from cache.Cache, installed func() (bool, error)) {
	r.discover.watch = func() error {
		has, err := installed()
		if err != nil || !has {
			return err
		}
		if err := c.Watch(source.TypedKind(from, &ipamclaimv1.IPAMClaim{}, r.claimEvents())); err != nil {
			return fmt.Errorf("watch IPAMClaims: %w", err)
		}
		r.hasClaims.Store(true)
		return nil
	}
}

// DiscoverClaims watches IPAMClaims if their CRD is installed, and reports whether they are watched.
func (r *Reconciler) DiscoverClaims() (bool, error) {
	r.discover.Lock()
	defer r.discover.Unlock()
	if r.hasClaims.Load() {
		return true, nil
	}
	err := r.discover.watch()
	return r.hasClaims.Load(), err
}

// setEnqueue sets the function that enqueues waiting pods and changed claims.
func (r *Reconciler) setEnqueue(add func(Key)) {
	key := func(claim bool) func(string) {
		return func(s string) {
			namespace, name, _ := strings.Cut(s, "/")
			add(Key{claim, namespace, name})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.waiting.enqueue, r.tracker.enqueueClaim = key(false), key(true)
}

// podEvents enqueues a pod when it is created, deleted or scheduled, or when its
// annotations or the label that Diff sets change.
func podEvents() handler.TypedFuncs[*corev1.Pod, Key] {
	labelled := func(p *corev1.Pod) bool { _, ok := p.Labels[network.LabelLayer2Pod]; return ok }
	add := func(p *corev1.Pod, q queue) { q.Add(Key{Namespace: p.Namespace, Name: p.Name}) }
	return handler.TypedFuncs[*corev1.Pod, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*corev1.Pod], q queue) { add(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Pod], q queue) {
			old, new := e.ObjectOld, e.ObjectNew
			if old.UID != new.UID || old.Spec.NodeName != new.Spec.NodeName || old.Spec.HostNetwork != new.Spec.HostNetwork ||
				!maps.Equal(old.Annotations, new.Annotations) || labelled(old) != labelled(new) {
				add(new, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.Pod], q queue) { add(e.Object, q) },
	}
}

// nadEvents notifies the pods that wait for the NAD, for its namespace's primary
// network, or for capacity in its network.
func (r *Reconciler) nadEvents() handler.TypedFuncs[*nadv1.NetworkAttachmentDefinition, Key] {
	type nad = *nadv1.NetworkAttachmentDefinition
	changed := func(n nad, exists bool) {
		key, networkName, admitted := network.NADKey(n.Namespace, n.Name), "", scope{}
		r.mu.Lock()
		defer r.mu.Unlock()
		if exists {
			networkName, admitted = managedName(n, r.tracker.nads[key]), scopeOf(n, r.lookup.Plan)
		}
		r.tracker.setNAD(key, networkName)
		r.tracker.setScope(key, admitted)
		r.tracker.waiting.notifyAll(topicNAD(key))
		r.tracker.waiting.notifyAll(topicPrimary(n.Namespace))
		if networkName != "" {
			r.tracker.waiting.notifyNext(topicCapacity(networkName))
		}
	}
	return handler.TypedFuncs[nad, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[nad], _ queue) { changed(e.Object, true) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[nad], _ queue) {
			if e.ObjectOld.Spec.Config != e.ObjectNew.Spec.Config || !maps.Equal(e.ObjectOld.Annotations, e.ObjectNew.Annotations) ||
				(e.ObjectOld.DeletionTimestamp == nil) != (e.ObjectNew.DeletionTimestamp == nil) {
				changed(e.ObjectNew, true)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[nad], _ queue) { changed(e.Object, false) },
	}
}

// managedName returns the name of a NAD's network if managed, "" otherwise. For
// an unusable NAD it returns old, the name before.
func managedName(n *nadv1.NetworkAttachmentDefinition, old string) string {
	conf, err := network.ParseNetConf(n.Spec.Config)
	switch {
	case errors.Is(err, network.ErrForeign):
		return ""
	case err != nil:
		return old
	case !managed(network.Network{Topology: network.Topology(conf.Topology)}):
		return ""
	}
	return conf.Name
}

// namespaceEvents enqueues a namespace's pods when its label for primary networks
// changes.
func (r *Reconciler) namespaceEvents() handler.TypedFuncs[*metav1.PartialObjectMetadata, Key] {
	type meta = *metav1.PartialObjectMetadata
	enqueue := func(ctx context.Context, namespace string, q queue) {
		var pods corev1.PodList
		if err := r.cache.List(ctx, &pods, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			r.log.Warn("cannot list pods in the cache; their next events enqueue them", "namespace", namespace, "error", err)
			return
		}
		for i := range pods.Items {
			q.Add(Key{Namespace: namespace, Name: pods.Items[i].Name})
		}
	}
	return handler.TypedFuncs[meta, Key]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[meta], q queue) {
			if !e.IsInInitialList {
				enqueue(ctx, e.Object.Name, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[meta], q queue) {
			_, had := e.ObjectOld.Labels[network.LabelPrimaryUDN]
			_, has := e.ObjectNew.Labels[network.LabelPrimaryUDN]
			if had != has {
				enqueue(ctx, e.ObjectNew.Name, q)
			}
		},
	}
}

// claimEvents enqueues a claim and notifies the pods that wait for it.
func (r *Reconciler) claimEvents() handler.TypedFuncs[*ipamclaimv1.IPAMClaim, Key] {
	changed := func(c *ipamclaimv1.IPAMClaim, q queue) {
		q.Add(Key{Claim: true, Namespace: c.Namespace, Name: c.Name})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tracker.waiting.notifyAll(topicClaim(network.NADKey(c.Namespace, c.Name)))
	}
	return handler.TypedFuncs[*ipamclaimv1.IPAMClaim, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*ipamclaimv1.IPAMClaim], q queue) {
			changed(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*ipamclaimv1.IPAMClaim], q queue) {
			changed(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*ipamclaimv1.IPAMClaim], q queue) {
			changed(e.Object, q)
		},
	}
}
