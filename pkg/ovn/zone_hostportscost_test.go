// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
)

// hostPortWorld is a zone of which a test calls the functions that events call. All pods are on the cluster default network.
type hostPortWorld struct {
	*Zone
	t *testing.T
}

func newHostPortWorld(t *testing.T) hostPortWorld {
	z := newZoneEnv(t).newZone()
	w := hostPortWorld{z, t}
	w.setNode(testNode(1, "node1", network.SharedGateway))
	z.synced, z.restored = true, true
	z.state(network.DefaultName).net = z.cfg.DefaultNetwork
	return w
}

func (w hostPortWorld) setNode(n network.Node) {
	w.nodes.set(n.Name, "uid-of-"+n.Name, metav1.Unix(1, 0).Time, n, nil)
	w.nodes.markSynced()
}

// connect adds the n-th pod, the n-th oldest, with host ports.
func (w hostPortWorld) connect(n int, ports ...corev1.ContainerPort) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plain", Name: name(n), CreationTimestamp: metav1.Unix(int64(n), 0)},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Ports: ports}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	key := "plain/" + pod.Name
	if w.pods[key] == nil {
		g := attachment{network: network.DefaultName, port: PodPort{NADKey: network.DefaultName, Namespace: "plain", Pod: pod.Name, IPs: prefixes("10.244.0.9/24")}}
		w.pods[key] = &podState{ports: map[string]attachment{network.DefaultName: g}}
		w.state(network.DefaultName).pods[key+" "+network.DefaultName] = g.port
	}
	w.setHostPorts(pod, w.pods[key])
}

func (w hostPortWorld) remove(n int) { w.releasePod("plain/" + name(n)) }

func name(n int) string { return fmt.Sprintf("p%03d", n) }

// enqueued takes and returns the pods that are enqueued.
func (w hostPortWorld) enqueued() (names []string) {
	units, _, _ := w.queue.take(network.DefaultName)
	for _, u := range units {
		names = append(names, u.Name)
	}
	slices.Sort(names)
	return names
}

func (w hostPortWorld) expect(what string, want ...int) {
	w.t.Helper()
	var keys []string
	for _, n := range want {
		keys = append(keys, "plain/"+name(n))
	}
	if got := w.enqueued(); !slices.Equal(got, keys) {
		w.t.Errorf("%s: %d enqueued, %q, want %q", what, len(got), got[:min(len(got), 5)], keys)
	}
}

// expectTaken checks how many places of the n-th pod's host ports an older pod has.
func (w hostPortWorld) expectTaken(n, want int) {
	w.t.Helper()
	ports := w.portsOn(w.cfg.DefaultNetwork, "plain/"+name(n))
	if len(ports) != 1 || len(ports[0].TakenHostPorts) != want {
		w.t.Errorf("ports of %s: %v, want one, of which others have %d host ports", name(n), ports, want)
	}
}

// distinct are 128 host ports that no other pod's number gets.
func distinct(n int) (out []corev1.ContainerPort) {
	for i := range 128 {
		out = append(out, corev1.ContainerPort{ContainerPort: 80, HostPort: int32(1000 + 128*n + i)})
	}
	return out
}

// An event of a pod with host ports concerns that pod and those that get or lose a port by it. It costs no more if other
// pods have host ports: one tenant's pods do not delay those of others.
func TestZoneHostPortsCost(t *testing.T) {
	allocations := map[int]float64{}
	for _, many := range []int{10, 100} {
		w := newHostPortWorld(t)
		for n := range many {
			w.connect(n, distinct(n)...)
		}
		w.enqueued()
		last := many - 1
		w.remove(last)
		w.expect("a pod with ports that no other has is gone", last)
		w.connect(last, distinct(last)...)
		w.expect("a pod with ports that no other has is connected", last)
		w.expectTaken(last, 0)
		allocations[many] = testing.AllocsPerRun(5, func() {
			w.remove(last)
			w.connect(last, distinct(last)...)
			for _, key := range w.enqueued() {
				w.portsOn(w.cfg.DefaultNetwork, key)
			}
		})
	}
	if few, all := allocations[10], allocations[100]; all > 1.5*few {
		t.Errorf("an event allocates %v times among 100 pods, %v times among 10", all, few)
	}
}

