// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

var ctx = context.Background()

func example() (Inputs, Layout, Kubelet) {
	in := Inputs{
		Pods: []Pod{
			{UID: "u1", Namespace: "red", Name: "a", NetworkID: 1, ProbePorts: []uint16{8080, 9090, 7070}},
			{UID: "u2", Namespace: "blue", Name: "b", NetworkID: 2, Unbound: true, ProbePorts: []uint16{7070}},
			{UID: "u3", Namespace: "red", Name: "late", NetworkID: 1},
			{UID: "u4", Namespace: "grey", Name: "lost", NetworkID: NetworkUnknown},
			{UID: "u5", Namespace: "grey", Name: "keeps", NetworkID: NetworkUnknown},
			{UID: "u6", Namespace: "kube-system", Name: "proxy", Ports: []uint16{9090}, Trusted: true},
		},
		Networks: []Network{
			{ID: 1, Name: "red", VRFIfindex: 11, Mark: 0x10000, Host4: netip.MustParseAddr("10.1.0.2"), Host6: netip.MustParseAddr("fd01::2"), Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/16"), netip.MustParsePrefix("fd01::/64")}},
			{ID: 2, Name: "blue", VRFIfindex: 12, Mark: 0x20000, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		},
		Locked:     []LockedAddr{{Addr: netip.MustParseAddr("10.244.0.5"), NetworkID: 1}, {Addr: netip.MustParseAddr("::ffff:10.244.0.6"), NetworkID: 2, Open: []network.OpenPort{{Protocol: "tcp", Port: 80}}}, {Addr: netip.MustParseAddr("fd00::5"), NetworkID: 2}},
		Doors:      []loader.DoorRow{{Ifindex: 21, Kind: loader.DoorPort, NetworkID: 1}, {Ifindex: 2, Kind: loader.DoorOwn}},
		Locals:     []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Others:     []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")},
		Services:   []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Masquerade: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17")},
	}
	layout := Layout{Pods: map[string]Cgroup{"u1": {"/cg/podu1", 101}, "u2": {"/cg/podu2", 102}, "u5": {"/cg/podu5", 105}, "u6": {"/cg/podu6", 106}, "u7": {"/cg/podu7", 107}},
		Levels: 0x8, Roots: []Cgroup{{"/cg", 90}}, RootLevels: 0x2}
	return in, layout, Kubelet{Rows: []loader.KubeletRow{{CgroupID: 7}}, Levels: 4}
}

func TestBuild(t *testing.T) {
	s, problems := Build(example())
	want := NewState()
	want.Root = true
	want.Config = loader.Config{PodLevels: 8, PodRootLevels: 2, KubeletLevels: 4, ProbeLock: true, Guard: true, TunnelPort: 6081, MarkFirst: 0x10000, MarkLast: 0x2711ffff,
		OwnFirst: network.OwnPortFirst, OwnLast: network.OwnPortLast}
	want.Pods["u1"] = Cgroup{"/cg/podu1", 101}
	want.Keep["u5"] = Cgroup{"/cg/podu5", 105}
	want.Gone["u7"] = Cgroup{"/cg/podu7", 107}
	want.Doors[21], want.Doors[2] = true, true
	for _, r := range []loader.Row{
		loader.PodRootRow{CgroupID: 90},
		loader.PodRow{CgroupID: 101, NetworkID: 1, Mark: 0x10000, VRFIfindex: 11},
		loader.PodRow{CgroupID: 102, NetworkID: 2, Mark: 0x20000, VRFIfindex: 12, Unbound: true},
		loader.PodRow{CgroupID: 106, Trusted: true},
		loader.NetRow{NetworkID: 1, VRFIfindex: 11, Mark: 0x10000, Host4: netip.MustParseAddr("10.1.0.2"), Host6: netip.MustParseAddr("fd01::2")},
		loader.NetRow{NetworkID: 2, VRFIfindex: 12, Mark: 0x20000},
		loader.DestRow{NetworkID: 2, Prefix: netip.MustParsePrefix("10.1.0.0/16")},
		loader.DestRow{NetworkID: loader.AllNetworks, Prefix: netip.MustParsePrefix("10.96.0.0/16")},
		loader.DestRow{NetworkID: loader.Masquerade, Prefix: netip.MustParsePrefix("169.254.0.0/17")},
		loader.ProbeRow{Port: 8080, NetworkID: 1},
		loader.DoorRow{Ifindex: 21, Kind: loader.DoorPort, NetworkID: 1}, loader.DoorRow{Ifindex: 2, Kind: loader.DoorOwn},
		loader.LocalRow{Addr: netip.MustParseAddr("192.0.2.1")},
		loader.DestRow{NetworkID: loader.OwnAddress, Prefix: netip.MustParsePrefix("192.0.2.1/32")},
		loader.DestRow{NetworkID: loader.OwnAddress, Prefix: netip.MustParsePrefix("192.0.2.100/32")}, loader.DestRow{NetworkID: loader.OwnAddress, Prefix: netip.MustParsePrefix("2001:db8::100/128")},
		loader.DestRow{NetworkID: 1, Prefix: netip.MustParsePrefix("10.1.0.0/16")}, loader.DestRow{NetworkID: 1, Prefix: netip.MustParsePrefix("fd01::/64")},
		loader.LockedRow{Addr: netip.MustParseAddr("10.244.0.5"), NetworkID: 1}, loader.LockedRow{Addr: netip.MustParseAddr("10.244.0.6"), NetworkID: 2},
		loader.OpenRow{Addr: netip.MustParseAddr("10.244.0.6"), Protocol: "tcp", Port: 80}, loader.OpenRow{Addr: netip.MustParseAddr("10.244.0.6"), Protocol: "tcp"},
		loader.LockedRow{Addr: netip.MustParseAddr("fd00::5"), NetworkID: 2}, loader.KubeletRow{CgroupID: 7},
	} {
		want.put(r)
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("state\n%+v, want\n%+v", s, want)
	}
	var reasons []string
	for _, p := range problems {
		reasons = append(reasons, p.Pod+" "+p.Reason)
	}
	if !slices.Equal(reasons, []string{"red/late CgroupMissing", "grey/lost NetworkUnknown", "grey/keeps NetworkUnknown", "red/a ProbePortShared", "red/a ProbePortShared"}) {
		t.Errorf("problems %v", problems)
	}
}

// Of two networks whose pods name a port, that of the older pod has it. A pod that only declares it has no part in
// that, and one outside the networks keeps it from both.
func TestProbePortOfTwoNetworks(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(name string, id, second int, ports ...uint16) Pod {
		return Pod{UID: name, Namespace: "ns", Name: name, NetworkID: id, Created: start.Add(time.Duration(second) * time.Second), ProbePorts: ports}
	}
	declares := pod("declares", 2, 0)
	declares.Ports = []uint16{8080}
	outside := pod("outside", 0, 9)
	outside.Ports = []uint16{8080}
	for name, c := range map[string]struct {
		pods   []Pod
		want   int // whose network
		shared string
	}{
		"one":                        {[]Pod{pod("a", 1, 5, 8080)}, 1, ""},
		"two of a network":           {[]Pod{pod("a", 1, 5, 8080), pod("b", 1, 6, 8080)}, 1, ""},
		"a younger one":              {[]Pod{pod("a", 2, 6, 8080), pod("b", 1, 5, 8080)}, 1, "a"},
		"of one second, by UID":      {[]Pod{pod("b", 1, 5, 8080), pod("a", 2, 5, 8080)}, 2, "b"},
		"one that declares it":       {[]Pod{declares, pod("b", 1, 5, 8080)}, 1, ""},
		"one without a network":      {[]Pod{pod("a", NetworkUnknown, 0, 8080), pod("b", 1, 5, 8080)}, 1, ""},
		"one outside, which is last": {[]Pod{pod("b", 1, 5, 8080), outside}, 0, "b"},
	} {
		st, problems := Build(Inputs{Pods: c.pods, Networks: []Network{{ID: 1}, {ID: 2}}}, Layout{}, Kubelet{})
		has, shared := 0, ""
		for _, r := range st.Rows {
			if p, ok := r.(loader.ProbeRow); ok {
				has = int(p.NetworkID)
			}
		}
		for _, p := range problems {
			if p.Reason == "ProbePortShared" {
				shared += strings.TrimPrefix(p.Pod, "ns/")
			}
		}
		if has != c.want || shared != c.shared {
			t.Errorf("%s: network %d has the port, want %d; an event of %q, want %q", name, has, c.want, shared, c.shared)
		}
	}
}

// A pod has a limited number of the rows that all pods of the node share.
func TestProbePortsLimit(t *testing.T) {
	in, layout, kubelet := example()
	for port := range uint16(200) {
		in.Pods[0].ProbePorts = append(in.Pods[0].ProbePorts, 20000+port)
	}
	in.Pods = in.Pods[:1]
	s, problems := Build(in, layout, kubelet)
	rows := 0
	for _, r := range s.Rows {
		if _, ok := r.(loader.ProbeRow); ok {
			rows++
		}
	}
	if rows != maxProbePorts || !slices.ContainsFunc(problems, func(p Problem) bool { return p.Reason == "ProbePortsTooMany" }) {
		t.Errorf("%d rows, problems %v", rows, problems)
	}
}

func TestDiffOrder(t *testing.T) {
	want, _ := Build(example())
	have := NewState()
	have.Pods["old"] = Cgroup{ID: 55}
	have.Pods["u5"] = Cgroup{ID: 105} // its network is unknown now
	have.Doors[22], have.Doors[2] = true, true
	for _, r := range []loader.Row{
		loader.PodRow{CgroupID: 55, NetworkID: 3, Mark: 0x30000}, loader.DestRow{NetworkID: 3, Prefix: netip.MustParsePrefix("10.3.0.0/16")},
		loader.LockedRow{Addr: netip.MustParseAddr("10.244.9.9"), NetworkID: 3}, loader.KubeletRow{CgroupID: 6},
		loader.PodRow{CgroupID: 105, NetworkID: 4, Mark: 0x40000}, loader.DoorRow{Ifindex: 22, Kind: loader.DoorPort, NetworkID: 3},
		loader.DoorRow{Ifindex: 2, Kind: loader.DoorOwn}, loader.DoorRow{Ifindex: 23, Kind: loader.DoorOwn},
	} {
		have.put(r)
	}
	var lines []string
	for _, o := range Diff(want, have) {
		lines = append(lines, o.String())
	}
	got := strings.Join(lines, "\n")
	golden := `delete destination 10.3.0.0/16 inside network 3
delete interface 23: node's own
delete kubelet cgroup 6
configure pod levels 0x8 below 0x2, kubelet levels 0x4, lock true, guard true
put cgroup 90 of all pods
put locked address 10.244.0.5 of network 1
put locked address 10.244.0.6 of network 2
put locked address fd00::5 of network 2
put masquerade addresses 169.254.0.0/17
put pod cgroup 101 → network 1 mark 0x10000 vrf ifindex 11
put pod cgroup 102 → network 2 mark 0x20000 vrf ifindex 12 unbound
put pod cgroup 106 → network 0 mark 0x0 vrf ifindex 0 trusted
attach probe allowance and guard to the root cgroup
attach VRF binding to pod u1 at /cg/podu1
guard interface 21: management port of network 1
put destination 10.1.0.0/16 inside network 1
put destination 10.1.0.0/16 inside network 2
put destination 10.96.0.0/16 inside every network
put destination fd01::/64 inside network 1
put kubelet cgroup 7
put network 1 at vrf ifindex 11
put network 2 at vrf ifindex 12
put node's address 192.0.2.1
put node's own address 192.0.2.1/32
put node's own address 192.0.2.100/32
put node's own address 2001:db8::100/128
put open tcp port 0 of locked address 10.244.0.6
put open tcp port 80 of locked address 10.244.0.6
put probes of TCP port 8080 → network 1
detach VRF binding from pod old
stop guarding interface 22
delete interface 22: management port of network 3
delete locked address 10.244.9.9 of network 3
delete pod cgroup 55 → network 3 mark 0x30000 vrf ifindex 0`
	if got != golden {
		t.Errorf("operations:\n%s\nwant:\n%s", got, golden)
	}
}

// A pod is deleted with no grace period: it is gone from the API while its processes run. They
// keep its network until the network is gone too, and reach no network that gets its id.
func TestGonePodStaysConfined(t *testing.T) {
	in, layout, kubelet := example()
	f := newFakeKernel()
	f.ids["/cg/podu1"], f.ids["/cg/podu2"] = 101, 102
	reconcile := func() { t.Helper(); converges(t, f, in, layout, kubelet) }
	row := func() loader.Row { return f.rows[loader.PodRow{CgroupID: 101}.Key()] }
	reconcile()
	before := row()
	in.Pods = nil
	reconcile()
	if row() != before || f.pods["u1"].CgroupID != 101 {
		t.Errorf("the pod is gone from the API: row %v, attachment %+v", row(), f.pods["u1"])
	}
	f.pods["u1"] = loader.Attachment{PodUID: "u1", CgroupID: 101, Missing: []string{"bh_vrf_conn4"}}
	reconcile()
	if row() != before || len(f.pods["u1"].Missing) > 0 {
		t.Errorf("its attachment was incomplete: row %v, attachment %+v", row(), f.pods["u1"])
	}
	in.Networks[0].VRFIfindex = 99 // another network with the id, or the network's new device
	reconcile()
	if want := (loader.PodRow{CgroupID: 101, NetworkID: loader.NoNetwork, Mark: network.NoNetworkMark}); row() != want || f.pods["u1"].CgroupID != 101 {
		t.Errorf("its network is gone: row %v, attachment %+v", row(), f.pods["u1"])
	}
	in.Networks = nil
	delete(layout.Pods, "u1")
	reconcile()
	if _, attached := f.pods["u1"]; row() != nil || attached {
		t.Errorf("its cgroup is gone: row %v, attachments %+v", row(), f.pods)
	}
}

// converges applies the inputs to the kernel, after which there is nothing to do.
func converges(t *testing.T, f *fakeKernel, in Inputs, layout Layout, kubelet Kubelet) {
	t.Helper()
	target := &Target{Kernel: f}
	want, _ := Build(in, layout, kubelet)
	have, err := target.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Apply(ctx, Diff(want, have)); err != nil {
		t.Fatal(err)
	}
	have, _ = target.Read(ctx)
	if again := Diff(want, have); len(again) > 0 {
		t.Errorf("second run: %v", again)
	}
}

// A tenant deletes its network while its host-network pod runs, for as long as the tenant wants. The pod stays confined,
// also if its attachment must be repaired, and reaches no network that gets the id.
func TestPodOfDeletedNetwork(t *testing.T) {
	in, layout, kubelet := example()
	f := newFakeKernel()
	f.ids["/cg/podu1"], f.ids["/cg/podu2"] = 101, 102
	row := func() loader.Row { return f.rows[loader.PodRow{CgroupID: 101}.Key()] }
	converges(t, f, in, layout, kubelet)
	before := row()
	in.Pods[0].NetworkID = NetworkUnknown
	in.Networks = in.Networks[1:]
	converges(t, f, in, layout, kubelet)
	if row() != before || f.pods["u1"].CgroupID != 101 {
		t.Errorf("its network is gone: row %v, attachment %+v", row(), f.pods["u1"])
	}
	f.pods["u1"] = loader.Attachment{PodUID: "u1", CgroupID: 101, Missing: []string{"bh_vrf_conn4"}}
	converges(t, f, in, layout, kubelet)
	if row() != before || f.pods["u1"].CgroupID != 101 || len(f.pods["u1"].Missing) > 0 {
		t.Errorf("its attachment was incomplete: row %v, attachment %+v", row(), f.pods["u1"])
	}
	in.Networks = append(in.Networks, Network{ID: 1, Name: "other", VRFIfindex: 99, Mark: 0x10000})
	converges(t, f, in, layout, kubelet)
	if want := (loader.PodRow{CgroupID: 101, NetworkID: loader.NoNetwork, Mark: network.NoNetworkMark}); row() != want || f.pods["u1"].CgroupID != 101 {
		t.Errorf("another network has its id: row %v, attachment %+v", row(), f.pods["u1"])
	}
}

func drawInputs(t *rapid.T, label string) (Inputs, Layout, Kubelet, map[string]uint64) {
	var in Inputs
	layout := Layout{Pods: map[string]Cgroup{}, Levels: rapid.SampledFrom([]uint32{4, 8, 12}).Draw(t, label+"levels")}
	ids := map[string]uint64{}
	for i := range rapid.IntRange(0, 4).Draw(t, label+"nets") {
		n := Network{ID: i + 1, Name: fmt.Sprint("net", i), Mark: uint32(i+1) << 16, VRFIfindex: rapid.IntRange(0, 3).Draw(t, label+"if")}
		for range rapid.IntRange(0, 3).Draw(t, label+"subnets") {
			a := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 3).Draw(t, label+"octet")), 0, 0})
			if rapid.Bool().Draw(t, label+"v6") {
				a = netip.AddrFrom16([16]byte{0xfd, 15: byte(rapid.IntRange(0, 3).Draw(t, label+"octet6"))})
			}
			n.Subnets = append(n.Subnets, netip.PrefixFrom(a, rapid.SampledFrom([]int{16, 24, 30}).Draw(t, label+"bits")))
		}
		in.Networks = append(in.Networks, n)
	}
	for i := range 5 {
		if rapid.Bool().Draw(t, label+"pod") {
			in.Pods = append(in.Pods, Pod{UID: fmt.Sprint("u", i), NetworkID: rapid.IntRange(0, 5).Draw(t, label+"net"), Unbound: rapid.Bool().Draw(t, label+"off"),
				ProbePorts: rapid.SliceOfN(rapid.Uint16Range(1, 3), 0, 2).Draw(t, label+"probes")})
		}
		if rapid.Bool().Draw(t, label+"cg") {
			cg := Cgroup{fmt.Sprint("/cg/", i, label), uint64(rapid.IntRange(1, 2).Draw(t, label+"gen")*100 + i)}
			layout.Pods[fmt.Sprint("u", i)] = cg
			ids[cg.Path] = cg.ID
		}
	}
	for range rapid.IntRange(0, 6).Draw(t, label+"locked") {
		in.Locked = append(in.Locked, LockedAddr{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(rapid.IntRange(0, 5).Draw(t, label+"addr"))}), NetworkID: rapid.IntRange(1, 4).Draw(t, label+"owner"),
			Open: make([]network.OpenPort, rapid.IntRange(0, 1).Draw(t, label+"open"))})
	}
	for i := range 4 {
		if rapid.Bool().Draw(t, label+"door") {
			in.Doors = append(in.Doors, loader.DoorRow{Ifindex: i + 1, Kind: loader.DoorKind(rapid.IntRange(1, 7).Draw(t, label+"kind"))})
		}
	}
	var k Kubelet
	for range rapid.IntRange(0, 2).Draw(t, label+"kubelets") {
		k.Rows = append(k.Rows, loader.KubeletRow{CgroupID: uint64(rapid.IntRange(1, 3).Draw(t, label+"kid"))})
	}
	return in, layout, k, ids
}

