// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The disks of a node are namespaces of one NVMe controller, all read-only, known by their ids: the
// kernel names them in the order in which it finishes reading them. Debian's cloud kernel has the drivers built in.
//
// QEMU itself serves them, so that it knows which memory it writes. Do not serve
// programs from a separate process (virtiofsd, any vhost-user device): it would write to
// the node's memory without QEMU's knowledge, and the emulator would go on executing
// code that it translated from the old contents. Programs then crash at random.
const (
	RootDisk   = 1 // the nodes' Debian
	ShareDisk  = 2 // the lab's own programs and configuration
	ImagesDisk = 3 // containerd's store
)

// DiskKind is the disks' file system, also built in.
const DiskKind = "ext4"

// MountDisk waits for the disk with an id and mounts it read-only.
func MountDisk(id int, target string) error {
	disk, err := Poll(30*time.Second, fmt.Sprintf("disk %d", id), func() (string, error) { return diskOf(id) })
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("create the mount point %s: %w", target, err)
	}
	if err := unix.Mount(disk, target, DiskKind, unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", disk, target, err)
	}
	return nil
}

// diskOf returns the device of the namespace with an id.
func diskOf(id int) (string, error) {
	names, err := filepath.Glob("/sys/class/block/nvme0n*")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if text, err := os.ReadFile(filepath.Join(name, "nsid")); err == nil && strings.TrimSpace(string(text)) == fmt.Sprint(id) {
			return "/dev/" + filepath.Base(name), nil
		}
	}
	return "", fmt.Errorf("none of %v has the namespace id %d", names, id)
}
