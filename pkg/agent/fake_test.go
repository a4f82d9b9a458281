// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/vrf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeKernel is a vrf.Fake that workers can use concurrently.
type fakeKernel struct {
	mu sync.Mutex
	*vrf.Fake
	deleted []vrf.Route
}

func (k *fakeKernel) Read(ctx context.Context, o vrf.Owner) (vrf.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.Read(ctx, o)
}

func (k *fakeKernel) Tables(ctx context.Context) ([]int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.Tables(ctx)
}

func (k *fakeKernel) Do(ctx context.Context, op vrf.Op) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if op.Verb == vrf.DelRoute {
		k.deleted = append(k.deleted, op.Route)
	}
	return k.Fake.Do(ctx, op)
}

func (k *fakeKernel) Links(ctx context.Context) ([]vrf.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.List(ctx)
}

func (k *fakeKernel) Conflicts(ctx context.Context) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.Conflicts(ctx)
}

func (k *fakeKernel) DeviceIndex(table int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.DeviceIndex(table)
}

// fakeNode fakes the agent's dependencies. Ports that it creates appear in the
// fake kernel, with an event.
type fakeNode struct {
	mu             sync.Mutex
	kernel         *fakeKernel
	agent          *Agent
	ports          map[string]network.Network // by name: management ports
	unnamed        int                        // SyncManagement without the node's name, which the ports' names have
	noPorts        bool                       // Open vSwitch creates no management ports
	portSyncs      int
	annotations    map[string]string // written by the agent
	writes         int               // of annotations
	condition      Condition
	conditions     []Condition // all that were written
	recorded       []string    // events
	hostInputs     hostnet.Inputs
	hostReconciles int
	podPorts       []ovs.PodPort
	listed         func() // called after ListPods has read podPorts
	expected       []hostnet.Pod
	podsSought     int // by PodOf
	hostErr        error
	hostProblems   []hostnet.Problem
	guarded        []loader.DoorRow
	guardErr       error
	mtu            int   // of the external bridge
	readErr        error // of ReadNode
	floating       []netip.Addr
	address        netip.Prefix // of the node
	nextHop        netip.Addr
}

// move gives the node another address and another next hop.
func (f *fakeNode) move(address, nextHop string) {
	f.mu.Lock()
	f.address, f.nextHop = netip.MustParsePrefix(address), netip.MustParseAddr(nextHop)
	f.mu.Unlock()
	f.agent.queue.EnqueueNode()
}

// setFloating gives the external bridge these addresses beside the node's.
func (f *fakeNode) setFloating(addresses ...string) {
	f.mu.Lock()
	f.floating = nil
	for _, a := range addresses {
		f.floating = append(f.floating, netip.MustParseAddr(a))
	}
	f.mu.Unlock()
	f.agent.queue.EnqueueNode()
}

func (f *fakeNode) ReadNode(_ context.Context, name string, c config.OVS, _ network.Plan) (ovs.Facts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readErr != nil {
		return ovs.Facts{Node: network.Node{Name: name}}, f.readErr
	}
	return ovs.Facts{Floating: f.floating, Node: network.Node{Name: name, Chassis: "c1", Bridge: c.ExternalBridge, BridgeMAC: "02:00:00:00:00:01", MTU: f.mtu, Mode: c.GatewayMode,
		EncapIPs: []netip.Addr{f.address.Addr()}, Addresses: []netip.Prefix{f.address}, NextHops: []netip.Addr{f.nextHop}}}, nil
}

func (f *fakeNode) SyncChassis(context.Context, network.Node, ovs.Inputs) error {
	time.Sleep(time.Millisecond)
	return nil
}

func (f *fakeNode) SyncManagement(_ context.Context, node network.Node, nets []network.Network, kept []int) error {
	f.mu.Lock()
	f.portSyncs++
	if node.Name == "" {
		f.unnamed++
	}
	want := map[string]network.Network{}
	for _, n := range nets {
		if !f.noPorts {
			want[n.ManagementPort()] = n
		}
	}
	for _, id := range kept {
		name := network.Network{ID: id}.ManagementPort()
		if n, ok := f.ports[name]; ok {
			want[name] = n
		}
	}
	var changed []int
	f.kernel.mu.Lock()
	for name, n := range want {
		if _, ok := f.ports[name]; !ok {
			f.kernel.AddLink(name)
			changed = append(changed, n.ID)
		}
	}
	for name, n := range f.ports {
		if _, ok := want[name]; !ok {
			f.kernel.DelLink(name)
			changed = append(changed, n.ID)
		}
	}
	f.kernel.mu.Unlock()
	f.ports = want
	f.mu.Unlock()
	for _, id := range changed {
		f.agent.KernelChanged(vrf.Change{ID: id})
	}
	return nil
}

func (f *fakeNode) Annotate(_ context.Context, a map[string]string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	for k, v := range a {
		f.annotations[k] = v
	}
	return nil
}

func (f *fakeNode) SetCondition(_ context.Context, c Condition) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !equalConditions(f.condition, c) { // as KubeAPI
		f.conditions = append(f.conditions, c)
	}
	f.condition = c
	return nil
}

func (f *fakeNode) Event(_ bool, reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorded = append(f.recorded, reason+" "+message)
}

func (f *fakeNode) PodEvent(p Pod, reason, message string) {
	f.Event(true, p.Key()+" "+reason, message)
}

func (f *fakeNode) Reconcile(_ context.Context, in hostnet.Inputs) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hostInputs = in
	f.hostReconciles++
	return f.hostErr
}

