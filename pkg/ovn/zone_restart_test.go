// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// running sets what kubelet writes of a pod that runs.
func (w *world) running(namespace, name string) {
	ctx, api := context.Background(), w.kube.CoreV1().Pods(namespace)
	pod, err := api.Get(ctx, name, metav1.GetOptions{})
	w.must(err)
	pod.Status.Phase = corev1.PodRunning
	_, err = api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	w.must(err)
}

// editNAD changes a NAD as somebody whom no admission policy stops.
func (w *world) editNAD(namespace, name string, edit func(*nadv1.NetworkAttachmentDefinition)) {
	ctx, api := context.Background(), w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace)
	nad, err := api.Get(ctx, name, metav1.GetOptions{})
	w.must(err)
	edit(nad)
	_, err = api.Update(ctx, nad, metav1.UpdateOptions{})
	w.must(err)
}

// told is the pod's annotation as it stands.
func (w *world) told(namespace, name string) string {
	pod, err := w.kube.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
	w.must(err)
	return pod.Annotations[network.AnnotationPodNetworks]
}

const (
	sharedNet     = "cluster_udn_shared"
	sharedSubnets = "10.10.0.0/16/24"
)

// sharedNAD is the NAD of one network in one more namespace.
func (w *world) sharedNAD(namespace string) {
	w.nad(namespace, "net", sharedNet, 1, sharedSubnets)
	w.editNAD(namespace, "net", func(n *nadv1.NetworkAttachmentDefinition) {
		n.Annotations[network.AnnotationNetworkName] = sharedNet
	})
}

// A running pod keeps its addresses to itself over a restart, whatever became
// of the NAD that its annotation names.
func TestZoneRestartReservesWhatRunningPodsHave(t *testing.T) {
	edit := func(f func(*nadv1.NetworkAttachmentDefinition)) func(*world) {
		return func(w *world) { w.editNAD("red", "net", f) }
	}
	for what, broken := range map[string]func(*world){
		"id is no number":         edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Annotations[network.AnnotationNetworkID] = "x" }),
		"id taken off":            edit(func(n *nadv1.NetworkAttachmentDefinition) { delete(n.Annotations, network.AnnotationNetworkID) }),
		"config is no JSON":       edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" }),
		"config is foreign":       edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = `{"name":"x","type":"macvlan"}` }),
		"names another":           func(w *world) { w.editNAD("red", "net", renamed("blue_other")) },
		"NAD deleted":             func(w *world) { w.deleteNAD("red", "net") },
		"two primaries":           func(w *world) { w.nad("red", "other", "red_other", 2, "10.20.0.0/16/24") },
		"no JSON, no annotations": edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config, n.Annotations = "{", nil }),
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				w.namespace("blue", true)
				w.sharedNAD("red")
				w.sharedNAD("blue")
				w.pod("red", "a", nil)
				w.run()
				w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
				w.running("red", "a")
				w.settled()
				told, has := w.told("red", "a"), w.networks("red", "a")["red/net"].IPs[0]
				w.stop()
				broken(w)
				w.pod("blue", "b", nil)
				w.run()
				w.wait("annotation of the new pod", func() bool { return len(w.networks("blue", "b")) == 2 })
				w.settled()
				if got := w.networks("blue", "b")["blue/net"].IPs[0]; got == has {
					t.Errorf("the new pod got %v, which the running pod has", got)
				}
				if got := w.told("red", "a"); got != told {
					t.Errorf("the running pod's annotation was %s, is %s", told, got)
				}
				if !w.has("red.net_red_a") {
					t.Error("the running pod's port is gone")
				}
				// With the pod its addresses are free again.
				w.deletePod("red", "a")
				w.wait("port gone", func() bool { return !w.has("red.net_red_a") })
				w.zone.mu.Lock()
				defer w.zone.mu.Unlock()
				if _, taken := w.zone.nets[sharedNet].addrs.pools[0].Owner(has.Addr()); taken {
					t.Errorf("%v is kept for a pod that is gone", has)
				}
			})
		})
	}
}

// renamed has a NAD name another network.
func renamed(to string) func(*nadv1.NetworkAttachmentDefinition) {
	return func(n *nadv1.NetworkAttachmentDefinition) {
		c, err := network.ParseNetConf(n.Spec.Config)
		if err != nil {
			panic(err)
		}
		c.Name = to
		n.Spec.Config = c.Render()
	}
}

func (w *world) deleteNAD(namespace, name string) {
	w.must(w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// When one of a running pod's addresses cannot be given back, the others are
// still its own.
func TestZoneRestartReservesBesideWhatCannotBeGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.pod("red", "a", nil)
		w.run()
		w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
		w.running("red", "a")
		w.settled()
		has := w.networks("red", "a")[network.DefaultName].IPs[0]
		w.stop()
		w.nad("red", "net", redNet, 1, "10.20.0.0/16/24") // its addresses are no longer the network's
		w.pod("plain", "p", nil)
		w.run()
		w.wait("annotation of the new pod", func() bool { return len(w.networks("plain", "p")) == 1 })
		if got := w.networks("plain", "p")[network.DefaultName].IPs[0]; got == has {
			t.Errorf("the new pod got %v, which the running pod has", got)
		}
	})
}

// A broken NAD that is mended gives a held address back to its pod.
func TestZoneHeldAddressComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.namespace("blue", true)
		w.sharedNAD("red")
		w.sharedNAD("blue")
		w.pod("red", "a", nil)
		w.run()
		w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
		w.running("red", "a")
		w.settled()
		told := w.told("red", "a")
		w.stop()
		w.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" })
		w.run()
		w.wait("ready", w.zone.Ready)
		w.sharedNAD("red")
		w.settled()
		w.zone.mu.Lock()
		_, port := w.zone.pods["red/a"].ports["red/net"]
		held := len(w.zone.reservations)
		w.zone.mu.Unlock()
		if !port || held != 0 {
			t.Errorf("port %v, %d pods' addresses held", port, held)
		}
		if got := w.told("red", "a"); got != told {
			t.Errorf("annotation was %s, is %s", told, got)
		}
	})
}

// What the cluster role gave a pod on other networks is none of the zone's.
func TestZoneHoldsNothingOfOtherNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nadOf("plain", "l2", 5, network.NetConf{Name: "plain_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		w.pod("plain", "p", map[string]string{network.AnnotationPodNetworks: `{"plain/l2":{"ip_addresses":["10.50.0.3/16"],"mac_address":"0a:58:0a:32:00:03","role":"secondary"}}`})
		for range 2 {
			w.run()
			w.wait("annotation", func() bool { return len(w.networks("plain", "p")) == 2 })
			w.settled()
			w.zone.mu.Lock()
			if len(w.zone.reservations) > 0 {
				t.Errorf("held: %v", w.zone.reservations)
			}
			w.zone.mu.Unlock()
			w.stop()
		}
	})
}
