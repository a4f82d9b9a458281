// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/prometheus/client_golang/prometheus"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// waitForWarning waits for an event about a pod without a network that contains the text.
func (env *zoneEnv) waitForWarning(text string) {
	env.t.Helper()
	env.waitUntil("warning", func() bool {
		select {
		case e := <-env.events.Events:
			return strings.Contains(e, "Warning ErrorAllocatingPod") && strings.Contains(e, text)
		default:
			return false
		}
	})
}

// A pod whose primary network is refused gets an event and no network, in
// particular not the cluster default network alone.
func TestZonePodOfRefusedNetwork(t *testing.T) {
	for name, c := range map[string]network.NetConf{
		"transport no-overlay": {Name: redNet, Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24", Transport: network.TransportNoOverlay, OutboundSNAT: "enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.nadOf("red", "net", 1, c)
				env.pod("red", "a", nil)
				env.pod("plain", "p", nil)
				env.run()
				env.waitForRow("plain_p")
				env.waitForWarning(name)
				if env.has("red_a") || len(env.networks("red", "a")) != 0 {
					t.Error("the pod has a port or addresses")
				}
			})
		})
	}
}

// TestZonePrimaryRequest: a pod that requests an address, a MAC address or a claim on a Layer 3 primary network, or whose
// request cannot be read, gets an event and no network: not another address than it wants.
func TestZonePrimaryRequest(t *testing.T) {
	for want, annotations := range map[string]map[string]string{
		"":                                      {network.AnnotationDefaultNetwork: `[{"name":"default","namespace":"ovn-kubernetes"}]`},
		"remove ips":                            {network.AnnotationDefaultNetwork: `[{"name":"default","namespace":"ovn-kubernetes","ips":["10.10.2.50/24"]}]`},
		"remove mac":                            {network.AnnotationDefaultNetwork: `{"name":"default","namespace":"ovn-kubernetes","mac":"02:00:00:00:00:01"}`},
		"remove the annotation":                 {network.AnnotationPrimaryClaim: "vm"},
		"is not the name":                       {network.AnnotationPrimaryClaim: "v/m"},
		network.AnnotationDefaultNetwork + ": ": {network.AnnotationDefaultNetwork: `[{"name":`},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
				env.pod("red", "a", annotations)
				env.pod("plain", "p", annotations) // it has no primary network
				env.run()
				env.waitForRow("plain_p")
				if want == "" {
					env.waitForRow("red_a")
					return
				}
				env.waitForWarning(want)
				if env.has("red_a") || len(env.networks("red", "a")) != 0 {
					t.Error("the pod has a port or addresses")
				}
			})
		})
	}
}

// An annotation written by the pod's creator is ignored.
func TestZoneIgnoresPresetAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		env.pod("red", "evil", map[string]string{network.AnnotationPodNetworks: `{"default":{"ip_addresses":["10.244.0.77/24"],"mac_address":"0a:58:00:00:00:01","role":"primary"},"blue/net":{"ip_addresses":["10.10.0.9/24"],"mac_address":""}}`})
		cdn := env.waitForRow("red_evil")
		if !cdn.locked() {
			t.Error("not locked")
		}
		env.waitUntil("annotation", func() bool {
			n := env.networks("red", "evil")
			_, foreign := n["blue/net"]
			return n["default"].Role == network.RoleInfrastructureLocked && !foreign && len(n) == 2 && n["default"].IPs[0] != netip.MustParsePrefix("10.244.0.77/24")
		})
	})
}

// addLeftoverNetwork adds the rows of a network without a NAD, as an earlier zone
// would have left them.
func (env *zoneEnv) addLeftoverNetwork(id int, name string) {
	in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet"}
	rows, err := Build(testTenant(id, name, false), testNode(1, "node1", network.SharedGateway), in)
	env.must(err)
	for _, r := range rows {
		env.nb.Add(r)
	}
}

// failRows makes operations fail on rows whose id contains part; "" ends that.
func (env *zoneEnv) failRows(part string) {
	env.nb.mu.Lock()
	defer env.nb.mu.Unlock()
	env.nb.Fail = nil
	if part != "" {
		env.nb.Fail = func(op Op) error {
			if strings.Contains(op.Row.ID, part) {
				return errors.New("constraint violation")
			}
			return nil
		}
	}
}

