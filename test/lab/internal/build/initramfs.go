// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"os"
	"strings"

	"github.com/cavaliergopher/cpio"

	"bulkhead/hack/debian"
	"bulkhead/test/lab/internal/sys"
)

// initScript is the first program of a VM. It finds the disks by their namespaces' ids, because the kernel gives
// them names in the order in which it finishes reading them, and continues in the root disk with this lab's own labinit.
var initScript = strings.NewReplacer("ROOT", fmt.Sprint(sys.RootDisk), "SHARE", fmt.Sprint(sys.ShareDisk), "KIND", sys.DiskKind).Replace(`#!/busybox sh
b=/busybox
$b mount -t devtmpfs dev /dev
$b mount -t sysfs sys /sys
disk() {
	for n in $($b seq 300); do
		for d in /sys/class/block/nvme0n*; do
			[ "$($b cat $d/nsid 2>/dev/null)" = $1 ] && [ -b /dev/${d##*/} ] && echo /dev/${d##*/} && return
		done
		$b sleep 0.1
	done
}
$b mount -r -t KIND $(disk ROOT) /root && $b mount -r -t KIND $(disk SHARE) /root/lab && $b umount /sys && $b umount /dev &&
	exec $b switch_root /root /lab/bin/labinit
echo "the lab's disks cannot be mounted"
$b mount -t proc proc /proc && echo o >/proc/sysrq-trigger
`)

// Initramfs writes the initial file system of the nodes' kernel, with busybox of a root file system.
func Initramfs(rootfs, path string) error {
	program, err := debian.Resolve(rootfs, "/usr/bin/busybox")
	if err != nil {
		return fmt.Errorf("find busybox in the root file system: %w", err)
	}
	busybox, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read busybox: %w", err)
	}
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create the initial file system: %w", err)
	}
	defer out.Close()
	archive := cpio.NewWriter(out)
	for _, dir := range []string{"dev", "sys", "proc", "root"} {
		if err := archive.WriteHeader(&cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755, Links: 2}); err != nil {
			return fmt.Errorf("write the initial file system: %w", err)
		}
	}
	for name, content := range map[string][]byte{"busybox": busybox, "init": []byte(initScript)} {
		if err := archive.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeReg | 0o755, Links: 1, Size: int64(len(content))}); err != nil {
			return fmt.Errorf("write %s of the initial file system: %w", name, err)
		}
		if _, err := archive.Write(content); err != nil {
			return fmt.Errorf("write %s of the initial file system: %w", name, err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write the initial file system: %w", err)
	}
	return out.Close()
}
