// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

// On the real kernel, a second reconcile and the first one of a restarted agent are
// no-ops, the restarted agent removes what is no longer desired, and program ids do
// not change.
func TestRootRestartedAgent(t *testing.T) {
	root := cgroupTree(t)
	bpffs := t.TempDir()
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Skip("skip: no-bpffs:", err)
	}
	defer unix.Unmount(bpffs, unix.MNT_DETACH)
	dir := filepath.Join(root, "kubepods", "pod"+uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	start := func() (*loader.Loader, *Manager) {
		t.Helper()
		l, err := loader.Load(loader.Options{PinRoot: filepath.Join(bpffs, "b"), CgroupRoot: root, Log: quiet})
		if err != nil {
			t.Skip("skip: no-bpf:", err)
		}
		m, err := New(l, Options{CgroupRoot: root, KubeletNames: []string{"no-such-kubelet"}, Resync: time.Hour, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		return l, m
	}
	pending := func(m *Manager, in Inputs) []Op {
		t.Helper()
		layout, err := ReadLayout(root)
		if err != nil {
			t.Fatal(err)
		}
		k, err := m.kubelet.find()
		if err != nil {
			t.Fatal(err)
		}
		want, _ := Build(in, layout, k)
		have, err := m.target.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return Diff(want, have)
	}
	in := Inputs{
		Pods:     []Pod{{UID: uid, Namespace: "red", Name: "a", NetworkID: 1}},
		Networks: []Network{{ID: 1, Name: "red", VRFIfindex: 3, Mark: 0x10000, Subnets: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("fd09::/48")}}},
		Locked: []LockedAddr{{Addr: netip.MustParseAddr("198.18.0.1"), NetworkID: 1, Open: []network.OpenPort{{Protocol: "tcp", Port: 80}, {Protocol: "icmp"}}},
			{Addr: netip.MustParseAddr("2001:db8:ffff::1"), NetworkID: 1, Open: []network.OpenPort{{Protocol: "udp", Port: 53}, {Protocol: "icmp"}}}},
	}
	l, m := start()
	if err := m.Reconcile(ctx, in); err != nil {
		t.Fatal(err)
	}
	if ops := pending(m, in); len(ops) != 0 {
		t.Errorf("second run: %v", ops)
	}
	before, _ := l.ProgramIDs()
	l.Close() // like kill -9, leaves the pins
	l, m = start()
	defer l.Close()
	if ops := pending(m, in); len(ops) != 0 {
		t.Errorf("after a restart: %v", ops)
	}
	if after, _ := l.ProgramIDs(); !maps.Equal(before, after) {
		t.Errorf("program ids %v became %v", before, after)
	}
	// Pod and network are gone from the API; the pod's cgroup is not.
	if err := m.Reconcile(ctx, Inputs{}); err != nil {
		t.Fatal(err)
	}
	as, err := l.Attachments()
	if err != nil || !slices.ContainsFunc(as, func(a loader.Attachment) bool { return a.PodUID == uid && len(a.Missing) == 0 }) {
		t.Errorf("attachments while the cgroup exists: %+v, %v", as, err)
	}
	rows, err := l.Rows()
	if err != nil || !slices.ContainsFunc(rows, func(r loader.Row) bool { p, is := r.(loader.PodRow); return is && p.NetworkID == loader.NoNetwork }) {
		t.Errorf("rows while the cgroup exists: %v, %v", rows, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := m.Reconcile(ctx, Inputs{}); err != nil {
		t.Fatal(err)
	}
	as, err = l.Attachments()
	if err != nil || len(as) != 1 || as[0].PodUID != "" {
		t.Errorf("remaining attachments: %+v, %v", as, err)
	}
	rows, err = l.Rows()
	rows = slices.DeleteFunc(rows, func(r loader.Row) bool { _, is := r.(loader.PodRootRow); return is }) // its cgroup still exists
	if err != nil || len(rows) != 0 {
		t.Errorf("remaining rows: %v, %v", rows, err)
	}
}
