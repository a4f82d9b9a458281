// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
)

// KubeletNames are the executables kubelet comes in: itself, or inside the
// single binaries of k3s and MicroK8s. k0s and RKE2 start a real kubelet.
var KubeletNames = []string{"kubelet", "hyperkube", "kubelite", "k3s", "k3s-server", "k3s-agent"}

// Kubelet is how the programs know kubelet. Reason is set when something about
// it is worth telling an operator.
type Kubelet struct {
	Rows    []loader.KubeletRow
	Levels  uint32
	Procs   []KubeletProc
	Reason  string
	Message string
}

// KubeletProc is one process taken for kubelet.
type KubeletProc struct {
	PID    int
	Cgroup string // directory; empty when it could not be found
	Shared bool   // the cgroup holds pods too, so the process id must do
}

// initPIDNS is the inode of the initial pid namespace (PROC_PID_INIT_INO).
const initPIDNS = "pid:[4026531836]"

// kubeletFinder looks for kubelet in /proc. A kernel fact decides, not the name
// of a unit: the executable, root in the host's pid and user namespaces, and a
// cgroup that belongs to no pod.
type kubeletFinder struct {
	proc, cgroupRoot string
	names            []string
	// known are the cgroups kubelet was last seen in. They stay allowed while no
	// kubelet runs, so that a restarted one is let through before it is found:
	// systemd makes the directory anew, by the same name, with another id.
	known []string
	seen  bool // there was a kubelet once
	idOf  func(string) (uint64, error)
}

func (k *kubeletFinder) find() (Kubelet, error) {
	var out Kubelet
	procs, err := k.processes()
	if err != nil {
		return out, err
	}
	out.Procs = procs
	if len(procs) > 0 {
		k.known, k.seen = nil, true
	}
	hostPIDs := k.link("self", "ns/pid") == initPIDNS
	for _, p := range procs {
		if !p.Shared && p.Cgroup != "" {
			if !slices.Contains(k.known, p.Cgroup) {
				k.known = append(k.known, p.Cgroup)
			}
			continue
		}
		if !hostPIDs {
			out.Reason = "KubeletCgroupShared"
			out.Message = fmt.Sprintf("kubelet (process %d) has no cgroup of its own and the agent does not see the host's process ids: probes of locked addresses fail; give kubelet a cgroup (--kubelet-cgroups, or a service unit)", p.PID)
			continue
		}
		out.Rows = append(out.Rows, loader.KubeletRow{TGID: uint32(p.PID)})
		if out.Reason == "" {
			out.Reason = "KubeletByProcess"
			out.Message = fmt.Sprintf("kubelet (process %d) shares its cgroup with others and is known by its process id: after its restart probes wait for the agent to notice", p.PID)
		}
	}
	for _, path := range k.known {
		id, err := k.idOf(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, err
		}
		out.Rows = append(out.Rows, loader.KubeletRow{CgroupID: id})
		if n, ok := loader.CgroupLevel(path); !ok || n > loader.MaxLevel {
			out.Levels = loader.AllLevels
		} else {
			out.Levels |= 1 << n
		}
	}
	if len(procs) == 0 {
		out.Reason = "KubeletNotFound"
		out.Message = "no kubelet process is visible: probes of locked addresses fail until there is one; the agent needs hostPID: true"
		if len(out.Rows) > 0 {
			out.Message = "kubelet is not running; its cgroup stays allowed for its return"
		}
	}
	return out, nil
}

func (k *kubeletFinder) link(pid, name string) string {
	s, _ := os.Readlink(filepath.Join(k.proc, pid, name))
	return s
}

