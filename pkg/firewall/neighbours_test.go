// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// What tenants' processes write of neighbour discovery, and to DHCP clients, is dropped before anything accepts it.
func TestTenantsNeighbours(t *testing.T) {
	for name, roots := range map[string][]Cgroup{"sockets cannot be matched": nil, "sockets can be matched": {{"kubepods.slice", 9}}} {
		rules := outputRules(t, Inputs{Bridge: "br-ex", Plan: plan, PodRoots: roots})
		networks := slices.Index(rules, `oifname "ovn-k8s-mp*" goto networks`)
		for match, want := range map[string]bool{"meta mark": true, "socket mark": roots != nil} {
			for _, kind := range []string{"icmpv6 type 133-137", "udp dport { 68, 546 }"} {
				text := fmt.Sprintf(`oifname != "lo" %s %s 0x10000-0x2711ffff counter name foreign_socket drop`, kind, match)
				if got := slices.Index(rules, text); got >= 0 != want || got >= networks {
					t.Errorf("%s: rule %q has the place %d, want %t, before %d", name, text, got, want, networks)
				}
			}
		}
	}
}

// TestKernelNeighbours: a tenant's process writes no neighbour discovery, to the node's link or to its network, and other
// ICMP to both. The kernel finds neighbours for it, and the node's own processes write what they like.
func TestKernelNeighbours(t *testing.T) {
	target, host, outside, enter := newNode(t)
	enter(outside)
	received := newReceiver()
	received.listen(t, "[2001:db8::1]:53")
	pod := networkPort(t, host)
	received.listen(t, "[fd66::3]:53")
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	reconcileAndRead(t, target, in)
	for _, device := range []string{"br-ex", "ovn-k8s-mp7"} {
		i, err := net.InterfaceByName(device)
		if err != nil {
			t.Fatal(err)
		}
		to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(i.Index)}
		for kind, discovery := range map[byte]bool{128: false, 133: true, 134: true, 135: true, 136: true, 137: true, 138: false} {
			for _, tenant := range []bool{true, false} {
				var want error
				if discovery && tenant {
					want = unix.EPERM
				}
				if err := sendICMP6(t, kind, tenant, to); !errors.Is(err, want) {
					t.Errorf("type %d to %s, by a tenant's process: %t: %v, want %v", kind, device, tenant, err, want)
				}
			}
		}
	}
	runScript(t, host, "ip -6 neigh flush dev br-ex; ip -6 neigh flush dev ovn-k8s-mp7")
	runScript(t, pod, "ip -6 neigh flush dev eth0")
	enter(host)
	for from, to := range map[string]string{nodeAddresses[1].String(): "2001:db8::1", "fd66::2": "fd66::3"} {
		a := attack.Attempt{ID: 1 + len(from), Socket: "udp", Src: from, To: to, Port: 53, How: []string{fmt.Sprintf("mark=%#x", network.PacketMark(7))}}
		for deadline := time.Now().Add(20 * time.Second); !received.has(string(a.Token())); time.Sleep(10 * time.Millisecond) {
			if err := a.Do(); time.Now().After(deadline) {
				t.Fatalf("a tenant's datagram to %s, a neighbour that the kernel must find, is not received: %v", to, err)
			}
		}
	}
}

// networkPort adds the management port of the network 7, and returns the network namespace of a pod at its other end.
func networkPort(t *testing.T, host netns.NsHandle) netns.NsHandle {
	t.Helper()
	pod, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pod.Close() })
	if err := netns.Set(host); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ovn-k8s-mp7", TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod))}); err != nil {
		t.Fatal(err)
	}
	runScript(t, host, "ip link set ovn-k8s-mp7 up; ip addr add 10.66.0.2/24 dev ovn-k8s-mp7; ip addr add fd66::2/64 dev ovn-k8s-mp7 nodad; ip addr add fe80::7/64 dev ovn-k8s-mp7 nodad; ip addr add fe80::10/64 dev br-ex nodad")
	runScript(t, pod, "ip link set eth0 up; ip addr add 10.66.0.3/24 dev eth0; ip addr add fd66::3/64 dev eth0 nodad")
	return pod
}

