// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// secondaryNAD creates a NAD of a secondary Layer 3 network.
func (env *zoneEnv) secondaryNAD(namespace, name, netName string, id int, subnets string) {
	env.nadOf(namespace, name, id, network.NetConf{Name: netName, Topology: "layer3", Role: "secondary", Subnets: subnets})
}

// requests returns the annotation of a pod that requests networks.
func requests(value string) map[string]string {
	return map[string]string{network.AnnotationNetworks: value}
}

// A pod gets an address and a port for each Layer 3 network that it requests, also
// twice on one network and on another namespace's hand-written network. They are
// the same after a restart, and free when the pod is deleted.
func TestZoneSecondaryNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.secondaryNAD("red", "storage", "red_storage", 2, "10.20.0.0/16/24,fd20::/48/64")
		env.secondaryNAD("plain", "common", "common", 3, "10.30.0.0/16/24")
		env.nadOf("red", "l2", 4, network.NetConf{Name: "red_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		env.run()
		env.pod("red", "a", requests("storage, plain/common,storage, l2, red/macvlan"))
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 5 })
		env.settle()
		got := env.networks("red", "a")
		for key, want := range map[string]string{
			"default": "10.244.0.3/24 infrastructure-locked", "red/net": "10.10.0.3/24 primary", "red/storage": "10.20.0.3/24,fd20::3/64 secondary",
			"red/storage/1": "10.20.0.4/24,fd20::4/64 secondary", "plain/common": "10.30.0.3/24 secondary",
		} {
			var ips []string
			for _, ip := range got[key].IPs {
				ips = append(ips, ip.String())
			}
			if text := strings.Join(ips, ",") + " " + string(got[key].Role); text != want {
				t.Errorf("entry %s is %q, want %q", key, text, want)
			}
			if gateways := got[key].Gateways; (key == "red/net") != (len(gateways) > 0) {
				t.Errorf("entry %s has gateways %v", key, gateways)
			}
		}
		ports := []string{"red_a", "red.net_red_a", "red.storage_red_a", "red.storage/1_red_a", "plain.common_red_a"}
		for _, port := range ports {
			if r := env.waitForRow(port); r.locked() != (port == "red_a") {
				t.Errorf("port %s locked: %t", port, r.locked())
			}
		}
		if env.has("GR_red_storage_node1") || env.has("k8s-red_storage_node1") || env.has("rtoj-red_storage_ovn_cluster_router") {
			t.Error("a secondary network has a way out")
		}
		annotation, rows := env.annotation("red", "a"), env.nb.Rows().Dump()
		env.setRunning("red", "a")
		env.run()
		env.settle()
		if env.annotation("red", "a") != annotation || env.nb.Rows().Dump() != rows {
			t.Errorf("after a restart: annotation was %s, is %s; rows were\n%s\nare\n%s", annotation, env.annotation("red", "a"), rows, env.nb.Rows().Dump())
		}
		env.deletePod("red", "a")
		env.waitUntil("ports gone", func() bool { return !slices.ContainsFunc(ports, env.has) })
		env.addressesFree(t)
	})
}

// addressesFree checks that no pod has an address.
func (env *zoneEnv) addressesFree(t *testing.T) {
	t.Helper()
	synctest.Wait()
	a := env.zone.addresses
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, n := range a.networks {
		if len(n.assigned) > 0 {
			t.Errorf("addresses of network %s: %v", name, n.assigned)
		}
	}
}

// The NAD that a pod requests may be created after the pod, in any namespace.
func TestZoneSecondaryNetworkAfterPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.run()
		env.pod("plain", "a", requests("red/common"))
		env.waitUntil("default network", func() bool { return len(env.networks("plain", "a")) == 1 })
		env.settle()
		env.secondaryNAD("red", "common", "common", 3, "10.30.0.0/16/24")
		env.waitUntil("annotation", func() bool { return len(env.networks("plain", "a")) == 2 })
		env.waitForRow("red.common_plain_a")
	})
}

