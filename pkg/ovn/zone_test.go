// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// The fake NAD client does not support streaming lists: they never end.
func TestMain(m *testing.M) {
	if dir := os.Getenv(zoneProcessEnv); dir != "" {
		fmt.Fprintln(os.Stderr, "the zone has ended:", runZoneProcess(dir))
		os.Exit(1)
	}
	_ = os.Setenv("KUBE_FEATURE_WatchListClient", "false")
	os.Exit(m.Run())
}

const redNet = "red_net"

func TestZonePodLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, false) // without annotations
		env.pod("red", "a", nil)
		env.pod("plain", "p", nil)
		env.run()
		time.Sleep(100 * time.Millisecond)
		if n := len(env.nb.Rows()); n != 0 {
			t.Fatalf("%d rows before the node has an id", n)
		}
		env.node(1, true)
		env.waitForRow("plain_p")
		env.waitForWarning("no primary network yet")
		if env.has("red_a") || len(env.networks("red", "a")) != 0 {
			t.Fatal("a pod without a primary network has a port or addresses")
		}
		env.waitUntil("ready", env.zone.Ready)

		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		udn, cdn := env.waitForRow("red.net_red_a"), env.waitForRow("red_a")
		if !cdn.locked() {
			t.Errorf("default-network port is not locked: %v", cdn.In)
		}
		if udn.locked() {
			t.Errorf("the primary network's port is locked: %v", udn.In)
		}
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
		got := env.networks("red", "a")
		if got["default"].Role != network.RoleInfrastructureLocked || got["red/net"].Role != network.RolePrimary {
			t.Errorf("roles: %+v", got)
		}
		if want := netip.MustParsePrefix("10.10.0.3/24"); got["red/net"].IPs[0] != want {
			t.Errorf("address %v, want %v", got["red/net"].IPs, want)
		}
		lsp := udn.Model.(*nbdb.LogicalSwitchPort)
		if want := "0a:58:0a:0a:00:03 10.10.0.3"; lsp.Addresses[0] != want || lsp.PortSecurity[0] != want {
			t.Errorf("port %v", lsp)
		}

		env.deletePod("red", "a")
		env.waitUntil("ports deleted", func() bool { return !env.has("red.net_red_a") && !env.has("red_a") })
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "net", metav1.DeleteOptions{}))
		env.waitUntil("network deleted", func() bool { return !env.has("red_net_ovn_cluster_router") })
		for _, r := range env.nb.Rows() {
			if strings.Contains(r.ID, redNet) {
				t.Errorf("left behind: %s", r)
			}
		}
	})
}

func TestZoneRestartChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.node(2, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nb.Add(Row{Table: nbdb.LogicalSwitchTable, ID: "theirs", Model: &nbdb.LogicalSwitch{Name: "theirs"}})
		for i := range 5 {
			env.pod("red", fmt.Sprintf("p%d", i), nil)
		}
		env.run()
		for i := range 5 {
			env.waitUntil("annotations", func() bool { return len(env.networks("red", fmt.Sprintf("p%d", i))) == 2 })
		}
		env.settle()
		before, chassis := env.nb.Rows().Dump(), len(env.sb.have)
		if chassis != 1 {
			t.Errorf("%d remote chassis", chassis)
		}
		env.stop()
		env.pod("red", "new", nil) // must not get the address of an existing pod
		env.kube.ClearActions()
		env.run()
		env.waitUntil("new pod", func() bool { return len(env.networks("red", "new")) == 2 })
		env.settle()
		if got := env.networks("red", "new")["red/net"].IPs[0]; got != netip.MustParsePrefix("10.10.0.8/24") {
			t.Errorf("new pod got %v", got)
		}
		env.deletePod("red", "new")
		env.settle()
		if got := env.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
		patches := 0
		for _, a := range env.kube.Actions() {
			if a.GetVerb() == "patch" {
				patches++
			}
		}
		if patches != 1 {
			t.Errorf("%d patches after a restart, want the new pod's", patches)
		}
		batches := env.nb.Batches
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		env.settle()
		if env.nb.Batches != batches {
			t.Errorf("%d transactions after a restart with nothing changed", env.nb.Batches-batches)
		}
	})
}

func TestZoneDatabaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.node(2, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.pod("red", "a", nil)
		env.run()
		env.waitForRow("red.net_red_a")
		env.settle()
		before := env.nb.Rows().Dump()
		env.nb.down.Store(true)
		env.nb.mu.Lock()
		env.nb.rows = nil
		env.nb.mu.Unlock()
		if env.zone.Ready() {
			t.Error("ready without a database")
		}
		env.nb.down.Store(false)
		env.zone.onConnect()
		env.settle()
		if got := env.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
	})
}

// Deleting a NAD does not affect running pods.
func TestZoneNetworkOutlivesItsNAD(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
				env.pod("red", "a", nil)
				env.run()
				env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
				env.settle()
				before, networks := env.nb.Rows().Dump(), env.networks("red", "a")
				if restart {
					env.stop()
				}
				env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "net", metav1.DeleteOptions{}))
				if restart {
					env.run()
					env.waitUntil("ready", env.zone.Ready)
				}
				env.settle()
				if got := env.nb.Rows().Dump(); got != before {
					t.Errorf("rows were\n%s\nare\n%s", before, got)
				}
				if got := env.networks("red", "a"); len(got) != len(networks) {
					t.Errorf("annotation was %v, is %v", networks, got)
				}
				env.deletePod("red", "a")
				env.waitUntil("network deleted with its last pod", func() bool { return !env.has("red_net_ovn_cluster_router") })
			})
		})
	}
}

