// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"
	"testing"
	"testing/synctest"

	"bulkhead/pkg/ovn/nbdb"
)

// The router of the cluster default network leads what pods of ingress namespaces send to cluster IPs
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
		env.pod("plain", "other", nil)
		env.pod("red", "tenant", nil)
		env.waitForRow("edge_router")
		env.waitForRow("plain_other")
		env.waitForRow("red_tenant")
		env.settle()
		if got, want := ways(), []string{`inport == "rtos-node1" && ip4.src == 10.244.0.3 && ip4.dst == {10.96.0.0/16} → 10.244.0.2`}; !slices.Equal(got, want) {
			t.Errorf("packets are led by %q, want %q", got, want)
		}
		env.deletePod("edge", "router")
		env.waitUntil("the way is gone", func() bool { return len(ways()) == 0 })
	})
}
