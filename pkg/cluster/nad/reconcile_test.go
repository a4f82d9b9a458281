// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/cluster/nadusers"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// indexer adds the indexes of a cache to a fake client.
type indexer struct{ b *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, of client.IndexerFunc) error {
	i.b.WithIndex(o, field, of)
	return nil
}

// newReconciler returns a reconciler on a fake API with the objects, and that API.
func newReconciler(t *testing.T, objects ...client.Object) (*Reconciler, client.Client, *events.FakeRecorder) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, nadv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load("controller", []string{"--node-name=n1", "--cluster-subnets=10.244.0.0/16/24"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
	if err := errors.Join(AddIndexes(t.Context(), indexer{builder}), nadusers.AddIndexes(t.Context(), indexer{builder})); err != nil {
		t.Fatal(err)
	}
	api := builder.Build()
	recorder := events.NewFakeRecorder(100)
	r := NewReconciler(cfg, api, &Kube{Client: api, Events: recorder}, netid.New(100, time.Minute, &idlease.Memory{}, time.Now), func(context.Context) error { return nil }, slog.New(slog.DiscardHandler))
	r.enqueue = func(Key) {}
	return r, api, recorder
}

func newNAD(key Key, config string) *nadv1.NetworkAttachmentDefinition {
	return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: types.UID(key.String())},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config}}
}

// A cache may have a NAD before its namespace: the NAD is reconciled again, and its user is told nothing wrong.
func TestNamespaceUnknown(t *testing.T) {
	ctx := context.Background()
	obj := newNAD(Key{"red", "net"}, `{"cniVersion":"1.0.0","type":"ovn-k8s-cni-overlay","name":"red-net","netAttachDefName":"red/net","topology":"layer3","role":"primary","subnets":"10.20.0.0/16/24"}`)
	r, api, recorder := newReconciler(t, obj)
	if _, err := r.Reconcile(ctx, Key{"red", "net"}); err == nil {
		t.Error("a NAD of an unknown namespace is not retried")
	}
	if len(recorder.Events) > 0 {
		t.Errorf("event %q", <-recorder.Events)
	}
	if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", Labels: map[string]string{network.LabelPrimaryUDN: ""}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(ctx, Key{"red", "net"}); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil || obj.Annotations[network.AnnotationNetworkID] != "1" {
		t.Errorf("annotations %v, %v", obj.Annotations, err)
	}
}

// failingTarget writes nothing.
type failingTarget struct{ Target }

func (failingTarget) Apply(context.Context, []Op) error { return errors.New("timeout") }

// TestIDNeverWritten: the id of a NAD that is deleted before its id could be written is released.
func TestIDNeverWritten(t *testing.T) {
	obj := newNAD(Key{"a", "net"}, `{"type":"ovn-k8s-cni-overlay","name":"shared","topology":"layer2","subnets":"10.20.0.0/16"}`)
	r, api, _ := newReconciler(t, obj)
	r.target = failingTarget{r.target}
	if _, err := r.Reconcile(t.Context(), Key{"a", "net"}); err == nil || r.networkIDs.IDOf("shared") == 0 {
		t.Fatalf("id %d, %v", r.networkIDs.IDOf("shared"), err)
	}
	if err := api.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), Key{"a", "net"}); err != nil || r.networkIDs.IDOf("shared") != 0 {
		t.Errorf("id %d, %v", r.networkIDs.IDOf("shared"), err)
	}
}

// A NAD whose configuration became unusable keeps its network's id, also if it is the network's last.
func TestIDKeptByUnusableNAD(t *testing.T) {
	const valid = `{"type":"ovn-k8s-cni-overlay","name":"shared","topology":"layer2","subnets":"10.20.0.0/16"}`
	a, b, c, next := Key{"a", "net"}, Key{"b", "net"}, Key{"c", "net"}, Key{"a", "next"}
	for name, broken := range map[string]string{
		"not JSON": "{", "renamed": strings.Replace(valid, "shared", "other", 1), "no subnet": strings.Replace(valid, "10.20.0.0", "10.20.0", 1),
		"another plugin's": `{"type":"macvlan","name":"shared"}`,
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "p", Annotations: map[string]string{network.AnnotationPodNetworks: `{"b/net":{}}`}}}
			r, api, recorder := newReconciler(t, newNAD(a, valid), newNAD(b, valid), pod)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			reconcile := func(key Key) {
				t.Helper()
				_, err := r.Reconcile(t.Context(), key)
				must(err)
			}
			get := func(key Key) *nadv1.NetworkAttachmentDefinition {
				t.Helper()
				n := &nadv1.NetworkAttachmentDefinition{}
				must(api.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, n))
				return n
			}
			change := func(key Key, config string) {
				t.Helper()
				n := get(key)
				n.Spec.Config = config
				must(api.Update(t.Context(), n))
				reconcile(key)
			}
			check := func(key Key, id string) {
				t.Helper()
				if n := get(key); n.Annotations[network.AnnotationNetworkID] != id || !slices.Contains(n.Finalizers, network.FinalizerNAD) {
					t.Errorf("%s has the annotations %v and the finalizers %v, want id %s", key, n.Annotations, n.Finalizers, id)
				}
			}
			reconcile(a)
			reconcile(b)
			check(b, "1")
			change(b, broken)
			must(api.Delete(t.Context(), get(a)))
			reconcile(a)
			reconcile(b)
			check(b, "1")
			if name == "renamed" { // it does not prevent further NADs of the network
				must(api.Create(t.Context(), newNAD(c, valid)))
				reconcile(c)
				check(c, "1")
				must(api.Delete(t.Context(), get(c)))
				reconcile(c)
			}
			for len(recorder.Events) > 0 {
				<-recorder.Events
			}
			change(b, valid)
			check(b, "1")
			must(api.Create(t.Context(), newNAD(next, strings.Replace(valid, "shared", "next", 1))))
			reconcile(next)
			check(next, "2")
			if len(recorder.Events) > 0 {
				t.Errorf("event %q", <-recorder.Events)
			}
			// The last NAD's deletion releases the id.
			must(api.Delete(t.Context(), pod))
			must(api.Delete(t.Context(), get(b)))
			reconcile(b)
			if id := r.networkIDs.IDOf("shared"); id != 0 {
				t.Errorf("the network still has the id %d", id)
			}
		})
	}
}
