// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// A cache may have a NAD before its namespace: the NAD is reconciled again, and its user is told nothing wrong.
func TestNamespaceUnknown(t *testing.T) {
	ctx := context.Background()
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
	obj := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "net", UID: "n"},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: `{"cniVersion":"1.0.0","type":"ovn-k8s-cni-overlay","name":"red-net","netAttachDefName":"red/net","topology":"layer3","role":"primary","subnets":"10.20.0.0/16/24"}`}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obj)
	if err := errors.Join(AddIndexes(ctx, indexer{builder}), nadusers.AddIndexes(ctx, indexer{builder})); err != nil {
		t.Fatal(err)
	}
	api := builder.Build()
	recorder := events.NewFakeRecorder(10)
	r := NewReconciler(cfg, api, &Kube{Client: api, Events: recorder}, netid.New(100, time.Minute, &idlease.Memory{}, time.Now), func(context.Context) error { return nil }, slog.New(slog.DiscardHandler))
	r.enqueue = func(Key) {}
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
