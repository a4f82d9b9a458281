// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// quotation is an ICMP error that says that a datagram from a node to a peer was too long.
type quotation struct {
	from, to uint16 // the datagram's ports
	between  []byte // IP options or extension headers before UDP
	next     byte   // IPv6: the first header's type; 0: UDP
}

// ipv4 returns the error with the MTU 1000.
func (q quotation) ipv4(node, peer netip.Addr) []byte {
	header := make([]byte, 20, 40)
	header[0], header[8], header[9] = 0x45+byte(len(q.between)/4), 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(header[2:], uint16(28+len(q.between)))
	copy(header[12:], node.AsSlice())
	copy(header[16:], peer.AsSlice())
	b := append([]byte{3, 4, 0, 0, 0, 0, 0x03, 0xe8}, header...)
	b = append(append(b, q.between...), q.udp()...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

// ipv6 returns the error with the MTU 1300, without checksum, which the kernel writes.
func (q quotation) ipv6(node, peer netip.Addr) []byte {
	header := make([]byte, 40, 80)
	header[0], header[6], header[7] = 0x60, unix.IPPROTO_UDP, 64
	if len(q.between) > 0 {
		header[6] = q.next
	}
	binary.BigEndian.PutUint16(header[4:], uint16(8+len(q.between)))
	copy(header[8:], node.AsSlice())
	copy(header[24:], peer.AsSlice())
	b := append([]byte{2, 0, 0, 0, 0, 0, 0x05, 0x14}, header...)
	return append(append(b, q.between...), q.udp()...)
}

func (q quotation) udp() []byte {
	b := binary.BigEndian.AppendUint16(nil, q.from)
	b = binary.BigEndian.AppendUint16(b, q.to)
	return append(b, 0x05, 0xdc, 0, 0)
}

// TestKernelTunnelErrors: nobody makes the kernel believe that the overlay's packets to a peer are too long. Errors that
// quote other packets count.
func TestKernelTunnelErrors(t *testing.T) {
	target, host, outside, enter := newNode(t)
	const socket = 40000 // the source port of what the errors quote; the kernel ignores errors of nobody's packets
	runScript(t, host, "sysctl -qw net.ipv4.ip_no_pmtu_disc=0")
	enter(host)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		var at unix.Sockaddr = &unix.SockaddrInet4{Port: socket}
		if family == unix.AF_INET6 {
			at = &unix.SockaddrInet6{Port: socket, Addr: nodeAddresses[1].As16()}
		}
		if err := unix.Bind(fd, at); err != nil {
			t.Fatal(err)
		}
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, TunnelPort: network.TunnelPort}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	fragment := []byte{unix.IPPROTO_UDP, 0, 0, 1, 0, 0, 0, 7}
	for name, c := range map[string]struct {
		quotation
		family   int // 0: both
		believed bool
	}{
		"of the overlay":                                {quotation: quotation{from: socket, to: network.TunnelPort}},
		"of other datagrams":                            {quotation: quotation{from: socket, to: 53}, believed: true},
		"of the overlay, with IP options":               {quotation: quotation{from: socket, to: network.TunnelPort, between: []byte{1, 1, 1, 0}}, family: 4},
		"of the overlay, with a destination options":    {quotation: quotation{from: socket, to: network.TunnelPort, next: 60, between: []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}}, family: 6},
		"of the overlay, with a hop-by-hop header":      {quotation: quotation{from: socket, to: network.TunnelPort, next: 0, between: []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}}, family: 6},
		"of the overlay, in a fragment":                 {quotation: quotation{from: socket, to: network.TunnelPort, next: 44, between: fragment}, family: 6},
		"of other datagrams, in a fragment":             {quotation: quotation{from: socket, to: 53, next: 44, between: fragment}, family: 6, believed: true},
		"of the overlay, in a fragment with extensions": {quotation: quotation{from: socket, to: network.TunnelPort, next: 44, between: append([]byte{60, 0, 0, 1, 0, 0, 0, 7}, unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0)}, family: 6},
	} {
		for i, peer := range []string{"192.0.2.99", "2001:db8::99"} {
			if c.family == 6-2*(1-i) || c.family == 0 {
				t.Run(name+" "+peer, func(t *testing.T) {
					runtime.LockOSThread() // newNode has locked another; this one ends with the subtest
					runScript(t, host, "ip route flush cache; ip -6 route flush cache")
					to := netip.MustParseAddr(peer)
					believed := func() bool { return strings.Contains(runScript(t, host, "ip route get "+peer), " mtu 1") }
					if believed() {
						t.Fatal("the kernel has a smaller MTU already")
					}
					enter(outside)
					defer enter(host)
					send := func() {
						family, packet, at := unix.AF_INET, c.ipv4(nodeAddresses[0], to), unix.Sockaddr(&unix.SockaddrInet4{Addr: nodeAddresses[0].As4()})
						protocol := unix.IPPROTO_ICMP
						if i == 1 {
							family, packet, at = unix.AF_INET6, c.ipv6(nodeAddresses[1], to), &unix.SockaddrInet6{Addr: nodeAddresses[1].As16()}
							protocol = unix.IPPROTO_ICMPV6
						}
						fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
						if err != nil {
							t.Fatal(err)
						}
						defer unix.Close(fd)
						if err := unix.Sendto(fd, packet, 0, at); err != nil {
							t.Fatal(err)
						}
					}
					if !c.believed {
						send()
						before := strings.Contains(runScript(t, host, "nft list counter inet bulkhead "+CounterTunnel), "packets 0 ")
						for deadline := time.Now().Add(20 * time.Second); before && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
							before = strings.Contains(runScript(t, host, "nft list counter inet bulkhead "+CounterTunnel), "packets 0 ")
						}
						if before || believed() {
							t.Errorf("nothing is dropped: %t; the kernel believes the error: %t", before, believed())
						}
						runScript(t, host, "nft reset counter inet bulkhead "+CounterTunnel)
						return
					}
					for deadline := time.Now().Add(20 * time.Second); !believed(); time.Sleep(10 * time.Millisecond) {
						if send(); time.Now().After(deadline) {
							t.Fatal("the kernel does not believe the error")
						}
					}
				})
			}
		}
	}
}
