// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"bulkhead/pkg/loader"
)

// writeProc writes the files of a process in /proc; nspid is its id in each pid
// namespace.
func writeProc(t *testing.T, dir, pid, comm, exe, cgroup, uid, nspid string) {
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
	appendStatus(t, dir, pid, "State:\t"+state)
}

func appendStatus(t *testing.T, dir, pid, line string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, pid, "status"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// setPIDNamespace sets the agent's own pid namespace.
func setPIDNamespace(t *testing.T, dir, id string) {
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
	writeProc(t, dir, "self", "agent", "/agent", "/", "0", "5")
	setPIDNamespace(t, dir, initPIDNS)
	writeProc(t, dir, "10", "kubelet", "/usr/bin/kubelet", "/system.slice/kubelet.service", "0", "10")
	writeProc(t, dir, "11", "kubelet", "/tmp/kubelet", "/user.slice", "1000", "11")     // not root
	writeProc(t, dir, "12", "kubelet", "/tmp/kubelet", "/kubepods/podx/ctr", "0", "12") // in a pod
	writeProc(t, dir, "14", "kubelet", "/tmp/kubelet", "/gone", "0", "14")
	appendState(t, dir, "14", "Z (zombie)")
	writeProc(t, dir, "13", "kubelet", "/tmp/kubelet", "/machine.slice", "0", "13\t1") // another pid namespace
	k := &kubeletFinder{proc: dir, cgroupRoot: root, names: KubeletNames, idOf: inode}
	got, err := k.find()
	if err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) || len(got.Procs) != 1 || got.Reason != "" {
		t.Fatalf("%+v, %v", got, err)
	}

	// Kubelet and its cgroup disappear; the cgroup is recreated before the process.
	os.RemoveAll(filepath.Join(dir, "10"))
	os.RemoveAll(filepath.Join(root, "system.slice/kubelet.service"))
	if got, err = k.find(); err != nil || len(got.Rows) != 0 || got.Reason != "KubeletNotFound" {
		t.Fatalf("without kubelet: %+v, %v", got, err)
	}
	os.MkdirAll(filepath.Join(root, "elsewhere"), 0o755)
	id = mk("system.slice/kubelet.service")
	if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) {
		t.Fatalf("with the recreated cgroup: %+v, %v", got, err)
	}
	// In another cgroup and with another name: k3s, whose binary was replaced.
	id = mk("k3s")
	writeProc(t, dir, "20", "k3s-server", "/usr/bin/k3s (deleted)", "/k3s", "0", "20")
	if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) {
		t.Fatalf("in another cgroup: %+v, %v", got, err)
	}
	// In the root cgroup, or in one that contains the pods: identified by process id.
	for _, cg := range []string{"/", "/holds"} {
		mk("holds/kubepods")
		writeProc(t, dir, "20", "kubelet", "/usr/bin/kubelet", cg, "0", "20")
		if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{TGID: 20}}) || got.Reason != "KubeletByProcess" {
			t.Fatalf("in %s: %+v, %v", cg, got, err)
		}
	}
	// With a path relative to the agent's cgroup namespace.
	os.WriteFile(filepath.Join(root, "k3s", "cgroup.procs"), []byte("19\n20\n"), 0o644)
	writeProc(t, dir, "20", "kubelet", "/usr/bin/kubelet", "/../../k3s", "0", "20")
	if got, err = k.find(); err != nil || !slices.Equal(got.Rows, []loader.KubeletRow{{CgroupID: id}}) {
		t.Fatalf("in a cgroup namespace: %+v, %v", got, err)
	}
	// Without the host's process ids and without an own cgroup: reported as a problem.
	setPIDNamespace(t, dir, "pid:[5]")
	writeProc(t, dir, "20", "kubelet", "/usr/bin/kubelet", "/", "0", "20")
	if got, err = k.find(); err != nil || len(got.Rows) != 0 || got.Reason != "KubeletCgroupShared" {
		t.Fatalf("in another pid namespace: %+v, %v", got, err)
	}
}

