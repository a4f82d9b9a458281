// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"bulkhead/test/lab/internal/sys"

	"golang.org/x/sys/unix"
)

// Init is process 1 of a node VM. Its first root file system is read-only and shared
// with other machines: it switches to an overlay, starts Node in a child process, and
// then only reaps processes. In one process, reaping would take the exit statuses that
// Node waits for.
func Init() error {
	if err := ownRoot(); err != nil {
		return err
	}
	name, err := kernelArgument("lab.node")
	if err != nil {
		return err
	}
	return Reap(exec.Command(ShareDir+"/bin/labinit", "node", name))
}

// Reap starts cmd, reaps every process that exits, and returns when cmd has exited.
func Reap(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for children: %w", err)
		case pid == cmd.Process.Pid:
			return fmt.Errorf("%s exited with status %#x", cmd.Path, uint32(status))
		}
	}
}

// PowerOff powers the VM off without a shutdown: it writes to memory only.
func PowerOff() {
	time.Sleep(200 * time.Millisecond) // let the serial line drain
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// ownRoot mounts a writable overlay in memory over the shared root file system and
// makes it the root of every process, including the kernel's helpers (modprobe).
func ownRoot() error {
	for _, m := range []sys.Mount{
		{Kind: "proc", Target: "/proc"}, {Kind: "sysfs", Target: "/sys"}, {Kind: "devtmpfs", Target: "/dev"}, {Kind: "tmpfs", Target: "/mnt", Options: "mode=755"},
	} {
		if err := m.Do(); err != nil {
			return err
		}
	}
	if err := modprobe("overlay"); err != nil {
		return err
	}
	const root = "/mnt/root"
	if err := sys.Overlay("/", "/mnt/rw", root); err != nil {
		return err
	}
	if err := unix.Mount(ShareDir, root+ShareDir, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s below the overlay: %w", ShareDir, err)
	}
	if err := sys.EnterRoot(root); err != nil {
		return err
	}
	for _, m := range []sys.Mount{
		{Kind: "proc", Target: "/proc"}, {Kind: "sysfs", Target: "/sys"}, {Kind: "devtmpfs", Target: "/dev"},
		{Kind: "devpts", Target: "/dev/pts", Options: "gid=5,mode=620,ptmxmode=666"}, {Kind: "tmpfs", Target: "/dev/shm"},
		{Kind: "mqueue", Target: "/dev/mqueue"},
		{Kind: "tmpfs", Target: "/run", Options: "mode=755"}, {Kind: "tmpfs", Target: "/tmp", Options: "mode=1777"},
		{Kind: "cgroup2", Target: "/sys/fs/cgroup", Options: "nsdelegate"}, {Kind: "bpf", Target: "/sys/fs/bpf", Options: "mode=700"},
		{Kind: "tracefs", Target: "/sys/kernel/tracing"}, {Kind: "debugfs", Target: "/sys/kernel/debug"}, {Kind: "securityfs", Target: "/sys/kernel/security"},
		// Pods' overlays need an upper directory that is not on an overlay.
		{Kind: "tmpfs", Target: "/var/lib/containerd"}, {Kind: "tmpfs", Target: "/var/lib/kubelet"},
		{Kind: "tmpfs", Target: "/var/log", Options: "mode=755"},
	} {
		if err := m.Do(); err != nil {
			return err
		}
	}
	if err := sys.MountDisk(sys.ImagesDisk, ImagesDir); err != nil {
		return err
	}
	// Kubernetes propagates mounts between pods and the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return nil
}

func modprobe(modules ...string) error {
	out, err := exec.Command("/usr/sbin/modprobe", append([]string{"-a", "-q"}, modules...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("load kernel modules %v: %w: %s", modules, err, out)
	}
	return nil
}

func kernelArgument(key string) (string, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return "", fmt.Errorf("read the kernel's arguments: %w", err)
	}
	for _, field := range strings.Fields(string(line)) {
		if value, ok := strings.CutPrefix(field, key+"="); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("the kernel was started without %s=", key)
}

// sysctls sets kernel parameters and logs those that it cannot set.
func sysctls(values map[string]string) {
	for key, value := range values {
		path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			slog.Warn("failed to set a kernel parameter", "key", key, "error", err)
		}
	}
}
