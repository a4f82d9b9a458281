// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/pkg/loader"
)

const uid = "0a1b2c3d-1111-2222-3333-444455556666"

func TestPodUID(t *testing.T) {
	under := strings.ReplaceAll(uid, "-", "_")
	for _, c := range []struct {
		parent, name, want string
	}{
		{"kubepods", "pod" + uid, uid},
		{"burstable", "pod" + uid, uid},
		{"besteffort", "pod0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"}, // static pod
		{"kubepods.slice", "kubepods-pod" + under + ".slice", uid},
		{"kubepods-burstable.slice", "kubepods-burstable-pod" + under + ".slice", uid},
		{"kubelet-kubepods-besteffort.slice", "kubelet-kubepods-besteffort-pod" + under + ".slice", uid}, // kind
		{"kubepods", "burstable", ""},
		{"kubepods.slice", "kubepods-burstable.slice", ""},
		{"kubepods.slice", "pod" + uid, ""},
		{"kubepods-burstable.slice", "kubepods-pod" + under + ".slice", ""},
		{"kubepods.slice", "kubepods-pod" + uid + ".slice", ""},
		{"kubepods", "pod", ""},
	} {
		got, ok := podUID(c.parent, c.name)
		if ok != (c.want != "") || ok && got != c.want {
			t.Errorf("podUID(%q, %q) = %q, %t", c.parent, c.name, got, ok)
		}
	}
}

