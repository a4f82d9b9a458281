// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/process"
	"bulkhead/pkg/vrf"
	"bulkhead/test/sampling"
)

func TestNetworkCreatedAndDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		eventually(t, "default network", func() bool { return f.state(0).State == StateReady })
		before := f.dumpKernel()

		f.agent.cache.SetNamespace("shop", Namespace{Labelled: true})
		f.setPod(Pod{UID: "u1", Namespace: "shop", Name: "web", Networks: network.PodNetworks{
			"default":  {IPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.7/24")}, Role: network.RoleInfrastructureLocked},
			"shop/net": {IPs: []netip.Prefix{netip.MustParsePrefix("10.20.2.7/24")}, Role: network.RolePrimary}}})
		f.setPod(Pod{UID: "u2", Namespace: "shop", Name: "exporter", HostNetwork: true})
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		eventually(t, "network ready", func() bool { return f.state(7).State == StateReady && len(f.state(7).Pending) == 0 })
		eventually(t, "eBPF inputs", func() bool {
			in := f.hosts()
			return len(in.Networks) == 1 && in.Networks[0].VRFIfindex != 0 && len(in.Pods) == 1 && in.Pods[0].NetworkID == 7 &&
				len(in.Locked) == 1 && in.Locked[0].NetworkID == 7
		})
		n := f.state(7)
		if n.VRF != "mp7-udn-vrf" || n.Table != 100007 || !slices.Equal(n.Pods, []string{"shop/web"}) || !slices.Equal(n.HostPods, []string{"shop/exporter"}) {
			t.Errorf("%+v", n)
		}

		// After the pods, the NAD is deleted: nothing remains.
		f.events().deletePod("shop/web")
		f.events().deletePod("shop/exporter")
		f.events().deleteNAD("shop/net")
		eventually(t, "kernel state removed", func() bool { return f.dumpKernel() == before })
		eventually(t, "eBPF inputs empty", func() bool {
			in := f.hosts()
			return len(in.Networks)+len(in.Pods)+len(in.Locked) == 0
		})
		if n := f.state(7); n.Name != "" {
			t.Errorf("state of the deleted network: %+v", n)
		}
	})
}

// TestRestart: an agent removes networks that were deleted while no agent ran,
// and keeps existing networks, including one whose NAD is malformed. It removes no
// route of theirs, not even until it knows the node's facts.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		for i := range 3 {
			f.agent.cache.SetNAD(nad(f.agent.config, fmt.Sprintf("ns%d", i), "net", 5+i))
		}
		f.agent.cache.SetNAD(nad(f.agent.config, "again", "net", 8))
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "networks ready", func() bool {
			return f.state(5).State == StateReady && f.state(6).State == StateReady && f.state(7).State == StateReady && f.state(8).State == StateReady
		})
		fake := &fakeFlows{}
		f.run(t, func(p *Parts) { p.Flows = fake }) // a new agent, the same kernel
		f.agent.cache.SetNAD(nad(f.agent.config, "ns0", "net", 5))
		malformed := nad(f.agent.config, "ns2", "net", 7)
		malformed.Err = errors.New("unreadable")
		f.agent.cache.SetNAD(malformed)
		f.agent.cache.SetNAD(nad(f.agent.config, "again", "net", 9)) // deleted and created again
		time.Sleep(time.Minute)
		if !strings.Contains(f.dumpKernel(), "100006") {
			t.Fatal("a network was removed before the cache was synced")
		}
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "orphaned networks removed", func() bool {
			kernel := f.dumpKernel()
			return !strings.Contains(kernel, "100006") && !strings.Contains(kernel, "100008")
		})
		if s := f.state(5); s.State != StateReady || len(s.Pending) != 0 {
			t.Errorf("existing network: %+v", s)
		}
		eventually(t, "the first sync", func() bool { return f.agent.Ready() == nil })
		if kernel := f.dumpKernel(); !strings.Contains(kernel, "mp7-udn-vrf") || !strings.Contains(kernel, "ovn-k8s-mp7 ") || strings.Contains(kernel, "ovn-k8s-mp6 ") {
			t.Errorf("a malformed NAD removed its network, or a deleted network remains:\n%s", kernel)
		}
		fake.mu.Lock()
		if !fake.complete || !slices.Equal(fake.kept, []int{7}) {
			t.Errorf("flows are complete: %t, those of networks %v stay", fake.complete, fake.kept)
		}
		fake.mu.Unlock()
		if own := strings.Join(firewall.Build(f.firewallInputs(nil)).Sets[firewall.SetOwn], " "); !strings.Contains(own, "ovn-k8s-mp7 ") || strings.Contains(own, "ovn-k8s-mp6 ") {
			t.Errorf("nftables has the networks' sockets %s", own)
		}
		f.kernel.mu.Lock()
		defer f.kernel.mu.Unlock()
		for _, r := range f.kernel.deleted {
			if r.Table != 100006 && r.Table != 100008 && r.Dev != "ovn-k8s-mp6" && r.Dev != "ovn-k8s-mp8" {
				t.Errorf("deleted %s", r)
			}
		}
	})
}

