// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"bulkhead/pkg/network"
)

// A pod whose primary network nodes cannot carry is told so, and gets nothing:
// least of all the default network alone.
func TestZonePodOfANetworkNotCarried(t *testing.T) {
	for what, c := range map[string]network.NetConf{
		"topology layer2":      {Name: redNet, Topology: "layer2", Role: "primary", Subnets: "10.10.0.0/16"},
		"transport no-overlay": {Name: redNet, Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24", Transport: network.TransportNoOverlay, OutboundSNAT: "enabled"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				w.nadOf("red", "net", 1, c)
				w.pod("red", "a", nil)
				w.pod("plain", "p", nil)
				w.run()
				w.waitFor("plain_p")
				w.wait("warning", func() bool {
					select {
					case e := <-w.events.Events:
						return strings.Contains(e, "Warning ErrorAllocatingPod") && strings.Contains(e, what)
					default:
						return false
					}
				})
				if w.has("red_a") || len(w.networks("red", "a")) != 0 {
					t.Error("the pod has a port or addresses")
				}
			})
		})
	}
}

// What a pod's creator writes into the annotation decides nothing.
func TestZoneIgnoresPresetAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.run()
		w.wait("ready", w.zone.Ready)
		w.pod("red", "evil", map[string]string{network.AnnotationPodNetworks: `{"default":{"ip_addresses":["10.244.0.77/24"],"mac_address":"0a:58:00:00:00:01","role":"primary"},"blue/net":{"ip_addresses":["10.10.0.9/24"],"mac_address":""}}`})
		cdn := w.waitFor("red_evil")
		if !slices.ContainsFunc(cdn.In, weak) {
			t.Error("not locked")
		}
		w.wait("annotation", func() bool {
			n := w.networks("red", "evil")
			_, foreign := n["blue/net"]
			return n["default"].Role == network.RoleInfrastructureLocked && !foreign && len(n) == 2 && n["default"].IPs[0] != netip.MustParsePrefix("10.244.0.77/24")
		})
	})
}
