package host

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"bulkhead/test/lab/internal/build"
	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/sys"
)

const (
	memoryMB = 3072
	cpus     = 2
)

// frugal turns off what costs an emulated processor most and a throw-away
// machine needs least: hardening, clearing of fresh memory, watchdogs.
const frugal = "mitigations=off apparmor=0 audit=0 init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off " +
	"nowatchdog tsc=reliable no_timer_check preempt=none random.trust_cpu=on"

// accelerator returns QEMU's options for KVM or for emulation. cx16=off: QEMU 7.2
// mis-executes cmpxchg16b under emulation, and kernels die of it at random.
func accelerator(kvm bool) []string {
	if kvm {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max,cx16=off"}
}

// keepVM runs a node for ever: a guest that reboots or powers off is started
// again, as a machine would be. Its file servers end with it.
func (s Spec) keepVM(c *children, n Machine) error {
	wait, err := s.startVM(c, n)
	if err != nil {
		return err
	}
	go func() {
		for {
			err := wait()
			slog.Warn("node ended and is started again", "name", n.Name, "err", err)
			time.Sleep(time.Second)
			if wait, err = s.startVM(c, n); err != nil {
				slog.Error("node cannot be started again", "name", n.Name, "err", err)
				return
			}
		}
	}()
	return nil
}

func (s Spec) startVM(c *children, n Machine) (wait func() error, err error) {
	size := fmt.Sprintf("%dM", memoryMB)
	args := append([]string{"qemu-system-x86_64", "-M", "q35"}, accelerator(s.KVM)...)
	args = append(args, "-smp", fmt.Sprint(cpus), "-m", size, "-nographic", "-no-reboot", "-nodefaults",
		"-chardev", "file,id=console,append=on,path="+LogDir(s.Run)+"/"+n.Name+".console", "-serial", "chardev:console",
		// Guests and file servers share the memory.
		"-object", "memory-backend-memfd,id=mem,share=on,size="+size, "-numa", "node,memdev=mem")
	var waits []func() error
	for tag, dir := range map[string]string{"rootfs": s.Artifacts.RootFS, "lab": s.path("share")} {
		socket := s.path(n.Name + "-" + tag + ".sock")
		os.Remove(socket)
		argv, err := build.VirtioFS(socket, dir)
		if err != nil {
			return nil, err
		}
		server, err := c.start("virtiofsd-"+n.Name+"-"+tag, nil, argv...)
		if err != nil {
			return nil, err
		}
		waits = append(waits, server.Wait)
		if err := sys.WaitFile(socket, 20*time.Second); err != nil {
			return nil, fmt.Errorf("start the file server of %s: %w", n.Name, err)
		}
		args = append(args, "-chardev", "socket,id="+tag+",path="+socket,
			"-device", "vhost-user-fs-pci,queue-size=1024,chardev="+tag+",tag="+tag)
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
	args = append(args, "-kernel", s.Artifacts.Kernel, "-append",
		"console=ttyS0 panic=-1 quiet "+frugal+" rootfstype=virtiofs root=rootfs ro init=/usr/sbin/lab-stage0 lab.node="+n.Name)
	vm, err := c.start(n.Name, nil, args...)
	if err != nil {
		return nil, err
	}
	return func() error {
		err := vm.Wait()
		for _, w := range waits {
			w()
		}
		return err
	}, nil
}
