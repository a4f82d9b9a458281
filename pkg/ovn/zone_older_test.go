// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// setLabel sets or removes a namespace's primary network label, bypassing the
// admission policy.
func (env *zoneEnv) setLabel(namespace string, labelled bool) {
	ctx, api := context.Background(), env.kube.CoreV1().Namespaces()
	ns, err := api.Get(ctx, namespace, metav1.GetOptions{})
	env.must(err)
	ns.Labels = nil
	if labelled {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	_, err = api.Update(ctx, ns, metav1.UpdateOptions{})
	env.must(err)
}

// portLocked reports whether the pod's port on the cluster default network is
// locked.
func (env *zoneEnv) portLocked(namespace, name string) bool {
	r := env.waitForRow(network.PodLSP(network.DefaultName, namespace, name))
	return r.locked()
}

// setUp sets a port up, as OVN does when it is bound to an interface.
func (env *zoneEnv) setUp(id string) {
	env.waitForRow(id)
	env.nb.mu.Lock()
	defer env.nb.mu.Unlock()
	for _, r := range env.nb.rows {
		if p, ok := r.Model.(*nbdb.LogicalSwitchPort); ok && r.ID == id {
			p.Up = ptr(true)
		}
	}
}

// holdNamespaces keeps the events of namespaces from the zone until release is called.
func (env *zoneEnv) holdNamespaces() (hold, release func()) {
	var mu sync.Mutex
	open := make(chan struct{})
	close(open)
	env.kube.PrependWatchReactor("namespaces", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := env.kube.Tracker().Watch(corev1.SchemeGroupVersion.WithResource("namespaces"), "")
		if err != nil {
			return true, nil, err
		}
		return true, newFilteredWatch(w, func(runtime.Object) bool {
			mu.Lock()
			gate := open
			mu.Unlock()
			<-gate
			return true
		}), nil
	})
	hold = func() { mu.Lock(); defer mu.Unlock(); open = make(chan struct{}) }
	release = func() { mu.Lock(); defer mu.Unlock(); close(open) }
	return hold, release
}

// A namespace is recreated with the label, and the zone sees its first pod before the label. The pod was not
// connected: it gets both networks once the label is known, and blocks no other pod.
func TestZoneLabelKnownAfterPods(t *testing.T) {
	for _, topology := range []string{"layer2", "layer3"} {
		for _, restart := range []bool{false, true} {
			for _, late := range []bool{false, true} { // the network comes after the label is known
				t.Run(fmt.Sprintf("%s, restart=%v, late=%v", topology, restart, late), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						env := newZoneEnv(t)
						env.node(1, true)
						env.namespace("shop", false)
						hold, release := env.holdNamespaces()
						env.run()
						env.waitUntil("ready", env.zone.Ready)
						env.settle()

						hold()
						env.must(env.kube.CoreV1().Namespaces().Delete(context.Background(), "shop", metav1.DeleteOptions{}))
						env.namespace("shop", true)
						nad := func() {
							c := network.NetConf{Name: "shop_net", Topology: topology, Role: "primary", Subnets: "10.10.0.0/16/24"}
							if topology == "layer2" {
								c.Subnets = "10.10.0.0/16"
							}
							env.nadOf("shop", "net", 1, c)
						}
						entries := func(pod, ip, mac string) {
							if topology == "layer2" { // the cluster controller's
								env.setNetworks("shop", pod, func(n network.PodNetworks) { n["shop/net"] = entry(t, layer2Entry(ip, mac, 11)) })
							}
						}
						if !late {
							nad()
						}
						env.pod("shop", "a", nil)
						env.waitUntil("annotation", func() bool { return len(env.networks("shop", "a")) == 1 })
						if env.portLocked("shop", "a") {
							t.Fatal("the zone knows the label: the test shows nothing")
						}
						if !late {
							entries("a", "10.10.0.3", "0a:58:0a:0a:00:03")
						}
						env.settle()
						if restart {
							env.stop()
						}
						release()
						if restart {
							env.run()
						}
						if late {
							env.settle()
							if !restart && !env.portLocked("shop", "a") {
								t.Error("with the label known, the port on the cluster default network is not locked")
							}
							nad()
							entries("a", "10.10.0.3", "0a:58:0a:0a:00:03")
						}
						env.waitUntil("locked port", func() bool { return env.portLocked("shop", "a") })
						env.waitForRow("shop.net_shop_a")
						env.waitUntil("both networks", func() bool {
							n := env.networks("shop", "a")
							return len(n) == 2 && n[network.DefaultName].Role == network.RoleInfrastructureLocked
						})
						env.pod("shop", "b", nil)
						env.waitUntil("annotation of another pod", func() bool { return len(env.networks("shop", "b")) > 0 })
						entries("b", "10.10.0.4", "0a:58:0a:0a:00:04")
						env.waitForRow("shop.net_shop_b")
						if !env.portLocked("shop", "b") {
							t.Error("the other pod's port is not locked")
						}
						if a, b := env.networks("shop", "a")[network.DefaultName].IPs, env.networks("shop", "b")[network.DefaultName].IPs; a[0] == b[0] {
							t.Errorf("both pods have %v", a)
						}
						env.settle()
						rows, annotation := env.nb.Rows().filter("shop"), env.annotation("shop", "a")
						env.run()
						env.settle()
						if got := env.nb.Rows().filter("shop"); got != rows || env.annotation("shop", "a") != annotation {
							t.Errorf("after a restart: rows were\n%s\nare\n%s\nannotation was %s, is %s", rows, got, annotation, env.annotation("shop", "a"))
						}
						env.deletePod("shop", "a")
						env.waitUntil("ports gone", func() bool { return !env.has("shop_a") && !env.has("shop.net_shop_a") })
					})
				})
			}
		}
	}
}

