// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// label gives a namespace the label of primary networks, or takes it off, as
// somebody whom no admission policy stops.
func (w *world) label(namespace string, labelled bool) {
	ctx, api := context.Background(), w.kube.CoreV1().Namespaces()
	ns, err := api.Get(ctx, namespace, metav1.GetOptions{})
	w.must(err)
	ns.Labels = nil
	if labelled {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	_, err = api.Update(ctx, ns, metav1.UpdateOptions{})
	w.must(err)
}

// locked tells whether the pod's port on the cluster default network is closed.
func (w *world) locked(namespace, name string) bool {
	r := w.waitFor(network.PodLSP(network.DefaultName, namespace, name))
	return slices.ContainsFunc(r.In, isWeak)
}

// A namespace that gets its label late: its running pods stay as they are, also
// over a restart, and no other pod gets a network until they are gone.
func TestZoneLateLabel(t *testing.T) {
	for what, late := range map[string]func(w *world, label, nad func()){
		"label then network":      func(_ *world, label, nad func()) { label(); nad() },
		"network then label":      func(_ *world, label, nad func()) { nad(); label() },
		"while the zone is away":  func(w *world, label, nad func()) { w.stop(); label(); nad(); w.run() },
		"network while it is":     func(w *world, label, nad func()) { label(); w.settled(); w.stop(); nad(); w.run() },
		"and its pods have no IP": nil,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				w.namespace("late", false)
				w.pod("late", "old", nil)
				w.run()
				w.wait("annotation", func() bool { return len(w.networks("late", "old")) == 1 })
				if late != nil {
					w.running("late", "old")
				} else {
					late = func(w *world, label, nad func()) { w.stop(); label(); nad(); w.run() }
				}
				w.settled()
				told, row := w.told("late", "old"), w.nb.Rows().only("late_old")
				asBefore := func(when string) {
					t.Helper()
					if got := w.told("late", "old"); got != told {
						t.Errorf("%s: the running pod's annotation was %s, is %s", when, told, got)
					}
					if got := w.nb.Rows().only("late_old"); got != row {
						t.Errorf("%s: the running pod's ports were\n%s\nare\n%s", when, row, got)
					}
					if len(w.networks("late", "new")) > 0 || w.has("late_new") || w.has("late.net_late_new") {
						t.Errorf("%s: the new pod has a network", when)
					}
				}
				late(w, func() { w.label("late", true) }, func() { w.nad("late", "net", "late_net", 1, "10.10.0.0/16/24") })
				w.settled()
				w.warnings("")
				w.pod("late", "new", nil)
				w.settled()
				asBefore("with a late label")
				if e := w.warnings(reasonAllocation); len(e) == 0 || !strings.Contains(e[0], "(old): delete them, or recreate the namespace with the label") {
					t.Errorf("events %q", e)
				}
				w.stop()
				w.run()
				w.settled()
				asBefore("after a restart")

				w.deletePod("late", "old")
				w.wait("annotation of the new pod", func() bool { return len(w.networks("late", "new")) == 2 })
				if !w.locked("late", "new") {
					t.Error("the new pod's default-network port is not locked")
				}
			})
		})
	}
}

// only are the rows with that in their names.
func (s State) only(id string) string {
	return slices.DeleteFunc(s, func(r Row) bool { return !strings.Contains(r.ID, id) }).Dump()
}

// Pods that wait for their namespace's network, without any so far, get both
// when it comes, whatever happens to the zone meanwhile.
func TestZonePodsThatWaitAreNotOlder(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.node(1, true)
			w.run()
			w.pod("red", "a", nil)
			w.pod("red", "b", nil)
			w.settled()
			if restart {
				w.stop()
				w.run()
			}
			w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			for _, name := range []string{"a", "b"} {
				w.wait("annotation", func() bool { return len(w.networks("red", name)) == 2 })
				if !w.locked("red", name) {
					t.Errorf("restart=%v: %s is not locked", restart, name)
				}
			}
		})
	}
}

// A pod that runs in a labelled namespace without an annotation of ours was
// connected by somebody else: it stays as it is, and nobody gets its address.
func TestZonePodConnectedByOthersIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.pod("red", "theirs", nil)
		ctx, api := context.Background(), w.kube.CoreV1().Pods("red")
		pod, err := api.Get(ctx, "theirs", metav1.GetOptions{})
		w.must(err)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.3"}}}
		_, err = api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		w.must(err)
		w.pod("red", "new", nil)
		w.pod("plain", "p", nil)
		w.run()
		w.waitFor("plain_p")
		w.settled()
		if got := w.networks("plain", "p")[network.DefaultName].IPs[0].Addr().String(); got == "10.244.0.3" {
			t.Errorf("a new pod got %s, which another has", got)
		}
		for _, name := range []string{"theirs", "new"} {
			if w.told("red", name) != "" || w.has("red_"+name) {
				t.Errorf("%s: annotation %q, port %v", name, w.told("red", name), w.has("red_"+name))
			}
		}
		w.deletePod("red", "theirs")
		w.wait("annotation of the new pod", func() bool { return len(w.networks("red", "new")) == 2 })
	})
}

// What an annotation came to say while the zone was away opens nothing.
func TestZoneAnnotationOpensNoPort(t *testing.T) {
	const alone = `{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","role":"primary"}}`
	t.Run("of a new pod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.node(1, true)
			w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			w.pod("red", "evil", map[string]string{network.AnnotationPodNetworks: alone})
			w.run()
			w.wait("ready", w.zone.Ready)
			w.settled()
			if w.has("red_evil") {
				t.Error("it has a port")
			}
		})
	})
	t.Run("of a running pod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.node(1, true)
			w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
			w.pod("red", "a", nil)
			w.run()
			w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
			w.running("red", "a")
			w.settled()
			w.stop()
			ctx, api := context.Background(), w.kube.CoreV1().Pods("red")
			pod, err := api.Get(ctx, "a", metav1.GetOptions{})
			w.must(err)
			pod.Annotations[network.AnnotationPodNetworks] = alone
			_, err = api.Update(ctx, pod, metav1.UpdateOptions{})
			w.must(err)
			w.run()
			w.wait("ready", w.zone.Ready)
			w.settled()
			if !w.locked("red", "a") {
				t.Error("its default-network port is open")
			}
		})
	})
}

// A label that is taken off, which cannot be, changes nothing for running pods.
func TestZoneLabelTakenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.pod("red", "a", nil)
		w.run()
		w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
		w.running("red", "a")
		w.settled()
		rows, told := w.nb.Rows().Dump(), w.told("red", "a")
		for _, restart := range []bool{false, true} {
			w.label("red", false)
			if restart {
				w.stop()
				w.run()
			}
			w.settled()
			if got := w.nb.Rows().Dump(); got != rows {
				t.Errorf("restart=%v: rows were\n%s\nare\n%s", restart, rows, got)
			}
			if got := w.told("red", "a"); got != told {
				t.Errorf("restart=%v: annotation was %s, is %s", restart, told, got)
			}
		}
	})
}

// Whoever deletes the group that closes tenants' ports: it comes back with them
// in it.
func TestZoneLockComesBackWithItsPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.pod("red", "a", nil)
		w.run()
		w.waitFor("red_a")
		w.settled()
		before := w.nb.Rows().Dump()
		group, _ := w.row(LockedPortGroup)
		w.must(w.nb.Apply(context.Background(), []Op{{Verb: Delete, Row: group}}))
		w.zone.onRowDeleted(network.DefaultName, PartTopology)
		w.settled()
		if got := w.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
	})
}
