// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// hostPorts are of pods of two networks; the last two are one port.
var hostPorts = []HostPort{
	{Port{netip.MustParseAddr("192.0.2.10"), "udp", 54}, netip.MustParseAddr("169.254.0.11")},
	{Port{netip.MustParseAddr("127.0.0.1"), "udp", 54}, netip.MustParseAddr("169.254.0.7")},
	{Port{netip.MustParseAddr("2001:db8::10"), "tcp", 54}, netip.MustParseAddr("fd69::b")},
	{Port{netip.MustParseAddr("192.0.2.10"), "tcp", 54}, netip.MustParseAddr("169.254.0.11")},
	{Port{netip.MustParseAddr("192.0.2.10"), "tcp", 54}, netip.MustParseAddr("169.254.0.13")},
}

// answerPeers answers each connection and each datagram to address with its own and the
// client's address.
func answerPeers(t *testing.T, address string) { answerMarked(t, address, "", 0) }

// answerMarked does so from sockets with a mark, and begins answers with name.
func answerMarked(t *testing.T, address, name string, mark uint32) {
	t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) }), err)
	}}
	l, err := c.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.ListenPacket(t.Context(), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); p.Close() })
	answer := func(client net.Addr) string {
		return name + address + " to " + netip.MustParseAddrPort(client.String()).Addr().Unmap().String()
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, answer(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 10)
		for {
			_, client, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			p.WriteTo([]byte(answer(client)), client)
		}
	}()
}

