// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/prometheus/client_golang/prometheus"

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
		if !slices.ContainsFunc(cdn.In, isWeak) {
			t.Error("not locked")
		}
		w.wait("annotation", func() bool {
			n := w.networks("red", "evil")
			_, foreign := n["blue/net"]
			return n["default"].Role == network.RoleInfrastructureLocked && !foreign && len(n) == 2 && n["default"].IPs[0] != netip.MustParsePrefix("10.244.0.77/24")
		})
	})
}

// oldNetwork puts rows into the database of a network that nobody describes,
// as an earlier zone would have left them.
func (w *world) oldNetwork(id int, name string) {
	in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet"}
	rows, err := Build(testTenant(id, name, false), testNode(1, "node1", network.SharedGateway), in)
	w.must(err)
	for _, r := range rows {
		w.nb.Add(r)
	}
}

// fail has the database refuse every row that has this in its name.
func (w *world) fail(part string) {
	w.nb.mu.Lock()
	defer w.nb.mu.Unlock()
	w.nb.Fail = nil
	if part != "" {
		w.nb.Fail = func(op Op) error {
			if strings.Contains(op.Row.ID, part) {
				return errors.New("constraint violation")
			}
			return nil
		}
	}
}

// A network whose transactions keep failing holds up itself alone: the zone
// gets ready, what nobody describes goes, and it is tried until it works.
func TestZoneFailingNetworkHoldsUpItselfAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.namespace("blue", true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.nad("blue", "net", "blue_net", 2, "10.10.0.0/16/24")
		w.oldNetwork(3, "old_net")
		w.fail("blue_net")
		registry := prometheus.NewRegistry()
		w.registry = registry
		w.run()
		w.waitFor("red_net_ovn_cluster_router")
		w.wait("ready", w.zone.Ready)
		w.wait("the old network gone", func() bool { return !w.has("old_net_ovn_cluster_router") })
		if n := gauge(t, registry, "bulkhead_zone_networks_failing"); n != 1 {
			t.Errorf("%v networks are said to fail, want 1", n)
		}
		// One that goes while another fails goes too.
		w.deleteNAD("red", "net")
		w.wait("red's network gone", func() bool { return !w.has("red_net_ovn_cluster_router") })
		w.fail("")
		w.waitFor("blue_net_ovn_cluster_router")
		w.settled()
		if n := gauge(t, registry, "bulkhead_zone_networks_failing"); n != 0 {
			t.Errorf("%v networks are said to fail, want none", n)
		}
	})
}

// A network whose NAD is broken at the start, or that fails, keeps its rows: it
// is not one that nobody describes.
func TestZoneFailedNetworkIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.namespace("blue", true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.nad("blue", "net", "blue_net", 2, "10.10.0.0/16/24")
		w.run()
		w.waitFor("red_net_ovn_cluster_router")
		w.waitFor("blue_net_ovn_cluster_router")
		w.settled()
		w.stop()
		w.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) {
			n.Annotations[network.AnnotationNetworkName] = redNet
			n.Spec.Config = "{"
		})
		w.nad("blue", "net", "blue_net", 2, "10.20.0.0/16/24") // every change of it is refused
		w.fail("blue_net")
		before := w.nb.Rows().Dump()
		w.run()
		w.wait("ready", w.zone.Ready)
		w.settled()
		if got := w.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
	})
}

// A NAD that cannot be read any more stands for the network that it named.
func TestZoneUnreadableNADKeepsItsNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.run()
		w.waitFor("red_net_ovn_cluster_router")
		w.settled()
		w.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" })
		w.settled()
		if !w.has("red_net_ovn_cluster_router") {
			t.Error("the network is gone")
		}
		w.deleteNAD("red", "net")
		w.wait("network gone", func() bool { return !w.has("red_net_ovn_cluster_router") })
	})
}

// A network that goes before it could be tried holds up nothing.
func TestZoneNetworkGoesBeforeItsFirstTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.nb.down.Store(true)
		w.run()
		w.settled()
		if w.zone.ready.Load() {
			t.Error("networks count as tried without a database")
		}
		w.deleteNAD("red", "net")
		w.settled()
		w.nb.down.Store(false)
		w.zone.onConnect()
		w.wait("ready", w.zone.Ready)
	})
}

// gauge is a metric's value.
func gauge(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	all, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == name {
			return m.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
