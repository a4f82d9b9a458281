// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"cmp"
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

// KubeletNames are the executables that run kubelet: kubelet itself, or the single
// binaries of k3s and MicroK8s. k0s and RKE2 start a separate kubelet.
var KubeletNames = []string{"kubelet", "hyperkube", "kubelite", "k3s", "k3s-server", "k3s-agent"}

// runtimeNames are container runtimes, which connect where a user of pods/portforward chooses, and RKE2's supervisor, which forwards the
// API server's connections.
var runtimeNames = []string{"containerd", "containerd-shim", "crio", "dockerd", "cri-dockerd", "rke2"}

// otherNames are other programs of k3s's single binary, under whose name they run.
var otherNames = append([]string{"kubectl", "crictl", "ctr"}, runtimeNames...)

// Kubelet describes how the eBPF programs identify kubelet. Reason and Message are
// set if operators should know something about it.
type Kubelet struct {
	Rows    []loader.KubeletRow
	Levels  uint32
	Procs   []KubeletProc
	Reason  string
	Message string
}

// KubeletProc is one process identified as kubelet.
type KubeletProc struct {
	PID    int
	Cgroup string // directory; empty if it was not found
	Shared bool   // the cgroup contains pods too, so only the process id identifies kubelet
	Other  string // a process in the cgroup that is not to count as kubelet: see otherProcess; empty: none
}

// initPIDNS names the initial pid namespace by its inode (PROC_PID_INIT_INO).
const initPIDNS = "pid:[4026531836]"

// kubeletFinder searches /proc for kubelet. It does not rely on unit names: kubelet
// has one of the executable names, runs as root in the host's pid and user
// namespaces, and is in no pod's cgroup.
type kubeletFinder struct {
	proc, cgroupRoot string
	names            []string
	// cgroups are the cgroups in which kubelet last ran. They stay allowed while no
	// kubelet runs, so that a restarted kubelet is allowed before it is found: systemd
	// recreates the directory with the same name and another id.
	cgroups []string
	found   bool // a kubelet was found once
	// others are the processes that kubelet last shared its cgroup with, by kubelet's process id.
	others map[int]string
	idOf   func(string) (uint64, error)
}

func (k *kubeletFinder) find() (Kubelet, error) {
	var out Kubelet
	procs, err := k.processes()
	if err != nil {
		return out, err
	}
	out.Procs = procs
	if len(procs) > 0 {
		k.cgroups, k.found = nil, true
	}
	hostPIDs := k.readLink("self", "ns/pid") == initPIDNS
	for _, p := range procs {
		if !p.Shared && p.Cgroup != "" && (p.Other == "" || !hostPIDs) {
			if p.Other != "" {
				out.Reason = "KubeletCgroupShared"
				out.Message = fmt.Sprintf("kubelet (process %d) shares its cgroup with %s, and the agent does not see the host's process ids: connections of %s, such as those of kubectl port-forward, count as kubelet's probes; run kubelet in its own cgroup (a service unit)", p.PID, p.Other, p.Other)
			}
			if !slices.Contains(k.cgroups, p.Cgroup) {
				k.cgroups = append(k.cgroups, p.Cgroup)
			}
			continue
		}
		if !hostPIDs {
			out.Reason = "KubeletCgroupShared"
			out.Message = fmt.Sprintf("kubelet (process %d) has no cgroup of its own and the agent does not see the host's process ids: probes of locked addresses fail; run kubelet in its own cgroup (--kubelet-cgroups, or a service unit)", p.PID)
			continue
		}
		out.Rows = append(out.Rows, loader.KubeletRow{TGID: uint32(p.PID)})
		if out.Reason == "" {
			out.Reason = "KubeletByProcess"
			out.Message = fmt.Sprintf("kubelet (process %d) shares its cgroup with %s and is identified by its process id: after a restart of kubelet, probes fail until the agent finds the new process", p.PID, cmp.Or(p.Other, "other processes"))
		}
	}
	for _, path := range k.cgroups {
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
		out.Message = "no kubelet process is visible: probes of locked addresses fail; the agent needs hostPID: true"
		if len(out.Rows) > 0 {
			out.Message = "kubelet is not running; its cgroup stays allowed until it restarts"
		}
	}
	return out, nil
}

func (k *kubeletFinder) readLink(pid, name string) string {
	s, _ := os.Readlink(filepath.Join(k.proc, pid, name))
	return s
}