// TestFactsUnknown: while an agent that starts cannot read the node's facts, networks keep their routes
// through the external bridge, and the agent is not ready.
func TestFactsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "network ready", func() bool { return f.state(7).State == StateReady && f.state(0).State == StateReady })
		before := f.dumpKernel()
		if !strings.Contains(before, "dev br-ex") {
			t.Fatalf("no route through the external bridge:\n%s", before)
		}
		f.run(t) // a new agent, the same kernel
		f.mu.Lock()
		f.readErr = errors.New("external bridge br-ex has no usable address")
		f.mu.Unlock()
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.setNodeID(3)
		f.agent.start()
		time.Sleep(2 * time.Minute)
		f.kernel.mu.Lock()
		for _, r := range f.kernel.deleted {
			t.Errorf("without facts, the agent deletes %s", r)
		}
		f.kernel.mu.Unlock()
		if got := f.firewallInputs(nil); len(got.Node) == 0 || len(got.Links) == 0 {
			t.Errorf("without facts, nftables has the addresses %v on links %v", got.Node, got.Links)
		}
		f.mu.Lock()
		if f.unnamed > 0 {
			t.Errorf("without facts, management ports get names without the node's")
		}
		f.mu.Unlock()
		if err := f.agent.Ready(); err == nil || !strings.Contains(err.Error(), "external bridge") {
			t.Errorf("ready without facts: %v", err)
		}
		f.mu.Lock()
		f.readErr = nil
		f.mu.Unlock()
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil && f.state(7).State == StateReady })
	})
}

// TestNoSubnetOfDefaultNetwork: a node for which the cluster default network has no host subnet says so and is not ready,
// as no pod starts on it.
func TestNoSubnetOfDefaultNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.agent.start()
		f.setNodeID(257) // cluster-subnets have 256
		eventually(t, "condition", func() bool {
			c := f.conditionNow()
			return c.True() && strings.Contains(c.Message, "hold no host subnet for node id 257")
		})
		eventually(t, "other networks reconciled", func() bool { return f.state(7).State == StateNoSubnet || f.state(7).State == StateReady })
		synctest.Wait()
		if err := f.agent.Ready(); err == nil || !strings.Contains(err.Error(), "hold no host subnet for node id 257") {
			t.Errorf("ready: %v", err)
		}
		select {
		case <-f.agent.Synced():
			t.Error("the first sync is complete: the CNI configuration is installed")
		default:
		}
	})
}

// TestBridgeFlushed: routes through the external bridge that the kernel has deleted with an address, without an
// event, are back at once.
func TestBridgeFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "network ready", func() bool { return f.state(7).State == StateReady && f.agent.Ready() == nil })
		before := f.dumpKernel()
		f.kernel.mu.Lock()
		maps.DeleteFunc(f.kernel.Routes, func(r vrf.Route, _ string) bool { return r.Dev == "br-ex" })
		f.kernel.mu.Unlock()
		f.mu.Lock()
		f.readErr = errors.New("external bridge br-ex has no usable address")
		f.mu.Unlock()
		f.agent.KernelChanged(vrf.Change{Bridge: true, Flushed: true})
		time.Sleep(time.Second)
		f.mu.Lock()
		f.readErr = nil
		f.mu.Unlock()
		f.agent.KernelChanged(vrf.Change{Bridge: true})
		time.Sleep(time.Second)
		if after := f.dumpKernel(); after != before {
			t.Errorf("the kernel has\n%s\nwant\n%s", after, before)
		}
	})
}

