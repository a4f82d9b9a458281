// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/flows"
)

// hostPortPod is a pod of a tenant's namespace, or of the cluster default network's.
func hostPortPod(namespace, name string, locked bool, ports ...corev1.ContainerPort) *corev1.Pod {
	role := "primary"
	if locked {
		role = string(network.RoleInfrastructureLocked)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid-1", Annotations: map[string]string{
			network.AnnotationPodNetworks: fmt.Sprintf(`{"default":{"ip_addresses":["10.244.2.7/24"],"mac_address":"0a:58:0a:f4:02:07","role":%q}}`, role)}},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: ports}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.2.7"}}},
	}
}

// TestHostPorts: a connected pod gets the node's port, at the gateway router of its primary
// network, unless a process of the node has the port.
func TestHostPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // the agent lists the servers, too
		var servers []hostnet.Server
		var failed error
		set := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		f := newFakeNode(t, func(p *Parts) {
			p.Servers = func() ([]hostnet.Server, error) {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(servers), failed
			}
		})
		f.agent.start()
		f.setNodeID(3)
		f.agent.cache.SetNamespace("shop", Namespace{Labelled: true})
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		eventually(t, "ready", func() bool { return f.state(7).State == StateReady })
		f.agent.node.setFacts(ovs.Facts{Node: network.Node{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}}})
		has := func(want ...string) {
			t.Helper()
			var got []string
			for _, p := range f.firewallInputs(nil).HostPorts {
				got = append(got, fmt.Sprintf("%s:%d/%s to %s", p.Addr, p.Port.Port, p.Protocol, p.To))
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("host ports %q, want %q", got, want)
			}
		}
		problem := func(want string) {
			t.Helper()
			problems := f.agent.hosts.hostPortProblems()
			if want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Message, want)) {
				t.Errorf("problems %v, want %q", problems, want)
			}
		}
		web := hostPortPod("shop", "web", true, corev1.ContainerPort{ContainerPort: 8080, HostPort: 80})
		waiting := web.DeepCopy()
		waiting.Status = corev1.PodStatus{Phase: corev1.PodPending}
		f.events().setPod(waiting)
		has()
		f.events().setPod(web)
		has("127.0.0.1:80/tcp to 169.254.0.23", "192.0.2.10:80/tcp to 169.254.0.23")
		problem("")
		set(func() {
			servers = []hostnet.Server{{Protocol: "tcp", Addr: netip.IPv6Unspecified(), Port: 80}, {Protocol: "udp", Addr: netip.IPv4Unspecified(), Port: 53}}
		})
		has()
		problem("host port 80/tcp is not reached at 192.0.2.10: a process of the node has that port")
		set(func() { servers[0].Protocol = "udp" })
		has("127.0.0.1:80/tcp to 169.254.0.23", "192.0.2.10:80/tcp to 169.254.0.23")
		problem("")
		set(func() { failed = errors.New("no netlink") })
		has()
		problem("no netlink")
		set(func() { failed = nil })
		// A server that starts later is noticed without an event.
		time.Sleep(time.Second) // for events' batches
		before := f.agent.hosts.runs.next()
		set(func() { servers[0].Protocol = "tcp" })
		time.Sleep(serversInterval + time.Second)
		if f.agent.hosts.runs.next() == before {
			t.Error("a server has started, and the host network was not reconciled")
		}
		problem("a process of the node has that port")
		set(func() { servers[0].Protocol = "udp" })
		// A pod of the cluster default network, and ports at one address.
		f.events().deletePod("shop/web")
		has()
		f.events().setPod(hostPortPod("plain", "dns", false,
			corev1.ContainerPort{ContainerPort: 5353, HostPort: 54, Protocol: corev1.ProtocolUDP, HostIP: "127.0.0.1"},
			corev1.ContainerPort{ContainerPort: 5354, HostPort: 54, Protocol: corev1.ProtocolUDP, HostIP: "192.0.2.10"},
			corev1.ContainerPort{ContainerPort: 5355, HostPort: 55, Protocol: corev1.ProtocolUDP, HostIP: "192.0.2.99"}))
		has("127.0.0.1:54/udp to 169.254.0.7", "192.0.2.10:54/udp to 169.254.0.9")
		problem("hostIP 192.0.2.99 is neither")
		if got := f.agent.cache.loopbackPorts(network.DefaultID, f.agent.config.Plan, f.agent.config.DefaultNetwork); len(got) != 1 || got[0].Port != 54 || got[0].Addr.String() != "169.254.0.7" {
			t.Errorf("ports at loopback: %v", got)
		}
		// A younger pod of another network does not take the port at loopback.
		younger := hostPortPod("shop", "a-younger", true, corev1.ContainerPort{ContainerPort: 1, HostPort: 54, Protocol: corev1.ProtocolUDP, HostIP: "::ffff:127.0.0.1"})
		younger.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
		loopback := func(want map[int]int) {
			t.Helper()
			for id, n := range want {
				if got := f.agent.cache.loopbackPorts(id, f.agent.config.Plan, f.agent.config.DefaultNetwork); len(got) != n {
					t.Errorf("network %d has the ports %v at loopback, want %d", id, got, n)
				}
			}
		}
		f.events().setPod(younger)
		loopback(map[int]int{network.DefaultID: 1, 7: 0})
		dns, _ := f.agent.cache.Pod("plain/dns")
		f.events().deletePod("plain/dns")
		loopback(map[int]int{network.DefaultID: 0, 7: 1})
		f.events().deletePod("shop/a-younger")
		updatePod(f.agent.cache, f.agent.queue, f.agent.config, dns)
		// Of two pods with one port, which kubelet admits if they write hostIP differently, the older has it.
		for i, c := range []struct{ name, hostIP string }{{"old", "192.0.2.10"}, {"a-young", "::ffff:192.0.2.10"}, {"other", "127.0.0.2"}} {
			p := hostPortPod("plain", c.name, false, corev1.ContainerPort{ContainerPort: 5353, HostPort: 56, HostIP: c.hostIP})
			p.UID, p.CreationTimestamp = types.UID(c.name), metav1.NewTime(time.Now().Add(time.Duration(i)*time.Second))
			f.events().setPod(p)
		}
		f.events().deletePod("plain/dns")
		has("192.0.2.10:56/tcp to 169.254.0.9")
		var refused []string
		for _, p := range f.agent.hosts.hostPortProblems() {
			refused = append(refused, p.pod)
		}
		if slices.Sort(refused); !slices.Equal(refused, []string{"plain/a-young", "plain/other"}) {
			t.Errorf("events of %q", refused)
		}
		for _, name := range []string{"old", "a-young", "other"} {
			f.events().deletePod("plain/" + name)
		}
		f.events().setPod(hostPortPod("plain", "dns", false, corev1.ContainerPort{ContainerPort: 53, HostPort: network.TunnelPort, Protocol: corev1.ProtocolUDP}))
		has()
		problem("host port 6081/udp is not reached at 192.0.2.10")
		f.events().setPod(hostPortPod("plain", "dns", false, corev1.ContainerPort{ContainerPort: 53, HostPort: network.BGPPort, Protocol: corev1.ProtocolTCP}))
		has()
		problem("host port 179/tcp is not reached at 192.0.2.10")
		ended := hostPortPod("plain", "dns", false, corev1.ContainerPort{ContainerPort: 5353, HostPort: 54})
		ended.Status.Phase = corev1.PodFailed
		f.events().setPod(ended)
		has()
	})
}

