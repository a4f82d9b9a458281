// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The disks of a node: namespaces of one NVMe controller, in this order, all
// read-only. Debian's cloud kernel has the drivers built in.
//
// QEMU itself serves them, so that it knows which memory it writes. Do not serve
// programs from a separate process (virtiofsd, any vhost-user device): it would write to
// the node's memory without QEMU's knowledge, and the emulator would go on executing
// code that it translated from the old contents. Programs then crash at random.
const (
	RootDisk   = "/dev/nvme0n1" // the nodes' Debian
	ShareDisk  = "/dev/nvme0n2" // the lab's own programs and configuration
	ImagesDisk = "/dev/nvme0n3" // containerd's store
)

// DiskKind is the disks' file system, also built in.
const DiskKind = "ext4"

// MountDisk waits for a disk and mounts it read-only.
func MountDisk(disk, target string) error {
	if err := WaitFile(disk, 10*time.Second); err != nil {
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
