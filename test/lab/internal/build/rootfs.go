// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"bulkhead/hack/cache"
	"bulkhead/hack/debian"
)

// packages are the nodes' Debian packages.
var packages = []string{
	"openvswitch-switch", "ovn-central", "ovn-host", "frr", "frr-pythontools", "nftables", "iproute2", "bpftool",
	"iputils-ping", "conntrack", "kmod", "linux-image-cloud-amd64", "containerd", "crun", "iperf3", "tcpdump",
	"busybox-static", "procps", "ethtool", "curl", "ncat",
}

//go:embed rootfs.go
var rootfsSource string

// RootFS returns the directory of the nodes' root file system. The nodes' disk is
// built from it, and the external host overlays it, so nothing may write to it.
func RootFS(ctx context.Context, log io.Writer) (string, error) {
	key := cache.Key(rootfsSource, debian.Suite, runtime.GOARCH)
	return cache.Entry("rootfs", key, 2, func(dir string) error { return makeRootFS(ctx, dir, log) })
}

func makeRootFS(ctx context.Context, dir string, log io.Writer) error {
	if err := debian.Mmdebstrap(ctx, dir, log, "--variant=minbase", "--include="+strings.Join(packages, ","),
		// Without documentation and translations the tree is faster to copy.
		`--dpkgopt=path-exclude=/usr/share/doc/*`, `--dpkgopt=path-exclude=/usr/share/man/*`, `--dpkgopt=path-exclude=/usr/share/locale/*`); err != nil {
		return fmt.Errorf("build the nodes' root file system: %w", err)
	}
	for _, d := range []string{"lab", "mnt", "usr/share/bulkhead-lab"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("prepare the root file system: %w", err)
		}
	}
	for name, schema := range map[string]string{
		"conf.db": "openvswitch/vswitch", "ovnnb_db.db": "ovn/ovn-nb", "ovnsb_db.db": "ovn/ovn-sb",
	} {
		make := exec.CommandContext(ctx, "chroot", dir, "ovsdb-tool", "create", "/usr/share/bulkhead-lab/"+name, "/usr/share/"+schema+".ovsschema")
		make.Stdout, make.Stderr = log, log
		if err := make.Run(); err != nil {
			return fmt.Errorf("create the empty database %s: %w", name, err)
		}
	}
	for _, pattern := range []string{"boot/initrd*", "boot/System.map*", "var/cache/*", "var/lib/apt/lists/*", "var/lib/openvswitch/*", "etc/openvswitch/conf.db", "var/lib/ovn/*", "var/log/*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return fmt.Errorf("list the files %s: %w", pattern, err)
		}
		for _, f := range files {
			if err := os.RemoveAll(f); err != nil {
				return fmt.Errorf("remove files from the root file system: %w", err)
			}
		}
	}
	return nil
}

// Kernel returns the path of a root file system's kernel.
func Kernel(rootfs string) (string, error) {
	found, err := filepath.Glob(filepath.Join(rootfs, "boot/vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("want one kernel in %s/boot, found %v", rootfs, found)
	}
	return found[0], nil
}
