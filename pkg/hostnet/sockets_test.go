// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
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
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	row := loader.PodRow{Mark: mark, VRFIfindex: uint32(lo.Index)} // any device serves for a VRF
	pods := map[string]attachedPod{"x": {filepath.Join(root, "podx"), row}, "none": {filepath.Join(root, "none"), row}}
	listed := 0
	list := func(each func(uint8, diagSocket)) error { listed++; return listSockets(each) }
	if early, err := earlySockets(pods, list); errors.Is(err, syscall.ENOENT) {
		t.Skip("skip: no-sock-diag:", err)
	} else if err != nil || len(early["x"]) != 6 || len(early) != 1 {
		t.Fatalf("early sockets %v, want 6 (%v)", early, err)
	}
	for _, port := range []string{":9412", ":9413", ":9414"} {
		if l, err := net.Listen("tcp", port); err == nil {
			l.Close()
			t.Error("the pod does not have port", port)
		}
	}
	for _, want := range []int{2, 1} { // lists, the second one to count what remains of those that were confined
		listed = 0
		if remain, err := confineEarlySockets("/proc", pods, list); err != nil || len(remain) != 1 || remain["x"] != 1 || listed != want {
			t.Errorf("%v sockets not confined, want 1 (%v); listed %d times, want %d", remain, err, listed, want)
		}
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

// The sockets of all pods are listed once per reconcile, and each is its pod's by its cgroup.
func TestRootEarlySocketsOfPods(t *testing.T) {
	root := cgroupTree(t)
	in, layout, _ := example()
	m, kernel := managerOf(t, layout)
	ids := map[string]uint64{}
	layout.Pods = maps.Clone(layout.Pods)
	in.Pods = nil
	for i, uid := range []string{"u1", "u2", "u3"} {
		container := filepath.Join(root, "pod"+uid, "container")
		if err := os.MkdirAll(container, 0o755); err != nil {
			t.Fatal(err)
		}
		pod, err := loader.CgroupID(filepath.Dir(container))
		if err == nil {
			ids[uid], err = loader.CgroupID(container)
		}
		if err != nil {
			t.Fatal(err)
		}
		layout.Pods[uid] = Cgroup{filepath.Dir(container), pod}
		kernel.ids[filepath.Dir(container)] = pod
		in.Pods = append(in.Pods, Pod{UID: uid, Namespace: "ns", Name: uid, NetworkID: 1 + i%2})
	}
	m.readLayout = func(string) (Layout, error) { return layout, nil }
	listed := 0
	m.confine = func(proc string, pods map[string]attachedPod) (map[string]int, error) {
		return confineEarlySockets(proc, pods, func(each func(uint8, diagSocket)) error {
			listed++
			for _, s := range []diagSocket{{cgroup: ids["u1"]}, {cgroup: ids["u1"], mark: 0x10000}, {cgroup: ids["u2"], mark: 0x10000}, {cgroup: ids["u2"]}, {cgroup: ids["u3"], mark: 0x10000}, {cgroup: 1}} {
				each(unix.IPPROTO_TCP, s)
			}
			return nil
		})
	}
	for n := range 3 {
		if err := m.Reconcile(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if early, want := m.Status().EarlySockets, map[string]int{"u1": 1, "u2": 2}; listed != n+1 || !maps.Equal(early, want) {
			t.Errorf("after reconcile %d: listed %d times; early sockets %v, want %v", n+1, listed, early, want)
		}
	}
}
