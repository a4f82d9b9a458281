// SPDX-License-Identifier: Apache-2.0

package idlease

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
	raise(t, a, AllPorts, 1000, 0)
	raise(t, a, Ports("y"), 2000, 0)
	raise(t, a, Ports("z"), 2000, 0)
	want(t, a, Networks, 11)
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
	a.DropPorts(func(name string) bool { return name == "y" })
	raise(t, a, Networks, 12, 10)
	b := leader(api)
	want(t, b, Networks, 22)
	want(t, b, Nodes, 1)
	want(t, b, AllPorts, 1000)
	want(t, b, Ports("x"), 0)
	want(t, b, Ports("y"), 2000)
	want(t, b, Ports("z"), 0)
}

// A former leader that still runs allocates only what it has reserved, and ends. The
// new leader goes on.
func TestFormerLeader(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	a, b := leader(api), leader(api)
	want(t, a, Networks, 0)
	raise(t, a, Networks, 1, 9)
	want(t, b, Networks, 10)
	raise(t, b, Networks, 11, 9)
	raise(t, a, Networks, 10, 9) // reserved before b was the leader
	for _, to := range []int64{11, 20, 100} {
		select {
		case <-a.Claimed():
			if to == 11 {
				t.Error("the former leader ends before it knows of the next one")
			}
		default:
		}
		if err := a.Raise(t.Context(), Networks, to, 0); !errors.Is(err, ErrClaimed) {
			t.Errorf("the former leader raises its mark to %d: %v", to, err)
		}
	}
	select {
	case <-a.Claimed():
	default:
		t.Error("the former leader does not end")
	}
	raise(t, b, Networks, 21, 0)
	want(t, leader(api), Networks, 21)
	select {
	case <-b.Claimed():
		t.Error("the new leader ends")
	default:
	}
}

// A leader goes on after a write that failed for the client alone, and after an
// administrator deleted or edited the lease.
func TestLeaderKeepsLease(t *testing.T) {
	var lose bool
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if err := c.Update(ctx, obj, opts...); err != nil || !lose {
				return err
			}
			return errors.New("the connection is lost")
		},
	})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "bulkhead-system", Name: Name}}
	m := leader(api)
	want(t, m, Networks, 0)
	lose = true
	if err := m.Raise(t.Context(), Networks, 5, 0); err == nil {
		t.Fatal("a write whose answer is lost succeeds")
	}
	lose = false
	raise(t, m, Networks, 6, 0)
	want(t, leader(api), Networks, 6)

	m = leader(api)
	want(t, m, Networks, 6)
	if err := api.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	raise(t, m, Networks, 7, 0)
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
		t.Fatal(err)
	}
	lease.Labels = map[string]string{"edited": "by-hand"}
	if err := api.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	raise(t, m, Networks, 8, 0)
	select {
	case <-m.Claimed():
		t.Error("the leader ends")
	default:
	}
	want(t, leader(api), Networks, 8)
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
