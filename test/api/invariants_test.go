// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"sync"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// observer watches the ids of NADs during a test: it also finds conflicts that
// last only a moment.
type observer struct {
	mu       sync.Mutex
	live     map[types.NamespacedName][2]string // network and id
	events   int
	problems []string
}

func (w fixture) observe() *observer {
	w.t.Helper()
	o := &observer{live: map[types.NamespacedName][2]string{}}
	events, err := w.Watch(w.ctx, &nadv1.NetworkAttachmentDefinitionList{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(events.Stop)
	go func() {
		for e := range events.ResultChan() {
			if nad, ok := e.Object.(*nadv1.NetworkAttachmentDefinition); ok {
				o.handle(e.Type, nad)
			} else {
				o.fail(fmt.Sprintf("watch NADs: %v", e.Object))
			}
		}
		o.fail("the watch of NADs was closed") // after the test, nothing reads this
	}()
	return o
}

func (o *observer) fail(problem string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problems = append(o.problems, problem)
}

func (o *observer) handle(kind watch.EventType, nad *nadv1.NetworkAttachmentDefinition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events++
	key := types.NamespacedName{Namespace: nad.Namespace, Name: nad.Name}
	if kind == watch.Deleted {
		delete(o.live, key)
		return
	}
	is := [2]string{nad.Annotations[network.AnnotationNetworkName], nad.Annotations[network.AnnotationNetworkID]}
	if is[0] == "" || is[1] == "" {
		o.problems = append(o.problems, fmt.Sprintf("NAD %s has no id: %v", key, nad.Annotations))
	}
	for other, was := range o.live {
		if (was[0] == is[0]) != (was[1] == is[1]) {
			o.problems = append(o.problems, fmt.Sprintf("NAD %s is network %s with id %s while NAD %s is network %s with id %s",
				key, is[0], is[1], other, was[0], was[1]))
		}
	}
	o.live[key] = is
}

func (o *observer) check(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.problems {
		t.Error(p)
	}
	if o.events == 0 {
		t.Error("the watch of NADs had no events")
	}
	o.problems, o.events = nil, 0
}

// checkState fails the test for a NAD without an owner, for ids that are missing
// or shared, and for a condition that is not True.
func (w fixture) checkState() {
	w.t.Helper()
	owners := map[types.UID]bool{}
	var udns udnv1.UserDefinedNetworkList
	var cudns udnv1.ClusterUserDefinedNetworkList
	var nads nadv1.NetworkAttachmentDefinitionList
	for _, l := range []client.ObjectList{&nads, &udns, &cudns} { // NADs first: owners are older than their NADs
		if err := w.List(w.ctx, l); err != nil {
			w.t.Fatal(err)
		}
	}
	check := func(o client.Object, conditions []metav1.Condition, want int) {
		owners[o.GetUID()] = true
		if len(conditions) != want {
			w.t.Errorf("%s has %d conditions, want %d", o.GetName(), len(conditions), want)
		}
		for _, c := range conditions {
			if c.Status != metav1.ConditionTrue {
				w.t.Errorf("%s: condition %s is %s: %s", o.GetName(), c.Type, c.Status, c.Message)
			}
		}
	}
	for i := range udns.Items {
		check(&udns.Items[i], udns.Items[i].Status.Conditions, 2)
	}
	for i := range cudns.Items {
		check(&cudns.Items[i], cudns.Items[i].Status.Conditions, 3)
	}
	ids, names := map[string]string{}, map[string]string{}
	for i := range nads.Items {
		nad := &nads.Items[i]
		ref := metav1.GetControllerOf(nad)
		if ref == nil || !owners[ref.UID] {
			w.t.Errorf("NAD %s/%s is orphaned: its owner is %+v", nad.Namespace, nad.Name, ref)
		}
		name, id := nad.Annotations[network.AnnotationNetworkName], nad.Annotations[network.AnnotationNetworkID]
		if name == "" || id == "" {
			w.t.Errorf("NAD %s/%s has network name %q and id %q", nad.Namespace, nad.Name, name, id)
		}
		if other, taken := ids[id]; taken && other != name {
			w.t.Errorf("networks %s and %s share id %s", name, other, id)
		}
		if other, has := names[name]; has && other != id {
			w.t.Errorf("network %s has ids %s and %s", name, id, other)
		}
		ids[id], names[name] = name, id
	}
}

func allTrue(conditions []metav1.Condition, n int) bool {
	for _, c := range conditions {
		if c.Status != metav1.ConditionTrue {
			return false
		}
	}
	return len(conditions) == n
}
