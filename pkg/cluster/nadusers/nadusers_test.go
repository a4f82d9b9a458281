// SPDX-License-Identifier: Apache-2.0

package nadusers

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"bulkhead/pkg/network"
)

func pod(name, annotation string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: name, Annotations: map[string]string{network.AnnotationPodNetworks: annotation}}}
}

func TestList(t *testing.T) {
	b := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithIndex(&corev1.Pod{}, index, func(o client.Object) []string { return nadKeys(o) })
	for i := range 11 {
		b = b.WithObjects(pod(fmt.Sprintf("p%02d", i), `{"default":{},"red/many":{}}`))
	}
	cache := b.WithObjects(pod("one", `{"red/few":{}}`), pod("plain", `{"default":{}}`)).Build()
	for key, want := range map[string][]string{
		"red/none": nil, "red/few": {"red/one"},
		"red/many": {"red/p00", "red/p01", "red/p02", "red/p03", "red/p04", "red/p05", "red/p06", "red/p07", "red/p08", "red/p09", "…"},
	} {
		if got, err := List(context.Background(), cache, key); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is used by %v, %v; want %v", key, got, err, want)
		}
	}
}

// A pod that stops using a NAD enqueues all waiters of that NAD, once.
func TestPodEvents(t *testing.T) {
	var w Waiters[string]
	w.Add("red/net", "a")
	w.Add("red/net", "b")
	w.Add("red/other", "other")
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer q.ShutDown()
	events, using, without := w.PodEvents(), pod("p", `{"red/net":{}}`), pod("p", `{"default":{}}`)
	update := func(before, after *corev1.Pod) {
		events.UpdateFunc(context.Background(), event.TypedUpdateEvent[*corev1.Pod]{ObjectOld: before, ObjectNew: after}, q)
	}
	update(using, using)
	update(without, using)
	if q.Len() != 0 {
		t.Error("a pod that uses the NAD enqueued its waiter")
	}
	for name, stopUsing := range map[string]func(){
		"annotation": func() { update(using, without) },
		"deletion": func() {
			events.DeleteFunc(context.Background(), event.TypedDeleteEvent[*corev1.Pod]{Object: using}, q)
		},
	} {
		w.Add("red/net", "a")
		w.Add("red/net", "b")
		stopUsing()
		if got := drain(q); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("%s: %v are enqueued, want a and b", name, got)
		}
		if stopUsing(); q.Len() != 0 {
			t.Errorf("%s: waiters that did not add themselves again are enqueued", name)
		}
	}
	w.Add("red/net", "a")
	w.Add("red/net", "b")
	w.Remove("red/net", "a")
	update(using, without)
	if got := drain(q); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v are enqueued after a was removed, want b", got)
	}
	w.Add("red/net", "a")
	w.Add("red/net", "b")
	w.Forget("a")
	w.Forget("b")
	w.Forget("other")
	if update(using, without); q.Len() != 0 || len(w.byNAD) != 0 {
		t.Errorf("after all waiters were deleted, %d are enqueued and %v remain", q.Len(), w.byNAD)
	}
}

// drain returns the enqueued keys, sorted.
func drain(q workqueue.TypedRateLimitingInterface[string]) []string {
	var out []string
	for q.Len() > 0 {
		k, _ := q.Get()
		q.Done(k)
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
