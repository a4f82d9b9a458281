// SPDX-License-Identifier: Apache-2.0

package systemid

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// cluster is an API server with nodes, and a reconciler that gets their events.
type cluster struct {
	t      *testing.T
	client client.Client
	r      *Reconciler
	queue  process.Queue[reconcile.Request]
	writes int
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, queue: process.NewQueue[reconcile.Request]("test", nil)}
	c.client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			c.writes++
			before := c.get(o.GetName())
			if err := w.Patch(ctx, o, p, opts...); err != nil {
				return err
			}
			c.r.events().UpdateFunc(ctx, event.TypedUpdateEvent[*metav1.PartialObjectMetadata]{ObjectOld: before, ObjectNew: c.get(o.GetName())}, c.queue)
			return nil
		},
	})
	c.start()
	return c
}

// start starts another leader, which gets all nodes.
func (c *cluster) start() {
	c.r = NewReconciler(c.client, c.client, slog.New(slog.DiscardHandler))
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kube.Metadata("NodeList").GroupVersionKind())
	if err := c.client.List(context.Background(), list); err != nil {
		c.t.Fatal(err)
	}
	for i := range list.Items {
		c.r.events().CreateFunc(context.Background(), event.TypedCreateEvent[*metav1.PartialObjectMetadata]{Object: &list.Items[i]}, c.queue)
	}
}

// get returns a node, nil if there is none.
func (c *cluster) get(name string) *metav1.PartialObjectMetadata {
	n := kube.Metadata("Node")
	err := c.client.Get(context.Background(), client.ObjectKey{Name: name}, n)
	if client.IgnoreNotFound(err) != nil {
		c.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return n
}

// set gives a node annotations, or deletes it if they are nil.
func (c *cluster) set(name string, annotations map[string]string) {
	ctx, before, events := context.Background(), c.get(name), c.r.events()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	var err error
	switch {
	case annotations == nil && before == nil:
		return
	case annotations == nil:
		err = c.client.Delete(ctx, n)
		events.DeleteFunc(ctx, event.TypedDeleteEvent[*metav1.PartialObjectMetadata]{Object: before}, c.queue)
	case before == nil:
		err = c.client.Create(ctx, n)
		events.CreateFunc(ctx, event.TypedCreateEvent[*metav1.PartialObjectMetadata]{Object: c.get(name)}, c.queue)
	default:
		n.ResourceVersion = before.ResourceVersion
		err = c.client.Update(ctx, n)
		events.UpdateFunc(ctx, event.TypedUpdateEvent[*metav1.PartialObjectMetadata]{ObjectOld: before, ObjectNew: c.get(name)}, c.queue)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// run reconciles what is enqueued.
func (c *cluster) run() {
	for c.queue.Len() > 0 {
		k, _ := c.queue.Get()
		if _, err := c.r.Reconcile(context.Background(), k); err != nil {
			c.t.Fatal(err)
		}
		c.queue.Done(k)
	}
}

// Nodes come, go, and change their system-id; somebody edits the annotation; leaders change. Each node's annotation names the
// first of the other nodes with its system-id, and a second run writes nothing.
func TestShared(t *testing.T) {
	const steps = 60
	random := rand.New(rand.NewPCG(1, 2))
	c := newCluster(t)
	ids, shared := map[string]string{}, 0
	for range steps {
		name := fmt.Sprint("node", 1+random.IntN(8))
		id := []string{"a", "a", "b", ""}[random.IntN(4)]
		annotations := map[string]string{network.AnnotationChassisID: id}
		if before := c.get(name); before != nil && before.Annotations[network.AnnotationSystemIDShared] != "" {
			annotations[network.AnnotationSystemIDShared] = before.Annotations[network.AnnotationSystemIDShared]
		}
		switch random.IntN(8) {
		case 0:
			c.set(name, nil)
			delete(ids, name)
		case 1:
			c.start()
		case 2:
			annotations[network.AnnotationSystemIDShared] = "nobody"
			fallthrough
		default:
			c.set(name, annotations)
			ids[name] = id
		}
		c.run()
		for node, id := range ids {
			var others []string
			for other, same := range ids {
				if other != node && same == id && id != "" {
					others = append(others, other)
				}
			}
			slices.Sort(others)
			if got, want := c.get(node).Annotations[network.AnnotationSystemIDShared], Build(node, others).SharedWith; got != want {
				t.Fatalf("%s with the system-id %q: shared with %q, want %q (%v)", node, id, got, want, ids)
			}
			shared += len(others)
		}
	}
	if shared == 0 || c.writes < steps/4 {
		t.Errorf("the steps are too few: %d nodes were named, %d writes", shared, c.writes)
	}
	c.writes = 0
	for node := range ids {
		c.queue.Add(request(node))
	}
	if c.run(); c.writes > 0 {
		t.Fatalf("a second run wrote %d times", c.writes)
	}
}

// An event of a node whose system-id is its own reads and enqueues no other node.
func TestSharedCost(t *testing.T) {
	x := newIndex()
	for i := range 1000 {
		if affected := x.set(fmt.Sprint("node", i), fmt.Sprint("id", i)); len(affected) > 0 {
			t.Fatalf("node %d affects %v", i, affected)
		}
	}
	if got := x.set("node7", "id8"); !slices.Equal(got, []string{"node8"}) {
		t.Errorf("a clone affects %v", got)
	}
	if got := x.set("node7", "id7"); !slices.Equal(got, []string{"node8"}) {
		t.Errorf("a clone that is repaired affects %v", got)
	}
	for i := range 1000 {
		x.set(fmt.Sprint("node", i), "")
	}
	if len(x.bySystemID)+len(x.systemIDs) > 0 {
		t.Errorf("something is left: %v", x)
	}
}
