// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// kernel is a vrf.Fake that several workers can use.
type kernel struct {
	mu sync.Mutex
	*vrf.Fake
}

func (k *kernel) Read(ctx context.Context, o vrf.Owner) (vrf.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.Read(ctx, o)
}
func (k *kernel) Tables(ctx context.Context) ([]int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.Tables(ctx)
}
func (k *kernel) Do(ctx context.Context, op vrf.Op) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.Do(ctx, op)
}
func (k *kernel) Links(ctx context.Context) ([]vrf.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.List(ctx)
}
func (k *kernel) DeviceIndex(table int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Fake.DeviceIndex(table)
}

// world stands for everything outside the agent. Ports that OVS makes appear
// in the kernel, with their event.
type world struct {
	mu       sync.Mutex
	kernel   *kernel
	agent    *Agent
	ports    map[string]network.Network
	chassis  int
	notes    map[string]string // annotations written
	writes   int
	cond     Condition
	events   []string
	hosts    hostnet.Inputs
	guarded  []loader.DoorRow
	guardErr error
	hostErr  error
	problems []hostnet.Problem
	ovsDown  bool
	syncs    int
	hostDone int
}

func (w *world) NodeFacts(_ context.Context, name string, c config.OVS, _ network.Plan) (network.Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ovsDown {
		return network.Node{}, errors.New("database is not connected")
	}
	return network.Node{Name: name, Chassis: "c1", Bridge: c.ExternalBridge, BridgeMAC: "02:00:00:00:00:01", Mode: c.GatewayMode,
		EncapIPs:  []netip.Addr{netip.MustParseAddr("192.0.2.10")},
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}, NextHops: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil
}

func (w *world) SyncChassis(context.Context, network.Node, ovs.Inputs) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.chassis++
	return nil
}

func (w *world) SyncManagement(_ context.Context, _ network.Node, nets []network.Network) error {
	w.mu.Lock()
	if w.ovsDown {
		w.mu.Unlock()
		return errors.New("database is not connected")
	}
	w.syncs++
	want := map[string]network.Network{}
	for _, n := range nets {
		want[n.ManagementPort()] = n
	}
	var changed []int
	w.kernel.mu.Lock()
	for name, n := range want {
		if _, ok := w.ports[name]; !ok {
			w.kernel.AddLink(name)
			changed = append(changed, n.ID)
		}
	}
	for name, n := range w.ports {
		if _, ok := want[name]; !ok {
			w.kernel.DelLink(name)
			changed = append(changed, n.ID)
		}
	}
	w.kernel.mu.Unlock()
	w.ports = want
	w.mu.Unlock()
	for _, id := range changed {
		w.agent.KernelChanged(vrf.Change{ID: id})
	}
	return nil
}

func (w *world) Annotate(_ context.Context, a map[string]string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	for k, v := range a {
		w.notes[k] = v
	}
	return nil
}

func (w *world) SetCondition(_ context.Context, c Condition) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cond = c
	return nil
}

func (w *world) Event(_ bool, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, reason+" "+message)
}

func (w *world) Reconcile(_ context.Context, in hostnet.Inputs) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = in
	w.hostDone++
	return w.hostErr
}
func (w *world) Status() hostnet.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return hostnet.Status{Problems: w.problems}
}
func (w *world) Guard(row loader.DoorRow) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guarded = append(w.guarded, row)
	return w.guardErr
}
func (w *world) PodOf(cgroup uint64) (string, bool) {
	return "uid-" + strconv.FormatUint(cgroup, 10), true
}
func (w *world) PodEvent(p Pod, reason, message string) {
	w.Event(true, p.Key()+" "+reason, message)
}
func (w *world) ListPods(context.Context) ([]ovs.PodPort, error) { return nil, nil }

