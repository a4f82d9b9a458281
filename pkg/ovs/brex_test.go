// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/ovs/vsdb"
	"bulkhead/test/native"
)

// vswitchd starts a real ovs-vswitchd with the dummy datapath.
func vswitchd(t *testing.T, root native.Tree, dir, address string) *exec.Cmd {
	t.Helper()
	cmd := fromRootfs(root, "ovs-vswitchd", address, "--enable-dummy=override", "--disable-system", "--no-chdir",
		"--unixctl="+filepath.Join(dir, "vswitchd.ctl"))
	cmd.Env = append(cmd.Environ(), "OVS_RUNDIR="+dir)
	cmd.Stderr = &testLog{t}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func addUplink(t *testing.T, c *Client, name string) {
	t.Helper()
	ctx := deadline(t)
	br := &vsdb.Bridge{Name: "br-ex"}
	if err := c.db.Get(ctx, br); err != nil {
		t.Fatal(err)
	}
	ops := must(c.create(&vsdb.Interface{UUID: "i", Name: name, Type: "dummy"}, &vsdb.Port{UUID: "p", Name: name, Interfaces: []string{"i"}}))
	transact(t, c, append(ops, must(c.db.Where(br).Mutate(br, model.Mutation{Field: &br.Ports, Mutator: "insert", Value: []string{"p"}}))...)...)
	waitFor(t, c, func() bool { return c.db.Get(ctx, &vsdb.Interface{Name: name}) == nil })
}

// addPatchPort adds a patch port to br-ex that leads to another bridge, which it creates.
func addPatchPort(t *testing.T, c *Client, name, bridge string) {
	t.Helper()
	ctx := deadline(t)
	peer := "peer-of-" + bridge
	exPort := &vsdb.Interface{UUID: "e", Name: name, Type: "patch", Options: map[string]string{"peer": peer}}
	intPort := &vsdb.Interface{UUID: "i", Name: peer, Type: "patch", Options: map[string]string{"peer": name}}
	local := &vsdb.Interface{UUID: "v", Name: bridge, Type: "internal"}
	p := &vsdb.Port{UUID: "p", Name: exPort.Name, Interfaces: []string{exPort.UUID}}
	q := &vsdb.Port{UUID: "q", Name: intPort.Name, Interfaces: []string{intPort.UUID}}
	l := &vsdb.Port{UUID: "l", Name: local.Name, Interfaces: []string{local.UUID}}
	b := &vsdb.Bridge{UUID: "b", Name: bridge, Ports: []string{"q", "l"}, DatapathType: "dummy"}
	br := &vsdb.Bridge{Name: "br-ex"}
	if err := c.db.Get(ctx, br); err != nil {
		t.Fatal(err)
	}
	o := must(c.root(ctx))
	ops := must(c.create(exPort, intPort, local, p, q, l, b))
	ops = append(ops, must(c.db.Where(br).Mutate(br, model.Mutation{Field: &br.Ports, Mutator: "insert", Value: []string{"p"}}))...)
	ops = append(ops, must(c.db.Where(&o).Mutate(&o, model.Mutation{Field: &o.Bridges, Mutator: "insert", Value: []string{"b"}}))...)
	transact(t, c, ops...)
	waitFor(t, c, func() bool { return c.db.Get(ctx, &vsdb.Interface{Name: exPort.Name}) == nil })
}

func ovsOfctl(root native.Tree, dir string) flows.OFCtl {
	return flows.OFCtl{Command: func(ctx context.Context, args ...string) *exec.Cmd {
		found := fromRootfs(root, "ovs-ofctl", args...)
		cmd := exec.CommandContext(ctx, found.Path, found.Args[1:]...)
		cmd.Env = append(cmd.Environ(), "OVS_RUNDIR="+dir)
		return cmd
	}}
}

// routerPatch is the uplink router's patch port.
const routerPatch = "patch-br-ex_uplink__node-1-to-br-int"

// gatewayNode is a node with addresses.
var (
	gatewayNode = network.Node{Name: "node-1", ID: 3, Bridge: "br-ex", BridgeMAC: "52:54:00:00:00:01",
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/64")}}
	testPlan = network.Plan{
		Masquerade:   []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17"), netip.MustParsePrefix("fd69::/112")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd10:96::/112")},
		ClusterSubnets: []network.Subnet{
			{CIDR: netip.MustParsePrefix("10.244.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd10:244::/48"), HostLen: 64},
		},
	}
)

