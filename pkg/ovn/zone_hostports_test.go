// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A connected pod's host ports are on the gateway router of its primary network, whoever
// allocates its addresses, and nowhere else. A pod that has not been connected has none, as the
// node may refuse it, and neither has one that is gone.
func TestZoneHostPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nadOf("blue", "net", 2, network.NetConf{Name: "blue_net", Topology: "layer2", Role: "primary", Subnets: "10.50.0.0/16"})
		env.run()
		namespaces := []string{"red", "blue", "plain"}
		for _, namespace := range namespaces {
			env.pod(namespace, "a", nil)
			env.waitForRow(namespace + "_a")
		}
		env.waitUntil("default network", func() bool { return len(env.networks("blue", "a")) == 1 })
		env.setNetworks("blue", "a", func(n network.PodNetworks) {
			n["blue/net"] = entry(t, layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11))
		})
		env.waitForRow("blue.net_blue_a")
		updatePod := func(namespace, name string, change func(*corev1.Pod)) {
			t.Helper()
			pods := env.kube.CoreV1().Pods(namespace)
			p, err := pods.Get(context.Background(), name, metav1.GetOptions{})
			env.must(err)
			change(p)
			_, err = pods.Update(context.Background(), p, metav1.UpdateOptions{})
			env.must(err)
		}
		update := func(namespace string, change func(*corev1.Pod)) { updatePod(namespace, "a", change) }
		address := func(namespace, key string) netip.Addr { return env.networks(namespace, "a")[key].IPs[0].Addr() }
		want := []string{
			fmt.Sprintf("GR_blue_net_node1: 169.254.0.13:80 to %s:8080", address("blue", "blue/net")),
			fmt.Sprintf("GR_node1: 169.254.0.9:80 to %s:8080", address("plain", network.DefaultName)),
			fmt.Sprintf("GR_red_net_node1: 169.254.0.11:80 to %s:8080", address("red", "red/net")),
		}
		// have returns the load balancers of host ports.
		have := func() (out []string) {
			for _, r := range env.nb.Rows() {
				if lb, ok := r.Model.(*nbdb.LoadBalancer); ok && strings.Contains(r.Unit, "/pod/") {
					for vip, backends := range lb.Vips {
						out = append(out, fmt.Sprintf("%s: %s to %s", r.In[0].ID, vip, backends))
					}
				}
			}
			slices.Sort(out)
			return out
		}
		for _, namespace := range namespaces {
			update(namespace, func(p *corev1.Pod) {
				p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 80}, {ContainerPort: 9090}}}}
				p.Annotations["changed"] = "yes"
			})
		}
		env.settle()
		if got := have(); len(got) > 0 {
			t.Errorf("pods that are not connected have host ports: %q", got)
		}
		for _, namespace := range namespaces {
			update(namespace, func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.3"}}}
			})
		}
		env.settle()
		if got := have(); !slices.Equal(got, want) {
			t.Errorf("host ports %q, want %q", got, want)
		}
		// Kubelet admits another pod with the same port if it writes hostIP differently. The older has it until it is gone.
		env.pod("plain", "b", nil)
		env.waitForRow("plain_b")
		updatePod("plain", "b", func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 9999, HostPort: 80, HostIP: "::ffff:0.0.0.0"}, {ContainerPort: 9999, HostPort: 81}}}}
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.4"}}}
		})
		env.settle()
		other := env.networks("plain", "b")[network.DefaultName].IPs[0].Addr()
		both := append(slices.Clone(want), fmt.Sprintf("GR_node1: 169.254.0.9:81 to %s:9999", other))
		slices.Sort(both)
		if got := have(); !slices.Equal(got, both) {
			t.Errorf("of two pods with one port: host ports %q, want %q", got, both)
		}
		env.deletePod("plain", "a")
		env.settle()
		both[1] = fmt.Sprintf("GR_node1: 169.254.0.9:80 to %s:9999", other)
		if got := have(); !slices.Equal(got, both) {
			t.Errorf("the older pod is gone: host ports %q, want %q", got, both)
		}
		env.deletePod("plain", "b")
		for _, namespace := range []string{"red", "blue"} {
			env.deletePod(namespace, "a")
		}
		env.waitUntil("the host ports are deleted", func() bool { return len(have()) == 0 })
	})
}