// processes lists the kubelet processes.
func (k *kubeletFinder) processes() ([]KubeletProc, error) {
	entries, err := os.ReadDir(k.proc)
	if err != nil {
		return nil, fmt.Errorf("search for kubelet in %s: %w", k.proc, err)
	}
	var out []KubeletProc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !k.hasName(e.Name()) {
			continue
		}
		if !k.isRoot(e.Name()) {
			continue
		}
		rel, err := k.cgroup(e.Name())
		if err != nil {
			continue // the process exited meanwhile
		}
		if slices.ContainsFunc(strings.Split(rel, "/"), isKubepods) {
			continue // a container's process with kubelet's name
		}
		p := KubeletProc{PID: pid}
		p.Cgroup = filepath.Join(k.cgroupRoot, rel)
		if _, err := os.Stat(p.Cgroup); err != nil || strings.HasPrefix(rel, "/..") {
			// The path is relative to the agent's cgroup namespace: search the tree for
			// the process instead.
			p.Cgroup = k.findCgroup(k.cgroupRoot, e.Name(), 8)
		}
		p.Shared = p.Cgroup == filepath.Clean(k.cgroupRoot) || k.holdsPods(p.Cgroup)
		if !p.Shared && p.Cgroup != "" {
			p.Other = k.otherProcess(p)
		}
		if !k.isRoot(e.Name()) {
			continue // exited meanwhile: an exiting process shows no cgroup or the root cgroup
		}
		out = append(out, p)
	}
	k.others = map[int]string{}
	for _, p := range out {
		k.others[p.PID] = p.Other
	}
	return out, nil
}

// otherProcess returns the name of a container runtime, or of RKE2's supervisor, in kubelet's cgroup or below it; empty: there is
// none. Other processes there count as kubelet: its children end soon (mounts, credential providers), and none connects where a tenant
// chooses. Once there was such a process, kubelet is identified by its process id as long as it runs: at each change of that, probes
// fail for a moment.
func (k *kubeletFinder) otherProcess(kubelet KubeletProc) string {
	if name := k.others[kubelet.PID]; name != "" {
		return name
	}
	pids, _ := subtreeProcesses(kubelet.Cgroup) // an error is of a threaded cgroup, whose processes the one above lists
	for _, p := range pids {
		pid := strconv.Itoa(p)
		if name := strings.TrimSpace(k.readFile(pid, "comm")); name != "" && k.isRuntime(pid, name) {
			return name
		}
	}
	return ""
}

func (k *kubeletFinder) isRuntime(pid, name string) bool {
	return slices.Contains(runtimeNames, name) || slices.Contains(runtimeNames, k.executable(pid))
}

// hasName reports whether a process has one of kubelet's names.
func (k *kubeletFinder) hasName(pid string) bool {
	comm, err := os.ReadFile(filepath.Join(k.proc, pid, "comm"))
	if err != nil {
		return false
	}
	name := strings.TrimSpace(string(comm))
	return slices.Contains(k.names, name) || slices.Contains(k.names, k.executable(pid)) && !slices.Contains(otherNames, name)
}

// executable returns the name of a process's executable.
func (k *kubeletFinder) executable(pid string) string {
	// The kernel appends "(deleted)" to the name if an upgrade replaced the binary.
	return filepath.Base(strings.TrimSuffix(k.readLink(pid, "exe"), " (deleted)"))
}

// isRoot reports whether a process has uid 0 in the agent's user namespace and is in
// the agent's pid namespace. It reads only world-readable files: the links below ns/
// need CAP_SYS_PTRACE.
func (k *kubeletFinder) isRoot(pid string) bool {
	raw, err := os.ReadFile(filepath.Join(k.proc, pid, "status"))
	if err != nil {
		return false
	}
	uid0, samePIDs := false, false
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "State:" && (f[1] == "Z" || f[1] == "X"):
			return false // exited, not yet reaped: its exit was reported and will not be again
		case len(f) > 2 && f[0] == "Uid:":
			uid0 = f[1] == "0" && f[2] == "0"
		case len(f) > 1 && f[0] == "NSpid:":
			samePIDs = len(f) == 2 // one id per pid namespace from the agent's to the process's
		}
	}
	return uid0 && samePIDs && k.readFile(pid, "uid_map") == k.readFile("self", "uid_map")
}

func (k *kubeletFinder) readFile(pid, name string) string {
	raw, _ := os.ReadFile(filepath.Join(k.proc, pid, name))
	return string(raw)
}

// cgroup returns the cgroup v2 path of a process, relative to the agent's cgroup
// namespace.
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

// findCgroup searches the tree for the cgroup of a process. It skips the cgroups of
// pods, which are many and do not contain kubelet.
func (k *kubeletFinder) findCgroup(dir, pid string, depth int) string {
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
		if p := k.findCgroup(filepath.Join(dir, e), pid, depth-1); p != "" {
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

// watchExit calls f when the process exits, or if the watch fails. The returned
// function stops the watch.
func watchExit(pid int, f func()) (stop func(), err error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd") // non-blocking, so the runtime's poller waits and no thread does
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