func inode(path string) (uint64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

func TestLayoutOfBothDrivers(t *testing.T) {
	for name, pod := range map[string]string{
		"cgroupfs":            "kubepods/burstable/pod" + uid,
		"cgroupfs guaranteed": "kubepods/pod" + uid,
		"cgroupfs prefix":     "my/root/kubepods/besteffort/pod" + uid,
		"systemd":             "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"systemd prefix":      "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
	} {
		root := t.TempDir()
		// A tree of the same shape inside a container must not count.
		evil := filepath.Join(root, pod, "ctr", "kubepods", "podevil")
		if err := os.MkdirAll(evil, 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := readLayout(root, inode)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := inode(filepath.Join(root, pod))
		if len(l.Pods) != 1 || l.Pods[uid] != (Cgroup{filepath.Join(root, pod), id}) {
			t.Errorf("%s: %+v", name, l.Pods)
		}
	}
	if l, err := readLayout(t.TempDir(), inode); err != nil || len(l.Pods)+len(l.Parents) != 0 {
		t.Errorf("no kubepods yet: %+v, %v", l, err)
	}
}

// proc writes a process as /proc shows it; nspid is its number in each namespace.
func proc(t *testing.T, dir, pid, comm, exe, cgroup, uid, nspid string) {
	t.Helper()
	d := filepath.Join(dir, pid)
	if err := os.MkdirAll(filepath.Join(d, "ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	for f, s := range map[string]string{
		"comm": comm + "\n", "cgroup": "1:name=systemd:/x\n0::" + cgroup + "\n", "uid_map": "0 0 4294967295\n",
		"status": "Name:\t" + comm + "\nUid:\t" + uid + "\t" + uid + "\t" + uid + "\t" + uid + "\nNSpid:\t" + nspid + "\n",
	} {
		if err := os.WriteFile(filepath.Join(d, f), []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	os.Remove(filepath.Join(d, "exe"))
	if err := os.Symlink(exe, filepath.Join(d, "exe")); err != nil {
		t.Fatal(err)
	}
}

func appendState(t *testing.T, dir, pid, state string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, pid, "status"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("State:\t" + state + "\n")
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func pidNamespace(t *testing.T, dir, id string) {
	t.Helper()
	link := filepath.Join(dir, "self", "ns", "pid")
	os.Remove(link)
	if err := os.Symlink(id, link); err != nil {
		t.Fatal(err)
	}
}

func TestFindKubelet(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	mk := func(p string) uint64 {
		if err := os.MkdirAll(filepath.Join(root, p), 0o755); err != nil {
			t.Fatal(err)
		}
		id, _ := inode(filepath.Join(root, p))
		return id
	}
	id := mk("system.slice/kubelet.service")
	mk("kubepods/podx/ctr")
	proc(t, dir, "self", "agent", "/agent", "/", "0", "5")
	pidNamespace(t, dir, initPIDNS)
	proc(t, dir, "10", "kubelet", "/usr/bin/kubelet", "/system.slice/kubelet.service", "0", "10")
	proc(t, dir, "11", "kubelet", "/tmp/kubelet", "/user.slice", "1000", "11")     // no root
	proc(t, dir, "12", "kubelet", "/tmp/kubelet", "/kubepods/podx/ctr", "0", "12") // a pod
	proc(t, dir, "14", "kubelet", "/tmp/kubelet", "/gone", "0", "14")
	appendState(t, dir, "14", "Z (zombie)")
	proc(t, dir, "13", "kubelet", "/tmp/kubelet", "/machine.slice", "0", "13\t1") // another pid namespace
	k := &kubeletFinder{proc: dir, cgroupRoot: root, names: KubeletNames, idOf: inode}
	got, err := k.find()
	if err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) || len(got.Procs) != 1 || got.Reason != "" {
		t.Fatalf("%+v, %v", got, err)
	}

	// It restarts: gone, its cgroup too; the cgroup is back before the process is found.
	os.RemoveAll(filepath.Join(dir, "10"))
	os.RemoveAll(filepath.Join(root, "system.slice/kubelet.service"))
	if got, err = k.find(); err != nil || len(got.Rows) != 0 || got.Reason != "KubeletNotFound" {
		t.Fatalf("gone: %+v, %v", got, err)
	}
	os.MkdirAll(filepath.Join(root, "elsewhere"), 0o755)
	id = mk("system.slice/kubelet.service")
	if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) {
		t.Fatalf("cgroup is back: %+v, %v", got, err)
	}
	// In another cgroup this time, and by another name: k3s, upgraded under way.
	id = mk("k3s")
	proc(t, dir, "20", "k3s-server", "/usr/bin/k3s (deleted)", "/k3s", "0", "20")
	if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) {
		t.Fatalf("elsewhere: %+v, %v", got, err)
	}
	// In the root cgroup, or in one that holds the pods: by process id, with a reason.
	for _, cg := range []string{"/", "/holds"} {
		mk("holds/kubepods")
		proc(t, dir, "20", "kubelet", "/usr/bin/kubelet", cg, "0", "20")
		if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{TGID: 20}}) || got.Reason != "KubeletByProcess" {
			t.Fatalf("in %s: %+v, %v", cg, got, err)
		}
	}
	// Seen through the agent's own cgroup namespace.
	os.WriteFile(filepath.Join(root, "k3s", "cgroup.procs"), []byte("19\n20\n"), 0o644)
	proc(t, dir, "20", "kubelet", "/usr/bin/kubelet", "/../../k3s", "0", "20")
	if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) {
		t.Fatalf("through a namespace: %+v, %v", got, err)
	}
	// No view of the host's process ids and no cgroup: said, not guessed.
	pidNamespace(t, dir, "pid:[5]")
	proc(t, dir, "20", "kubelet", "/usr/bin/kubelet", "/", "0", "20")
	if got, err = k.find(); err != nil || len(got.Rows) != 0 || got.Reason != "KubeletCgroupShared" {
		t.Fatalf("hidden: %+v, %v", got, err)
	}
}

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
	t.Fatalf("not within a minute: %s", what)
}

