// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
)

// ownPorts are addresses with ports of Bulkhead's own that none of its processes has.
var ownPorts = []string{"127.0.0.1:9412", "127.0.0.1:9413", "127.0.0.1:9414"}

// Sockets that a pod created before its programs were attached: the servers on all
// addresses are marked and bound to the VRF, others stay and are counted. Those at ports of the agent and the
// controllers lose them, also with a device and over MPTCP.
func TestRootEarlySockets(t *testing.T) {
	if os.Getenv("BULKHEAD_HOLD_SOCKETS") != "" {
		local, _ := net.Listen("tcp4", "127.0.0.1:0")
		server, _ := net.Listen("tcp", "[::]:0")
		pc, _ := net.ListenPacket("udp4", "0.0.0.0:0")
		for i, own := range ownPorts {
			lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				if i != 1 {
					return nil
				}
				var err error
				return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo") }), err)
			}}
			lc.SetMultipathTCP(i == 2)
			if _, err := lc.Listen(context.Background(), "tcp4", own); err != nil {
				fmt.Println(err)
			}
		}
		fmt.Println("holding")
		bufio.NewReader(os.Stdin).ReadString('\n')
		for _, c := range []syscall.Conn{server.(*net.TCPListener), pc.(*net.UDPConn), local.(*net.TCPListener)} {
			raw, _ := c.SyscallConn()
			raw.Control(func(fd uintptr) {
				device, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
				mark, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
				fmt.Printf("device %d mark %#x\n", device, mark)
			})
		}
		return
	}
	root := cgroupTree(t)
	self := filepath.Join(root, "podx/ctr")
	if err := os.MkdirAll(self, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	// Run this test as a process of the pod that holds six sockets.
	c := exec.Command("/proc/self/exe", "-test.run=TestRootEarlySockets")
	c.Env = append(os.Environ(), "BULKHEAD_HOLD_SOCKETS=1")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); c.Wait() }()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "holding" {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	const mark = 0x10000
	if early, err := earlySockets(filepath.Join(root, "podx"), mark); errors.Is(err, syscall.ENOENT) {
		t.Skip("skip: no-sock-diag:", err)
	} else if err != nil || len(early) != 6 {
		t.Fatalf("%d early sockets, want 6 (%v)", len(early), err)
	}
	for _, port := range []string{":9412", ":9413", ":9414"} {
		if l, err := net.Listen("tcp", port); err == nil {
			l.Close()
			t.Error("the pod does not have port", port)
		}
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	row := loader.PodRow{Mark: mark, VRFIfindex: uint32(lo.Index)} // any device serves for a VRF
	if n, err := confineEarlySockets(filepath.Join(root, "podx"), "/proc", row); err != nil || n != 1 {
		t.Errorf("%d sockets not confined, want 1 (%v)", n, err)
	}
	if early, err := earlySockets(filepath.Join(root, "podx"), mark); err != nil || len(early) != 1 {
		t.Errorf("%d early sockets remain, want 1 (%v)", len(early), err)
	}
	if n, err := confineEarlySockets(filepath.Join(root, "none"), "/proc", row); err != nil || n != 0 {
		t.Errorf("%d sockets in a missing cgroup, want 0 (%v)", n, err)
	}
	for _, port := range []string{":9412", ":9413", ":9414"} {
		l, err := net.Listen("tcp", port)
		if err != nil {
			t.Errorf("the pod has kept a port: %v", err)
			continue
		}
		defer l.Close()
	}
	fmt.Fprintln(in)
	confined := fmt.Sprintf("device %d mark %#x", lo.Index, mark)
	for _, want := range []string{confined, confined, "device 0 mark 0x0"} {
		if !lines.Scan() || lines.Text() != want {
			t.Errorf("the process reads %q of its socket, want %q", lines.Text(), want)
		}
	}
}