// newReconciler returns a reconciler of br-ex that does not run yet.
func newReconciler(c *Client, sw flows.Switch, dir string) *FlowReconciler {
	return NewFlowReconciler(c, FlowOptions{Switch: sw, Bridge: "br-ex", Node: gatewayNode.Name, Plan: testPlan, RunDir: dir, Neighbours: &fakeNeighbours{}, Log: slog.New(slog.DiscardHandler)})
}

// fakeNeighbours is a neighbour table.
type fakeNeighbours struct {
	mu      sync.Mutex
	macs    map[netip.Addr]string
	changed func(int, netip.Addr, string)
}

func (f *fakeNeighbours) MACs(_ string, hosts []netip.Addr) (int, map[netip.Addr]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[netip.Addr]string{}
	for _, h := range hosts {
		if mac, ok := f.macs[h]; ok {
			out[h] = mac
		}
	}
	return 1, out, nil
}

func (f *fakeNeighbours) Watch(_ context.Context, changed func(int, netip.Addr, string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = changed
}

// set changes the table; without an address the host does not answer any more.
func (f *fakeNeighbours) set(host, mac string) {
	a := netip.MustParseAddr(host)
	f.mu.Lock()
	macs := maps.Clone(f.macs)
	f.mu.Unlock()
	if macs == nil {
		macs = map[netip.Addr]string{}
	}
	if macs[a] = mac; mac == "" {
		delete(macs, a)
	}
	f.mu.Lock()
	f.macs = macs
	changed := f.changed
	f.mu.Unlock()
	if changed != nil && mac != "" {
		changed(1, a, mac)
	}
}

// desired returns the flows that the bridge should have, built from nothing.
func (r *FlowReconciler) desired(ctx context.Context) (flows.State, error) {
	options := r.FlowOptions
	options.Switch = &flows.Fake{}
	fresh := NewFlowReconciler(r.Client, options)
	r.mu.Lock()
	fresh.node, fresh.localnets, fresh.peers, fresh.gateways, fresh.complete = r.node, r.localnets, r.peers, r.gateways, true
	fresh.routers = maps.Clone(r.routers)
	r.mu.Unlock()
	if err := fresh.reconcile(ctx, changes{all: true, stale: true}); err != nil {
		return nil, err
	}
	return fresh.Switch.Read(ctx, r.Bridge)
}

// runReconciler runs a reconciler until the test ends.
func runReconciler(t *testing.T, r *FlowReconciler) *FlowReconciler {
	t.Helper()
	r.SetNode(Facts{Node: gatewayNode}, nil, nil)
	r.MarkComplete()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { r.Run(ctx); close(stopped) }()
	t.Cleanup(func() { cancel(); <-stopped })
	return r
}

// The reconciler repairs flows that another program changed within seconds, as
// the node's connectivity depends on them. Flows of others stay, and without a
// change the reconciler does not read the bridge.
func TestRepairsChangedFlows(t *testing.T) {
	for name, notified := range map[string]bool{"with flow monitor": true, "periodic only": false} {
		t.Run(name, func(t *testing.T) {
			root, dir := rootfs(t), t.TempDir()
			address := startServer(t, root, dir)
			c := connect(t, address)
			addUplink(t, c, "eth1")
			addPatchPort(t, c, routerPatch, "br-a")
			process := vswitchd(t, root, dir, address)
			ofctl := ovsOfctl(root, dir)
			counted := &countedSwitch{Switch: ofctl}
			r := newReconciler(c, counted, dir)
			r.interval = time.Hour
			if !notified {
				r.RunDir, r.interval = t.TempDir(), 100*time.Millisecond
			}
			runReconciler(t, r)
			expectFlows := func(when string) {
				t.Helper()
				start := time.Now()
				eventually(t, when, func(ctx context.Context) error {
					want, err := r.desired(ctx)
					if err != nil {
						return err
					}
					have, err := ofctl.Read(ctx, "br-ex")
					if ops := flows.Diff(want, have); err == nil && len(ops) > 0 {
						err = fmt.Errorf("remaining operations: %v", ops)
					}
					if err == nil && time.Since(start) > 10*time.Second {
						t.Errorf("%s: took %s", when, time.Since(start))
					}
					return err
				})
			}
			runOfctl := func(args ...string) {
				t.Helper()
				if out, err := ofctl.Command(deadline(t), args...).CombinedOutput(); err != nil {
					t.Fatalf("ovs-ofctl %v: %v: %s", args, err, out)
				}
			}
			expectFlows("at process")
			runOfctl("add-flow", "br-ex", "cookie=0x7,priority=5,tcp,actions=drop")
			for when, args := range map[string][]string{
				"all were deleted": {"del-flows", "br-ex", fmt.Sprintf("cookie=%#x/%#x", flows.CookieMark, flows.CookieMask)},
				"one was deleted":  {"--strict", "del-flows", "br-ex", "priority=100,in_port=LOCAL"},
				"one was changed":  {"--strict", "mod-flows", "br-ex", "priority=100,in_port=LOCAL,actions=drop"},
				"one was replaced": {"add-flow", "br-ex", "priority=10,actions=NORMAL"},
				"one was added":    {"add-flow", "br-ex", fmt.Sprintf("cookie=%#x,priority=200,in_port=LOCAL,actions=drop", flows.CookieBase)},
			} {
				runOfctl(args...)
				expectFlows(when)
			}
			if out, err := ofctl.Command(deadline(t), "dump-flows", "br-ex", "cookie=0x7/-1").Output(); err != nil || !strings.Contains(string(out), "tcp") {
				t.Errorf("another program's flow was deleted: %v %s", err, out)
			}
			_ = process.Process.Kill()
			_ = process.Wait()
			vswitchd(t, root, dir, address)
			expectFlows("ovs-vswitchd was restarted")
			if notified { // new pods do not change the bridge
				if err := c.SyncChassis(deadline(t), testNode(), testInputs); err != nil {
					t.Fatal(err)
				}
				before := counted.reads.Load()
				for id := range 50 {
					if _, err := c.EnsurePods(deadline(t), podPorts(fmt.Sprint(id))); err != nil {
						t.Fatal(err)
					}
				}
				if n := counted.reads.Load() - before; n > 5 { // events of the restarted switch may still arrive
					t.Errorf("%d reads of the bridge without a change", n)
				}
			}
		})
	}
}

// A bond's members come and go, and one that Open vSwitch cannot use does not take the others with it.
func TestBondMembers(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	address := startServer(t, root, dir)
	c := connect(t, address)
	br := &vsdb.Bridge{Name: "br-ex"}
	if err := c.db.Get(deadline(t), br); err != nil {
		t.Fatal(err)
	}
	bond := &vsdb.Port{UUID: "p", Name: "bond0", Interfaces: []string{"a", "b"}}
	ops := must(c.create(&vsdb.Interface{UUID: "a", Name: "eth1", Type: "dummy"}, &vsdb.Interface{UUID: "b", Name: "broken", Type: "no-such-type"}, bond))
	transact(t, c, append(ops, must(c.db.Where(br).Mutate(br, model.Mutation{Field: &br.Ports, Mutator: "insert", Value: []string{"p"}}))...)...)
	vswitchd(t, root, dir, address)
	r := newReconciler(c, ovsOfctl(root, dir), dir)
	r.interval = time.Hour
	runReconciler(t, r)
	expect := func(when string, members ...string) {
		t.Helper()
		eventually(t, when, func(ctx context.Context) error {
			have, err := r.Switch.Read(ctx, "br-ex")
			if err != nil {
				return err
			}
			for _, name := range members {
				port, err := c.openFlowPort(ctx, name)
				from := fmt.Sprintf("in_port=%d", port)
				if err != nil || port <= 0 || !slices.ContainsFunc(have, func(f flows.Flow) bool { return f.Priority > 0 && strings.Contains(f.Match, from) }) {
					return fmt.Errorf("no flow from %s, port %d: %v, %v", name, port, have, err)
				}
			}
			return nil
		})
	}
	expect("one member is broken", "eth1")
	port := &vsdb.Port{Name: "bond0"}
	if err := c.db.Get(deadline(t), port); err != nil {
		t.Fatal(err)
	}
	ops = must(c.create(&vsdb.Interface{UUID: "n", Name: "eth3", Type: "dummy"}))
	transact(t, c, append(ops, must(c.db.Where(port).Mutate(port, model.Mutation{Field: &port.Interfaces, Mutator: "insert", Value: []string{"n"}}))...)...)
	expect("another member", "eth1", "eth3")
	first := &vsdb.Interface{Name: "eth1"}
	if err := c.db.Get(deadline(t), first); err != nil {
		t.Fatal(err)
	}
	transact(t, c, must(c.db.Where(port).Mutate(port, model.Mutation{Field: &port.Interfaces, Mutator: "delete", Value: []string{first.UUID}}))...)
	expect("without the first", "eth3")
}

type countedSwitch struct {
	flows.Switch
	reads atomic.Int64
}

func (s *countedSwitch) Read(ctx context.Context, bridge string) (flows.State, error) {
	s.reads.Add(1)
	return s.Switch.Read(ctx, bridge)
}

func TestExternalBridgeFlows(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	address := startServer(t, root, dir)
	c := connect(t, address)
	addUplink(t, c, "eth1")
	process := vswitchd(t, root, dir, address)
	ctx := deadline(t)
	ofctl := ovsOfctl(root, dir)
	reports := make(chan error, 1000)
	r := newReconciler(c, ofctl, dir)
	r.Report = func(err error) {
		select {
		case reports <- err:
		default:
		}
	}
	runReconciler(t, r)
	// expectFlows waits for reports until the switch has the desired flows.
	expectFlows := func(when string) {
		t.Helper()
		var last error
		for {
			select {
			case last = <-reports:
			case <-ctx.Done():
				t.Fatalf("%s: the switch does not have the desired flows: %v", when, last)
			}
			want, err := r.desired(ctx)
			if err != nil {
				continue
			}
			have, err := ofctl.Read(ctx, "br-ex")
			if err == nil && len(flows.Diff(want, have)) == 0 {
				return
			}
			if last == nil && err != nil {
				last = err
			}
		}
	}
	expectFlows("at process")
	out, err := ofctl.Command(ctx, "--no-stats", "dump-flows", "br-ex").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "priority=0 actions=NORMAL") {
		t.Errorf("the bridge's default flow was deleted: %v %s", err, out)
	}
	// With two possible uplinks, bridge-uplink must be set.
	addUplink(t, c, "eth2")
	reader := bridgeReader{client: c, name: "br-ex"}
	if _, _, err := reader.read(ctx, routerPatch, nil); err == nil || !strings.Contains(err.Error(), "external_ids:bridge-uplink") {
		t.Errorf("two uplinks: %v", err)
	}
	br := &vsdb.Bridge{Name: "br-ex"}
	if err := c.db.Get(ctx, br); err != nil {
		t.Fatal(err)
	}
	transact(t, c, must(c.setIDs(br, &br.ExternalIDs, map[string]string{"bridge-uplink": "eth2"}, nil))...)
	waitFor(t, c, func() bool {
		b, _, err := reader.read(ctx, routerPatch, nil)
		return err == nil && len(b.Uplinks) == 1 && b.Uplinks[0] > 0
	})
	expectFlows("after bridge-uplink was set")
	// The flows are lost when ovs-vswitchd crashes.
	_ = process.Process.Kill()
	_ = process.Wait()
	for len(reports) > 0 {
		<-reports
	}
	vswitchd(t, root, dir, address)
	expectFlows("after ovs-vswitchd was restarted")
}

