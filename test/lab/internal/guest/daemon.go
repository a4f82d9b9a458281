// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// daemon is a program that is restarted when it exits, so that tests can kill it.
type daemon struct {
	name string
	argv []string
	// cgroup is relative to /sys/fs/cgroup; default lab/<name>.
	cgroup string
}

// keepRunning runs the daemon and restarts it forever.
func (d daemon) keepRunning() {
	if d.cgroup == "" {
		d.cgroup = "lab/" + d.name
	}
	for {
		begun := time.Now()
		err := d.once()
		slog.Warn("daemon exited", "name", d.name, "error", err, "after", time.Since(begun).Round(time.Millisecond))
		if time.Since(begun) < 5*time.Second {
			time.Sleep(time.Second)
		}
	}
}

func (d daemon) once() error {
	log, err := os.OpenFile(filepath.Join("/var/log", d.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.argv[0], d.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// Memory suffices, CPU time is scarce: Go programs collect garbage less often, and
	// do not look for work on idle processors.
	cmd.Env = append(Environment(), "GOGC=400", "GOMAXPROCS=1")
	group, err := openCgroup(d.cgroup)
	if err != nil {
		return err
	}
	defer group.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Setsid: true}
	return cmd.Run()
}

// switchCgroup is the parent of the cgroups of OVS and OVN.
const switchCgroup = "switch/"

// preferSwitch gives OVS and OVN ten times the processor time of containerd, kubelet or
// all pods, each a cgroup beside theirs. On an emulated node with many runnable
// processes, ovs-vswitchd otherwise waits for seconds, and packets with it.
func preferSwitch() error {
	if err := os.MkdirAll(filepath.Join(cgroupRoot, switchCgroup), 0o755); err != nil {
		return fmt.Errorf("create the cgroup of OVS and OVN: %w", err)
	}
	if err := os.WriteFile(cgroupRoot+"/cgroup.subtree_control", []byte("+cpu"), 0); err != nil {
		return fmt.Errorf("enable the cgroups' processor controller: %w", err)
	}
	if err := os.WriteFile(filepath.Join(cgroupRoot, switchCgroup, "cpu.weight"), []byte("1000"), 0); err != nil {
		return fmt.Errorf("set the weight of OVS and OVN: %w", err)
	}
	return nil
}

// openCgroup creates a cgroup and opens it, for a process to start in. Each daemon has
// its own, so that a test's cgroup hook applies to one daemon only.
func openCgroup(name string) (*os.File, error) {
	dir := filepath.Join(cgroupRoot, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cgroup %s: %w", name, err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup %s: %w", name, err)
	}
	return f, nil
}

// enterCgroup creates a cgroup and moves this process into it.
func enterCgroup(name string) error {
	group, err := openCgroup(name)
	if err != nil {
		return err
	}
	defer group.Close()
	if err := os.WriteFile(filepath.Join(group.Name(), "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("enter the cgroup %s: %w", name, err)
	}
	return nil
}

// Environment is the environment of every process in a machine.
func Environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + ShareDir + "/bin",
		"HOME=/root", "TERM=xterm", "LANG=C.UTF-8",
	}
}
