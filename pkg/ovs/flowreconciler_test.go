// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/pkg/ovs/flows"
)

// recordedSwitch counts reads and keeps the cookies of what is written.
type recordedSwitch struct {
	flows.Switch

	mu      sync.Mutex
	reads   int
	cookies []uint64
}

func (s *recordedSwitch) Read(ctx context.Context, bridge string) (flows.State, error) {
	s.mu.Lock()
	s.reads++
	s.mu.Unlock()
	return s.Switch.Read(ctx, bridge)
}

func (s *recordedSwitch) Apply(ctx context.Context, bridge string, ops []flows.Op) error {
	s.mu.Lock()
	for _, op := range ops {
		s.cookies = append(s.cookies, op.Flow.Cookie)
	}
	s.mu.Unlock()
	return s.Switch.Apply(ctx, bridge, ops)
}

// taken returns the number of reads and the cookies written since the last call.
func (s *recordedSwitch) taken() (int, []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reads, cookies := s.reads, s.cookies
	s.reads, s.cookies = 0, nil
	slices.Sort(cookies)
	return reads, slices.Compact(cookies)
}

// stale reports whether the reconciler will read the bridge.
func (r *FlowReconciler) stale() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed.stale
}

// An event of one network writes that network's flows, and reads none. Flows of networks that
// the reconciler does not know stay until every network is set.
func TestFlowsPerNetwork(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	address := startServer(t, root, dir)
	c := connect(t, address)
	addUplink(t, c, "eth1")
	addPatchPort(t, c, routerPatch, "br-router")
	addPatchPort(t, c, redNet.ExternalPatch("br-ex", gatewayNode.Name), "br-red")
	addPatchPort(t, c, blueNet.ExternalPatch("br-ex", gatewayNode.Name), "br-blue")
	vswitchd(t, root, dir, address)
	ofctl := ovsOfctl(root, dir)
	unknown := flows.Flow{Cookie: flows.Cookie(99), Table: 4, Priority: 7, Match: "tcp,nw_dst=192.0.2.99", Actions: "drop"}
	eventually(t, "a flow of an earlier process", func(ctx context.Context) error {
		return ofctl.Apply(ctx, "br-ex", []flows.Op{{Flow: unknown}})
	})
	sw := &recordedSwitch{Switch: ofctl}
	r := newReconciler(c, sw, dir)
	r.SetNode(Facts{Node: gatewayNode}, nil, nil)
	r.SetNetwork(redNet, nil, nil)
	ctx, cancel := context.WithCancel(deadline(t))
	t.Cleanup(cancel)
	watchFlows(ctx, filepath.Join(dir, "br-ex.mgmt"), r.Log, r.flowsChanged)
	eventually(t, "the flow monitor", func(context.Context) error {
		if !r.stale() {
			return errors.New("not active yet")
		}
		return nil
	})

	// reconcile handles what has changed, and waits for the events of its own changes. It
	// returns the numbers of flows by cookie.
	reconcile := func(when string) map[uint64]int {
		t.Helper()
		if err := r.reconcile(ctx, r.takeChanges()); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		eventually(t, when, func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.expected) > 0 {
				return fmt.Errorf("events are still to come: %v", r.expected)
			}
			return nil
		})
		have, err := ofctl.Read(ctx, "br-ex")
		if err != nil {
			t.Fatal(err)
		}
		n := map[uint64]int{}
		for _, f := range have {
			n[f.Cookie]++
		}
		return n
	}
	red, blue := flows.Cookie(redNet.ID), flows.Cookie(blueNet.ID)
	n := reconcile("the first network")
	if n[red] < 5 || n[unknown.Cookie] != 1 {
		t.Errorf("%d flows of red, %d of a network that is not set yet; want some, and 1", n[red], n[unknown.Cookie])
	}
	r.Keep([]int{99})
	r.MarkComplete()
	if n = reconcile("every network is set, or kept"); n[red] < 5 || n[unknown.Cookie] != 1 {
		t.Errorf("%d flows of red, %d of a network that is kept; want some, and 1", n[red], n[unknown.Cookie])
	}
	r.Keep(nil)
	if n = reconcile("every network is set"); n[red] < 5 || n[unknown.Cookie] != 0 {
		t.Errorf("%d flows of red, %d of a network that does not exist; want some, and none", n[red], n[unknown.Cookie])
	}

	without := n[red]
	for _, step := range []struct {
		name   string
		event  func()
		cookie uint64
		enough func(int) bool
	}{
		{"a second network", func() { r.SetNetwork(blueNet, nil, nil) }, blue, func(n int) bool { return n > 5 }},
		{"ports of services", func() { r.SetNetwork(redNet, nil, redPorts) }, red, func(n int) bool { return n > without }},
		{"no ports of services", func() { r.SetNetwork(redNet, nil, nil) }, red, func(n int) bool { return n == without }},
		{"a network less", func() { r.DeleteNetwork(blueNet.ID) }, blue, func(n int) bool { return n == 0 }},
	} {
		sw.taken()
		step.event()
		if n := reconcile(step.name)[step.cookie]; !step.enough(n) {
			t.Errorf("%s: %d flows", step.name, n)
		}
		if reads, cookies := sw.taken(); reads != 0 || !slices.Equal(cookies, []uint64{step.cookie}) {
			t.Errorf("%s: %d reads of the bridge, changes of flows with cookies %#x; want none, and %#x alone", step.name, reads, cookies, step.cookie)
		}
	}
	if r.stale() {
		t.Error("the reconciler takes its own changes for another program's")
	}
	// Positive control: another program's change is read, and undone.
	if out, err := ofctl.Command(ctx, "del-flows", "br-ex", fmt.Sprintf("cookie=%#x/-1", red)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, "another program's change", func(context.Context) error {
		if !r.stale() {
			return errors.New("no event")
		}
		return nil
	})
	if n := reconcile("another program's change")[red]; n != without {
		t.Errorf("after another program's change: %d flows, want %d", n, without)
	}
	// A network that changes while the database cannot be read keeps its flows, and gets its new ones from
	// the next reconcile that succeeds, whatever that one is for: of the network alone nothing is read before,
	// and of all the bridge is.
	flowsOfRed := func() int {
		have, err := ofctl.Read(ctx, "br-ex")
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(have, func(f flows.Flow) bool { return f.Cookie != red }))
	}
	had := without
	for _, lost := range []struct {
		changes
		ports []flows.ServicePort
		want  func(n int) bool
	}{
		{changes{networks: map[int]bool{redNet.ID: true}}, redPorts, func(n int) bool { return n > without }},
		{changes{all: true, networks: map[int]bool{redNet.ID: true}}, nil, func(n int) bool { return n == without }},
	} {
		r.Client.Close()
		r.SetNetwork(redNet, nil, lost.ports)
		if err := r.reconcile(ctx, lost.changes); err == nil {
			t.Errorf("%+v: no error without a database", lost.changes)
		}
		if n := flowsOfRed(); n != had {
			t.Errorf("%+v: without a database %d flows of a changed network, want %d", lost.changes, n, had)
		}
		r.Client = connect(t, address)
		r.run.reader.client = r.Client
		if err := r.reconcile(ctx, changes{all: true}); err != nil {
			t.Errorf("%+v: with a database again: %v", lost.changes, err)
		}
		if had = flowsOfRed(); !lost.want(had) {
			t.Errorf("%+v: %d flows of a network that changed without a database; a network without ports has %d", lost.changes, had, without)
		}
		sw.taken()
		if err := r.reconcile(ctx, changes{networks: map[int]bool{redNet.ID: true}}); err != nil {
			t.Errorf("%+v: the reconcile after: %v", lost.changes, err)
		}
		if reads, cookies := sw.taken(); reads != 0 || len(cookies) != 0 {
			t.Errorf("%+v: the reconcile after reads the bridge %d times and writes flows with cookies %#x", lost.changes, reads, cookies)
		}
	}
}