// hostCount returns how often the host network has been reconciled.
func (f *fakeNode) hostCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hostReconciles
}

func (f *fakeNode) Expect(pods []hostnet.Pod, _ []hostnet.Network) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expected = pods
}

func (f *fakeNode) Status() hostnet.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return hostnet.Status{Problems: f.hostProblems}
}

func (f *fakeNode) Guard(row loader.DoorRow) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.guarded = append(f.guarded, row)
	return f.guardErr
}

func (f *fakeNode) PodOf(cgroup uint64) (string, bool) {
	f.mu.Lock()
	f.podsSought++
	f.mu.Unlock()
	return "uid-" + strconv.FormatUint(cgroup, 10), true
}

func (f *fakeNode) ListPods(context.Context) ([]ovs.PodPort, error) {
	f.mu.Lock()
	listed, connected := f.listed, f.podPorts
	f.mu.Unlock()
	if listed != nil {
		listed()
	}
	return connected, nil
}

// hosts returns the inputs of the last reconcile of the host network.
func (f *fakeNode) hosts() hostnet.Inputs {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hostInputs
}

// conditionNow returns the Node condition as written last.
func (f *fakeNode) conditionNow() Condition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.condition
}

// eventsNow returns the recorded events.
func (f *fakeNode) eventsNow() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.recorded)
}

// set changes the fake's behaviour.
func (f *fakeNode) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// setVRFSupport makes the fake kernel support VRF devices or not.
func (f *fakeNode) setVRFSupport(ok bool) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	f.kernel.NoVRF = !ok
}

func testConfig(t *testing.T) config.Config {
	t.Helper()
	cfg, err := config.Load("agent", []string{"--node-name=n1", "--cluster-subnets=10.244.0.0/16/24"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func nad(cfg config.Config, ns, name string, id int) network.NAD {
	conf := network.NetConf{Name: network.UDNName(ns, name), Topology: "layer3", Role: "primary", Subnets: "10.20.0.0/16/24"}
	n, err := conf.Network(id, cfg.Plan)
	return network.NAD{Namespace: ns, Name: name, Network: n, Err: err}
}

// firewallInputs are the inputs of nft, of an agent that does not look for pods' cgroups.
func (f *fakeNode) firewallInputs(locked []hostnet.LockedAddr) firewall.Inputs {
	in, err := f.agent.hosts.firewallInputs(locked, nil)
	if err != nil {
		panic(err)
	}
	return in
}

// newFakeNode is a fakeNode with a running agent, whose cache is not synced.
func newFakeNode(t *testing.T, options ...func(*Parts)) *fakeNode {
	t.Helper()
	f := &fakeNode{kernel: &fakeKernel{Fake: vrf.NewFake("br-ex")}, ports: map[string]network.Network{}, annotations: map[string]string{},
		address: netip.MustParsePrefix("192.0.2.10/24"), nextHop: netip.MustParseAddr("192.0.2.1")}
	f.kernel.Fake.Links["br-ex"].Up = true
	f.run(t, options...)
	return f
}

// run runs a new agent on the node.
func (f *fakeNode) run(t *testing.T, options ...func(*Parts)) {
	t.Helper()
	nft, _ := firewall.NewFake()
	queue := NewQueue(nil)
	parts := Parts{Config: testConfig(t), Cache: NewCache(), Queue: queue, Failures: NewFailures(queue), OVS: f, Kernel: f.kernel, Firewall: nft, HostNet: f, API: f, KubeletMark: 0x2b1d0000, Features: func() []Feature { return nil }, Metrics: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, o := range options {
		o(&parts)
	}
	a := New(parts)
	f.mu.Lock()
	f.agent = a
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// events are the handlers of the agent's informers.
func (f *fakeNode) events() eventHandlers {
	a := f.agent
	return eventHandlers{config: a.config, cache: a.cache, queue: a.queue, node: a.node, networksChanged: func() {}, expectPods: a.hosts.expectPods, refuse: func(error) {}, log: a.log}
}

// setNodeID is the event of the node's id.
func (f *fakeNode) setNodeID(id int) {
	f.mu.Lock()
	annotations := maps.Clone(f.annotations)
	f.mu.Unlock()
	if f.agent.cache.SetNode(network.Node{Name: "n1", ID: id}, annotations) {
		f.agent.queue.EnqueueAll()
	}
}

func (f *fakeNode) setPod(p Pod) {
	if f.agent.cache.SetPod(p) {
		f.agent.queue.EnqueueHosts()
	}
}

func (f *fakeNode) setNAD(nad network.NAD) {
	f.events().enqueueNAD(f.agent.cache.SetNAD(nad))
}

// eventually waits for a condition. In a synctest bubble, time passes only while
// all goroutines wait.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	eventuallyWithin(t, time.Minute, what, condition)
}

func eventuallyWithin(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("timed out: %s", what)
}

// state is the state of a network.
func (f *fakeNode) state(id int) NetworkState {
	for _, n := range f.agent.State(context.Background(), true).Networks {
		if n.ID == id {
			return n
		}
	}
	return NetworkState{}
}

// dumpKernel renders the fake kernel's links, routes and rules.
func (f *fakeNode) dumpKernel() string {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	var out []string
	for r := range f.kernel.Routes {
		out = append(out, r.String())
	}
	for r := range f.kernel.Rules {
		out = append(out, r.String())
	}
	for n, l := range f.kernel.Fake.Links {
		out = append(out, fmt.Sprintf("%s table %d", n, l.Table))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