// TestNewVRFSettles: other programs see a new VRF before its routes; until then no process is bound
// to it, and the network is not ready.
func TestNewVRFSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.agent.cache.SetNode(network.Node{Name: "n1", ID: 3}, nil)
		f.agent.start()
		time.Sleep(newDeviceDelay / 2)
		index := func() int { return f.hosts().Networks[0].VRFIfindex }
		routes := func() (n int) {
			f.kernel.mu.Lock()
			defer f.kernel.mu.Unlock()
			for r := range f.kernel.Routes {
				if r.Table == 100007 {
					n++
				}
			}
			return n
		}
		if s := f.state(7); s.State != StateWaiting || s.VRFIfindex == 0 || index() != 0 || routes() != 0 || f.agent.Ready() == nil {
			t.Errorf("while the VRF is new: state %+v, index for processes %d, %d routes, ready %v", s, index(), routes(), f.agent.Ready())
		}
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		if s := f.state(7); s.State != StateReady || len(s.Pending) > 0 || routes() == 0 {
			t.Errorf("afterwards: %+v, %d routes", s, routes())
		}
		eventually(t, "processes are bound", func() bool { return index() != 0 })
		// A reconcile of a network that has its VRF does not wait.
		f.agent.resync()
		synctest.Wait()
		if index() == 0 || f.agent.networks.isNewDevice(7) {
			t.Error("a resync makes the network wait again")
		}
	})
}

// A network that is deleted while its VRF is new loses the device only when other programs have seen it: FRR's bfdd ends
// if one goes before.
func TestNewVRFDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		exists := func() bool { return f.kernel.DeviceIndex(100007) != 0 }
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		eventually(t, "the VRF device", exists)
		f.events().deleteNAD("shop/net")
		time.Sleep(newDeviceDelay / 2)
		if !exists() {
			t.Error("the VRF device is deleted at once")
		}
		time.Sleep(newDeviceDelay)
		if exists() {
			t.Error("the VRF device stays")
		}
	})
}

// TestMalformedNAD: a malformed edit of a NAD removes nothing.
func TestMalformedNAD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		eventually(t, "ready", func() bool { return f.state(7).State == StateReady })
		f.setNAD(network.NAD{Namespace: "shop", Name: "net", Err: errors.New("not JSON")})
		time.Sleep(time.Minute)
		if s := f.state(7); s.State != StateReady {
			t.Errorf("after a malformed edit: %+v", s)
		}
		f.events().deleteNAD("shop/net")
		eventually(t, "network removed", func() bool { return !strings.Contains(f.dumpKernel(), "100007") })
	})
}

// TestIDMoves: when an id moves to another network, the kernel holds the new
// network, not a mixture of both.
func TestIDMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "a", "net", 7))
		eventually(t, "ready", func() bool { return f.state(7).State == StateReady })
		f.setNAD(nad(f.agent.config, "b", "net", 7))
		f.events().deleteNAD("a/net")
		eventually(t, "the new network's kernel state", func() bool {
			s := f.state(7)
			return s.Name == "b_net" && s.State == StateReady && len(s.Pending) == 0 && strings.Contains(s.Have, "alias bulkhead:b_net")
		})
	})
}

// TestNodeWaitsForID: a node without an id reports it, and writes its facts once.
func TestNodeWaitsForID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.cache.SetNAD(nad(f.agent.config, "shop", "net", 7))
		f.agent.start()
		eventually(t, "condition", func() bool { return f.conditionNow().Reason == "NodeIDMissing" })
		eventually(t, "facts written", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.annotations[network.AnnotationChassisID] == "c1"
		})
		if err := f.agent.Ready(); err == nil {
			t.Error("ready without an id")
		}
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil && f.state(7).State == StateReady })
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.writes > 2 { // setNodeID's Node lacks the annotations
			t.Errorf("%d writes to the Node", f.writes)
		}
	})
}

// TestColdStart: networks need few transactions, and wait together for their VRFs to be seen. The race
// detector makes 500 of them take minutes.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		n := 100
		if sampling.Full() {
			n = 500
		}
		for i := range n {
			f.agent.cache.SetNAD(nad(f.agent.config, fmt.Sprintf("ns%d", i), "net", i+1))
		}
		start := time.Now()
		f.agent.cache.SetNode(network.Node{Name: "n1", ID: 3}, nil)
		f.agent.start()
		eventually(t, "all ready", func() bool {
			ready := 0
			for _, s := range f.agent.states.networkStates(nil, nil) {
				if s.State == StateReady {
					ready++
				}
			}
			return ready == n+1
		})
		f.mu.Lock()
		defer f.mu.Unlock()
		t.Logf("%d networks: %d syncs of management ports, %d of eBPF", n, f.portSyncs, f.hostReconciles)
		if waited := time.Since(start); waited > newDeviceDelay+time.Second { // in the bubble, work takes no time
			t.Errorf("%v of waiting", waited)
		}
		if f.portSyncs > 3 {
			t.Errorf("%d syncs of management ports", f.portSyncs)
		}
	})
}

