// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

func cgroupTree(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: no-root: making cgroups needs root")
	}
	mount, err := loader.CgroupMount()
	if err != nil {
		t.Skip("skip: no-cgroup2:", err)
	}
	root, err := os.MkdirTemp(mount, "bh-hostnet-")
	if err != nil {
		t.Skip("skip: cgroup2-read-only:", err)
	}
	t.Cleanup(func() { removeTree(root) })
	return root
}

func removeTree(dir string) {
	dirs, _ := readDirs(dir)
	for _, d := range dirs {
		removeTree(filepath.Join(dir, d))
	}
	os.Remove(dir)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("condition not met within a minute: %s", what)
}

// A directory that is created after its parent was read and before the parent was
// watched causes no event; readNode must find and watch it nevertheless. The first
// reconcile must also watch the directory in which kubelet's cgroup is recreated.
func TestWatchDirsCreatedMeanwhile(t *testing.T) {
	root, procs := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "system.slice/kubelet.service"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeProc(t, procs, "self", "agent", "/agent", "/", "0", "1")
	writeProc(t, procs, "20", "kubelet", "/usr/bin/kubelet", "/system.slice/kubelet.service", "0", "20")
	m, err := New(newFakeKernel(), Options{CgroupRoot: root + "/", ProcRoot: procs, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m.kubelet.idOf = func(string) (uint64, error) { return 7, nil }
	if m.watch == nil {
		t.Fatal("inotify is not available")
	}
	defer m.watch.Close()
	dirs := []string{filepath.Join(root, "kubepods"), filepath.Join(root, "kubepods/burstable")}
	toCreate := slices.Clone(dirs)
	m.readLayout = func(root string) (Layout, error) {
		l, err := ReadLayout(root)
		if len(toCreate) > 0 && err == nil {
			err = os.Mkdir(toCreate[0], 0o755)
			toCreate = toCreate[1:]
		}
		return l, err
	}
	if err := m.Reconcile(ctx, Inputs{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(dirs, filepath.Join(root, "system.slice")) {
		if !slices.Contains(m.watch.WatchList(), dir) {
			t.Errorf("%s is not watched: %v", dir, m.watch.WatchList())
		}
	}
}

// The Manager calls FinishTakeover, which removes what another version left, only after a
// reconcile without failures.
func TestRootSettle(t *testing.T) {
	f := newFakeKernel()
	m, err := New(f, Options{CgroupRoot: cgroupTree(t), KubeletNames: []string{"no-such-kubelet"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, failing := range []bool{true, false} {
		f.fail = func(int) bool { return failing }
		if err := m.Reconcile(ctx, Inputs{}); (err != nil) != failing || (f.takeoverFinished == 0) != failing {
			t.Errorf("operations fail %t: %v, takeoverFinished %d times", failing, err, f.takeoverFinished)
		}
	}
}

// At boot, pods are kept from the overlay's port before the first Reconcile. What an earlier agent has configured
// stays.
func TestGuardOverlay(t *testing.T) {
	f := newFakeKernel()
	start := func() *Manager {
		t.Helper()
		m, err := New(f, Options{CgroupRoot: t.TempDir(), ProcRoot: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		m.readLayout = func(string) (Layout, error) {
			return Layout{Levels: 4, RootLevels: 2, Roots: []Cgroup{{Path: "/kubepods", ID: 11}}, Pods: map[string]Cgroup{uid: {Path: "/kubepods/pod", ID: 12}}}, nil
		}
		return m
	}
	m := start()
	for n := range 3 {
		changes := f.changes
		f.fail = func(change int) bool { return change == changes+n+1 }
		if err := m.GuardOverlay(); err == nil {
			t.Errorf("change %d failed, and there is no error", n+1)
		}
	}
	f.fail = nil
	if err := m.GuardOverlay(); err != nil {
		t.Fatal(err)
	}
	if c := f.config; !f.checks || !c.Guard || c.TunnelPort != network.TunnelPort || c.PodLevels != 4 || c.PodRootLevels != 2 {
		t.Errorf("packets are checked %t, with %+v", f.checks, c)
	}
	root := loader.PodRootRow{CgroupID: 11}
	if len(f.rows) != 1 || f.rows[root.Key()] != root || f.root || len(f.pods) != 0 {
		t.Errorf("rows %v, attached to the root %t, to pods %v", f.rows, f.root, f.pods)
	}
	before := f.changes
	if err := start().GuardOverlay(); err != nil || f.changes != before {
		t.Errorf("the next agent made %d changes: %v", f.changes-before, err)
	}
}

// The agent has restarted and waits for Open vSwitch or the API server. An earlier agent has locked addresses, and knows kubelet by a
// cgroup that is gone. Run recognises kubelet before the first Reconcile, again after each of its restarts, and removes nothing. At
// boot there is nothing to do.
func TestKubeletBeforeReconcile(t *testing.T) {
	for what, configured := range map[string]bool{"configured": true, "at boot": false} {
		root, procs, f := t.TempDir(), t.TempDir(), newFakeKernel()
		if err := os.MkdirAll(filepath.Join(root, "system.slice/kubelet.service"), 0o755); err != nil {
			t.Fatal(err)
		}
		writeProc(t, procs, "self", "agent", "/agent", "/", "0", "1")
		writeProc(t, procs, "20", "kubelet", "/usr/bin/kubelet", "/system.slice/kubelet.service", "0", "20")
		rows := []loader.Row{loader.LockedRow{Addr: netip.MustParseAddr("10.244.0.5"), NetworkID: 1}, loader.PodRow{CgroupID: 55, NetworkID: 1, Mark: 0x10000}, loader.KubeletRow{CgroupID: 6}}
		for _, r := range rows {
			f.rows[r.Key()] = r
		}
		f.root, f.doors[9], f.pods["gone"] = true, true, loader.Attachment{PodUID: "gone", CgroupID: 55}
		if configured {
			f.config = loader.Config{ProbeLock: true, KubeletLevels: 1 << 4}
		}
		passes := make(chan struct{}, 100)
		m, err := New(f, Options{CgroupRoot: root, ProcRoot: procs, Resync: time.Hour, Log: slog.New(slog.DiscardHandler), OnChange: func() { passes <- struct{}{} }})
		if err != nil {
			t.Fatal(err)
		}
		var id atomic.Uint64
		m.kubelet.idOf = func(string) (uint64, error) { return id.Load(), nil }
		run, stop := context.WithCancel(t.Context())
		done := make(chan error)
		recognised := func(id uint64) {
			t.Helper()
			row := loader.KubeletRow{CgroupID: id}
			if !configured {
				return
			}
			rows = append(rows, row)
			eventually(t, "kubelet's cgroup is recognised", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.rows[row.Key()] == row
			})
		}
		id.Store(7)
		go func() { done <- m.Run(run) }()
		recognised(7)
		id.Store(8) // kubelet restarts
		m.Resync()
		<-passes
		recognised(8)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(f.rows) != len(rows) || !f.root || !f.doors[9] || len(f.pods) != 1 {
			t.Errorf("%s: rows %v, want %v; attached to the root %t, interfaces %v, pods %v", what, f.rows, rows, f.root, f.doors, f.pods)
		}
		if c := f.config; configured && (c.KubeletLevels&(1<<4) == 0 || c.KubeletLevels == 1<<4) || c.ProbeLock != configured || !configured && f.changes != 0 {
			t.Errorf("%s: configuration %+v after %d changes", what, c, f.changes)
		}
	}
}

// The Manager notices a new pod cgroup and kubelet's restart in another cgroup from
// the kernel's events, without the resync.
func TestRootWatch(t *testing.T) {
	if beKubelet() {
		return
	}
	root := cgroupTree(t)
	f := newFakeKernel()
	qos := filepath.Join(root, "kubepods/burstable")
	path := filepath.Join(qos, "pod"+uid)
	m, err := New(&cgroupKernel{fakeKernel: f}, Options{CgroupRoot: root, Resync: time.Hour, KubeletNames: []string{"bh-fake-kubelet"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := func(dir string) *exec.Cmd {
		t.Helper()
		return startKubelet(t, "TestRootWatch", filepath.Join(root, dir))
	}
	k := kubelet("kubelet-a")
	in := Inputs{Pods: []Pod{{UID: uid, Namespace: "red", Name: "a", NetworkID: 1}}, Networks: []Network{{ID: 1, Name: "red", VRFIfindex: 3, Mark: 0x10000, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}}
	m.Expect(in.Pods, in.Networks)
	if err := m.Reconcile(ctx, in); err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- m.Run(run) }()
	has := func(r loader.Row) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.rows[r.Key()] == r
	}
	cg := func(dir string) uint64 {
		id, err := loader.CgroupID(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if !has(loader.KubeletRow{CgroupID: cg("kubelet-a")}) {
		t.Fatal("kubelet not found")
	}
	if p := m.Status().Problems; len(p) != 2 || p[0].Reason != "PodCgroupsMissing" || p[1].Reason != "CgroupMissing" {
		t.Errorf("problems %v", p)
	}

	// The kubepods directory does not exist yet.
	for _, d := range []string{filepath.Dir(qos), qos} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "burstable watched", func() bool { return slices.Contains(m.watch.WatchList(), qos) })
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	id := cg("kubepods/burstable/pod" + uid)
	eventually(t, "pod attached", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.pods[uid].CgroupID == id
	})
	t.Logf("attached %v after the cgroup was created", time.Since(start))
	eventually(t, "no problem reported", func() bool { return len(m.Status().Problems) == 0 })

	// Kubelet restarts in another cgroup; its pidfd reports the exit.
	old := cg("kubelet-a")
	k.Process.Kill()
	k.Wait()
	k = kubelet("kubelet-b")
	eventually(t, "kubelet found in its new cgroup", func() bool { return has(loader.KubeletRow{CgroupID: cg("kubelet-b")}) })
	eventually(t, "row of the old cgroup deleted", func() bool { return !has(loader.KubeletRow{CgroupID: old}) })

	// The cgroup is recreated with another id: it is allowed before the process starts.
	k.Process.Kill()
	k.Wait()
	eventually(t, "kubelet gone", func() bool { return len(m.Status().Kubelet.Procs) == 0 })
	removeTree(filepath.Join(root, "kubelet-b"))
	os.Mkdir(filepath.Join(root, "kubelet-b"), 0o755)
	eventually(t, "new id allowed", func() bool { return has(loader.KubeletRow{CgroupID: cg("kubelet-b")}) })

	// The pod is deleted.
	removeTree(path)
	if err := m.Reconcile(ctx, Inputs{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod's row and attachment deleted", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.pods) == 0 && f.rows[loader.PodRow{CgroupID: id}.Key()] == nil
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// cgroupKernel is a fakeKernel that reads the ids of real cgroups.
type cgroupKernel struct{ *fakeKernel }

func (r *cgroupKernel) AttachPod(path, uid string, row loader.PodRow) error {
	id, err := loader.CgroupID(path)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.ids[path] = id
	r.mu.Unlock()
	return r.fakeKernel.AttachPod(path, uid, row)
}

// managerOf is a manager of the example's pods, whose cgroups are as in the layout.
func managerOf(t *testing.T, layout Layout) (*Manager, *fakeKernel) {
	t.Helper()
	procs, kernel := t.TempDir(), newFakeKernel()
	writeProc(t, procs, "self", "agent", "/agent", "/", "0", "1")
	kernel.ids["/cg/podu1"], kernel.ids["/cg/podu2"] = 101, 102
	m, err := New(kernel, Options{CgroupRoot: t.TempDir(), ProcRoot: procs, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if m.watch != nil {
		t.Cleanup(func() { m.watch.Close() })
	}
	m.readLayout = func(string) (Layout, error) { return layout, nil }
	return m, kernel
}

// Sockets that are older than the pod's attachment are confined once it is attached, and once more: not after an attempt
// that failed, but also if an earlier agent has attached the pod, which may have died before it confined them.
func TestEarlySocketsOfAttachedPods(t *testing.T) {
	in, layout, _ := example()
	for _, c := range []struct {
		what     string
		attached bool // by an earlier agent
		fails    int  // attempts to attach
	}{{"a new pod", false, 0}, {"the first two attempts fail", false, 2}, {"attached by an earlier agent", true, 0}} {
		m, kernel := managerOf(t, layout)
		confined := 0
		m.confine = func(_ string, pods map[string]attachedPod) (map[string]int, error) {
			if p := pods["u1"]; len(pods) != 1 || p.path != "/cg/podu1" || p.row.NetworkID != 1 {
				t.Errorf("%s: confined %v", c.what, pods)
			}
			confined++
			return nil, nil
		}
		if c.attached {
			want, _ := Build(in, layout, Kubelet{})
			if _, err := (&Target{Kernel: kernel}).Apply(t.Context(), Diff(want, NewState())); err != nil {
				t.Fatal(err)
			}
		}
		for range c.fails {
			kernel.fail = func(int) bool { return true }
			if err := m.Reconcile(t.Context(), in); err == nil || confined > 0 {
				t.Errorf("%s: error %v, confined %d times", c.what, err, confined)
			}
			kernel.fail = nil
		}
		for i, want := range []int{1, 2, 2} {
			if err := m.Reconcile(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			if confined != want {
				t.Errorf("%s: after reconcile %d confined %d times, want %d", c.what, i+1, confined, want)
			}
		}
	}
}

// The agent shows its state while a reconcile runs, which takes seconds on a busy node.
func TestStatusDuringReconcile(t *testing.T) {
	in, layout, _ := example()
	m, _ := managerOf(t, layout)
	confining, finish := make(chan struct{}), make(chan struct{})
	m.confine = func(string, map[string]attachedPod) (map[string]int, error) {
		close(confining)
		<-finish
		return map[string]int{"u1": 3}, nil
	}
	done := make(chan error)
	go func() { done <- m.Reconcile(t.Context(), in) }()
	<-confining
	if n := m.Status().EarlySockets["u1"]; n != 0 {
		t.Errorf("%d early sockets before they have been counted", n)
	}
	close(finish)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := m.Status().EarlySockets["u1"]; n != 3 {
		t.Errorf("%d early sockets, want 3", n)
	}
}
