// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"time"

	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/sys"
)

const (
	memoryMB = 3072
	// cpus is two although two nodes share a machine's two: with one, pods on both nodes start a
	// quarter faster, but checks that load one node alone take three times as long.
	cpus = 2
)

// guestArgs are kernel arguments that disable what is slow under emulation and what a
// test machine does not need: hardening, clearing of allocated memory, watchdogs, and
// cgroup controllers that nobody uses: kubelet walks the tree once for each, every two seconds.
const guestArgs = "mitigations=off apparmor=0 audit=0 init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off " +
	"cgroup_disable=io,hugetlb,rdma,misc nowatchdog tsc=reliable no_timer_check preempt=none random.trust_cpu=on"

// accelerator returns QEMU's options for KVM or for emulation. cx16=off: QEMU 7.2
// emulates cmpxchg16b incorrectly, which crashes kernels at random. The others are slow
// under emulation: with erms, kernel and libraries copy memory by "rep movsb", which
// takes an emulated instruction per byte; smap doubles the TLB entries of the kernel;
// la57 adds a level to every page walk.
func accelerator(kvm bool) []string {
	if kvm {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max,cx16=off,erms=off,smap=off,la57=off"}
}

// keepVM starts a node and restarts it forever: a guest that reboots or powers off
// starts again.
func (s Spec) keepVM(c *children, n Machine) error {
	vm, err := s.startVM(c, n)
	if err != nil {
		return err
	}
	go func() {
		for {
			err := vm.Wait()
			slog.Warn("node exited, restarting it", "node", n.Name, "error", err)
			time.Sleep(time.Second)
			if vm, err = s.startVM(c, n); err != nil {
				slog.Error("failed to restart node", "node", n.Name, "error", err)
				return
			}
		}
	}()
	return nil
}

// startVM starts a node's QEMU. Its disks are namespaces of one NVMe controller, with ids from sys.RootDisk.
func (s Spec) startVM(c *children, n Machine) (*exec.Cmd, error) {
	args := append([]string{"qemu-system-x86_64", "-M", "q35"}, accelerator(s.KVM)...)
	args = append(args, "-smp", fmt.Sprint(cpus), "-m", fmt.Sprint(memoryMB), "-nographic", "-no-reboot", "-nodefaults",
		"-chardev", "file,id=console,append=on,path="+LogDir(s.Run)+"/"+n.Name+".console", "-serial", "chardev:console",
		"-device", "nvme,serial=lab")
	for _, disk := range []struct {
		id   int
		file string
	}{{sys.RootDisk, s.Artifacts.RootDisk}, {sys.ShareDisk, s.shareDisk()}, {sys.ImagesDisk, s.Artifacts.ImagesDisk}} {
		args = append(args, "-drive", fmt.Sprintf("if=none,id=disk%d,format=raw,readonly=on,file=%s", disk.id, strings.ReplaceAll(disk.file, ",", ",,")),
			"-device", fmt.Sprintf("nvme-ns,drive=disk%d,nsid=%d", disk.id, disk.id))
	}
	for i, card := range []struct {
		tap string
		mac net.HardwareAddr
	}{
		{n.Name, guest.MAC(0x54, n.Addresses[0].Addr())}, {n.Name + "-m", guest.MAC(0x55, n.Addresses[0].Addr())},
	} {
		args = append(args, "-netdev", fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", i, card.tap),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=", i, card.mac))
	}
	args = append(args, "-kernel", s.Artifacts.Kernel, "-initrd", s.initramfs(), "-append",
		"console=ttyS0 panic=-1 quiet "+guestArgs+" lab.node="+n.Name)
	return c.start(n.Name, nil, args...)
}
