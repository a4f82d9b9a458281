// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

func (w fixture) patch(o client.Object, body string) {
	w.t.Helper()
	if err := w.Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
		w.t.Fatalf("patch %T %s: %v", o, o.GetName(), err)
	}
}

// waitConf waits until f returns true for the NAD's configuration.
func (w fixture) waitConf(ns, name string, f func(network.NetConf) bool) network.NetConf {
	w.t.Helper()
	var out network.NetConf
	Eventually(w.t, func() error {
		var err error
		if out, err = network.ParseNetConf(w.nad(ns, name).Spec.Config); err != nil {
			return err
		}
		if !f(out) {
			return fmt.Errorf("config is %+v", out)
		}
		return nil
	})
	return out
}

// The controller creates NADs for every topology and role; secondary networks need
// no namespace label, and a namespace may have several.
func TestTopologies(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	plain, tenant := w.namespace("topo-plain", false, "team=topo"), w.namespace("topo-tenant", true, "team=topo")
	defer w.remove(plain)
	defer w.remove(tenant)

	primary := &udnv1.UserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: "topo-tenant", Name: "l2"}, Spec: udnv1.UserDefinedNetworkSpec{
		Topology: udnv1.NetworkTopologyLayer2, Layer2: &udnv1.Layer2Config{Role: udnv1.NetworkRolePrimary, Subnets: udnv1.DualStackCIDRs{"10.130.0.0/16", "fd13::/64"},
			IPAM: &udnv1.IPAMConfig{Lifecycle: udnv1.IPAMLifecyclePersistent}}}}
	w.create(primary)
	defer w.remove(primary)
	w.waitCreated(primary)
	w.waitCondition(primary, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	got := w.waitConf("topo-tenant", "l2", func(network.NetConf) bool { return true })
	if got.Topology != "layer2" || got.Role != "primary" || got.Subnets != "10.130.0.0/16,fd13::/64" || !got.AllowPersistentIPs || got.TransitSubnet == "" || got.JoinSubnet == "" {
		t.Errorf("Layer2 primary: %+v", got)
	}

	l3 := newUDN("topo-plain", "l3", "10.131.0.0/16")
	l3.Spec.Layer3.Role = udnv1.NetworkRoleSecondary
	w.create(l3)
	defer w.remove(l3)
	w.waitCreated(l3)
	noIPAM := &udnv1.UserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: "topo-plain", Name: "bare"}, Spec: udnv1.UserDefinedNetworkSpec{
		Topology: udnv1.NetworkTopologyLayer2, Layer2: &udnv1.Layer2Config{Role: udnv1.NetworkRoleSecondary, IPAM: &udnv1.IPAMConfig{Mode: udnv1.IPAMDisabled}}}}
	w.create(noIPAM)
	defer w.remove(noIPAM)
	w.waitCreated(noIPAM)

	blue := &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: "topo-blue"}, Spec: udnv1.ClusterUserDefinedNetworkSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "topo"}},
		Network: udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLocalnet, Localnet: &udnv1.LocalnetConfig{Role: udnv1.NetworkRoleSecondary,
			PhysicalNetworkName: "tenantblue", Subnets: udnv1.DualStackCIDRs{"192.168.0.0/16", "2001:dbb::/64"}, ExcludeSubnets: []udnv1.CIDR{"192.168.50.0/24"}}},
	}}
	w.create(blue)
	defer w.remove(blue)
	w.waitCreated(blue, "[topo-plain, topo-tenant]")
	ids := map[string]bool{}
	for _, k := range []string{"topo-tenant/l2", "topo-plain/l3", "topo-plain/bare", "topo-plain/topo-blue", "topo-tenant/topo-blue"} {
		ns, name, _ := strings.Cut(k, "/")
		ids[w.nad(ns, name).Annotations[network.AnnotationNetworkID]] = true
	}
	if len(ids) != 4 {
		t.Errorf("4 networks have ids %v", ids)
	}

	// The controller updates the existing NADs when a Localnet network's mutable
	// fields change.
	before := w.nad("topo-plain", "topo-blue")
	if c := w.waitConf("topo-plain", "topo-blue", func(network.NetConf) bool { return true }); c.MTU != 1500 || c.VLANID != 0 || c.PhysicalNetworkName != "tenantblue" {
		t.Errorf("Localnet: %+v", c)
	}
	w.patch(blue, `{"spec":{"network":{"localnet":{"mtu":9000,"vlan":{"mode":"Access","access":{"id":200}},"physicalNetworkName":"green","excludeSubnets":["192.168.60.0/24","2001:dbb::1/128"]}}}}`)
	for _, ns := range []string{"topo-plain", "topo-tenant"} {
		w.waitConf(ns, "topo-blue", func(c network.NetConf) bool {
			return c.MTU == 9000 && c.VLANID == 200 && c.PhysicalNetworkName == "green" && c.ExcludeSubnets == "192.168.60.0/24,2001:dbb::1/128" && c.Subnets == "192.168.0.0/16,2001:dbb::/64"
		})
	}
	w.patch(blue, `{"spec":{"network":{"localnet":{"mtu":null,"vlan":null,"excludeSubnets":null}}}}`)
	w.waitConf("topo-plain", "topo-blue", func(c network.NetConf) bool { return c.MTU == 1500 && c.VLANID == 0 && c.ExcludeSubnets == "" })
	if after := w.nad("topo-plain", "topo-blue"); after.UID != before.UID || after.Annotations[network.AnnotationNetworkID] != before.Annotations[network.AnnotationNetworkID] {
		t.Error("the NAD was recreated")
	}
	w.waitCreated(blue, "[topo-plain, topo-tenant]")
}

// Networks above a limit are refused with a reason, and created when others are
// deleted.
func TestLimits(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	cfg := testConfig(t)
	cfg.MaxNetworks, cfg.MaxNetworksPerNS = 3, 2
	startController(t, cfg)
	ns := w.namespace("limits", false)
	defer w.remove(ns)
	other := w.namespace("limits-other", false)
	defer w.remove(other)
	create := func(ns, name string) *udnv1.UserDefinedNetwork {
		u := newUDN(ns, name, "10.133.0.0/16")
		u.Spec.Layer3.Role = udnv1.NetworkRoleSecondary
		w.create(u)
		return u
	}
	a, b := create("limits", "a"), create("limits", "b")
	w.waitCreated(a)
	w.waitCreated(b)
	c := create("limits", "c")
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "maximum number of networks", "raise max-networks-per-namespace")
	x := create("limits-other", "x")
	w.waitCreated(x)
	y := create("limits-other", "y")
	w.waitCondition(y, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "the cluster has 3 networks", "raise max-networks")
	w.remove(x)
	w.waitCreated(y)
	w.remove(y)
	w.waitGone(y)
	w.remove(a)
	w.waitCreated(c)
	w.remove(b)
	w.remove(c)
}
