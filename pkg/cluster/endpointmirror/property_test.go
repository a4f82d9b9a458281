// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

// sameState ignores the fields that only actual mirrors have.
var sameState = cmp.Options{cmpopts.IgnoreFields(Mirror{}, "UID", "ResourceVersion"), cmpopts.EquateEmpty()}

var drawnNetworks = []*network.Network{
	nil, tenant("one", "10.20.0.0/16"), tenant("one", "10.20.0.0/16", "fd20::/48"), tenant("two", "10.30.0.0/16"), tenant("six", "fd20::/48"),
}

// drawSlice draws a source, with some invalid endpoints.
func drawSlice(t *rapid.T) *discoveryv1.EndpointSlice {
	family := rapid.SampledFrom([]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN}).Draw(t, "family")
	var es []discoveryv1.Endpoint
	for range rapid.IntRange(0, 5).Draw(t, "endpoints") {
		pod := rapid.SampledFrom([]string{"", "", "a", "b", "host", "waiting", "forged", "unknown"}).Draw(t, "pod")
		address := rapid.SampledFrom([]string{"10.244.1.5", "10.244.7.7", "10.20.3.3", "10.96.0.9", "203.0.113.9", "fd10:244::7", "fd20::3", "2001:db8::9", "x"})
		e := endpoint(pod, address.Draw(t, "address"))
		if rapid.Bool().Draw(t, "unready") {
			e.Conditions.Ready = ptr(false)
		}
		es = append(es, e)
	}
	s := sourceSlice(family, es...)
	s.UID = types.UID(rapid.SampledFrom([]string{"uid-source", "uid-previous"}).Draw(t, "uid"))
	return s
}

// drawState draws inputs, and a Fake with existing slices.
func drawState(t *rapid.T) (Inputs, *Fake) {
	in := inputs(drawSlice(t), rapid.SampledFrom(drawnNetworks).Draw(t, "network"))
	if rapid.IntRange(0, 4).Draw(t, "deleted") == 0 {
		in.Slice = nil
	}
	fake := NewFake()
	// Slices of others must not change.
	fake.Slices["red/theirs"] = FakeSlice{Mirror: Mirror{Namespace: "red", Name: "theirs", Managed: true, UID: "1"}}
	fake.Slices["red/others"] = FakeSlice{MirrorOf: Source{"red", "db"}, Mirror: Mirror{Namespace: "red", Name: "others", Managed: true, UID: "2"}}
	if rapid.Bool().Draw(t, "exists") {
		before := inputs(drawSlice(t), rapid.SampledFrom(drawnNetworks).Draw(t, "network before"))
		for name, m := range Build(before, State{}).Mirrors {
			m.UID, m.Managed, m.Exposed = "3", rapid.Bool().Draw(t, "label"), rapid.Bool().Draw(t, "exposed")
			if rapid.IntRange(0, 4).Draw(t, "reference") == 0 {
				m.OwnerUID = ""
			}
			fake.Slices["red/"+name] = FakeSlice{in.Source, m}
			if rapid.Bool().Draw(t, "copied") {
				m.Name, m.UID = "copy", "4"
				fake.Slices["red/copy"] = FakeSlice{in.Source, m}
			}
		}
	}
	return in, fake
}

// Applying Diff reaches the desired state even after a failure, and a second run
// is empty. Slices of others do not change, and no address of the cluster outside
// the network appears in a mirror.
func TestApplyReachesWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		in, fake := drawState(t)
		others := map[string]FakeSlice{"red/theirs": fake.Slices["red/theirs"], "red/others": fake.Slices["red/others"]}
		round := func() (State, []Op, error) {
			have, _ := fake.Read(ctx, in.Source)
			want := Build(in, have)
			ops := Diff(want, have)
			return want, ops, fake.Apply(ctx, ops)
		}
		crash, n := rapid.IntRange(0, 4).Draw(t, "fails at"), 0
		fake.Fail = func(Op) error {
			if n++; n == crash {
				return errors.New("injected")
			}
			return nil
		}
		if _, _, err := round(); err != nil {
			fake.Fail = nil
			if _, _, err = round(); err != nil {
				t.Fatal(err)
			}
		}
		want, ops, _ := round()
		if len(ops) > 0 {
			t.Fatalf("a second run has operations %v", ops)
		}
		got, _ := fake.Read(ctx, in.Source)
		if d := cmp.Diff(want, got, sameState); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
		for key, before := range others {
			if d := cmp.Diff(before, fake.Slices[key]); d != "" {
				t.Fatalf("%s has changed:\n%s", key, d)
			}
		}
		for _, m := range got.Mirrors {
			for _, e := range m.Endpoints {
				for _, raw := range e.Addresses {
					a := netip.MustParseAddr(raw)
					if !in.Network.Contains(a) && testPlan.RefusedEndpoint(*in.Network, a) != "" || a.Is4() != (m.AddressType == discoveryv1.AddressTypeIPv4) {
						t.Fatalf("address %s in a mirror of type %s on network %s", a, m.AddressType, m.Network)
					}
				}
			}
		}
	})
}