// TestPodEndsDuringAdd: if CNI ADD notices first that a pod is gone, the bridge's flows are reconciled for its host ports as
// after the pod's event.
func TestPodEndsDuringAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		queue := NewQueue(nil) // the agent's own workers would take the keys
		defer queue.keys.ShutDown()
		hosts := &hostReconciler{config: f.agent.config, cache: f.agent.cache, queue: queue}
		f.agent.cache.SetNamespace("shop", Namespace{Labelled: true})
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.events().setPod(hostPortPod("shop", "web", true, corev1.ContainerPort{ContainerPort: 8080, HostPort: 80, HostIP: "127.0.0.1"}))
		queue.synced.Store(true)
		m := podPortManager{hosts: hosts, log: f.agent.log, pod: func(string, string) (*corev1.Pod, bool) { return nil, false }}
		if _, running := m.storePod("shop", "web"); running {
			t.Error("a pod that is gone runs")
		}
		time.Sleep(time.Second) // the clock of the test: events are batched
		var got []key
		for queue.keys.Len() > 0 {
			k, _ := queue.keys.Get()
			got = append(got, k)
		}
		for _, want := range []key{{kindGateway, 7}, {kind: kindHosts}} {
			if !slices.Contains(got, want) {
				t.Errorf("enqueued: %v, want %v", got, want)
			}
		}
	})
}

