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

// setRunning sets a pod's phase to Running, as kubelet does.
func (env *zoneEnv) setRunning(namespace, name string) {
	ctx, api := context.Background(), env.kube.CoreV1().Pods(namespace)
	pod, err := api.Get(ctx, name, metav1.GetOptions{})
	env.must(err)
	pod.Status.Phase = corev1.PodRunning
	_, err = api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	env.must(err)
}

// editNAD changes a NAD, bypassing the admission policy.
func (env *zoneEnv) editNAD(namespace, name string, edit func(*nadv1.NetworkAttachmentDefinition)) {
	ctx, api := context.Background(), env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace)
	nad, err := api.Get(ctx, name, metav1.GetOptions{})
	env.must(err)
	edit(nad)
	_, err = api.Update(ctx, nad, metav1.UpdateOptions{})
	env.must(err)
}

// annotation returns the pod's pod-networks annotation.
func (env *zoneEnv) annotation(namespace, name string) string {
	pod, err := env.kube.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
	env.must(err)
	return pod.Annotations[network.AnnotationPodNetworks]
}

const (
	sharedNet     = "cluster_udn_shared"
	sharedSubnets = "10.10.0.0/16/24"
)

// sharedNAD creates or resets a namespace's NAD of the shared network.
func (env *zoneEnv) sharedNAD(namespace string) {
	env.nad(namespace, "net", sharedNet, 1, sharedSubnets)
	env.editNAD(namespace, "net", func(n *nadv1.NetworkAttachmentDefinition) {
		n.Annotations[network.AnnotationNetworkName] = sharedNet
	})
}

// After a restart a running pod's addresses stay reserved, even if the NAD that its
// annotation names is broken or deleted.
func TestZoneRestartReservesAddresses(t *testing.T) {
	edit := func(f func(*nadv1.NetworkAttachmentDefinition)) func(*zoneEnv) {
		return func(env *zoneEnv) { env.editNAD("red", "net", f) }
	}
	for name, breakNAD := range map[string]func(*zoneEnv){
		"id is not a number":         edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Annotations[network.AnnotationNetworkID] = "x" }),
		"id deleted":                 edit(func(n *nadv1.NetworkAttachmentDefinition) { delete(n.Annotations, network.AnnotationNetworkID) }),
		"config is not JSON":         edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" }),
		"config is foreign":          edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = `{"name":"x","type":"macvlan"}` }),
		"names another network":      func(env *zoneEnv) { env.editNAD("red", "net", renamed("blue_other")) },
		"NAD deleted":                func(env *zoneEnv) { env.deleteNAD("red", "net") },
		"two primary networks":       func(env *zoneEnv) { env.nad("red", "other", "red_other", 2, "10.20.0.0/16/24") },
		"no JSON and no annotations": edit(func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config, n.Annotations = "{", nil }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.namespace("blue", true)
				env.sharedNAD("red")
				env.sharedNAD("blue")
				env.pod("red", "a", nil)
				env.run()
				env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
				env.setRunning("red", "a")
				env.settle()
				annotation, ip := env.annotation("red", "a"), env.networks("red", "a")["red/net"].IPs[0]
				env.stop()
				breakNAD(env)
				env.pod("blue", "b", nil)
				env.run()
				env.waitUntil("annotation of the new pod", func() bool { return len(env.networks("blue", "b")) == 2 })
				env.settle()
				if got := env.networks("blue", "b")["blue/net"].IPs[0]; got == ip {
					t.Errorf("the new pod got %v, which the running pod has", got)
				}
				if got := env.annotation("red", "a"); got != annotation {
					t.Errorf("the running pod's annotation was %s, is %s", annotation, got)
				}
				if !env.has("red.net_red_a") {
					t.Error("the running pod's port is gone")
				}
				// Deleting the pod releases its addresses.
				env.deletePod("red", "a")
				env.waitUntil("port gone", func() bool { return !env.has("red.net_red_a") })
				env.zone.addresses.mu.Lock()
				defer env.zone.addresses.mu.Unlock()
				if _, taken := env.zone.addresses.networks[sharedNet].pools[0].Owner(ip.Addr()); taken {
					t.Errorf("%v is still reserved for a deleted pod", ip)
				}
			})
		})
	}
}