func TestServe(t *testing.T) {
	f := newFakeNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	for range 2 { // the second replaces the socket
		if err := f.agent.Serve(ctx, process.NewStarting("nothing"), socket); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	get := func(path string) (int, string) {
		resp, err := c.Get("http://agent" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Error("/healthz fails")
	}
	if code, _ := get("/readyz"); code != 503 {
		t.Error("ready before the cache is synced")
	}
	f.agent.start()
	f.setNodeID(3)
	eventually(t, "ready", func() bool { code, _ := get("/readyz"); return code == 200 })
	_, body := get("/debug/state?deep=1")
	var st State
	if err := json.Unmarshal([]byte(body), &st); err != nil || st.Node.ID != 3 || len(st.Networks) != 1 {
		t.Errorf("%v %s", err, body)
	}
	if _, body := get("/metrics"); !strings.Contains(body, `bulkhead_agent_networks{state="Ready"}`) {
		t.Errorf("metrics: %s", body)
	}
}

// fakeFlows records what it was last called with.
type fakeFlows struct {
	mu        sync.Mutex
	node      ovs.Facts
	localnets []string
	peers     []string // names and MAC addresses
	networks  map[int][]flows.ServicePort
	sets      map[int]int // calls of SetNetwork, by id
	complete  bool
	kept      []int
}

func (f *fakeFlows) SetNode(node ovs.Facts, localnets []network.Network, peers []network.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node, f.localnets, f.peers = node, nil, nil
	for _, p := range peers {
		f.peers = append(f.peers, p.Name+" "+p.BridgeMAC)
	}
	for _, n := range localnets {
		f.localnets = append(f.localnets, n.Name)
	}
}

func (f *fakeFlows) Isolate(context.Context) error { return nil }

func (f *fakeFlows) SetNetwork(n network.Network, _ []netip.Prefix, ports []flows.ServicePort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.networks == nil {
		f.networks, f.sets = map[int][]flows.ServicePort{}, map[int]int{}
	}
	f.sets[n.ID]++
	f.networks[n.ID] = append([]flows.ServicePort{}, ports...)
}

// ports are the network's ports; nil if it is not set.
func (f *fakeFlows) ports(id int) []flows.ServicePort {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.networks[id]
}

func (f *fakeFlows) DeleteNetwork(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.networks, id)
}

// MarkComplete implements Flows: what is to stay must be known by then.
func (f *fakeFlows) MarkComplete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.complete = f.kept != nil
}

func (f *fakeFlows) Keep(ids []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = append([]int{}, ids...)
}

func (f *fakeFlows) has(names ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Equal(f.localnets, names)
}

// hasPeers reports whether the other nodes are these.
func (f *fakeFlows) hasPeers(names ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Equal(f.peers, names)
}

// TestGateways: the external bridge's flows follow networks and their services. No service
// gets one of the node's addresses, or one of the cluster's.
func TestGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeFlows{}
		f := newFakeNode(t, func(p *Parts) { p.Flows = fake })
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 4))
		f.events().changeNamespace("shop", Namespace{Labelled: true})
		eventually(t, "the node's addresses", func() bool { return len(f.agent.node.Node().Addresses) > 0 })
		own := f.agent.node.Node().Addresses[0].Addr().String()
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ClusterIPs: []string{"10.96.0.9"}, ExternalIPs: []string{own, "10.96.0.10"}, Ports: []corev1.ServicePort{{Port: 80}}}}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}}
		f.events().setService(service)
		want := []flows.ServicePort{{Addr: netip.MustParseAddr("203.0.113.7"), Protocol: "tcp", Port: 80}}
		eventually(t, "the service's address", func() bool { return slices.Equal(fake.ports(4), want) })

		// The node holds addresses that move between nodes. A load balancer may have put one there
		// for the service; the service's author must not claim one.
		service.Spec.ExternalIPs = []string{"192.0.2.100"}
		f.events().setService(service)
		claimed := flows.ServicePort{Addr: netip.MustParseAddr("192.0.2.100"), Protocol: "tcp", Port: 80, Claimed: true}
		eventually(t, "an address that no node has", func() bool { return slices.Equal(fake.ports(4), append([]flows.ServicePort{claimed}, want...)) })
		f.setFloating("192.0.2.100", "203.0.113.7")
		eventually(t, "the address is the node's", func() bool { return slices.Equal(fake.ports(4), want) })
		f.setFloating()
		eventually(t, "it is another node's", func() bool { return slices.Equal(fake.ports(4), append([]flows.ServicePort{claimed}, want...)) })
		f.events().deleteService("shop/web")
		eventually(t, "no address", func() bool { return fake.ports(4) != nil && len(fake.ports(4)) == 0 })
		f.events().enqueueNAD(f.agent.cache.DeleteNAD("shop/net"))
		eventually(t, "no network", func() bool { return fake.ports(4) == nil })
	})
}