// A namespace gets its label after its first pods. The running pods stay as they
// are, also after a restart, and no other pod gets a network until they are gone.
func TestZoneLabelAfterPods(t *testing.T) {
	for name, setup := range map[string]func(env *zoneEnv, label, nad func()){
		"label then network":             func(_ *zoneEnv, label, nad func()) { label(); nad() },
		"network then label":             func(_ *zoneEnv, label, nad func()) { nad(); label() },
		"both while the zone is stopped": func(env *zoneEnv, label, nad func()) { env.stop(); label(); nad(); env.run() },
		"network while it is stopped":    func(env *zoneEnv, label, nad func()) { label(); env.settle(); env.stop(); nad(); env.run() },
		"pods without IP":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.namespace("green", false)
				env.pod("green", "old", nil)
				env.run()
				env.waitUntil("annotation", func() bool { return len(env.networks("green", "old")) == 1 })
				if setup != nil {
					env.setRunning("green", "old")
				} else {
					env.setUp("green_old") // connected, and kubelet has not reported it yet
					setup = func(env *zoneEnv, label, nad func()) { env.stop(); label(); nad(); env.run() }
				}
				env.settle()
				annotation, row := env.annotation("green", "old"), env.nb.Rows().filter("green_old")
				checkUnchanged := func(when string) {
					t.Helper()
					if got := env.annotation("green", "old"); got != annotation {
						t.Errorf("%s: the running pod's annotation was %s, is %s", when, annotation, got)
					}
					if got := env.nb.Rows().filter("green_old"); got != row {
						t.Errorf("%s: the running pod's ports were\n%s\nare\n%s", when, row, got)
					}
					if len(env.networks("green", "new")) > 0 || env.has("green_new") || env.has("green.net_green_new") {
						t.Errorf("%s: the new pod has a network", when)
					}
				}
				setup(env, func() { env.setLabel("green", true) }, func() { env.nad("green", "net", "green_net", 1, "10.10.0.0/16/24") })
				env.settle()
				env.warningEvents("")
				env.pod("green", "new", nil)
				env.settle()
				checkUnchanged("with the label")
				if e := env.warningEvents(reasonAllocation); len(e) == 0 || !strings.Contains(e[0], "(old): delete them, or recreate the namespace with the label") {
					t.Errorf("events %q", e)
				}
				env.stop()
				env.run()
				env.settle()
				checkUnchanged("after a restart")

				env.deletePod("green", "old")
				env.waitUntil("annotation of the new pod", func() bool { return len(env.networks("green", "new")) == 2 })
				if !env.portLocked("green", "new") {
					t.Error("the new pod's default-network port is not locked")
				}
			})
		})
	}
}

// filter returns the text of the rows with id in their ids.
func (s State) filter(id string) string {
	return slices.DeleteFunc(s, func(r Row) bool { return !strings.Contains(r.ID, id) }).Dump()
}

