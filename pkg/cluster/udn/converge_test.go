// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// sameState compares States without the fields of actual NADs only.
var sameState = cmp.Options{
	cmpopts.IgnoreFields(NAD{}, "UID", "ResourceVersion", "OtherFinalizers"),
	cmpopts.IgnoreFields(State{}, "Status"), cmpopts.EquateEmpty(),
}

// drawInputs draws a request, the actual state, and the pods that use the NADs.
func drawInputs(t *rapid.T) (Inputs, *Fake) {
	r := udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}))
	r.Owner = Owner{Name: "net"} // as a cluster network: several namespaces
	r.Deleting = rapid.Bool().Draw(t, "deleting")
	conf, _, err := r.NetConf(testPlanRapid)
	if err != nil {
		t.Fatal(err)
	}
	in := Inputs{Owner: r.Owner, Request: r, Conf: conf, ID: rapid.IntRange(0, 5).Draw(t, "id"), Users: map[string][]string{}}
	if rapid.IntRange(0, 4).Draw(t, "no owner") == 0 {
		in.Request = nil
	}
	if rapid.IntRange(0, 4).Draw(t, "invalid") == 0 {
		in.Invalid = "invalid"
	}
	fake := NewFake()
	fake.Owners[r.Owner] = State{Finalizer: in.Request != nil && rapid.Bool().Draw(t, "finalizer")}
	// A foreign NAD, which no operation may change.
	fake.NADs["a/foreign"] = FakeNAD{Owner{"x", "y"}, NAD{Namespace: "a", Name: "foreign", Config: "{}"}}
	for _, n := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, "selected "+n) {
			in.Namespaces = append(in.Namespaces, Namespace{
				Name: n, Labeled: rapid.IntRange(0, 3).Draw(t, "labeled "+n) > 0,
				Primary: rapid.SampledFrom([]string{"", "", "", "other"}).Draw(t, "primary "+n),
				Full:    rapid.IntRange(0, 5).Draw(t, "full "+n) == 0,
			})
		}
		if !rapid.Bool().Draw(t, "exists "+n) {
			continue
		}
		nad := NAD{
			Namespace: n, Name: "net", OwnerUID: "uid-1", Finalizer: rapid.Bool().Draw(t, "finalizer "+n),
			Config:      rapid.SampledFrom([]string{"broken", conf.Render()}).Draw(t, "config "+n),
			Annotations: map[string]string{network.AnnotationNetworkID: "3"},
		}
		if nad.Finalizer && rapid.Bool().Draw(t, "terminating "+n) {
			nad.Phase = Terminating
		}
		if rapid.IntRange(0, 4).Draw(t, "stale "+n) == 0 {
			nad.OwnerUID = "uid-0"
		}
		fake.NADs[nad.Key()] = FakeNAD{r.Owner, nad}
		if rapid.Bool().Draw(t, "used "+n) {
			in.Users[n] = []string{n + "/pod"}
		}
	}
	return in, fake
}

var testPlanRapid = func() network.Plan { return testPlan(&testing.T{}) }()

// Applying Diff reaches the desired state, and a second run is a no-op.
func TestApplyReachesDesiredState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		in, fake := drawInputs(t)
		have, _ := fake.Read(ctx, in.Owner)
		want, _ := Build(in, have)
		if err := fake.Apply(ctx, Diff(want, have)); err != nil {
			t.Fatal(err)
		}
		got, _ := fake.Read(ctx, in.Owner)
		if d := cmp.Diff(want, got, sameState); d != "" {
			t.Fatalf("after %v (-want +got):\n%s", Diff(want, have), d)
		}
		if ops := Diff(want, got); len(ops) > 0 {
			t.Fatalf("a second run has operations: %v", ops)
		}
		if n := fake.NADs["a/foreign"]; n.Config != "{}" || n.Phase != Present {
			t.Fatalf("the foreign NAD was changed: %+v", n)
		}
	})
}

// Reconciling converges within three rounds after any failed operation, and never
// releases a NAD that pods use.
func TestReconcileConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		in, fake := drawInputs(t)
		held := map[string]bool{}
		for _, n := range fake.NADs {
			if len(in.Users[n.Namespace]) > 0 && n.Finalizer {
				held[n.Key()] = true
			}
		}
		round := func() []Op {
			have, _ := fake.Read(ctx, in.Owner)
			want, problems := Build(in, have)
			ops := Diff(want, have)
			err := fake.Apply(ctx, ops)
			status := DiffStatus(in.Owner, BuildStatus(in, want, problems, Failures(err)), have.Status)
			_ = fake.Apply(ctx, status)
			for k := range held {
				if _, ok := fake.NADs[k]; !ok {
					t.Fatalf("NAD %s, which pods use, was removed by %v", k, ops)
				}
			}
			return append(ops, status...)
		}
		failed := rapid.IntRange(0, 8).Draw(t, "failed operation")
		n := 0
		fake.Fail = func(Op) error {
			if n++; n == failed {
				return errors.New("injected")
			}
			return nil
		}
		round()
		fake.Fail = nil
		var last []Op
		for range 4 {
			last = round()
		}
		if len(last) > 0 {
			t.Fatalf("does not converge, the last round has operations: %v", last)
		}
		have, _ := fake.Read(ctx, in.Owner)
		if len(have.Status.Conditions) == 0 || !in.Owner.Cluster() || in.Request == nil || in.Request.Deleting {
			return
		}
		want, _ := Build(in, have)
		if got, namespaces := have.Status.ActiveNamespaces, created(want, nil); !slices.Equal(got, namespaces) {
			t.Fatalf("status.activeNamespaces is %v, the network is in %v", got, namespaces)
		}
	})
}

// Operations that depend on a failed one are skipped.
func TestApplyAfterFailure(t *testing.T) {
	fake := NewFake()
	o := Owner{Name: "net"}
	ops := []Op{{Kind: AddFinalizer, Owner: o}, {Kind: CreateNAD, Owner: o, NAD: NAD{Namespace: "a", Name: "net"}}}
	fake.Fail = func(op Op) error {
		if op.Kind == AddFinalizer {
			return errors.New("injected")
		}
		return nil
	}
	err := fake.Apply(context.Background(), ops)
	if len(fake.NADs) > 0 || len(Failures(err)) != 1 {
		t.Errorf("NADs %v without a finalizer: %v", fake.NADs, err)
	}
	fake.Fail = func(op Op) error {
		if op.Kind == ReleaseNAD && op.NAD.Namespace == "a" {
			return errors.New("injected")
		}
		return nil
	}
	fake.Owners[o] = State{Finalizer: true}
	fake.NADs["b/net"] = FakeNAD{o, NAD{Namespace: "b", Name: "net", Phase: Terminating, Finalizer: true}}
	err = fake.Apply(context.Background(), []Op{
		{Kind: ReleaseNAD, Owner: o, NAD: NAD{Namespace: "a", Name: "net"}}, {Kind: ReleaseNAD, Owner: o, NAD: NAD{Namespace: "b", Name: "net"}},
		{Kind: RemoveFinalizer, Owner: o}})
	if !fake.Owners[o].Finalizer || len(fake.NADs) != 0 || len(Failures(err)) != 1 {
		t.Errorf("finalizer %v, NADs %v: %v", fake.Owners[o].Finalizer, fake.NADs, err)
	}
}
