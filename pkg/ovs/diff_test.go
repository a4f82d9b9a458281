// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawState(t *rapid.T, label string) State {
	s := State{Ports: map[string]Port{}}
	for n := range rapid.IntRange(0, 5).Draw(t, label) {
		p := Port{Name: fmt.Sprintf("ovn-k8s-mp%d", n), Bridge: rapid.SampledFrom([]string{"br-int", "br-old"}).Draw(t, "bridge"), Internal: true,
			MTU: rapid.SampledFrom([]int{1300, 1400}).Draw(t, "mtu"), MAC: rapid.SampledFrom([]string{"0a:58:00:00:00:01", "0a:58:00:00:00:02"}).Draw(t, "mac"),
			ExternalIDs: map[string]string{KeyOwner: OwnerValue, KeyRole: string(OwnerManagement), KeyLSP: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "lsp")}}
		s.Ports[p.Name] = p
	}
	return s
}

func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have := drawState(t, "want"), drawState(t, "have")
		f := NewFake("br-int", "br-old")
		foreign := Port{Name: "eth9", Bridge: "br-int", ExternalIDs: map[string]string{"mine": "true"}}
		pod := Port{Name: "vethx", Bridge: "br-int", ExternalIDs: map[string]string{KeyOwner: OwnerValue, KeyRole: string(OwnerPod)}}
		f.Put(foreign)
		f.Put(pod)
		for _, p := range have.Ports {
			f.Put(p)
		}
		ops := Diff(want, have)
		if err := f.Apply(t.Context(), ops[:rapid.IntRange(0, len(ops)).Draw(t, "crash")]); err != nil {
			t.Fatal(err)
		}
		if err := syncPorts(t.Context(), f, OwnerManagement, want); err != nil {
			t.Fatal(err)
		}
		got, err := f.Read(t.Context(), OwnerManagement)
		if err != nil || !reflect.DeepEqual(got.Ports, want.Ports) || len(Diff(want, got)) > 0 {
			t.Fatalf("have %+v\nwant %+v (%v)", got, want, err)
		}
		all := f.Ports()
		if len(all) != len(want.Ports)+2 || !reflect.DeepEqual(all["eth9"], foreign) || !reflect.DeepEqual(all["vethx"], pod) {
			t.Fatalf("ports of others were changed: %+v", all)
		}
	})
}

func TestApplyContinuesAfterFailure(t *testing.T) {
	f := NewFake("br-int")
	f.Fail = func(op Op) error {
		if strings.Contains(op.String(), "mp2") {
			return errors.New("no")
		}
		return nil
	}
	var states []State
	for id := 1; id <= 3; id++ {
		states = append(states, must(BuildManagement(testNetwork(id), testNode(), "br-int")))
	}
	err := syncPorts(t.Context(), f, OwnerManagement, Merge(states...))
	if err == nil || !strings.Contains(err.Error(), "add port ovn-k8s-mp2 to br-int network=cluster_udn_n2 iface-id=k8s-cluster_udn_n2_node-1: no") {
		t.Errorf("error is %v", err)
	}
	if len(f.Ports()) != 2 {
		t.Errorf("the other ports were not created: %v", f.Ports())
	}
}

func TestBridgeMappings(t *testing.T) {
	got := BridgeMappings(map[string]string{"ovn-bridge-mappings": "physnet:br-ex, tenantblue:br-blue,broken,"})
	if want := map[string]string{"physnet": "br-ex", "tenantblue": "br-blue"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMergeMappings(t *testing.T) {
	for in, want := range map[string]string{
		"": "physnet:br-ex", "physnet:br-ex": "physnet:br-ex", "physnet:br-old": "physnet:br-ex", "l1:br1, l2:br2": "l1:br1,l2:br2,physnet:br-ex",
		"l1:br1,physnet:x,l2:br2,physnet:y": "l1:br1,physnet:br-ex,l2:br2",
	} {
		if got := mergeMappings(in, "physnet", "br-ex"); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestOpStrings(t *testing.T) {
	have := Port{Name: "ovn-k8s-mp1", Bridge: "br-int", MTU: 1400, ExternalIDs: map[string]string{KeyLSP: "a", KeySandbox: "x"}}
	want := Port{Name: "ovn-k8s-mp1", Bridge: "br-int", MTU: 1300, ExternalIDs: map[string]string{KeyLSP: "b"}}
	if got := (SetPort{Want: want, Have: have}).String(); got != "set port ovn-k8s-mp1 mtu_request=1300 (was 1400) external_ids:iface-id=b no external_ids:sandbox" {
		t.Error(got)
	}
	if got := (SetChassis{Key: "ovn-encap-ip", Old: "a", New: "b"}).String(); got != "set Open_vSwitch external_ids:ovn-encap-ip=b (was a)" {
		t.Error(got)
	}
}

// syncPorts applies the difference between the owner's actual and desired state.
func syncPorts(ctx context.Context, t Target, owner Owner, want State) error {
	have, err := t.Read(ctx, owner)
	if err != nil {
		return err
	}
	return t.Apply(ctx, Diff(want, have))
}