// While the external bridge does not have our flows, e.g. after a restart of Open
// vSwitch, a frame from one network's patch port must not reach another's.
func TestNoTrafficBetweenPatchPorts(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	address := startServer(t, root, dir)
	c := connect(t, address)
	ctx := deadline(t)
	addUplink(t, c, "eth1")
	for _, n := range []string{"a", "b"} {
		addPatchPort(t, c, "ex"+n, "br"+n)
	}
	vswitchd(t, root, dir, address)
	reaches := func() bool {
		t.Helper()
		cmd := fromRootfs(root, "ovs-appctl", "-t", filepath.Join(dir, "vswitchd.ctl"), "ofproto/trace", "br-ex", "in_port=exa,dl_dst=ff:ff:ff:ff:ff:ff")
		out, _ := cmd.CombinedOutput()
		return strings.Contains(string(out), `bridge("brb")`)
	}
	for !reaches() { // positive control: the bridge floods
		select {
		case <-ctx.Done():
			t.Fatal("the bridge never flooded, so the test proves nothing")
		case <-time.After(20 * time.Millisecond):
		}
	}
	reader := bridgeReader{client: c, name: "br-ex"}
	if _, _, err := reader.read(ctx, routerPatch, nil); err != nil {
		t.Fatal(err)
	}
	if err := reader.protect(ctx, routerPatch, nil, nil); err != nil {
		t.Fatal(err)
	}
	for reaches() {
		select {
		case <-ctx.Done():
			t.Fatal("a frame of one network reaches the other via the external bridge")
		case <-time.After(20 * time.Millisecond):
		}
	}
	uplink := &vsdb.Port{Name: "eth1"}
	if err := c.db.Get(ctx, uplink); err != nil || uplink.Protected {
		t.Errorf("the uplink is protected too: %v", err)
	}
}
