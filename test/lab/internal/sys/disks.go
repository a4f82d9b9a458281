package sys

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The disks of a node: namespaces of one NVMe controller, in this order, all
// read-only. Debian's cloud kernel has the drivers for them built in.
//
// QEMU itself serves them, and so it knows which memory it has filled from
// them. A file server beside QEMU (virtiofsd, any vhost-user device) must not
// hold what a node executes: it writes to the node's memory behind QEMU's back,
// and under emulation QEMU then goes on to run what it had translated from the
// same memory before. Programs crash of that at random, again and again.
const (
	RootDisk   = "/dev/nvme0n1" // the nodes' Debian
	ShareDisk  = "/dev/nvme0n2" // programs and configuration of the day
	ImagesDisk = "/dev/nvme0n3" // containerd's store
)

// DiskKind is the file system on the disks, also built in.
const DiskKind = "ext4"

// MountDisk mounts a disk read-only, as soon as the kernel has found it.
func MountDisk(disk, target string) error {
	if err := WaitFile(disk, 10*time.Second); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make the mount point %s: %w", target, err)
	}
	if err := unix.Mount(disk, target, DiskKind, unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", disk, target, err)
	}
	return nil
}
