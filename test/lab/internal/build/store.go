// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"bulkhead/test/lab/internal/sys"
)

// ownNamespaces are the attributes of a program that mounts file systems and
// starts daemons: its namespaces, and so its mounts and daemons, end with it.
func ownNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
}

const storeConfig = `version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
`

// Store runs the root file system's containerd in a chroot, imports the archives
// 0.tar, 1.tar … in work, and writes containerd's store to the disk image out. It
// must run in a process of its own, started with ownNamespaces.
func Store(ctx context.Context, rootfs, work, out string, names []string) error {
	if err := sys.Private(); err != nil {
		return err
	}
	const base, root = "/mnt", "/mnt/root"
	if err := (sys.Mount{Kind: "tmpfs", Target: base, Options: "mode=755"}).Do(); err != nil {
		return err
	}
	if err := sys.Overlay(rootfs, base+"/rw", root); err != nil {
		return err
	}
	for _, m := range []sys.Mount{
		{Kind: "proc", Target: root + "/proc"}, {Kind: "tmpfs", Target: root + "/run"},
		// An overlay cannot be the upper directory of the snapshotter's overlays.
		{Kind: "tmpfs", Target: root + "/var/lib/containerd"},
	} {
		if err := m.Do(); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{"/dev": root + "/dev", work: root + "/lab"} {
		if err := sys.Bind(from, to); err != nil {
			return err
		}
	}
	if err := os.WriteFile(root+"/etc/containerd/lab.toml", []byte(storeConfig), 0o644); err != nil {
		return fmt.Errorf("configure containerd: %w", err)
	}
	if err := importAll(root, names); err != nil {
		return err
	}
	return Disk(ctx, root+"/var/lib/containerd", out, os.Stdout)
}

func importAll(root string, names []string) error {
	command := func(argv ...string) *exec.Cmd {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd
	}
	daemon := command("/usr/bin/containerd", "--config", "/etc/containerd/lab.toml", "--log-level", "warn")
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	if err := sys.WaitFile(root+"/run/containerd/containerd.sock", 30*time.Second); err != nil {
		return err
	}
	for n, name := range names {
		steps := [][]string{
			{"images", "import", "--local", "--snapshotter", "overlayfs", fmt.Sprintf("/lab/%d.tar", n)},
			// With this label containerd's CRI plugin lists the image from its start.
			{"images", "label", name, "io.cri-containerd.image=managed"},
		}
		if name == PauseImage {
			steps = append(steps, []string{"images", "label", name, "io.cri-containerd.pinned=pinned"})
		}
		for _, s := range steps {
			if err := command(append([]string{"/usr/bin/ctr", "-n", "k8s.io"}, s...)...).Run(); err != nil {
				return fmt.Errorf("ctr %v: %w", s, err)
			}
		}
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop containerd: %w", err)
	}
	var exit *exec.ExitError
	if err := daemon.Wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("wait for containerd to end: %w", err)
	}
	return nil
}