// A container runtime in kubelet's cgroup, or another process that kubelet has not started, connects where tenants choose: kubelet is
// identified by its process. Kubelet's own children change nothing, and after such a process has ended nothing changes back.
func TestKubeletBesideOthers(t *testing.T) {
	type proc struct{ pid, comm, exe, parent string }
	kubelet, k3s := proc{"20", "kubelet", "/usr/bin/kubelet", "1"}, proc{"20", "k3s-server", "/var/lib/rancher/k3s/data/current/bin/k3s", "1"}
	containerd := func(exe, parent string) proc { return proc{"30", "containerd", exe, parent} }
	for what, c := range map[string]struct {
		procs []proc
		other string
	}{
		"alone":                           {[]proc{kubelet}, ""},
		"a mount":                         {[]proc{kubelet, {"30", "mount.nfs", "/sbin/mount.nfs", "20"}}, ""},
		"a child's child":                 {[]proc{kubelet, {"30", "sh", "/bin/sh", "20"}, {"31", "credentials", "/bin/credentials", "30"}}, ""},
		"a child whose parent has ended":  {[]proc{kubelet, {"31", "credentials", "/bin/credentials", "25"}}, ""},
		"an administrator's shell":        {[]proc{kubelet, {"30", "sh", "/bin/sh", "1"}}, ""},
		"containerd beside it":            {[]proc{kubelet, containerd("/usr/bin/containerd", "1")}, "containerd"},
		"k3s and its containerd":          {[]proc{k3s, containerd("/usr/bin/containerd", "20")}, "containerd"},
		"k3s, with one binary":            {[]proc{k3s, containerd(k3s.exe, "20")}, "containerd"},
		"a shim that k3s has left behind": {[]proc{k3s, {"30", "containerd-shim", "/bin/containerd-shim-runc-v2", "1"}}, "containerd-shim"},
		"RKE2":                            {[]proc{{"19", "rke2", "/usr/local/bin/rke2", "1"}, {"20", "kubelet", "/usr/bin/kubelet", "19"}}, "rke2"},
	} {
		dir, root := t.TempDir(), t.TempDir()
		writeProc(t, dir, "self", "agent", "/agent", "/", "0", "5")
		setPIDNamespace(t, dir, initPIDNS)
		cgroup := filepath.Join(root, "node.service")
		if err := os.Mkdir(cgroup, 0o755); err != nil {
			t.Fatal(err)
		}
		id, _ := inode(cgroup)
		list := ""
		for _, p := range c.procs {
			writeProc(t, dir, p.pid, p.comm, p.exe, "/node.service", "0", p.pid)
			appendStatus(t, dir, p.pid, "PPid:\t"+p.parent)
			list += p.pid + "\n"
		}
		write := func(list string) {
			if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(list), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		byCgroup, byProcess := []loader.KubeletRow{{CgroupID: id}}, []loader.KubeletRow{{TGID: 20}}
		want, reason := byCgroup, ""
		if c.other != "" {
			want, reason = byProcess, "KubeletByProcess"
		}
		write(list)
		k := &kubeletFinder{proc: dir, cgroupRoot: root, names: KubeletNames, idOf: inode}
		got, err := k.find()
		if err != nil || !slices.Equal(got.Rows, want) || got.Reason != reason || len(got.Procs) != 1 || got.Procs[0].Other != c.other {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		// The other process ends. Another kubelet, which is alone, has its cgroup.
		write("20\n")
		if got, err = k.find(); err != nil || !slices.Equal(got.Rows, want) {
			t.Errorf("%s, then alone: %+v, %v", what, got, err)
		}
		os.RemoveAll(filepath.Join(dir, "20"))
		writeProc(t, dir, "40", "kubelet", "/usr/bin/kubelet", "/node.service", "0", "40")
		write("40\n")
		if got, err = k.find(); err != nil || !slices.Equal(got.Rows, byCgroup) {
			t.Errorf("%s, then another kubelet: %+v, %v", what, got, err)
		}
		// Where process ids are not the host's, probes pass by the cgroup, and that is a problem of the node.
		setPIDNamespace(t, dir, "pid:[5]")
		write(list + "40\n50\n")
		writeProc(t, dir, "50", "containerd", "/usr/bin/containerd", "/node.service", "0", "50")
		if got, err = k.find(); err != nil || !slices.Equal(got.Rows, byCgroup) || got.Reason != "KubeletCgroupShared" {
			t.Errorf("%s, in another pid namespace: %+v, %v", what, got, err)
		}
	}
}

// startKubelet starts a process named bh-fake-kubelet in the cgroup dir, which it
// creates. The process runs the named test, which must call beKubelet first.
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
	if err := os.Symlink(self, bin); err != nil { // the process gets the name of the link
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

// beKubelet sleeps and returns true in a process that startKubelet started.
func beKubelet() bool {
	if os.Getenv("BULKHEAD_BE_KUBELET") == "" {
		return false
	}
	time.Sleep(10 * time.Minute)
	return true
}

// If kubelet exits during find, the finder keeps kubelet's cgroup: an exiting process
// shows no cgroup or the root cgroup.
func TestRootKubeletExitsDuringFind(t *testing.T) {
	if beKubelet() {
		return
	}
	root := cgroupTree(t)
	dir := filepath.Join(root, "kubelet")
	k := kubeletFinder{proc: "/proc", cgroupRoot: root, names: []string{"bh-fake-kubelet"}, idOf: loader.CgroupID}
	// Without a pause, so that the exit falls into a call of find.
	findUntil := func(running bool) {
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
				t.Fatalf("condition not met within a minute: kubelet running %t", running)
			}
		}
	}
	for range 30 {
		c := startKubelet(t, "TestRootKubeletExitsDuringFind", dir)
		findUntil(true)
		done := make(chan struct{})
		go func() { defer close(done); c.Process.Kill(); c.Wait() }()
		findUntil(false)
		<-done
		if !slices.Equal(k.cgroups, []string{dir}) {
			t.Fatalf("cgroups %q", k.cgroups)
		}
	}
}
