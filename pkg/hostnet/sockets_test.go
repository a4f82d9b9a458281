// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bufio"
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

// ownPort is one of Bulkhead's own that none of its processes has.
const ownPort = "127.0.0.1:9412"

// Sockets that a pod created before its programs were attached: the servers on all
// addresses are marked and bound to the VRF, others stay and are counted. One at a port of the agent and the
// controllers loses it.
func TestRootEarlySockets(t *testing.T) {
	if os.Getenv("BULKHEAD_HOLD_SOCKETS") != "" {
		local, _ := net.Listen("tcp4", "127.0.0.1:0")
		server, _ := net.Listen("tcp", "[::]:0")
		pc, _ := net.ListenPacket("udp4", "0.0.0.0:0")
		if _, err := net.Listen("tcp4", ownPort); err != nil {
			fmt.Println(err)
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
	// Run this test as a process of the pod that holds four sockets.
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
	} else if err != nil || len(early) != 4 {
		t.Fatalf("%d early sockets, want 4 (%v)", len(early), err)
	}
	if l, err := net.Listen("tcp", ":9412"); err == nil {
		l.Close()
		t.Error("the pod does not have the port")
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
	l, err := net.Listen("tcp", ":9412")
	if err != nil {
		t.Errorf("the pod has kept the port: %v", err)
	} else {
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
