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

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// What tenants' processes write of neighbour discovery is dropped, except in networks.
func TestTenantsNeighbours(t *testing.T) {
	for name, roots := range map[string][]Cgroup{"sockets cannot be matched": nil, "sockets can be matched": {{"kubepods.slice", 9}}} {
		rules := outputRules(t, Inputs{Bridge: "br-ex", Plan: plan, PodRoots: roots})
		for match, want := range map[string]bool{"meta mark": true, "socket mark": roots != nil} {
			text := fmt.Sprintf(`oifname != "lo" oifname != "ovn-k8s-mp*" meta oifkind != "vrf" icmpv6 type 133-137 %s 0x10000-0x2711ffff counter name foreign_socket drop`, match)
			if got := slices.Contains(rules, text); got != want {
				t.Errorf("%s: rule %q: %t, want %t", name, text, got, want)
			}
		}
	}
}

// TestKernelNeighbours: a tenant's process writes no neighbour discovery to the node's link, but to its network, and other
// ICMP to both. The kernel finds neighbours for it, and the node's own processes write what they like.
func TestKernelNeighbours(t *testing.T) {
	target, host, outside, enter := newNode(t)
	enter(outside)
	received := newReceiver()
	received.listen(t, "[2001:db8::1]:53")
	enter(host)
	runScript(t, host, "ip link add ovn-k8s-mp7 type veth peer name red; ip link set red up; ip link set ovn-k8s-mp7 up; ip addr add fe80::7/64 dev ovn-k8s-mp7 nodad; ip addr add fe80::10/64 dev br-ex nodad")
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	reconcileAndRead(t, target, in)
	for device, link := range map[string]bool{"br-ex": true, "ovn-k8s-mp7": false} {
		i, err := net.InterfaceByName(device)
		if err != nil {
			t.Fatal(err)
		}
		to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(i.Index)}
		for kind, discovery := range map[byte]bool{128: false, 133: true, 134: true, 135: true, 136: true, 137: true, 138: false} {
			for _, tenant := range []bool{true, false} {
				var want error
				if link && discovery && tenant {
					want = unix.EPERM
				}
				if err := sendICMP6(t, kind, tenant, to); !errors.Is(err, want) {
					t.Errorf("type %d to %s, by a tenant's process: %t: %v, want %v", kind, device, tenant, err, want)
				}
			}
		}
	}
	runScript(t, host, "ip -6 neigh flush dev br-ex")
	enter(host)
	a := attack.Attempt{ID: 1, Socket: "udp", Src: nodeAddresses[1].String(), To: "2001:db8::1", Port: 53, How: []string{fmt.Sprintf("mark=%#x", network.PacketMark(7))}}
	for deadline := time.Now().Add(20 * time.Second); !received.has(string(a.Token())); time.Sleep(10 * time.Millisecond) {
		if err := a.Do(); time.Now().After(deadline) {
			t.Fatalf("a tenant's datagram to a neighbour that the kernel must find is not received: %v", err)
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
