// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// TestRunInformers: when RunInformers returns, the handlers have handled the
// first list, trimmed; later they handle changes and deletions.
func TestRunInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "a", Labels: map[string]string{"x": "y"}}}
		client := fake.NewClientset(pod)
		var events []string
		informer := Informer{
			SharedIndexInformer: informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer(),
			Transform: func(obj any) (any, error) {
				obj.(*corev1.Pod).Labels = nil
				return obj, nil
			},
			OnChange: func(old, obj any) {
				p := obj.(*corev1.Pod)
				events = append(events, fmt.Sprintf("change %s new=%t labels=%d", p.Name, old == nil, len(p.Labels)))
			},
			OnDelete: func(obj any) { events = append(events, "delete "+obj.(*corev1.Pod).Name) },
		}
		expect := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !reflect.DeepEqual(events, want) {
				t.Errorf("%s: events %q, want %q", what, events, want)
			}
			events = nil
		}
		if err := RunInformers(ctx, informer); err != nil {
			t.Fatal(err)
		}
		expect("list", "change a new=true labels=0")
		pod = pod.DeepCopy()
		pod.ResourceVersion = "2"
		if _, err := client.CoreV1().Pods("red").Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		expect("update", "change a new=false labels=0")
		if err := client.CoreV1().Pods("red").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		expect("delete", "delete a")
		informer.handler().OnDelete(cache.DeletedFinalStateUnknown{Key: "red/a", Obj: pod})
		expect("missed delete", "delete a")
		informer.OnDelete = nil
		informer.handler().OnDelete(pod)
		expect("delete without handler")
	})
}