func sameState(a, b State) bool {
	a.Keep, b.Keep, a.Gone, b.Gone = nil, nil, nil, nil
	for _, s := range []State{a, b} {
		for uid, cg := range s.Pods {
			s.Pods[uid] = Cgroup{ID: cg.ID}
		}
	}
	return reflect.DeepEqual(a, b)
}

// expectLeft adds to want what stays of a pod in Keep or in Gone.
func expectLeft(want *State, have State, uid string, cg Cgroup) {
	r, ok := have.Rows[loader.PodRow{CgroupID: cg.ID}.Key()].(loader.PodRow)
	if ok {
		row, _ := want.leftRow(r)
		want.put(row)
	}
	if _, attached := have.Pods[uid]; attached && (ok || have.Pods[uid].ID == cg.ID) {
		want.Pods[uid] = cg
	}
}

// Diff and Apply reach the desired state, also after a crash between two operations,
// and a second Diff is empty. An address that is locked before and after stays locked
// in between, and at no time is a KubeletRow present that neither state has.
func TestConvergence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFakeKernel()
		target := &Target{Kernel: f}
		var last State
		for round := range 2 {
			in, layout, k, ids := drawInputs(t, fmt.Sprint("r", round))
			for p, id := range ids {
				f.ids[p] = id
			}
			want, _ := Build(in, layout, k)
			have, err := target.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for uid, cg := range want.Keep { // their rows and attachments are part of the desired state
				expectLeft(&want, have, uid, cg)
			}
			for uid, cg := range want.Gone {
				expectLeft(&want, have, uid, cg)
			}
			f.after = func() {
				for key, r := range last.Rows {
					_, stays := want.Rows[key]
					if _, locked := r.(loader.LockedRow); locked && stays && f.rows[key] == nil {
						t.Fatalf("%s was missing for a moment", r)
					}
				}
				for key, r := range f.rows {
					if _, is := r.(loader.KubeletRow); is && want.Rows[key] == nil && last.Rows[key] == nil {
						t.Fatalf("%s is in neither the old nor the desired state", r)
					}
				}
			}
			ops := Diff(want, have)
			if crash := rapid.IntRange(0, len(ops)).Draw(t, "crash"); crash > 0 {
				_, _ = target.Apply(ctx, ops[:crash])
				have, _ = target.Read(ctx)
				ops = Diff(want, have)
			}
			if _, err := target.Apply(ctx, ops); err != nil {
				t.Fatal(err)
			}
			got, _ := target.Read(ctx)
			if !sameState(got, want) {
				t.Fatalf("got %+v, want %+v", got, want)
			}
			if again := Diff(want, got); len(again) != 0 {
				t.Fatalf("second run: %v", again)
			}
			last = want
		}
	})
}

