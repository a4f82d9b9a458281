// SPDX-License-Identifier: Apache-2.0

package idlease

import (
	"log/slog"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func leader(api client.Client) *Lease {
	return New(api, api, "bulkhead-system", slog.New(slog.DiscardHandler))
}

func want(t *testing.T, m *Lease, kind string, mark int64) {
	t.Helper()
	if got, err := m.Get(t.Context(), kind); err != nil || got != mark {
		t.Errorf("the mark of %s is %d, %v; want %d", kind, got, err, mark)
	}
}

func raise(t *testing.T, m *Lease, kind string, to, ahead int64) {
	t.Helper()
	if err := m.Raise(t.Context(), kind, to, ahead); err != nil {
		t.Errorf("raise %s to %d: %v", kind, to, err)
	}
}

// The next leader reads the marks of the former one, and no mark ever falls.
func TestMarks(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	a := leader(api)
	want(t, a, Networks, 0)
	raise(t, a, Networks, 1, 10)
	raise(t, a, Nodes, 1, 0)
	raise(t, a, Ports("x"), 2000, 0)
	want(t, leader(api), Networks, 11)
	version := func() string {
		t.Helper()
		obj := &coordinationv1.Lease{}
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "bulkhead-system", Name: Name}, obj); err != nil {
			t.Fatal(err)
		}
		return obj.ResourceVersion
	}
	before := version()
	if raise(t, a, Networks, 11, 10); version() != before {
		t.Error("Raise wrote a mark that is stored already")
	}
	a.Drop(Ports("x"))
	raise(t, a, Networks, 12, 10)
	b := leader(api)
	want(t, b, Networks, 22)
	want(t, b, Nodes, 1)
	want(t, b, Ports("x"), 0)
	// A former leader writes late: neither overwrites the other's marks.
	raise(t, b, Nodes, 7, 0)
	raise(t, a, Nodes, 3, 0)
	want(t, leader(api), Nodes, 7)
	raise(t, a, Networks, 30, 0)
	want(t, leader(api), Nodes, 7)
	want(t, leader(api), Networks, 30)
}

// If the annotation cannot be parsed, every id may have been allocated.
func TestUnparsableMarks(t *testing.T) {
	api := fake.NewClientBuilder().WithObjects(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bulkhead-system", Name: Name, Annotations: map[string]string{annotation: `{"networks":"x"`}},
	}).Build()
	m := leader(api)
	got, err := m.Get(t.Context(), Networks)
	if err != nil || got < 1<<20 {
		t.Fatalf("the mark is %d, %v", got, err)
	}
	raise(t, m, Networks, got+1, 0)
	for _, kind := range []string{Networks, Nodes} {
		if n, err := leader(api).Get(t.Context(), kind); err != nil || n < got {
			t.Errorf("the next leader's mark of %s is %d, %v", kind, n, err)
		}
	}
}
