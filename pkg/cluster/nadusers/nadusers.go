// SPDX-License-Identifier: Apache-2.0

// Package nadusers knows which pods use a NAD, and whose deletion waits for
// them to leave.
package nadusers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"bulkhead/pkg/network"
)

// index indexes pods by the keys of the NADs they use.
const index = "nad"

// AddIndexes adds the index to a cache that has not been started.
func AddIndexes(ctx context.Context, c client.FieldIndexer) error {
	if err := c.IndexField(ctx, &corev1.Pod{}, index, func(o client.Object) []string {
		keys := of(o)
		for _, key := range keys {
			_, name, _ := strings.Cut(key, "/")
			keys = append(keys, inAny(name))
		}
		return keys
	}); err != nil {
		return fmt.Errorf("index %s of pods: %w", index, err)
	}
	if err := c.IndexField(ctx, &corev1.Pod{}, indexOlder, func(o client.Object) []string {
		if p := o.(*corev1.Pod); withoutPrimary(p) {
			return []string{p.Namespace}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index %s of pods: %w", indexOlder, err)
	}
	return nil
}

// indexOlder indexes running pods without a primary network by namespace.
const indexOlder = "older"

// withoutPrimary tells pods that run without a primary network of their
// namespace's. Of a pod that runs on the cluster default network alone, the cache
// does not have the annotation.
func withoutPrimary(p *corev1.Pod) bool {
	if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning {
		return false
	}
	raw := p.Annotations[network.AnnotationPodNetworks]
	networks, err := network.ParsePodNetworks(raw)
	return err == nil && (raw == "" || networks.WithoutPrimary())
}

// Older are pods that run in the namespace without a primary network, by name
// in order. Of a namespace that has one, they are older than it.
func Older(ctx context.Context, cache client.Reader, namespace string) ([]string, error) {
	var l corev1.PodList
	if err := cache.List(ctx, &l, client.MatchingFields{indexOlder: namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of namespace %s without a primary network: %w", namespace, err)
	}
	var out []string
	for i := range l.Items {
		out = append(out, l.Items[i].Name)
	}
	slices.Sort(out)
	return out, nil
}

// OlderKey is what is waited for by those who wait for the Older pods of a
// namespace to leave.
func OlderKey(namespace string) string { return namespace }

// inAny is the key of all NADs of that name.
func inAny(name string) string { return "*/" + name }

// Named are the keys of NADs of that name, in namespace or, where that is
// empty, in any, that pods use, whether the NADs are there or not.
func Named(ctx context.Context, cache client.Reader, namespace, name string) ([]string, error) {
	key := inAny(name)
	if namespace != "" {
		key = network.NADKey(namespace, name)
	}
	var l corev1.PodList
	if err := cache.List(ctx, &l, client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods that use %s: %w", key, err)
	}
	var out []string
	for i := range l.Items {
		for _, used := range of(&l.Items[i]) {
			ns, n, _ := strings.Cut(used, "/")
			if n == name && (namespace == "" || ns == namespace) {
				out = append(out, used)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func of(pod client.Object) []string {
	return network.PodNADs(pod.GetAnnotations()[network.AnnotationPodNetworks])
}

// List names pods that use the NAD, "namespace/name" in order: enough of them
// for a message.
func List(ctx context.Context, cache client.Reader, nadKey string) ([]string, error) {
	var l corev1.PodList
	if err := cache.List(ctx, &l, client.MatchingFields{index: nadKey}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods that use %s: %w", nadKey, err)
	}
	var out []string
	for i := range l.Items {
		out = append(out, l.Items[i].Namespace+"/"+l.Items[i].Name)
	}
	slices.Sort(out)
	const enough = 10
	if len(out) > enough {
		out = append(out[:enough:enough], "…")
	}
	return out, nil
}

// Waiting knows whose deletion waits for the pods of which NAD, so that a pod
// that leaves wakes the right one. The zero value is empty; it is safe for
// concurrent use.
type Waiting[K comparable] struct {
	mu sync.Mutex
	by map[string]K // by NAD key
}

// Add notes that the NAD's pods hold up what k wants to do.
func (w *Waiting[K]) Add(nadKey string, k K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string]K{}
	}
	w.by[nadKey] = k
}

// Done notes that nobody waits for the NAD's pods.
func (w *Waiting[K]) Done(nadKey string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, nadKey)
}

func (w *Waiting[K]) waiter(nadKey string) (K, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, ok := w.by[nadKey]
	return k, ok
}

// PodEvents enqueues who waits for the NADs that a pod leaves.
func (w *Waiting[K]) PodEvents() handler.TypedFuncs[*corev1.Pod, K] {
	type queue = workqueue.TypedRateLimitingInterface[K]
	left := func(keys []string, q queue) {
		for _, nadKey := range keys {
			if k, ok := w.waiter(nadKey); ok {
				q.Add(k)
			}
		}
	}
	return handler.TypedFuncs[*corev1.Pod, K]{
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Pod], q queue) {
			if was, is := of(e.ObjectOld), of(e.ObjectNew); !slices.Equal(was, is) {
				left(was, q)
			}
			if withoutPrimary(e.ObjectOld) && !withoutPrimary(e.ObjectNew) {
				left([]string{OlderKey(e.ObjectOld.Namespace)}, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.Pod], q queue) {
			left(of(e.Object), q)
			if withoutPrimary(e.Object) {
				left([]string{OlderKey(e.Object.Namespace)}, q)
			}
		},
	}
}
