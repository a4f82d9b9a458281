// SPDX-License-Identifier: Apache-2.0

// Package nadusers finds the pods that use a NAD, and enqueues the objects whose
// deletion waits for those pods.
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
		keys := nadKeys(o)
		for _, key := range keys {
			_, name, _ := strings.Cut(key, "/")
			keys = append(keys, anyNamespaceKey(name))
		}
		return keys
	}); err != nil {
		return fmt.Errorf("index %s of pods: %w", index, err)
	}
	if err := c.IndexField(ctx, &corev1.Pod{}, indexWithoutPrimary, func(o client.Object) []string {
		if p := o.(*corev1.Pod); withoutPrimary(p) {
			return []string{p.Namespace}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index %s of pods: %w", indexWithoutPrimary, err)
	}
	return nil
}

// indexWithoutPrimary indexes running pods without a primary network by namespace.
const indexWithoutPrimary = "withoutprimary"

// withoutPrimary tells whether a pod runs without its namespace's primary network.
// The cache drops the pod-networks annotation of running pods that are on the
// cluster default network only.
func withoutPrimary(p *corev1.Pod) bool {
	if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning {
		return false
	}
	raw := p.Annotations[network.AnnotationPodNetworks]
	networks, err := network.ParsePodNetworks(raw)
	return err == nil && (raw == "" || networks.WithoutPrimary())
}

// ListWithoutPrimary returns the sorted names of pods that run in the namespace
// without a primary network. If the namespace has one, they are older than it.
func ListWithoutPrimary(ctx context.Context, cache client.Reader, namespace string) ([]string, error) {
	var l corev1.PodList
	if err := cache.List(ctx, &l, client.MatchingFields{indexWithoutPrimary: namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of namespace %s without a primary network: %w", namespace, err)
	}
	var out []string
	for i := range l.Items {
		out = append(out, l.Items[i].Name)
	}
	slices.Sort(out)
	return out, nil
}

// WithoutPrimaryKey is the key in Waiters for the pods of ListWithoutPrimary.
func WithoutPrimaryKey(namespace string) string { return namespace }

// anyNamespaceKey is the index key of the NADs of that name in all namespaces.
func anyNamespaceKey(name string) string { return "*/" + name }

// UsedKeys returns the keys of the NADs of that name that pods use, including NADs
// that do not exist any more. An empty namespace means all namespaces.
func UsedKeys(ctx context.Context, cache client.Reader, namespace, name string) ([]string, error) {
	key := anyNamespaceKey(name)
	if namespace != "" {
		key = network.NADKey(namespace, name)
	}
	var l corev1.PodList
	if err := cache.List(ctx, &l, client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods that use %s: %w", key, err)
	}
	var out []string
	for i := range l.Items {
		for _, used := range nadKeys(&l.Items[i]) {
			ns, n, _ := strings.Cut(used, "/")
			if n == name && (namespace == "" || ns == namespace) {
				out = append(out, used)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func nadKeys(pod client.Object) []string {
	return network.PodNADs(pod.GetAnnotations()[network.AnnotationPodNetworks])
}

// List returns the pods that use the NAD as sorted "namespace/name", at most ten
// followed by "…": enough for a message.
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
	const limit = 10
	if len(out) > limit {
		out = append(out[:limit:limit], "…")
	}
	return out, nil
}

// Waiters maps a NAD key to the objects that wait for the NAD's pods to be deleted,
// so that a pod event enqueues only those. The zero value is empty; it is safe for
// concurrent use.
type Waiters[K comparable] struct {
	mu    sync.Mutex
	byNAD map[string]map[K]struct{}
}

// Add records that k waits for the NAD's pods to be deleted. The next such event
// enqueues k and removes it: k adds itself again if it must still wait.
func (w *Waiters[K]) Add(nadKey string, k K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byNAD == nil {
		w.byNAD = map[string]map[K]struct{}{}
	}
	if w.byNAD[nadKey] == nil {
		w.byNAD[nadKey] = map[K]struct{}{}
	}
	w.byNAD[nadKey][k] = struct{}{}
}

// Remove records that k does not wait any more.
func (w *Waiters[K]) Remove(nadKey string, k K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byNAD[nadKey], k)
	if len(w.byNAD[nadKey]) == 0 {
		delete(w.byNAD, nadKey)
	}
}

// Forget removes k from all NADs: it was deleted.
func (w *Waiters[K]) Forget(k K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for nadKey, waiters := range w.byNAD {
		if delete(waiters, k); len(waiters) == 0 {
			delete(w.byNAD, nadKey)
		}
	}
}

// take returns and removes the NAD's waiters.
func (w *Waiters[K]) take(nadKey string) map[K]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiters := w.byNAD[nadKey]
	delete(w.byNAD, nadKey)
	return waiters
}

// PodEvents returns handlers that enqueue the waiters of the NADs that a pod stops
// using.
func (w *Waiters[K]) PodEvents() handler.TypedFuncs[*corev1.Pod, K] {
	type queue = workqueue.TypedRateLimitingInterface[K]
	enqueue := func(keys []string, q queue) {
		for _, nadKey := range keys {
			for k := range w.take(nadKey) {
				q.Add(k)
			}
		}
	}
	return handler.TypedFuncs[*corev1.Pod, K]{
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Pod], q queue) {
			if before, after := nadKeys(e.ObjectOld), nadKeys(e.ObjectNew); !slices.Equal(before, after) {
				enqueue(before, q)
			}
			if withoutPrimary(e.ObjectOld) && !withoutPrimary(e.ObjectNew) {
				enqueue([]string{WithoutPrimaryKey(e.ObjectOld.Namespace)}, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.Pod], q queue) {
			enqueue(nadKeys(e.Object), q)
			if withoutPrimary(e.Object) {
				enqueue([]string{WithoutPrimaryKey(e.Object.Namespace)}, q)
			}
		},
	}
}