// A pod that requests a refused NAD of another namespace gets nothing, until the NAD is another plugin's or is deleted: then
// it gets its other networks.
func TestZoneRefusedNADIsNoLongerOurs(t *testing.T) {
	for what, change := range map[string]func(*zoneEnv){
		"another plugin's": func(env *zoneEnv) {
			env.editNAD("red", "bad", func(n *nadv1.NetworkAttachmentDefinition) {
				n.Spec.Config = `{"cniVersion":"1.0.0","name":"x","type":"macvlan"}`
			})
		},
		"deleted": func(env *zoneEnv) { env.deleteNAD("red", "bad") },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.secondaryNAD("red", "bad", "bad", 5, "10.30.0.0")
				env.run()
				env.pod("plain", "a", requests("red/bad"))
				env.settle()
				if got := env.annotation("plain", "a"); got != "" {
					t.Fatalf("the pod got %s", got)
				}
				change(env)
				env.waitUntil("default network", func() bool { return len(env.networks("plain", "a")) == 1 })
				env.waitForRow("plain_a")
			})
		})
	}
}

// Requests that cannot be granted are refused with an event that names the remedy,
// and the pod gets nothing. A pod that runs keeps what it has.
func TestZoneRefusedSelections(t *testing.T) {
	for value, want := range map[string]string{
		"red/net":     "it is a primary network",
		"red/storage": "it belongs to another namespace's network",
		"bad":         "CIDR",
		"{":           "not a JSON list",
		`[{"name":"common","ips":["10.30.0.9"]}]`:            "remove ips",
		`[{"name":"common","mac":"02:00:00:00:00:09"}]`:      "remove mac",
		`[{"name":"common","ipam-claim-reference":"claim"}]`: "remove ipam-claim-reference",
		`[{"name":"common","default-route":["10.30.0.1"]}]`:  "no way out of the cluster: remove default-route",
		`[{"name":"common","mac":"x"}]`:                      "not an Ethernet address",
	} {
		t.Run(value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
				env.secondaryNAD("red", "storage", "red_storage", 2, "10.20.0.0/16/24")
				env.secondaryNAD("plain", "common", "common", 3, "10.30.0.0/16/24")
				env.secondaryNAD("plain", "bad", "bad", 5, "10.30.0.0")
				env.run()
				env.pod("plain", "ok", requests("common"))
				env.pod("plain", "a", requests(value))
				env.waitUntil("the control", func() bool { return len(env.networks("plain", "ok")) == 2 })
				env.settle()
				if got := env.annotation("plain", "a"); got != "" || env.has("plain_a") {
					t.Errorf("the pod got %s, port %t", got, env.has("plain_a"))
				}
				if e := env.warningEvents(reasonAllocation); len(e) == 0 || !strings.Contains(e[0], want) {
					t.Errorf("events %q, want %q", e, want)
				}
				// Editing a running pod's annotation has no effect, even where a new pod
				// would get the network.
				env.setRunning("plain", "ok")
				before := env.annotation("plain", "ok")
				ctx, pods := context.Background(), env.kube.CoreV1().Pods("plain")
				for _, edit := range []string{value, "common, common"} {
					ok, err := pods.Get(ctx, "ok", metav1.GetOptions{})
					env.must(err)
					ok.Annotations[network.AnnotationNetworks] = edit
					_, err = pods.Update(ctx, ok, metav1.UpdateOptions{})
					env.must(err)
					env.settle()
					if got := env.annotation("plain", "ok"); got != before || !env.has("plain.common_plain_ok") || env.has("plain.common/1_plain_ok") {
						t.Errorf("with %s, the running pod's annotation was %s, is %s", edit, before, got)
					}
				}
			})
		})
	}
}

// A secondary network's addresses on a node are limited: a pod that finds none
// waits, and gets one when another pod is deleted.
func TestZoneSecondaryNetworkFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.secondaryNAD("plain", "small", "small", 3, "10.30.0.0/24/29")
		env.run()
		for i := range 5 {
			env.pod("plain", fmt.Sprint("p", i), requests("small"))
			env.settle()
		}
		if env.annotation("plain", "p4") != "" {
			t.Fatal("a fifth pod has an address")
		}
		env.deletePod("plain", "p0")
		env.waitUntil("annotation", func() bool { return len(env.networks("plain", "p4")) == 2 })
	})
}