// unwritableSwitch has no flows, and refuses all while err is set.
type unwritableSwitch struct{ err error }

func (s *unwritableSwitch) Read(context.Context, string) (flows.State, error) {
	return flows.State{}, nil
}

func (s *unwritableSwitch) Apply(context.Context, string, []flows.Op) error { return s.err }

// The bridge is isolated once its flows are written, also without an uplink.
func TestIsolate(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	sw := &unwritableSwitch{err: errors.New("no answer")}
	r := newReconciler(connect(t, startServer(t, root, dir)), sw, dir)
	ctx := deadline(t)
	if err := r.Isolate(ctx); !errors.Is(err, errNoFacts) {
		t.Errorf("without the node's facts: %v", err)
	}
	r.SetNode(Facts{Node: gatewayNode}, nil, nil)
	if err := r.Isolate(ctx); !errors.Is(err, sw.err) || r.isolated {
		t.Errorf("the switch refuses the flows: %v, isolated %t", err, r.isolated)
	}
	sw.err = nil
	if err := r.Isolate(ctx); err != nil || !r.isolated {
		t.Errorf("the flows are written: %v, isolated %t", err, r.isolated)
	}
}

// A network that is created again, with another id, keeps its patch port when the first one is deleted after that.
func TestPatchPortOfNetworkCreatedAgain(t *testing.T) {
	r := newReconciler(nil, nil, "")
	again := redNet
	again.ID = redNet.ID + 100
	r.SetNetwork(redNet, nil, nil)
	r.SetNetwork(again, nil, nil)
	r.DeleteNetwork(redNet.ID)
	r.takeChanges()
	r.rowChanged(redNet.ExternalPatch("br-ex", gatewayNode.Name))
	if c := r.takeChanges(); !c.networks[again.ID] {
		t.Errorf("a change of the patch port changes %v, want network %d", c.networks, again.ID)
	}
	r.DeleteNetwork(again.ID)
	if len(r.networks) != 0 {
		t.Errorf("patch ports of deleted networks: %v", r.networks)
	}
}