// startKubelet runs the named test again as a process that calls itself
// bh-fake-kubelet, in the cgroup given, which it makes.
func startKubelet(t *testing.T, test, dir string) *exec.Cmd {
	t.Helper()
	os.Mkdir(dir, 0o755)
	fd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bh-fake-kubelet")
	if err := os.Symlink(self, bin); err != nil { // the process is named by the link
		t.Fatal(err)
	}
	c := exec.Command(bin, "-test.run=^"+test+"$")
	c.Env = append(os.Environ(), "BULKHEAD_BE_KUBELET=1")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// beKubelet is what such a process does.
func beKubelet() bool {
	if os.Getenv("BULKHEAD_BE_KUBELET") == "" {
		return false
	}
	time.Sleep(10 * time.Minute)
	return true
}

// A kubelet that ends while it is looked at leaves its cgroup known: a process
// about to be gone is shown in no cgroup or in the root of all.
func TestRootKubeletEndsMeanwhile(t *testing.T) {
	if beKubelet() {
		return
	}
	root := cgroupTree(t)
	dir := filepath.Join(root, "kubelet")
	k := kubeletFinder{proc: "/proc", cgroupRoot: root, names: []string{"bh-fake-kubelet"}, idOf: loader.CgroupID}
	// Without a pause: the end is to come in the middle of a look.
	lookUntil := func(running bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			out, err := k.find()
			if err != nil {
				t.Fatal(err)
			}
			if (len(out.Procs) > 0) == running {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("not within a minute: kubelet running %v", running)
			}
		}
	}
	for range 30 {
		c := startKubelet(t, "TestRootKubeletEndsMeanwhile", dir)
		lookUntil(true)
		done := make(chan struct{})
		go func() { defer close(done); c.Process.Kill(); c.Wait() }()
		lookUntil(false)
		<-done
		if !slices.Equal(k.known, []string{dir}) {
			t.Fatalf("known cgroups %q", k.known)
		}
	}
}