// A host port that several pods claim is the oldest one's. An event enqueues, of the others, the next claimant.
func TestZoneHostPortMoves(t *testing.T) {
	at := func(ip string) corev1.ContainerPort {
		return corev1.ContainerPort{ContainerPort: 80, HostPort: 80, HostIP: ip}
	}
	w := newHostPortWorld(t)
	w.connect(2, at(""))
	w.expect("the first", 2)
	w.connect(4, at("172.18.0.1"), at("127.0.0.1"))
	w.expect("a younger one", 4)
	w.connect(3, at("172.18.0.1"))
	w.expect("one between them, which takes nothing from the younger one", 3)
	w.expectTaken(2, 0)
	w.expectTaken(3, 1)
	w.expectTaken(4, 1) // not the one at 127.0.0.1
	w.connect(1, at("0.0.0.0"))
	w.expect("the oldest", 1, 2)
	w.expectTaken(2, 1)
	w.remove(1)
	w.expect("the oldest is gone", 1, 2)
	w.remove(2)
	w.expect("the next one is gone", 2, 3)
	w.expectTaken(3, 0)
	w.expectTaken(4, 1)
	// Where a port at an address is depends on the node's addresses.
	moved := testNode(1, "node1", network.SharedGateway)
	moved.Addresses = prefixes("172.18.0.9/16")
	w.setNode(moved)
	w.connect(5, at(""))
	w.expect("a pod after the node's address has changed", 5)
	w.expectTaken(4, 0)
	w.expectTaken(5, 0)
	w.connect(3)
	w.expect("a pod without its ports, which were no longer reached", 3)
	w.connect(4, at("172.18.0.9"))
	w.expect("an older pod that takes a younger one's port", 4, 5)
	w.expectTaken(5, 1)
}

// Host ports move, too, on a network whose addresses the cluster controller allocates.
func TestZoneHostPortMovesLayer2(t *testing.T) {
	env := newZoneEnv(t)
	env.nadOf("red", "net", 2, network.NetConf{Name: "red_net", Topology: "layer2", Role: "primary", Subnets: "10.50.0.0/16"})
	nad, err := env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Get(context.Background(), "net", metav1.GetOptions{})
	env.must(err)
	z := env.newZone()
	w := hostPortWorld{z, t}
	w.setNode(testNode(1, "node1", network.SharedGateway))
	none := func(any) ([]string, error) { return nil, nil }
	z.podStore = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: none, indexSelected: none, indexMAC: none})
	z.remotePods = cache.NewIndexer(cache.MetaNamespaceKeyFunc, remotePodIndexers)
	z.nadChanged(nil, nad)
	z.synced, z.restored = true, true
	connect := func(n int, hostIP string) {
		key := "red/" + name(n)
		z.pods[key] = &podState{ports: map[string]attachment{}}
		z.updateClusterPorts(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: name(n), CreationTimestamp: metav1.Unix(int64(n), 0),
			Annotations: map[string]string{network.AnnotationPodNetworks: `{"red/net":` + layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11) + `}`}},
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: hostIP}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}, z.pods[key])
	}
	expect := func(what string, taken int) {
		t.Helper()
		units, _, _ := z.queue.take("red_net")
		ports := z.portsOn(z.state("red_net").net, "red/"+name(1))
		if !slices.Contains(units, podUnit("red/"+name(1))) || len(ports) != 1 || len(ports[0].TakenHostPorts) != taken {
			t.Errorf("%s: %v is enqueued, and the younger one's ports are %v, want one, of which others have %d host ports", what, units, ports, taken)
		}
	}
	connect(1, "")
	expect("the younger one alone", 0)
	connect(0, "0.0.0.0")
	expect("the older one is connected", 1)
	z.releasePod("red/" + name(0))
	expect("the older one is gone", 0)
}