// askPeer returns the answer of answerPeers, or the error.
func askPeer(protocol string, from netip.Addr, to string) string {
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
	if protocol == "udp" {
		d.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
	}
	c, err := d.Dial(protocol, to)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if protocol == "udp" {
		_, _ = c.Write([]byte("?"))
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
}

// newNode has a node with an external bridge, and behind it a namespace with gateway routers'
// masquerade addresses: 169.254.0.11, fd69::b and 169.254.0.7. enter changes to one of them.
func newNode(t *testing.T) (target *Target, host, outside netns.NsHandle, enter func(netns.NsHandle)) {
	t.Helper()
	host, outside = newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "br-ex", TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(outside))}); err != nil {
		t.Fatal(err)
	}
	enter = func(ns netns.NsHandle) {
		t.Helper()
		if err := netns.Set(ns); err != nil {
			t.Fatal(err)
		}
	}
	script := func(text string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", text).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	script(`
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=2
ip link set lo up
ip link set br-ex up
ip addr add 192.0.2.10/24 dev br-ex
ip addr add 2001:db8::10/64 dev br-ex nodad
ip route add 169.254.0.0/17 via 192.0.2.1 dev br-ex onlink
ip route add fd69::/112 via 2001:db8::1 dev br-ex onlink
`)
	enter(outside)
	script(`
ip link set lo up
ip link set eth0 up
ip addr add 192.0.2.1/24 dev eth0
ip addr add 2001:db8::1/64 dev eth0 nodad
ip addr add 169.254.0.11/32 dev lo
ip addr add fd69::b/128 dev lo nodad
ip addr add 169.254.0.7/32 dev lo
`)
	enter(host)
	return target, host, outside, enter
}

// TestKernelHostPorts: packets to pods' host ports go to their network's gateway router and
// the answers come back, in both gateway modes. A server of the node keeps its port, a tenant's does not.
func TestKernelHostPorts(t *testing.T) {
	target, host, outside, enter := newNode(t)
	enter(outside)
	for _, a := range []string{"169.254.0.11:8080", "[fd69::b]:8080", "169.254.0.11:8081", "[fd69::b]:8081", "169.254.0.7:8080"} {
		answerPeers(t, a)
	}
	enter(host)
	for _, a := range []string{"192.0.2.10:8081", "[2001:db8::10]:8081", "0.0.0.0:8082"} {
		answerPeers(t, a)
	}
	// A tenant's host-network pod waits for what is sent to another pod's host port.
	for _, a := range []string{"192.0.2.10:8080", "[2001:db8::10]:8080"} {
		answerMarked(t, a, "the tenant's ", network.PacketMark(7))
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	for i, router := range addrs("169.254.0.11", "fd69::b") {
		for _, protocol := range []string{"tcp", "udp"} {
			for _, port := range []uint16{8080, 8081, 8082} {
				in.HostPorts = append(in.HostPorts, HostPort{Port{nodeAddresses[i], protocol, port}, router})
			}
		}
	}
	in.HostPorts = append(in.HostPorts, HostPort{Port{netip.MustParseAddr("127.0.0.1"), "tcp", 8080}, netip.MustParseAddr("169.254.0.7")},
		HostPort{Port{nodeAddresses[0], "tcp", 8080}, netip.MustParseAddr("169.254.0.13")}) // a second pod, which does not get it
	r := &Reconciler{Target: target}
	for _, mode := range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		in.Mode = mode
		enter(host)
		if _, err := r.Reconcile(t.Context(), in, false); err != nil {
			t.Fatal(err)
		}
		if ops, err := r.Reconcile(t.Context(), in, true); err != nil || len(ops) > 0 {
			t.Fatalf("second run: %v %v", ops, err)
		}
		client := addrs("192.0.2.1", "2001:db8::1")
		for _, protocol := range []string{"tcp", "udp"} {
			for i, routers := range []string{"169.254.0.11:8080", "[fd69::b]:8080"} {
				to := func(port uint16) string { return netip.AddrPortFrom(nodeAddresses[i], port).String() }
				enter(outside)
				check := func(what string, from netip.Addr, to, want string) {
					t.Helper()
					if got := askPeer(protocol, from, to); got != want {
						t.Errorf("%s mode, %s, %s to %s: %q, want %q", mode, protocol, what, to, got, want)
					}
				}
				if mode == network.SharedGateway { // in local mode routers answer by the node: tested with OVN
					check("from outside", client[i], to(8080), fmt.Sprintf("%s to %s", routers, nodeAddresses[i]))
				}
				check("from outside to the node's server", client[i], to(8081), fmt.Sprintf("%s to %s", to(8081), client[i]))
				if i == 0 {
					check("from outside to the node's server on all addresses", client[i], to(8082), "0.0.0.0:8082 to "+client[i].String())
				}
				enter(host)
				check("from the node", nodeAddresses[i], to(8080), fmt.Sprintf("%s to %s", routers, nodeAddresses[i]))
			}
		}
		if got, want := askPeer("tcp", nodeAddresses[0], "127.0.0.1:8080"), "169.254.0.7:8080 to 192.0.2.10"; got != want {
			t.Errorf("%s mode, from the node's address to loopback: %q, want %q", mode, got, want)
		}
	}
}

// TestKernelForgedAnswers: of what host-network pods send to a gateway router, only answers, and
// what is redirected there from a node port or host port, leave the node.
func TestKernelForgedAnswers(t *testing.T) {
	target, host, outside, enter := newNode(t)
	pods, podsID := podRoot(t)
	enter(outside)
	routers := []string{"169.254.0.11:8080", "[fd69::b]:8080"}
	for _, a := range routers {
		answerPeers(t, a)
	}
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, PodRoots: []Cgroup{{pods, podsID}}}
	for i, router := range addrs("169.254.0.11", "fd69::b") {
		in.HostPorts = append(in.HostPorts, HostPort{Port{nodeAddresses[i], "tcp", 8080}, router}, HostPort{Port{nodeAddresses[i], "udp", 8080}, router})
	}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	inPod(t, pods, func() {
		for _, a := range []string{"192.0.2.10:8081", "[2001:db8::10]:8081"} {
			answerPeers(t, a)
		}
	})
	for i, router := range routers {
		for _, protocol := range []string{"tcp", "udp"} {
			answer := fmt.Sprintf("%s to %s", router, nodeAddresses[i])
			if got := askPeer(protocol, nodeAddresses[i], router); got != answer {
				t.Errorf("%s from a process outside all pods to %s: %q", protocol, router, got)
			}
			hostPort, server := netip.AddrPortFrom(nodeAddresses[i], 8080).String(), netip.AddrPortFrom(nodeAddresses[i], 8081).String()
			inPod(t, pods, func() {
				if got := askPeer(protocol, nodeAddresses[i], router); strings.Contains(got, " to ") {
					t.Errorf("%s from a pod to %s: %q", protocol, router, got)
				}
				if got := askPeer(protocol, nodeAddresses[i], hostPort); got != answer {
					t.Errorf("%s from a pod to host port %s: %q", protocol, hostPort, got)
				}
			})
			enter(outside)
			client := netip.MustParseAddrPort(router).Addr()
			if got, want := askPeer(protocol, client, server), server+" to "+client.String(); got != want {
				t.Errorf("%s from %s to a pod's server: %q, want %q", protocol, client, got, want)
			}
			enter(host)
		}
	}
}
