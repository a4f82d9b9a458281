// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"net"
	"os"
	"os/exec"

	"bulkhead/test/lab/internal/remote"
	"bulkhead/test/lab/internal/sys"

	"golang.org/x/sys/unix"
)

// External is the external host's argument, as JSON.
type External struct {
	Config
	// Root is the nodes' root file system, Share the nodes' share and Socket the
	// command server's socket, as paths on the host.
	Root, Share, Socket string
}

// ExternalInit is process 1 of the external host: a client and router on the underlay
// that is not a Kubernetes node. It is not a VM but a set of namespaces with the nodes'
// root file system, so that it has the same tools. The supervisor moves its network
// card, eth0, into its network namespace.
func ExternalInit(e External, exe string) error {
	os.Remove(e.Socket)
	l, err := net.Listen("unix", e.Socket)
	if err != nil {
		return fmt.Errorf("listen for commands to the external host: %w", err)
	}
	socket, err := l.(*net.UnixListener).File()
	if err != nil {
		return fmt.Errorf("get the file of the external host's socket: %w", err)
	}
	// Open the executable before the host's root file system is detached.
	self, err := os.Open(exe)
	if err != nil {
		return fmt.Errorf("open this program: %w", err)
	}
	if err := externalRoot(e); err != nil {
		return err
	}
	if err := setIdentity(e.Config); err != nil {
		return err
	}
	if err := Configure("lo", nil, nil); err != nil {
		return err
	}
	if err := Configure("eth0", e.Addresses, e.Gateways); err != nil {
		return err
	}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), "external-server", e.Token)
	unix.CloseOnExec(int(self.Fd()))
	cmd.ExtraFiles = []*os.File{socket}
	return Reap(cmd)
}

// ExternalServer runs the external host's command server on the socket that it
// inherits as file descriptor 3.
func ExternalServer(token string) error {
	l, err := net.FileListener(os.NewFile(3, "commands"))
	if err != nil {
		return fmt.Errorf("inherit the external host's socket: %w", err)
	}
	return (&remote.Server{Token: token, Env: Environment()}).Serve(l)
}

// externalRoot sets up the external host's root file system: an overlay in memory on
// the nodes' root file system, with the host's devices.
func externalRoot(e External) error {
	if err := sys.Private(); err != nil {
		return err
	}
	const base, root = "/mnt", "/mnt/root"
	if err := (sys.Mount{Kind: "tmpfs", Target: base, Options: "mode=755"}).Do(); err != nil {
		return err
	}
	if err := sys.Overlay(e.Root, base+"/rw", root); err != nil {
		return err
	}
	if err := sys.Bind("/dev", root+"/dev"); err != nil {
		return err
	}
	if err := sys.Bind(e.Share, root+ShareDir); err != nil {
		return err
	}
	if err := sys.EnterRoot(root); err != nil {
		return err
	}
	for _, m := range []sys.Mount{
		{Kind: "proc", Target: "/proc"}, {Kind: "sysfs", Target: "/sys"}, {Kind: "tmpfs", Target: "/run", Options: "mode=755"},
		{Kind: "tmpfs", Target: "/tmp", Options: "mode=1777"}, {Kind: "tmpfs", Target: "/var/log", Options: "mode=755"},
	} {
		if err := m.Do(); err != nil {
			return err
		}
	}
	return nil
}