// An event of a pod with ports at loopback addresses concerns its network and those that get or lose one of the ports by it, not
// every network with such ports, and costs no more if other pods have many.
func TestLoopbackPortsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t) // its agent is not started
		cfg, c, queue := f.agent.config, f.agent.cache, NewQueue(nil)
		defer queue.keys.ShutDown()
		queue.synced.Store(true)
		const networks = 20
		// pod is the pod of the network with that id, with n ports from first.
		pod := func(id, first, n int) Pod {
			p := Pod{UID: "uid", Namespace: fmt.Sprintf("ns%02d", id), Name: "web", Created: time.Unix(int64(id), 0),
				Networks: network.PodNetworks{network.DefaultName: {Role: network.RoleInfrastructureLocked}}}
			for i := range n {
				p.HostPorts = append(p.HostPorts, network.HostPort{Protocol: "tcp", Host: netip.MustParseAddr("127.0.0.1"), Port: uint16(first + i), PodPort: 80})
			}
			return p
		}
		// expect runs an event and checks whose flows are enqueued, and which of the networks has the port.
		expect := func(what string, event func(), port uint16, owner int, want ...int) {
			t.Helper()
			event()
			time.Sleep(time.Second) // the clock of the test: events are batched
			var got []int
			for queue.keys.Len() > 0 {
				k, _ := queue.keys.Get()
				if queue.keys.Done(k); k.kind == kindGateway {
					got = append(got, k.id)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: the flows of %v are enqueued, want %v", what, got, want)
			}
			for id := 1; id <= networks; id++ {
				ports := c.loopbackPorts(id, cfg.Plan, cfg.DefaultNetwork)
				if has := slices.ContainsFunc(ports, func(p flows.ServicePort) bool { return p.Port == port }); has != (id == owner) {
					t.Errorf("%s: network %d has the port: %t, want that of %d", what, id, has, owner)
				}
			}
		}
		set := func(p Pod) func() { return func() { updatePod(c, queue, cfg, p) } }
		remove := func(id int) func() { return func() { removePod(c, queue, cfg, pod(id, 0, 0).Key()) } }
		for id := 1; id <= networks; id++ {
			c.SetNamespace(fmt.Sprintf("ns%02d", id), Namespace{Labelled: true})
			c.SetNAD(nad(cfg, fmt.Sprintf("ns%02d", id), "net", id))
		}
		allocations := map[int]float64{}
		for _, n := range []int{1, 128} {
			for id := 2; id <= networks; id++ {
				c.SetPod(pod(id, 1000*id, n))
			}
			allocations[n] = testing.AllocsPerRun(5, func() {
				updatePod(c, queue, cfg, pod(1, 1000, 1))
				c.loopbackPorts(1, cfg.Plan, cfg.DefaultNetwork)
				removePod(c, queue, cfg, pod(1, 0, 0).Key())
			})
		}
		if few, many := allocations[1], allocations[128]; many > 1.5*few {
			t.Errorf("an event allocates %v times if the other pods have 128 ports each, %v times if one", many, few)
		}
		expect("the first events", func() {}, 1000, 0, 1)
		expect("ports that no other pod has", set(pod(1, 1000, 128)), 1000, 1, 1)
		expect("a younger pod's port", set(pod(3, 1000, 1)), 1000, 1, 1, 3)
		expect("ports of two pods", set(pod(2, 1000, 1)), 1000, 1, 1, 2)
		expect("the oldest pod is gone", remove(1), 1000, 2, 1, 2)
		expect("the next one has another port", set(pod(2, 999, 1)), 1000, 3, 2, 3)
		v6 := pod(1, 999, 1)
		v6.HostPorts[0].Host = netip.IPv6Loopback()
		expect("IPv6, which the network does not have", set(v6), 999, 2, 1)
	})
}

// Only pods that name host ports are read for them, however many others there are.
func TestPodsByPorts(t *testing.T) {
	c, cfg := NewCache(), testConfig(t)
	pod := func(name string, ports ...network.HostPort) Pod {
		return Pod{UID: name, Namespace: "shop", Name: name, HostPorts: ports, Networks: network.PodNetworks{network.DefaultName: {Role: network.RolePrimary}}}
	}
	for i := range 1000 {
		c.SetPod(pod(fmt.Sprint("plain", i)))
	}
	port := network.HostPort{Protocol: "tcp", Port: 8080}
	omitted := pod("many")
	omitted.HostPortsOmitted = 2
	check := func(step string, read, reached, problems int) {
		t.Helper()
		if len(c.podsByPorts) != read || len(c.hostPorts(cfg.Plan, cfg.DefaultNetwork, nil)) != reached || len(c.omittedHostPorts()) != problems {
			t.Errorf("%s: %d pods are read, %d ports, %d pods with too many; want %d, %d, %d", step,
				len(c.podsByPorts), len(c.hostPorts(cfg.Plan, cfg.DefaultNetwork, nil)), len(c.omittedHostPorts()), read, reached, problems)
		}
	}
	check("none", 0, 0, 0)
	c.SetPod(pod("web", port))
	c.SetPod(omitted)
	check("two", 2, 1, 1)
	c.SetPod(pod("web", port, network.HostPort{Protocol: "udp", Port: 8080}))
	check("another port", 2, 2, 1)
	c.SetPod(pod("web")) // not connected any more
	check("without ports", 1, 0, 1)
	c.SetPod(pod("web", port))
	c.DeletePod("shop/many")
	check("one deleted", 1, 1, 0)
	c.DeletePod("shop/web")
	check("both deleted", 0, 0, 0)
}