// flowUpdate is a struct nx_flow_update_full with an empty match, or, for event 3, an
// abbreviated one.
func flowUpdate(event uint16, cookie uint64) []byte {
	length := uint16(24)
	if event == 3 {
		length = 8
	}
	b := binary.BigEndian.AppendUint16(nil, length)
	b = binary.BigEndian.AppendUint16(b, event)
	if event == 3 {
		return append(b, 0, 0, 0, 1)
	}
	b = append(b, make([]byte, 12)...)
	return binary.BigEndian.AppendUint64(b, cookie)
}

func TestChangedCookies(t *testing.T) {
	header := make([]byte, 16)
	body := func(updates ...[]byte) []byte { return slices.Concat(append([][]byte{header}, updates...)...) }
	for name, c := range map[string]struct {
		body   []byte
		active bool
		want   []uint64
	}{
		"the first reply":     {body(flowUpdate(0, 7)), false, []uint64{0}},
		"no header":           {header[:15], true, []uint64{0}},
		"none":                {body(), true, nil},
		"each event":          {body(flowUpdate(0, 7), flowUpdate(1, 8), flowUpdate(2, 9)), true, []uint64{7, 8, 9}},
		"own change":          {body(flowUpdate(3, 0), flowUpdate(1, 8)), true, []uint64{8}},
		"unknown event":       {body(flowUpdate(1, 8), flowUpdate(4, 9)), true, []uint64{8, 0}},
		"longer than body":    {body(flowUpdate(1, 8)[:23]), true, []uint64{0}},
		"shorter than cookie": {body([]byte{0, 8, 0, 1, 0, 0, 0, 0}), true, []uint64{0}},
		"length 0":            {body(make([]byte, 8)), true, []uint64{0}},
	} {
		if got := changedCookies(c.body, c.active); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func FuzzChangedCookies(f *testing.F) {
	f.Add(append(make([]byte, 16), flowUpdate(1, 8)...))
	f.Add(append(make([]byte, 16), flowUpdate(3, 0)...))
	f.Fuzz(func(t *testing.T, body []byte) {
		if got := changedCookies(body, true); len(got) > len(body)/24+1 {
			t.Errorf("%d cookies in %d bytes", len(got), len(body))
		}
	})
}

// A change is one line of the log, however many flows and networks it has.
func TestLogOfFlows(t *testing.T) {
	r := newReconciler(nil, &flows.Fake{}, "")
	var output strings.Builder
	r.Log = slog.New(slog.NewTextHandler(&output, nil))
	want := func(what, line string) {
		t.Helper()
		if err := r.write(t.Context(), nil, true, func(uint64) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if got := output.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, line+"\n") {
			t.Errorf("%s: the log is %.1000s, want one line that ends with %s", what, got, line)
		}
		output.Reset()
	}
	for id := range 500 {
		for i := range 10 {
			r.run.want[flows.Cookie(id)] = append(r.run.want[flows.Cookie(id)], flows.Flow{Cookie: flows.Cookie(id), Match: fmt.Sprintf("in_port=%d,reg0=%d", id, i), Actions: "drop"})
		}
	}
	want("all flows", `msg="changed flows of the external bridge" added=5000 deleted=0`)
	r.run.want[flows.Cookie(7)] = r.run.want[flows.Cookie(7)][:6]
	want("one network", "added=0 deleted=4 networkID=7")
}

// A network whose flows the switch refuses keeps no other network from its own.
func TestRefusedFlows(t *testing.T) {
	red, blue := flows.Cookie(1), flows.Cookie(2)
	sw := &flows.Fake{Fail: func(ops []flows.Op) error {
		for _, op := range ops {
			if op.Flow.Cookie == red {
				return errors.New("refused")
			}
		}
		return nil
	}}
	r := newReconciler(nil, sw, "")
	for _, cookie := range []uint64{red, blue, flows.CookieBase} {
		r.run.want[cookie] = flows.State{{Cookie: cookie, Match: fmt.Sprintf("in_port=%d", flows.NetworkOf(cookie)+1), Actions: "drop"}}
	}
	err := r.write(t.Context(), nil, true, func(uint64) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	have := map[uint64]bool{}
	for _, f := range sw.All() {
		have[f.Cookie] = true
	}
	if have[red] || !have[blue] || !have[flows.CookieBase] {
		t.Errorf("networks with flows: %v", have)
	}
}