// TestZoneDeletingNAD: new pods do not get a network that is being deleted. Once its finalizers are removed the
// NAD counts as deleted, although another's finalizer keeps it: it keeps no other namespace's NAD from changing.
func TestZoneDeletingNAD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "cluster_udn_blue"
		env := newZoneEnv(t)
		env.node(1, true)
		for _, namespace := range []string{"evil", "good"} {
			env.namespace(namespace, true)
			env.nad(namespace, "blue", name, 1, "10.10.0.0/16/24")
			env.pod(namespace, "old", nil)
		}
		env.run()
		edit := func(namespace string, edit func(*nadv1.NetworkAttachmentDefinition)) {
			t.Helper()
			api := env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace)
			n, err := api.Get(t.Context(), "blue", metav1.GetOptions{})
			env.must(err)
			edit(n)
			_, err = api.Update(t.Context(), n, metav1.UpdateOptions{})
			env.must(err)
		}
		connected := func(namespace, pod string) func() bool {
			return func() bool { return len(env.networks(namespace, pod)) == 2 }
		}
		env.waitUntil("old pods", func() bool { return connected("evil", "old")() && connected("good", "old")() })
		edit("evil", func(n *nadv1.NetworkAttachmentDefinition) {
			n.DeletionTimestamp, n.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/mine", network.FinalizerNAD, network.FinalizerUDN}
		})
		env.settle()
		env.pod("evil", "new", nil)
		env.settle()
		if got := env.networks("evil", "new"); len(got) != 0 {
			t.Errorf("a new pod gets a network that is being deleted: %v", got)
		}
		if !connected("evil", "old")() {
			t.Error("a pod of the network has lost it")
		}
		env.deletePod("evil", "old")
		edit("evil", func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = n.Finalizers[:1] })
		env.settle()
		env.nad("good", "blue", name, 1, "10.10.0.0/16/24,10.11.0.0/16/24")
		env.pod("good", "new", nil)
		env.waitUntil("a pod of the namespace whose NAD has changed", connected("good", "new"))
		if got := env.networks("evil", "new"); len(got) != 0 {
			t.Errorf("a pod gets a network of which its namespace has no NAD: %v", got)
		}
	})
}

func TestZoneBrokenNetworksBlockNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("bad", true)
		env.namespace("small", true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nad("bad", "net", "bad_net", 2, "10.96.0.0/16/24")     // overlaps services
		env.nad("small", "net", "small_net", 3, "10.11.0.0/30/30") // .1, .2 and no more
		env.pod("bad", "a", nil)
		env.pod("small", "a", nil)
		env.pod("red", "a", nil)
		env.run()
		env.waitForRow("red.net_red_a")
		env.waitUntil("ready", env.zone.Ready)
		if env.has("bad_net_ovn_cluster_router") || env.has("bad_a") || env.has("small_a") {
			t.Error("built a network or port that cannot be built")
		}
		reasons := map[string]bool{}
		env.waitUntil("both warnings", func() bool {
			select {
			case e := <-env.events.Events:
				reasons["overlap"] = reasons["overlap"] || strings.Contains(e, "overlaps the cluster's service-cidrs")
				reasons["full"] = reasons["full"] || strings.Contains(e, "small_net")
			default:
			}
			return reasons["overlap"] && reasons["full"]
		})
	})
}

func TestZonePeersAddedAndDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		env.node(2, true)
		env.waitForRow("red_net_tstor-node2")
		env.waitForRow("tstor-node2")
		env.must(env.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
		env.waitUntil("peer deleted", func() bool {
			return !slices.ContainsFunc(env.nb.Rows(), func(r Row) bool { return strings.Contains(externalIDs(r.Model)[markUnit], "/"+string(KindPeer)+"/") })
		})
		env.waitUntil("chassis deleted", func() bool { c, _ := env.sb.ReadChassis(context.Background()); return len(c) == 0 })
	})
}

func TestZoneReusesReleasedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/29") // .3 to .6
		env.run()
		for i := range 4 {
			env.pod("red", fmt.Sprintf("p%d", i), nil)
		}
		for i := range 4 {
			env.waitForRow(fmt.Sprintf("red.net_red_p%d", i))
		}
		env.pod("red", "p4", nil)
		env.waitUntil("warning", func() bool {
			select {
			case e := <-env.events.Events:
				return strings.Contains(e, "10.10.0.0/29")
			default:
				return false
			}
		})
		// The completed pod's address is allocated to the waiting pod.
		pod, err := env.kube.CoreV1().Pods("red").Get(context.Background(), "p1", metav1.GetOptions{})
		env.must(err)
		pod.Status.Phase = corev1.PodSucceeded
		_, err = env.kube.CoreV1().Pods("red").UpdateStatus(context.Background(), pod, metav1.UpdateOptions{})
		env.must(err)
		env.waitForRow("red.net_red_p4")
		env.waitUntil("completed pod's port deleted", func() bool { return !env.has("red.net_red_p1") })
	})
}

// A pod of a namespace with two primary networks has none, until one of their NADs is deleted: then at once.
func TestZoneSecondPrimaryDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nad("red", "other", "red_other", 2, "10.20.0.0/16/24")
		env.run()
		env.pod("red", "p", nil)
		time.Sleep(10 * time.Minute) // the retries of the pod are rare by now
		if got := env.networks("red", "p"); got["red/net"].MAC != "" || got["red/other"].MAC != "" {
			t.Fatalf("with two primary networks: %v", got)
		}
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "other", metav1.DeleteOptions{}))
		time.Sleep(time.Second)
		if got := env.networks("red", "p"); got["red/net"].MAC == "" {
			t.Errorf("a second after one of them is deleted: %v", got)
		}
	})
}