// Apply names a failing operation and runs the others.
func TestApplyContinuesAfterFailure(t *testing.T) {
	want, _ := Build(example())
	ops := Diff(want, NewState())
	for i := range ops {
		f := newFakeKernel()
		f.ids["/cg/podu1"] = 101
		f.fail = func(n int) bool { return n == i+1 }
		target := &Target{Kernel: f}
		_, err := target.Apply(ctx, ops)
		if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), ops[i].String()) {
			t.Errorf("error when %s fails: %v", ops[i], err)
		}
		f.fail = nil
		have, _ := target.Read(ctx)
		if rest := Diff(want, have); len(rest) > 2 {
			t.Errorf("after %s failed: remaining operations %v", ops[i], rest)
		}
	}
}

// A reconcile that ends before its operations enforces nothing: pods must not be connected.
func TestNotEnforced(t *testing.T) {
	in, layout, _ := example()
	for what, fail := range map[string]func(*Manager, *fakeKernel) context.Context{
		"unreadable cgroups": func(m *Manager, _ *fakeKernel) context.Context {
			m.readLayout = func(string) (Layout, error) { return Layout{}, errInjected }
			return t.Context()
		},
		"unreadable processes": func(m *Manager, _ *fakeKernel) context.Context {
			m.kubelet.proc = "/nonexistent"
			return t.Context()
		},
		"unreadable rows": func(_ *Manager, f *fakeKernel) context.Context {
			f.unread = errInjected
			return t.Context()
		},
		"cancelled": func(*Manager, *fakeKernel) context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx
		},
	} {
		m, f := managerOf(t, layout)
		if err := m.Reconcile(fail(m, f), in); !errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Of operations that are cancelled, those that only permit keep no pod from starting.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	permits, enforces := Op{Kind: PutRow, Row: loader.KubeletRow{CgroupID: 7}}, Op{Kind: AttachRoot}
	for _, c := range []struct {
		ops  []Op
		want bool
	}{{nil, false}, {[]Op{permits}, false}, {[]Op{enforces}, true}, {[]Op{permits, enforces}, true}} {
		if _, err := (&Target{Kernel: newFakeKernel()}).Apply(ctx, c.ops); errors.Is(err, ErrNotEnforced) != c.want || (err == nil) != (c.ops == nil) {
			t.Errorf("%v cancelled: %v", c.ops, err)
		}
	}
}

