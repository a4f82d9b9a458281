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
)

func TestRootEarlySockets(t *testing.T) {
	if os.Getenv("BULKHEAD_HOLD_SOCKETS") != "" {
		ln, _ := net.Listen("tcp4", "127.0.0.1:0")
		pc, _ := net.ListenPacket("udp6", "[::]:0")
		fmt.Println("holding")
		bufio.NewReader(os.Stdin).ReadString('\n')
		ln.Close()
		pc.Close()
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
	// Run this test as a process of the pod that holds two sockets.
	c := exec.Command("/proc/self/exe", "-test.run=TestRootEarlySockets")
	c.Env = append(os.Environ(), "BULKHEAD_HOLD_SOCKETS=1")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); c.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holding\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if n, err := earlySockets(filepath.Join(root, "podx"), 0x1001); errors.Is(err, syscall.ENOENT) {
		t.Skip("skip: no-sock-diag:", err)
	} else if err != nil || n != 2 {
		t.Errorf("%d early sockets, want 2 (%v)", n, err)
	}
	if n, err := earlySockets(filepath.Join(root, "none"), 0x1001); err != nil || n != 0 {
		t.Errorf("%d early sockets in a missing cgroup, want 0 (%v)", n, err)
	}
}