func (k *kubeletFinder) processes() ([]KubeletProc, error) {
	entries, err := os.ReadDir(k.proc)
	if err != nil {
		return nil, fmt.Errorf("look for kubelet in %s: %w", k.proc, err)
	}
	var out []KubeletProc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !k.named(e.Name()) {
			continue
		}
		if !k.root(e.Name()) {
			continue
		}
		rel, err := k.cgroup(e.Name())
		if err != nil {
			continue // gone meanwhile
		}
		if slices.ContainsFunc(strings.Split(rel, "/"), isKubepods) {
			continue // a container that calls itself kubelet
		}
		p := KubeletProc{PID: pid}
		p.Cgroup = filepath.Join(k.cgroupRoot, rel)
		if _, err := os.Stat(p.Cgroup); err != nil || strings.HasPrefix(rel, "/..") {
			// Seen through our own cgroup namespace: look for the process instead.
			p.Cgroup = k.search(k.cgroupRoot, e.Name(), 8)
		}
		p.Shared = p.Cgroup == filepath.Clean(k.cgroupRoot) || k.holdsPods(p.Cgroup)
		if !k.root(e.Name()) {
			continue // ended meanwhile: what ends is last seen in no cgroup, or in the root of all
		}
		out = append(out, p)
	}
	return out, nil
}

func (k *kubeletFinder) named(pid string) bool {
	comm, err := os.ReadFile(filepath.Join(k.proc, pid, "comm"))
	if err != nil {
		return false
	}
	if slices.Contains(k.names, strings.TrimSpace(string(comm))) {
		return true
	}
	// "(deleted)" follows the name of a binary that was upgraded under way.
	exe := strings.TrimSuffix(k.link(pid, "exe"), " (deleted)")
	return slices.Contains(k.names, filepath.Base(exe))
}

// root is true for uid 0 of our user namespace and pid namespace. It reads what
// everyone may read: the links below ns/ ask for CAP_SYS_PTRACE.
func (k *kubeletFinder) root(pid string) bool {
	raw, err := os.ReadFile(filepath.Join(k.proc, pid, "status"))
	if err != nil {
		return false
	}
	uid0, samePIDs := false, false
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "State:" && (f[1] == "Z" || f[1] == "X"):
			return false // ended, not yet reaped: its end was told already and will not be told again
		case len(f) > 2 && f[0] == "Uid:":
			uid0 = f[1] == "0" && f[2] == "0"
		case len(f) > 1 && f[0] == "NSpid:":
			samePIDs = len(f) == 2 // one number for each namespace between it and us
		}
	}
	return uid0 && samePIDs && k.read(pid, "uid_map") == k.read("self", "uid_map")
}

func (k *kubeletFinder) read(pid, name string) string {
	raw, _ := os.ReadFile(filepath.Join(k.proc, pid, name))
	return string(raw)
}

// cgroup is the v2 path of a process, relative to the cgroup namespace we are in.
func (k *kubeletFinder) cgroup(pid string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(k.proc, pid, "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return strings.TrimSuffix(rest, " (deleted)"), nil
		}
	}
	return "", fmt.Errorf("process %s is in no cgroup v2", pid)
}

// search finds the cgroup a process is listed in. Pods are left out: they are many, and no kubelet.
func (k *kubeletFinder) search(dir, pid string, depth int) string {
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err == nil && slices.Contains(strings.Fields(string(raw)), pid) {
		return dir
	}
	if depth == 0 {
		return ""
	}
	entries, _ := readDirs(dir)
	for _, e := range entries {
		if isKubepods(e) {
			continue
		}
		if p := k.search(filepath.Join(dir, e), pid, depth-1); p != "" {
			return p
		}
	}
	return ""
}

func (k *kubeletFinder) holdsPods(dir string) bool {
	if dir == "" {
		return false
	}
	below, err := findKubepods(dir, kubepodsDepth)
	return err == nil && len(below) > 0
}

// whenGone calls f once the process has ended, or its end cannot be watched.
// The returned function stops the watch.
func whenGone(pid int, f func()) (stop func(), err error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd") // non-blocking, so the runtime's poller waits, not a thread
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	go func() {
		err := conn.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err != nil && err != unix.EINTR || n > 0
		})
		if err == nil {
			f()
		}
		file.Close()
	}()
	return func() { file.Close() }, nil
}
