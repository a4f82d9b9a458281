// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// nodePorts are of two networks, whose gateway routers have the masquerade addresses
// 169.254.0.11 and .13.
var nodePorts = []NodePort{
	{"tcp", 30080, netip.MustParseAddr("169.254.0.11")}, {"tcp", 30080, netip.MustParseAddr("fd69::b")},
	{"tcp", 30081, netip.MustParseAddr("169.254.0.13")}, {"udp", 30080, netip.MustParseAddr("169.254.0.13")},
}

// localPorts are of services with external traffic policy Local of the network 7 of forwarder.
var localPorts = []LocalPort{
	{Port{netip.MustParseAddr("192.0.2.10"), "udp", 30090}, netip.MustParseAddrPort("169.254.0.24:30090")},
	{Port{netip.MustParseAddr("2001:db8::10"), "udp", 30090}, netip.MustParseAddrPort("[fd69::18]:30090")},
	{Port{netip.MustParseAddr("203.0.113.7"), "udp", 53}, netip.MustParseAddrPort("169.254.0.24:30090")},
	{Port{netip.MustParseAddr("2001:db8:7::7"), "udp", 53}, netip.MustParseAddrPort("[fd69::18]:30090")},
}

var nodeAddresses = addrs("192.0.2.10", "2001:db8::10")

// addLoopbackAddresses starts the loopback interface, adds addresses to it, and waits
// until the kernel delivers to them.
func addLoopbackAddresses(t *testing.T, addresses ...netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatal(err)
		}
		// The kernel adds the route to an IPv6 address later.
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			routes, err := netlink.RouteGet(a.AsSlice())
			if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no route to the node's own address %s: %v, %v", a, routes, err)
			}
		}
	}
}

// TestKernelNodePorts: the node's own connections to its addresses go to the router of the
// network whose node port it is, and others to the node's processes.
func TestKernelNodePorts(t *testing.T) {
	newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	// The routers' addresses are the node's own here, so that it receives what goes to them.
	addLoopbackAddresses(t, append(addrs("169.254.0.11", "169.254.0.13", "fd69::b"), nodeAddresses...)...)
	for _, address := range []string{"192.0.2.10:30080", "192.0.2.10:30081", "192.0.2.10:22", "[2001:db8::10]:30080", "[2001:db8::10]:30081", "169.254.0.11:30080", "169.254.0.13:30081", "[fd69::b]:30080"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(conn, address)
				conn.Close()
			}
		}()
	}
	// server is who answers a connection to an address.
	server := func(address string) string {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		buf := make([]byte, 100)
		n, _ := conn.Read(buf)
		return string(buf[:n])
	}
	check := func(want map[string]string) {
		t.Helper()
		for address, name := range want {
			if got := server(address); got != name {
				t.Errorf("%s is answered by %s, want %s", address, got, name)
			}
		}
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Plan: plan, Networks: []network.Network{{ID: 1}, {ID: 2}}, Node: nodeAddresses, NodePorts: nodePorts}
	r := &Reconciler{Target: target}
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), in, false); err != nil {
			t.Fatal(err)
		}
	}
	reconcile()
	check(map[string]string{
		"192.0.2.10:30080": "169.254.0.11:30080", "192.0.2.10:30081": "169.254.0.13:30081", "192.0.2.10:22": "192.0.2.10:22",
		"[2001:db8::10]:30080": "[fd69::b]:30080",
		// Not a node port in this IP family.
		"[2001:db8::10]:30081": "[2001:db8::10]:30081",
	})
	in.NodePorts = nodePorts[2:]
	reconcile()
	check(map[string]string{"192.0.2.10:30080": "192.0.2.10:30080", "192.0.2.10:30081": "169.254.0.13:30081", "[2001:db8::10]:30080": "[2001:db8::10]:30080"})
}