func (w *world) snapshot() (hosts hostnet.Inputs, cond Condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hosts, w.cond
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

// newWorld is an agent that runs in a world of its own, not started yet.
func newWorld(t *testing.T, options ...func(*Parts)) *world {
	t.Helper()
	w := &world{kernel: &kernel{Fake: vrf.NewFake("br-ex")}, ports: map[string]network.Network{}, notes: map[string]string{}}
	w.kernel.Fake.Links["br-ex"].Up = true
	w.run(t, options...)
	return w
}

func (w *world) run(t *testing.T, options ...func(*Parts)) {
	t.Helper()
	nft, _ := firewall.NewFake()
	parts := Parts{Config: testConfig(t), Store: NewCache(), OVS: w, Kernel: w.kernel, Firewall: nft, HostNet: w, API: w, KubeletMark: 0x2b1d0000,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, o := range options {
		o(&parts)
	}
	a := New(parts)
	w.mu.Lock()
	w.agent = a
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func (w *world) nodeID(id int) {
	if w.agent.Store.SetNode(network.Node{Name: "n1", ID: id}, nil) {
		w.agent.everything()
	}
}

// eventually waits for f. In a synctest bubble time passes only when nobody
// else can go on.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

func (w *world) state(id int) NetworkState {
	for _, n := range w.agent.State(context.Background(), true).Networks {
		if n.ID == id {
			return n
		}
	}
	return NetworkState{}
}

func (w *world) text() string {
	w.kernel.mu.Lock()
	defer w.kernel.mu.Unlock()
	var out []string
	for r := range w.kernel.Routes {
		out = append(out, r.String())
	}
	for r := range w.kernel.Rules {
		out = append(out, r.String())
	}
	for n, l := range w.kernel.Fake.Links {
		out = append(out, fmt.Sprintf("%s table %d", n, l.Table))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestNetworkComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.Start()
		w.nodeID(3)
		eventually(t, "ready", func() bool { return w.agent.Ready() == nil })
		eventually(t, "default network", func() bool { return w.state(0).State == StateReady })
		before := w.text()

		s := w.agent.Store
		s.SetNamespace("shop", Namespace{Labelled: true})
		w.agent.setPodForTest(Pod{UID: "u1", Namespace: "shop", Name: "web", Networks: network.PodNetworks{
			"default":  {IPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.7/24")}, Role: network.RoleInfrastructureLocked},
			"shop/net": {IPs: []netip.Prefix{netip.MustParsePrefix("10.20.2.7/24")}, Role: network.RolePrimary}}})
		w.agent.setPodForTest(Pod{UID: "u2", Namespace: "shop", Name: "exporter", HostNetwork: true})
		w.agent.nadChanged(s.SetNAD(nad(w.agent.Config, "shop", "net", 7)))
		eventually(t, "network ready", func() bool { return w.state(7).State == StateReady && len(w.state(7).Pending) == 0 })
		eventually(t, "programs told", func() bool {
			in, _ := w.snapshot()
			return len(in.Networks) == 1 && in.Networks[0].VRFIfindex != 0 && len(in.Pods) == 1 && in.Pods[0].NetworkID == 7 &&
				len(in.Locked) == 1 && in.Locked[0].NetworkID == 7
		})
		n := w.state(7)
		if n.VRF != "mp7-udn-vrf" || n.Table != 100007 || !slices.Equal(n.Pods, []string{"shop/web"}) || !slices.Equal(n.HostPods, []string{"shop/exporter"}) {
			t.Errorf("%+v", n)
		}

		// The pod ends, then the NAD goes: nothing is left.
		w.agent.deletePod("shop/web")
		w.agent.deletePod("shop/exporter")
		w.agent.deleteNAD("shop/net")
		eventually(t, "all gone", func() bool { return w.text() == before })
		eventually(t, "programs told", func() bool {
			in, _ := w.snapshot()
			return len(in.Networks)+len(in.Pods)+len(in.Locked) == 0
		})
		if n := w.state(7); n.Name != "" {
			t.Errorf("still told: %+v", n)
		}
	})
}

func (a *Agent) setPodForTest(p Pod) {
	if a.Store.SetPod(p) {
		a.Hosts()
	}
}

// Networks that went while no agent ran are taken away; those that are wanted,
// and one whose NAD cannot be read, stay.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 3 {
			w.agent.Store.SetNAD(nad(w.agent.Config, fmt.Sprintf("ns%d", i), "net", 5+i))
		}
		w.agent.Start()
		w.nodeID(3)
		eventually(t, "networks ready", func() bool {
			return w.state(5).State == StateReady && w.state(6).State == StateReady && w.state(7).State == StateReady
		})
		w.run(t) // another process, the same kernel
		w.agent.Store.SetNAD(nad(w.agent.Config, "ns0", "net", 5))
		broken := nad(w.agent.Config, "ns2", "net", 7)
		broken.Err = errors.New("unreadable")
		w.agent.Store.SetNAD(broken)
		time.Sleep(time.Minute) // the bubble's
		if !strings.Contains(w.text(), "100006") {
			t.Fatal("something was removed before the API's lists were complete")
		}
		w.agent.Start()
		w.nodeID(3)
		eventually(t, "leftover removed", func() bool { return !strings.Contains(w.text(), "100006") })
		if s := w.state(5); s.State != StateReady || len(s.Pending) != 0 {
			t.Errorf("network that is wanted: %+v", s)
		}
		if !strings.Contains(w.text(), "mp7-udn-vrf") {
			t.Error("bad input withdrew a network")
		}
	})
}

// A malformed edit of a NAD withdraws nothing; a mended one goes on.
func TestBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.Start()
		w.nodeID(3)
		good := nad(w.agent.Config, "shop", "net", 7)
		w.agent.nadChanged(w.agent.Store.SetNAD(good))
		eventually(t, "ready", func() bool { return w.state(7).State == StateReady })
		w.agent.nadChanged(w.agent.Store.SetNAD(network.NAD{Namespace: "shop", Name: "net", Err: errors.New("not JSON")}))
		time.Sleep(time.Minute) // the bubble's
		if s := w.state(7); s.State != StateReady {
			t.Errorf("after a malformed edit: %+v", s)
		}
		w.agent.deleteNAD("shop/net")
		eventually(t, "gone", func() bool { return !strings.Contains(w.text(), "100007") })
	})
}