// A directory made between the look at its parent and the watch of it tells no
// event; it must be found and watched all the same. And the first look is to
// watch where kubelet's cgroup will be made anew.
func TestWatchOfWhatAppearsMeanwhile(t *testing.T) {
	root, procs := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "system.slice/kubelet.service"), 0o755); err != nil {
		t.Fatal(err)
	}
	proc(t, procs, "self", "agent", "/agent", "/", "0", "1")
	proc(t, procs, "20", "kubelet", "/usr/bin/kubelet", "/system.slice/kubelet.service", "0", "20")
	m, err := New(newFake(), Options{CgroupRoot: root, ProcRoot: procs, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m.kubelet.idOf = func(string) (uint64, error) { return 7, nil }
	if m.watch == nil {
		t.Fatal("no inotify")
	}
	defer m.watch.Close()
	next := []string{filepath.Join(root, "kubepods"), filepath.Join(root, "kubepods/burstable")}
	late := slices.Clone(next)
	m.readLayout = func(root string) (Layout, error) {
		l, err := ReadLayout(root)
		if len(late) > 0 && err == nil {
			err = os.Mkdir(late[0], 0o755)
			late = late[1:]
		}
		return l, err
	}
	if err := m.Reconcile(ctx, Inputs{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(next, filepath.Join(root, "system.slice")) {
		if !slices.Contains(m.watch.WatchList(), dir) {
			t.Errorf("%s is not watched: %v", dir, m.watch.WatchList())
		}
	}
}

// What another version left goes when all that should be is there, and not while
// something failed.
func TestRootSettles(t *testing.T) {
	f := newFake()
	m, err := New(f, Options{CgroupRoot: cgroupTree(t), KubeletNames: []string{"no-such-kubelet"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range []bool{true, false} {
		f.fail = func(int) bool { return broken }
		if err := m.Reconcile(ctx, Inputs{}); (err != nil) != broken || (f.settled == 0) != broken {
			t.Errorf("operations fail %t: %v, settled %d times", broken, err, f.settled)
		}
	}
}

// A pod's cgroup appears, and kubelet restarts in a new one: both are noticed
// from the kernel, long before the resync.
func TestRootWatch(t *testing.T) {
	if beKubelet() {
		return
	}
	root := cgroupTree(t)
	f := newFake()
	qos := filepath.Join(root, "kubepods/burstable")
	path := filepath.Join(qos, "pod"+uid)
	m, err := New(&realIDs{fakeKernel: f}, Options{CgroupRoot: root, Resync: time.Hour, KubeletNames: []string{"bh-fake-kubelet"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := func(dir string) *exec.Cmd {
		t.Helper()
		return startKubelet(t, "TestRootWatch", filepath.Join(root, dir))
	}
	k := kubelet("kubelet-a")
	in := Inputs{Pods: []Pod{{UID: uid, Namespace: "red", Name: "a", NetworkID: 1}}, Networks: []Network{{ID: 1, Name: "red", VRFIfindex: 3, Mark: 0x1001, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}}
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
	if p := m.Status().Problems; len(p) != 1 || p[0].Reason != "CgroupMissing" {
		t.Errorf("problems %v", p)
	}

	// kubepods does not even exist yet.
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
	t.Logf("attached %v after the cgroup was made", time.Since(start))
	eventually(t, "nothing left to report", func() bool { return len(m.Status().Problems) == 0 })

	// Kubelet restarts elsewhere; pidfd tells.
	old := cg("kubelet-a")
	k.Process.Kill()
	k.Wait()
	k = kubelet("kubelet-b")
	eventually(t, "kubelet found in its new cgroup", func() bool { return has(loader.KubeletRow{CgroupID: cg("kubelet-b")}) })
	eventually(t, "the old cgroup forgotten", func() bool { return !has(loader.KubeletRow{CgroupID: old}) })

	// The same cgroup by name, another id: allowed again before the process is there.
	k.Process.Kill()
	k.Wait()
	eventually(t, "kubelet gone", func() bool { return len(m.Status().Kubelet.Procs) == 0 })
	removeTree(filepath.Join(root, "kubelet-b"))
	os.Mkdir(filepath.Join(root, "kubelet-b"), 0o755)
	eventually(t, "new id allowed", func() bool { return has(loader.KubeletRow{CgroupID: cg("kubelet-b")}) })

	// The pod goes.
	removeTree(path)
	if err := m.Reconcile(ctx, Inputs{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod forgotten", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.pods) == 0 && f.rows[loader.PodRow{CgroupID: id}.Key()] == nil
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// realIDs is the fake with the ids of real cgroups.
type realIDs struct{ *fakeKernel }

func (r *realIDs) AttachPod(path, uid string, row loader.PodRow) error {
	id, err := loader.CgroupID(path)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.ids[path] = id
	r.mu.Unlock()
	return r.fakeKernel.AttachPod(path, uid, row)
}

func TestRootEarlySockets(t *testing.T) {
	if os.Getenv("BULKHEAD_HOLD_SOCKETS") != "" {
		ln, _ := net.Listen("tcp4", "127.0.0.1:0")
		pc, _ := net.ListenPacket("udp6", "[::]:0")
		fmt.Println("holding")
		bufio.NewReader(os.Stdin).ReadString('\n')
		ln.Close()
		pc.Close()
		return
	}
	root := cgroupTree(t)
	self := filepath.Join(root, "podx/ctr")
	if err := os.MkdirAll(self, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	// This test again, as a process of the pod that holds two sockets.
	c := exec.Command("/proc/self/exe", "-test.run=TestRootEarlySockets")
	c.Env = append(os.Environ(), "BULKHEAD_HOLD_SOCKETS=1")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); c.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holding\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if n, err := earlySockets(filepath.Join(root, "podx"), 0x1001); errors.Is(err, syscall.ENOENT) {
		t.Skip("skip: no-sock-diag:", err)
	} else if err != nil || n != 2 {
		t.Errorf("%d early sockets, want 2 (%v)", n, err)
	}
	if n, err := earlySockets(filepath.Join(root, "none"), 0x1001); err != nil || n != 0 {
		t.Errorf("%d in no cgroup (%v)", n, err)
	}
}

func ExampleProblem() {
	fmt.Println(Problem{"red/a", "CgroupMissing", "kubelet has not made the pod's cgroup yet"})
	// Output: CgroupMissing: pod red/a: kubelet has not made the pod's cgroup yet
}