// renamed returns an edit that changes the network name in a NAD.
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

func (env *zoneEnv) deleteNAD(namespace, name string) {
	env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// If one of a running pod's addresses cannot be restored, the others stay reserved.
func TestZoneRestartReservesOtherAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.pod("red", "a", nil)
		env.run()
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
		env.setRunning("red", "a")
		env.settle()
		ip := env.networks("red", "a")[network.DefaultName].IPs[0]
		env.stop()
		env.nad("red", "net", redNet, 1, "10.20.0.0/16/24") // the pod's address is outside the new subnet
		env.pod("plain", "p", nil)
		env.run()
		env.waitUntil("annotation of the new pod", func() bool { return len(env.networks("plain", "p")) == 1 })
		if got := env.networks("plain", "p")[network.DefaultName].IPs[0]; got == ip {
			t.Errorf("the new pod got %v, which the running pod has", got)
		}
	})
}

// When a broken NAD is corrected, the pod's reserved address is restored.
func TestZoneRestoresReservedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.sharedNAD("red")
		env.sharedNAD("blue")
		env.pod("red", "a", nil)
		env.run()
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
		env.setRunning("red", "a")
		env.settle()
		annotation := env.annotation("red", "a")
		env.stop()
		env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" })
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		env.sharedNAD("red")
		env.settle()
		env.zone.mu.Lock()
		_, port := env.zone.pods["red/a"].ports["red/net"]
		env.zone.mu.Unlock()
		if reserved := env.zone.addresses.reservedFor("red/a"); !port || reserved != "" {
			t.Errorf("port %v, reserved for %q", port, reserved)
		}
		if got := env.annotation("red", "a"); got != annotation {
			t.Errorf("annotation was %s, is %s", annotation, got)
		}
	})
}

// The zone does not reserve addresses that the cluster controller allocated.
func TestZoneReservesNothingOfOtherNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nadOf("plain", "l2", 5, network.NetConf{Name: "plain_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		env.pod("plain", "p", map[string]string{network.AnnotationPodNetworks: `{"plain/l2":{"ip_addresses":["10.50.0.3/16"],"mac_address":"0a:58:0a:32:00:03","role":"secondary"}}`})
		for range 2 {
			env.run()
			env.waitUntil("annotation", func() bool { return len(env.networks("plain", "p")) == 2 })
			env.settle()
			env.zone.addresses.mu.Lock()
			if len(env.zone.addresses.reservations) > 0 {
				t.Errorf("reservations: %v", env.zone.addresses.reservations)
			}
			env.zone.addresses.mu.Unlock()
			env.stop()
		}
	})
}

// After a restart, a new pod does not get the address of a pod that was just deleted.
func TestZoneRestartReusesNoReleasedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24,fd10::/48/64")
		env.run()
		for _, name := range []string{"a", "b"} {
			env.pod("red", name, nil)
			env.waitUntil("annotation", func() bool { return len(env.networks("red", name)) == 2 })
			env.setRunning("red", name)
		}
		deleted := env.networks("red", "a")
		env.must(env.kube.CoreV1().Pods("red").Delete(context.Background(), "a", metav1.DeleteOptions{}))
		env.waitUntil("port deleted", func() bool { return !env.has("red.net_red_a") })
		env.run()
		env.pod("red", "c", nil)
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "c")) == 2 })
		for key, n := range env.networks("red", "c") {
			for i, ip := range n.IPs {
				if ip == deleted[key].IPs[i] {
					t.Errorf("%s of %s is the deleted pod's", ip, key)
				}
			}
		}
	})
}
