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

	"pgregory.net/rapid"

	"bulkhead/pkg/loader"
)

var ctx = context.Background()

func example() (Inputs, Layout, Kubelet) {
	in := Inputs{
		Pods: []Pod{
			{UID: "u1", Namespace: "red", Name: "a", NetworkID: 1},
			{UID: "u2", Namespace: "blue", Name: "b", NetworkID: 2, Disabled: true},
			{UID: "u3", Namespace: "red", Name: "late", NetworkID: 1},
			{UID: "u4", Namespace: "grey", Name: "lost", NetworkID: 9},
		},
		Networks: []Network{
			{ID: 1, Name: "red", VRFIfindex: 11, Mark: 0x1001, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/16"), netip.MustParsePrefix("fd01::/64")}},
			{ID: 2, Name: "blue", VRFIfindex: 12, Mark: 0x1002, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		},
		Locked: []LockedAddr{{netip.MustParseAddr("10.244.0.5"), 1}, {netip.MustParseAddr("::ffff:10.244.0.6"), 2}, {netip.MustParseAddr("fd00::5"), 2}},
	}
	layout := Layout{Pods: map[string]Cgroup{"u1": {"/cg/podu1", 101}, "u2": {"/cg/podu2", 102}}, Levels: 0x8}
	return in, layout, Kubelet{Rows: []loader.KubeletRow{{CgroupID: 7}}, Levels: 4}
}

func TestBuild(t *testing.T) {
	s, problems := Build(example())
	want := NewState()
	want.Root = true
	want.Config = loader.Config{PodLevels: 8, KubeletLevels: 4, ProbeLock: true}
	want.Pods["u1"] = Cgroup{"/cg/podu1", 101}
	for _, r := range []loader.Row{
		loader.PodRow{CgroupID: 101, NetworkID: 1, Mark: 0x1001, VRFIfindex: 11},
		loader.DestRow{NetworkID: 1, Prefix: netip.MustParsePrefix("10.1.0.0/16")}, loader.DestRow{NetworkID: 1, Prefix: netip.MustParsePrefix("fd01::/64")},
		loader.LockedRow{Addr: netip.MustParseAddr("10.244.0.5"), NetworkID: 1}, loader.LockedRow{Addr: netip.MustParseAddr("10.244.0.6"), NetworkID: 2},
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
	if !slices.Equal(reasons, []string{"red/late CgroupMissing", "grey/lost NetworkUnknown"}) {
		t.Errorf("problems %v", problems)
	}
}

func TestOperationsInOrder(t *testing.T) {
	want, _ := Build(example())
	have := NewState()
	have.Pods["old"] = Cgroup{ID: 55}
	for _, r := range []loader.Row{
		loader.PodRow{CgroupID: 55, NetworkID: 3, Mark: 0x1003}, loader.DestRow{NetworkID: 3, Prefix: netip.MustParsePrefix("10.3.0.0/16")},
		loader.LockedRow{Addr: netip.MustParseAddr("10.244.9.9"), NetworkID: 3}, loader.KubeletRow{CgroupID: 6},
	} {
		have.put(r)
	}
	var lines []string
	for _, o := range Diff(want, have) {
		lines = append(lines, o.String())
	}
	got := strings.Join(lines, "\n")
	golden := `delete destination 10.3.0.0/16 inside network 3
delete kubelet cgroup 6
configure pod levels 0x8, kubelet levels 0x4, lock true
put locked address 10.244.0.5 of network 1
put locked address 10.244.0.6 of network 2
put locked address fd00::5 of network 2
put pod cgroup 101 → network 1 mark 0x1001 vrf ifindex 11
attach probe allowance to the root cgroup
attach VRF binding to pod u1 at /cg/podu1
put destination 10.1.0.0/16 inside network 1
put destination fd01::/64 inside network 1
put kubelet cgroup 7
detach VRF binding from pod old
delete locked address 10.244.9.9 of network 3
delete pod cgroup 55 → network 3 mark 0x1003 vrf ifindex 0`
	if got != golden {
		t.Errorf("operations:\n%s\nwant:\n%s", got, golden)
	}
}

func drawWorld(t *rapid.T, label string) (Inputs, Layout, Kubelet, map[string]uint64) {
	var in Inputs
	layout := Layout{Pods: map[string]Cgroup{}, Levels: rapid.SampledFrom([]uint32{4, 8, 12}).Draw(t, label+"levels")}
	ids := map[string]uint64{}
	for i := range rapid.IntRange(0, 4).Draw(t, label+"nets") {
		n := Network{ID: i + 1, Name: fmt.Sprint("net", i), Mark: 0x1001 + uint32(i), VRFIfindex: rapid.IntRange(0, 3).Draw(t, label+"if")}
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
			in.Pods = append(in.Pods, Pod{UID: fmt.Sprint("u", i), NetworkID: rapid.IntRange(0, 5).Draw(t, label+"net"), Disabled: rapid.Bool().Draw(t, label+"off")})
		}
		if rapid.Bool().Draw(t, label+"cg") {
			cg := Cgroup{fmt.Sprint("/cg/", i, label), uint64(rapid.IntRange(1, 2).Draw(t, label+"gen")*100 + i)}
			layout.Pods[fmt.Sprint("u", i)] = cg
			ids[cg.Path] = cg.ID
		}
	}
	for range rapid.IntRange(0, 6).Draw(t, label+"locked") {
		in.Locked = append(in.Locked, LockedAddr{netip.AddrFrom4([4]byte{10, 244, 0, byte(rapid.IntRange(0, 5).Draw(t, label+"addr"))}), rapid.IntRange(1, 4).Draw(t, label+"owner")})
	}
	var k Kubelet
	for range rapid.IntRange(0, 2).Draw(t, label+"kubelets") {
		k.Rows = append(k.Rows, loader.KubeletRow{CgroupID: uint64(rapid.IntRange(1, 3).Draw(t, label+"kid"))})
	}
	return in, layout, k, ids
}

func sameState(a, b State) bool {
	for _, s := range []State{a, b} {
		for uid, cg := range s.Pods {
			s.Pods[uid] = Cgroup{ID: cg.ID}
		}
	}
	return reflect.DeepEqual(a, b)
}

// Apply(Diff(want, have)) == want; a second run is empty; a crash after any
// operation and a restart converge; what is locked before and after is locked
// throughout, and nobody is ever taken for kubelet who is not, before or after.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFake()
		target := &Target{f}
		var last State
		for round := range 2 {
			in, layout, k, ids := drawWorld(t, fmt.Sprint("r", round))
			for p, id := range ids {
				f.ids[p] = id
			}
			want, _ := Build(in, layout, k)
			have, err := target.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			f.after = func() {
				for key, r := range last.Rows {
					_, stays := want.Rows[key]
					if _, locked := r.(loader.LockedRow); locked && stays && f.rows[key] == nil {
						t.Fatalf("%s was open for a moment", r)
					}
				}
				for key, r := range f.rows {
					if _, is := r.(loader.KubeletRow); is && want.Rows[key] == nil && last.Rows[key] == nil {
						t.Fatalf("%s is kubelet in neither state", r)
					}
				}
			}
			ops := Diff(want, have)
			if crash := rapid.IntRange(0, len(ops)).Draw(t, "crash"); crash > 0 {
				_ = target.Apply(ctx, ops[:crash])
				have, _ = target.Read(ctx)
				ops = Diff(want, have)
			}
			if err := target.Apply(ctx, ops); err != nil {
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

// One failing operation is named and the others are done.
func TestApplyGoesOn(t *testing.T) {
	want, _ := Build(example())
	ops := Diff(want, NewState())
	for i := range ops {
		f := newFake()
		f.ids["/cg/podu1"] = 101
		f.fail = func(n int) bool { return n == i+1 }
		target := &Target{f}
		err := target.Apply(ctx, ops)
		if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), ops[i].String()) {
			t.Errorf("failing %s: %v", ops[i], err)
		}
		f.fail = nil
		have, _ := target.Read(ctx)
		if rest := Diff(want, have); len(rest) > 2 {
			t.Errorf("after failing %s: left %v", ops[i], rest)
		}
	}
}

// A dead or half-made attachment is repaired.
func TestReadSeesBrokenAttachments(t *testing.T) {
	f := newFake()
	f.pods["u1"] = loader.Attachment{PodUID: "u1", CgroupID: 101, Missing: []string{"bh_vrf_conn4"}}
	f.pods["u9"] = loader.Attachment{PodUID: "u9"}
	have, err := (&Target{f}).Read(ctx)
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