// Pods that wait for their namespace's network get both networks once it is
// created, also if the zone restarts meanwhile.
func TestZoneWaitingPodsGetBothNetworks(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env := newZoneEnv(t)
			env.node(1, true)
			env.run()
			env.pod("red", "a", nil)
			env.pod("red", "b", nil)
			env.settle()
			if restart {
				env.stop()
				env.run()
			}
			env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			for _, name := range []string{"a", "b"} {
				env.waitUntil("annotation", func() bool { return len(env.networks("red", name)) == 2 })
				if !env.portLocked("red", name) {
					t.Errorf("restart=%v: %s is not locked", restart, name)
				}
			}
		})
	}
}

// A pod that runs in a labelled namespace without our annotation was connected by
// another CNI: it stays as it is, and no other pod gets its address.
func TestZonePodOfAnotherCNIIsUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.pod("red", "theirs", nil)
		ctx, api := context.Background(), env.kube.CoreV1().Pods("red")
		pod, err := api.Get(ctx, "theirs", metav1.GetOptions{})
		env.must(err)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.3"}}}
		_, err = api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		env.must(err)
		env.pod("red", "new", nil)
		env.pod("plain", "p", nil)
		env.run()
		env.waitForRow("plain_p")
		env.settle()
		if got := env.networks("plain", "p")[network.DefaultName].IPs[0].Addr().String(); got == "10.244.0.3" {
			t.Errorf("a new pod got %s, which another pod has", got)
		}
		for _, name := range []string{"theirs", "new"} {
			if env.annotation("red", name) != "" || env.has("red_"+name) {
				t.Errorf("%s: annotation %q, port %v", name, env.annotation("red", name), env.has("red_"+name))
			}
		}
		env.deletePod("red", "theirs")
		env.waitUntil("annotation of the new pod", func() bool { return len(env.networks("red", "new")) == 2 })
	})
}

// An annotation written while the zone was stopped unlocks no port.
func TestZoneAnnotationUnlocksNoPort(t *testing.T) {
	const defaultOnly = `{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","role":"primary"}}`
	t.Run("of a new pod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := newZoneEnv(t)
			env.node(1, true)
			env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			env.pod("red", "evil", map[string]string{network.AnnotationPodNetworks: defaultOnly})
			env.run()
			env.waitUntil("annotation", func() bool { return len(env.networks("red", "evil")) == 2 })
			if !env.portLocked("red", "evil") {
				t.Error("the default-network port is unlocked")
			}
		})
	})
	t.Run("of a running pod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := newZoneEnv(t)
			env.node(1, true)
			env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			env.pod("red", "a", nil)
			env.run()
			env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
			env.setRunning("red", "a")
			env.settle()
			env.stop()
			ctx, api := context.Background(), env.kube.CoreV1().Pods("red")
			pod, err := api.Get(ctx, "a", metav1.GetOptions{})
			env.must(err)
			pod.Annotations[network.AnnotationPodNetworks] = defaultOnly
			_, err = api.Update(ctx, pod, metav1.UpdateOptions{})
			env.must(err)
			env.run()
			env.waitUntil("ready", env.zone.Ready)
			env.settle()
			if !env.portLocked("red", "a") {
				t.Error("the default-network port is unlocked")
			}
		})
	})
}

// Removing the label, which admission forbids, does not affect running pods.
func TestZoneLabelRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.pod("red", "a", nil)
		env.run()
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
		env.setRunning("red", "a")
		env.settle()
		rows, annotation := env.nb.Rows().Dump(), env.annotation("red", "a")
		for _, restart := range []bool{false, true} {
			env.setLabel("red", false)
			if restart {
				env.stop()
				env.run()
			}
			env.settle()
			if got := env.nb.Rows().Dump(); got != rows {
				t.Errorf("restart=%v: rows were\n%s\nare\n%s", restart, rows, got)
			}
			if got := env.annotation("red", "a"); got != annotation {
				t.Errorf("restart=%v: annotation was %s, is %s", restart, annotation, got)
			}
		}
	})
}

// If the port group of locked ports is deleted, the zone recreates it with its
// ports.
func TestZoneRecreatesLockedPortGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.pod("red", "a", nil)
		env.run()
		env.waitForRow("red_a")
		env.settle()
		before := env.nb.Rows().Dump()
		group, _ := env.row(LockedPortGroup)
		env.must(env.nb.Apply(context.Background(), []Op{{Verb: Delete, Row: group}}))
		env.zone.onRowChanged(network.DefaultName, topologyUnit, true)
		env.settle()
		if got := env.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
	})
}