// Incomplete attachments are repaired and dead ones removed.
func TestBrokenAttachments(t *testing.T) {
	f := newFakeKernel()
	f.pods["u1"] = loader.Attachment{PodUID: "u1", CgroupID: 101, Missing: []string{"bh_vrf_conn4"}}
	f.pods["u9"] = loader.Attachment{PodUID: "u9"}
	have, err := (&Target{Kernel: f}).Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := Build(example())
	var kinds []Kind
	for _, o := range Diff(want, have) {
		if o.PodUID != "" {
			kinds = append(kinds, o.Kind)
		}
	}
	if !slices.Equal(kinds, []Kind{AttachPod, DetachPod}) {
		t.Errorf("operations %v", kinds)
	}
}

// If an interface was deleted since it was listed, Apply removes its row and programs
// and returns no error. Any other failure to guard an interface is an error.
func TestInterfaceDeletedMeanwhile(t *testing.T) {
	k := newFakeKernel()
	k.deleted = map[int]bool{7: true}
	target := &Target{Kernel: k}
	ops := []Op{{Kind: AttachDoor, Row: loader.DoorRow{Ifindex: 7, Kind: loader.DoorPod}}, {Kind: AttachDoor, Row: loader.DoorRow{Ifindex: 8, Kind: loader.DoorPod}}}
	if _, err := target.Apply(t.Context(), ops); err != nil {
		t.Error(err)
	}
	if k.doors[7] || k.rows[loader.DoorRow{Ifindex: 7}.Key()] != nil || !k.doors[8] {
		t.Errorf("doors %v, rows %v", k.doors, k.rows)
	}
	k.fail = func(int) bool { return true }
	if _, err := target.Apply(t.Context(), ops[:1]); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("error for an interface that cannot be guarded: %v", err)
	}
}

// An interface of the node itself that cannot be guarded beside another's qdisc is reported, and does not keep pods from starting. Any
// other interface, and any other failure, does.
func TestInterfaceWithIngressQdisc(t *testing.T) {
	for kind := loader.DoorPort; kind <= loader.DoorLink; kind++ {
		k := newFakeKernel()
		k.otherQdisc = map[int]bool{7: true}
		target := &Target{Kernel: k}
		ops := []Op{{Kind: AttachDoor, Row: loader.DoorRow{Ifindex: 7, Kind: kind}}}
		_, err := target.Apply(t.Context(), ops)
		if !errors.Is(err, loader.ErrNoClsact) || errors.Is(err, ErrNotEnforced) != (kind != loader.DoorOwn) {
			t.Errorf("%s with an ingress qdisc: %v", kind, err)
		}
		k.fail = func(int) bool { return true }
		if _, err := target.Apply(t.Context(), ops); !errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s cannot be guarded: %v", kind, err)
		}
	}
}

func ExampleProblem() {
	fmt.Println(Problem{"red/a", "CgroupMissing", "kubelet has not created the pod's cgroup yet"})
	// Output: CgroupMissing: pod red/a: kubelet has not created the pod's cgroup yet
}