// An id that changes hands: the kernel holds the new network, not a mixture.
func TestIDChangesHands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.Start()
		w.nodeID(3)
		w.agent.nadChanged(w.agent.Store.SetNAD(nad(w.agent.Config, "a", "net", 7)))
		eventually(t, "ready", func() bool { return w.state(7).State == StateReady })
		w.agent.nadChanged(w.agent.Store.SetNAD(nad(w.agent.Config, "b", "net", 7)))
		w.agent.deleteNAD("a/net")
		eventually(t, "taken over", func() bool {
			s := w.state(7)
			return s.Name == "b_net" && s.State == StateReady && len(s.Pending) == 0 && strings.Contains(s.Have, "alias bulkhead:b_net")
		})
	})
}

// What fails is told, as a condition and as one event, and taken back.
func TestDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kernel.NoVRF = true
		w.agent.Start()
		w.nodeID(3)
		w.agent.nadChanged(w.agent.Store.SetNAD(nad(w.agent.Config, "shop", "net", 7)))
		eventually(t, "degraded", func() bool { _, c := w.snapshot(); return c.True() && c.Reason == "VRFUnavailable" })
		if s := w.state(7); s.State != StateError || !strings.Contains(s.Error, "VRF") {
			t.Errorf("%+v", s)
		}
		w.kernel.mu.Lock()
		w.kernel.NoVRF = false
		w.kernel.mu.Unlock()
		eventually(t, "well again", func() bool { _, c := w.snapshot(); return !c.True() && c.Reason == "AllWell" })
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for _, e := range w.events {
			if strings.HasPrefix(e, "VRFUnavailable") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d events: %q", n, w.events)
		}
	})
}

// What a node fails to build for a while is told on its Node, for the network's
// status; what fails for a moment is not.
func TestFailuresAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kernel.NoVRF = true
		w.agent.Start()
		w.nodeID(3)
		note := func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.notes[network.AnnotationAgentFailures]
		}
		began := time.Now()
		for id, name := range map[int]string{7: "net", 8: "other"} {
			w.agent.nadChanged(w.agent.Store.SetNAD(nad(w.agent.Config, "shop", name, id)))
		}
		eventually(t, "told", func() bool { return strings.Contains(note(), `"ids":"7-8"`) && strings.Contains(note(), "VRF") })
		if took := time.Since(began); took < lasting {
			t.Errorf("told after %s", took)
		}
		w.kernel.mu.Lock()
		w.kernel.NoVRF = false
		w.kernel.mu.Unlock()
		eventually(t, "taken back", func() bool { return note() == "" })
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, ever := w.notes[network.AnnotationAgentFailures]; !ever || w.writes > 4 {
			t.Errorf("%d writes: %v", w.writes, w.notes)
		}
	})
}

// A node without an id waits and says so; facts are written once.
func TestNodeWaitsForID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.Store.SetNAD(nad(w.agent.Config, "shop", "net", 7))
		w.agent.Start()
		eventually(t, "condition", func() bool { _, c := w.snapshot(); return c.Reason == "NodeIDMissing" })
		eventually(t, "facts written", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.notes[network.AnnotationChassisID] == "c1" })
		if err := w.agent.Ready(); err == nil {
			t.Error("ready without an id")
		}
		w.nodeID(3)
		eventually(t, "ready", func() bool { return w.agent.Ready() == nil && w.state(7).State == StateReady })
		w.mu.Lock()
		writes := w.writes
		w.notes = map[string]string{}
		w.mu.Unlock()
		if writes > 2 { // nodeID brings a Node without them
			t.Errorf("%d writes to the Node", writes)
		}
	})
}

// Five hundred networks: few transactions, and no waiting.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const n = 500
		for i := range n {
			w.agent.Store.SetNAD(nad(w.agent.Config, fmt.Sprintf("ns%d", i), "net", i+1))
		}
		start := time.Now()
		w.agent.Store.SetNode(network.Node{Name: "n1", ID: 3}, nil)
		w.agent.Start()
		eventually(t, "all ready", func() bool {
			ready := 0
			for _, s := range w.agent.networkStates(nil, nil) {
				if s.State == StateReady {
					ready++
				}
			}
			return ready == n+1
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		t.Logf("%d networks: %d syncs of ports, %d of the programs", n, w.syncs, w.hostDone)
		if waited := time.Since(start); waited > time.Second { // the bubble's time: what was not work
			t.Errorf("%v of waiting", waited)
		}
		if w.syncs > 3 {
			t.Errorf("%d syncs of management ports", w.syncs)
		}
	})
}

func TestServe(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	for range 2 { // a second process takes the socket over
		if err := w.agent.Serve(ctx, "127.0.0.1:0", socket); err != nil {
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
		t.Error("not alive")
	}
	if code, _ := get("/readyz"); code != 503 {
		t.Error("ready before it started")
	}
	w.agent.Start()
	w.nodeID(3)
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
