// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// TestHostPods: while the primary network of a labelled namespace is unknown, so
// is the network of its host-network pods, which then keep their binding. A NAD that became unusable does not make it unknown.
func TestHostPods(t *testing.T) {
	cfg := testConfig(t)
	c := NewCache()
	c.SetPod(Pod{UID: "u1", Namespace: "shop", Name: "host", HostNetwork: true, OptOut: true})
	expect := func(what string, id int, unbound bool) {
		t.Helper()
		if p := c.HostPods()[0]; p.NetworkID != id || p.Unbound != unbound {
			t.Errorf("%s: network %d, unbound %t, want %d, %t", what, p.NetworkID, p.Unbound, id, unbound)
		}
	}
	expect("before the namespace", hostnet.NetworkUnknown, false)
	if locked, _ := c.IsLocked("shop/new"); !locked {
		t.Error("before the namespace, a new pod's interface is not locked")
	}
	if !c.SetNamespace("shop", Namespace{}).Pods {
		t.Error("the namespace without a label does not affect its pods")
	}
	expect("no label", 0, false)
	if locked, _ := c.IsLocked("shop/new"); locked {
		t.Error("without a label, a new pod's interface is locked")
	}
	c.SetNamespace("shop", Namespace{Labelled: true})
	expect("labelled, without a NAD", hostnet.NetworkUnknown, false)
	c.SetNAD(nad(cfg, "shop", "net", 7))
	expect("with a NAD", 7, false)
	c.SetNAD(network.NAD{Namespace: "shop", Name: "net", Err: errors.New("not JSON")})
	expect("with a malformed NAD", 7, false)
	other := nad(cfg, "shop", "net", 7)
	other.Err, other.Network.ID = errors.New("no network id yet"), 0
	c.DeleteNAD("shop/net")
	c.SetNAD(nad(cfg, "victim", "net", 7))
	other.Network.Name = "victim_net"
	c.SetNAD(other)
	expect("with a NAD that names another's network and has no id", hostnet.NetworkUnknown, false)
	c.DeleteNAD("victim/net")
	c.SetNAD(nad(cfg, "shop", "net", 7))
	expect("with a corrected NAD", 7, false)
	c.DeleteNAD("shop/net")
	expect("NAD deleted", hostnet.NetworkUnknown, false)
	c.SetNamespace("shop", Namespace{Labelled: true, Trusted: true})
	expect("trusted, with the opt-out annotation", hostnet.NetworkUnknown, true)
}

// The cgroup of a static pod has the UID that its mirror pod's annotation names, and not the mirror pod's.
func TestStaticPod(t *testing.T) {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "vip-node1", UID: "in-the-api", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "of-the-file"}},
		Spec: corev1.PodSpec{HostNetwork: true}}
	trimmed, err := trimPod(o)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := parsePod(trimmed.(*corev1.Pod), slog.New(slog.DiscardHandler))
	c := NewCache()
	c.SetPod(p)
	if got := c.HostPods(); len(got) != 1 || got[0].UID != "of-the-file" {
		t.Errorf("host-network pods %+v", got)
	}
	if got, ok := c.PodByUID("of-the-file"); !ok || got.UID != "in-the-api" {
		t.Errorf("by the UID of its cgroup: %+v, %t", got, ok)
	}
	if _, ok := c.PodByUID("in-the-api"); ok {
		t.Error("no cgroup has the mirror pod's UID")
	}
	// Tenants' pods that claim the processes of others: of a static pod, and of a pod of the API.
	c.SetPod(Pod{UID: "victim", RuntimeUID: "victim", Namespace: "shop", Name: "web", HostNetwork: true})
	c.SetPod(Pod{UID: "a", RuntimeUID: "of-the-file", Created: p.Created.Add(time.Hour), Namespace: "a", Name: "a", HostNetwork: true})
	c.SetPod(Pod{UID: "b", RuntimeUID: "victim", Namespace: "a", Name: "b", HostNetwork: true})
	for _, got := range c.HostPods() {
		if got.Namespace == "a" {
			t.Errorf("pod %s/%s has the processes of %s", got.Namespace, got.Name, got.UID)
		}
	}
	if got := c.HostPods(); len(got) != 2 {
		t.Errorf("host-network pods %+v", got)
	}
	for range 10 { // in every order of the map
		for _, uid := range []string{"victim", "of-the-file"} {
			if got, ok := c.PodByUID(uid); !ok || got.Namespace == "a" {
				t.Errorf("the processes of %s are those of %s", uid, got.Key())
			}
		}
	}
}

// Localnets are the Localnet networks whose physical network an administrator has named.
func TestCacheLocalnets(t *testing.T) {
	c := NewCache()
	localnet := func(name, physical string, vlan int) network.NAD {
		return network.NAD{Namespace: "shop", Name: name, Network: network.Network{ID: 5, Name: name + "_net", Topology: network.Localnet, Role: network.RoleSecondary,
			PhysicalNetworkName: physical, VLAN: vlan}}
	}
	names := func() string {
		var out []string
		for _, n := range c.Localnets("physnet") {
			out = append(out, fmt.Sprintf("%s:%d", n.Name, n.VLAN))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	malformed := network.NAD{Namespace: "shop", Name: "quay", Err: errors.New("not JSON")}
	for i, step := range []struct {
		change  func() NADChange
		changed bool
		want    string
	}{
		{func() NADChange { return c.SetNAD(nad(testConfig(t), "shop", "net", 7)) }, false, ""},
		{func() NADChange { return c.SetNAD(localnet("quay", "harbor", 0)) }, true, "quay_net:0"},
		{func() NADChange { return c.SetNAD(localnet("quay", "harbor", 0)) }, false, "quay_net:0"},
		{func() NADChange { return c.SetNAD(localnet("own", "physnet", 0)) }, true, "quay_net:0"},
		{func() NADChange { return c.SetNAD(localnet("dock", "harbor", 20)) }, true, "dock_net:20 quay_net:0"},
		{func() NADChange { return c.SetNAD(localnet("quay", "harbor", 30)) }, true, "dock_net:20 quay_net:30"},
		{func() NADChange { return c.SetNAD(malformed) }, false, "dock_net:20 quay_net:30"},
		{func() NADChange { return c.DeleteNAD("shop/quay") }, true, "dock_net:20"},
		{func() NADChange { return c.SetNAD(localnet("dock", "physnet", 20)) }, true, ""},
	} {
		if got := step.change(); got.Localnets != step.changed || names() != step.want {
			t.Errorf("step %d: changed %v, localnets %q, want %v, %q", i, got.Localnets, names(), step.changed, step.want)
		}
	}
}