// TestKernelDHCP: a tenant's process answers no DHCP client, of its network or on the node's link. It reaches other ports
// there, and the node's own processes answer.
func TestKernelDHCP(t *testing.T) {
	target, host, outside, enter := newNode(t)
	pod := networkPort(t, host)
	received := newReceiver()
	clients := map[string]netns.NsHandle{"192.0.2.1": outside, "2001:db8::1": outside, "10.66.0.3": pod, "fd66::3": pod}
	for client, ns := range clients {
		enter(ns)
		for _, port := range []int{67, 68, 546} {
			received.listen(t, at(client, port))
		}
	}
	enter(host)
	reconcileAndRead(t, target, Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses})
	id := 0
	arrives := func(to string, port uint16, tenant, want bool) {
		t.Helper()
		from := map[string]string{"192.0.2.1": "192.0.2.10", "2001:db8::1": "2001:db8::10", "10.66.0.3": "10.66.0.2", "fd66::3": "fd66::2"}[to]
		attempt := func(port uint16, tenant bool) attack.Attempt {
			id++
			a := attack.Attempt{ID: id, Socket: "udp", Src: from, To: to, Port: port}
			if tenant {
				a.How = []string{fmt.Sprintf("mark=%#x", network.PacketMark(7))}
			}
			return a
		}
		a, control := attempt(port, tenant), attempt(67, tenant)
		got := func(a attack.Attempt) bool { return received.has(string(a.Token())) }
		for deadline := time.Now().Add(20 * time.Second); (!got(control) || want && !got(a)) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			enter(host)
			_, _ = a.Do(), control.Do() // the receivers decide
		}
		if got(a) != want || !got(control) {
			t.Errorf("%s, port %d, a tenant: %t: received %t, want %t; at another port %t", to, port, tenant, got(a), want, got(control))
		}
	}
	for client := range clients {
		for _, port := range []uint16{68, 546} {
			arrives(client, port, true, false)
			arrives(client, port, false, true)
		}
	}
}

// sendICMP6 sends an ICMPv6 packet of a kind through a raw socket with a network's mark, or without.
func sendICMP6(t *testing.T, kind byte, marked bool, to unix.Sockaddr) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if marked {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(network.PacketMark(7))); err != nil {
			t.Fatal(err)
		}
	}
	return unix.Sendto(fd, append([]byte{kind}, make([]byte, 23)...), 0, to)
}

// TestKernelLockedNeighbours: the kernel answers a locked pod's search for the node's MAC address. Such answers are counted as
// no attempt to reach the pod; an echo request is.
func TestKernelLockedNeighbours(t *testing.T) {
	target, host, pod, enter := newNode(t)
	node, locked := nodeAddresses[1], netip.MustParseAddr("2001:db8::1")
	enter(host)
	reconcileAndRead(t, target, Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, Locked: []netip.Addr{locked}})
	refused := func() uint64 {
		t.Helper()
		counters, err := target.Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return counters[CounterProbeRefused]
	}
	enter(pod)
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err == nil {
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255), // RFC 4861, section 7.1.1
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	}
	if err != nil {
		t.Fatal(err)
	}
	solicitation := slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, node.AsSlice(), []byte{1, 1}, link.HardwareAddr)
	answered := func() bool {
		if err := unix.Sendto(fd, solicitation, 0, &unix.SockaddrInet6{Addr: node.As16()}); err != nil {
			t.Fatal(err)
		}
		for b := make([]byte, 256); ; {
			n, err := unix.Read(fd, b)
			if err != nil { // nothing more
				return false
			}
			if n > 0 && b[0] == 136 {
				return true
			}
		}
	}
	for deadline := time.Now().Add(20 * time.Second); !answered(); {
		if time.Now().After(deadline) {
			t.Fatal("the node does not answer the pod's neighbour solicitation")
		}
	}
	enter(host)
	if n := refused(); n != 0 {
		t.Errorf("%d packets are counted as refused", n)
	}
	if err := sendICMP6(t, 128, false, &unix.SockaddrInet6{Addr: locked.As16()}); !errors.Is(err, unix.EPERM) {
		t.Errorf("an echo request to the locked address: %v", err)
	}
	if n := refused(); n != 1 {
		t.Errorf("%d packets are counted as refused after an echo request, want 1", n)
	}
}
