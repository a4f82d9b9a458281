// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// The router of the cluster default network sends what pods of ingress namespaces send to cluster IPs
// to the management port, and no other pods' packets.
func TestZoneIngress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.ingress = []string{"edge", "red"}
		env.node(1, true)
		env.namespace("edge", false)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		ways := func() []string {
			var out []string
			for _, r := range env.nb.Rows() {
				if p, ok := r.Model.(*nbdb.LogicalRouterPolicy); ok && p.Action == nbdb.LogicalRouterPolicyActionReroute {
					out = append(out, p.Match+" → "+p.Nexthops[0])
				}
			}
			slices.Sort(out)
			return out
		}
		env.pod("edge", "router", nil)
		env.waitForRow("edge_router") // it has the first address
		env.pod("plain", "other", nil)
		env.pod("red", "tenant", nil)
		env.waitForRow("plain_other")
		env.waitForRow("red_tenant")
		env.settle()
		if got, want := ways(), []string{`inport == "rtos-node1" && ip4.src == 10.244.0.3 && ip4.dst == {10.96.0.0/16} → 10.244.0.2`}; !slices.Equal(got, want) {
			t.Errorf("policies %q, want %q", got, want)
		}
		env.deletePod("edge", "router")
		env.waitUntil("the way is gone", func() bool { return len(ways()) == 0 })
	})
}

// A pod reaches cluster IPs of the IP families that the cluster's services have.
func TestIngressFamilies(t *testing.T) {
	for cidrs, want := range map[string]int{"10.96.0.0/16,fd96::/112": 2, "10.96.0.0/16": 1, "fd96::/112": 1} {
		in := Inputs{Plan: testPlan(true), OneNode: true, Pods: []PodPort{{NADKey: network.DefaultName, Namespace: "edge", Pod: "router", Ingress: true,
			IPs: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24"), netip.MustParsePrefix("fd10::5/64")}}}}
		var err error
		if in.Plan.ServiceCIDRs, err = network.ParseCIDRs(cidrs); err != nil {
			t.Fatal(err)
		}
		st, err := Build(testDefault(true), testNode(1, "node1", network.SharedGateway), in)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, r := range st {
			if p, ok := r.Model.(*nbdb.LogicalRouterPolicy); ok && p.Priority == policyIngress {
				got++
				if strings.Contains(p.Match, "{}") {
					t.Errorf("%s: %s", cidrs, p.Match)
				}
			}
		}
		if got != want {
			t.Errorf("%s: %d policies, want %d", cidrs, got, want)
		}
	}
}