// A network whose transactions fail does not affect others: the zone becomes ready,
// leftover networks are deleted, and the failing network is retried.
func TestZoneFailingNetworkBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nad("blue", "net", "blue_net", 2, "10.10.0.0/16/24")
		env.addLeftoverNetwork(3, "old_net")
		env.failRows("blue_net")
		registry := prometheus.NewRegistry()
		env.registry = registry
		env.run()
		env.waitForRow("red_net_ovn_cluster_router")
		env.waitUntil("ready", env.zone.Ready)
		env.waitUntil("leftover network deleted", func() bool { return !env.has("old_net_ovn_cluster_router") })
		if n := gauge(t, registry, "bulkhead_zone_networks_failing"); n != 1 {
			t.Errorf("%v failing networks, want 1", n)
		}
		// A network can be deleted while another one fails.
		env.deleteNAD("red", "net")
		env.waitUntil("red's network deleted", func() bool { return !env.has("red_net_ovn_cluster_router") })
		env.failRows("")
		env.waitForRow("blue_net_ovn_cluster_router")
		env.settle()
		if n := gauge(t, registry, "bulkhead_zone_networks_failing"); n != 0 {
			t.Errorf("%v failing networks, want none", n)
		}
	})
}

// Without a host subnet of the cluster default network no pod starts on the node: the zone is not ready, and reports it.
// Another network without one does not keep the zone from being ready.
func TestZoneNoSubnetOfDefaultNetwork(t *testing.T) {
	for subnets, ready := range map[string]bool{"10.244.0.0/24/24": false, "10.244.0.0/16/24": true} {
		t.Run(subnets, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.setNodeID(2)
				env.nad("red", "net", redNet, 1, "10.10.0.0/24/24") // too small in both cases
				parsed, err := network.ParseSubnets(subnets, network.Layer3)
				env.must(err)
				env.edit = func(cfg *config.Config) { cfg.DefaultNetwork.Subnets = parsed }
				env.run()
				env.waitUntil("failures are reported", func() bool { return strings.Contains(env.failuresAnnotation(), "hold no host subnet for node id 2") })
				if got := env.zone.Ready(); got != ready {
					t.Errorf("ready: %t, want %t", got, ready)
				}
			})
		})
	}
}

// A network whose NAD is unusable at the start, or whose transactions fail, keeps
// its rows.
func TestZoneFailedNetworkIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nad("blue", "net", "blue_net", 2, "10.10.0.0/16/24")
		env.run()
		env.waitForRow("red_net_ovn_cluster_router")
		env.waitForRow("blue_net_ovn_cluster_router")
		env.settle()
		env.stop()
		env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) {
			n.Annotations[network.AnnotationNetworkName] = redNet
			n.Spec.Config = "{"
		})
		env.nad("blue", "net", "blue_net", 2, "10.20.0.0/16/24") // its operations fail
		env.failRows("blue_net")
		before := env.nb.Rows().Dump()
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		env.settle()
		if got := env.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
	})
}

// A NAD that becomes unreadable counts for the network that it named before.
func TestZoneUnreadableNADKeepsItsNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		env.waitForRow("red_net_ovn_cluster_router")
		env.settle()
		env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" })
		env.settle()
		if !env.has("red_net_ovn_cluster_router") {
			t.Error("the network was deleted")
		}
		env.deleteNAD("red", "net")
		env.waitUntil("network gone", func() bool { return !env.has("red_net_ovn_cluster_router") })
	})
}

// A network that is deleted before its first try does not block readiness.
func TestZoneNetworkDeletedBeforeFirstTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nb.down.Store(true)
		env.run()
		env.settle()
		if env.zone.ready.Load() {
			t.Error("networks count as tried without a database")
		}
		env.deleteNAD("red", "net")
		env.settle()
		env.nb.down.Store(false)
		env.zone.onConnect()
		env.waitUntil("ready", env.zone.Ready)
	})
}

// gauge returns the value of a gauge.
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
