// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// TestServers: servers on one address and on all are found, and clients are not.
func TestServers(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	client, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	tenants, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tenants.Close()
	setMark(t, tenants, network.PacketMark(7))
	udp4, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp4.Close()
	udp6, err := net.ListenPacket("udp6", "[::]:0") // IPV6_V6ONLY
	if err != nil {
		t.Fatal(err)
	}
	defer udp6.Close()
	sctp, sctpPort := listenSCTP(t, netip.MustParseAddr("127.0.0.1"))
	port := func(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }
	loopback, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.10")
	servers, err := Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, protocol string
		at             netip.Addr
		port           uint16
		want           bool
	}{
		{"a server on loopback", "tcp", loopback, port(tcp.Addr()), true},
		{"the same at another address", "tcp", other, port(tcp.Addr()), false},
		{"the same with UDP", "udp", loopback, port(tcp.Addr()), false},
		{"a server on all addresses", "udp", other, port(udp.LocalAddr()), true},
		{"the same with IPv6", "udp", netip.IPv6Loopback(), port(udp.LocalAddr()), true},
		{"a server on all IPv4 addresses", "udp", other, port(udp4.LocalAddr()), true},
		{"the same at an IPv6 address", "udp", netip.IPv6Loopback(), port(udp4.LocalAddr()), false},
		{"a server on all IPv6 addresses", "udp", netip.IPv6Loopback(), port(udp6.LocalAddr()), true},
		{"the same at an IPv4 address", "udp", other, port(udp6.LocalAddr()), false},
		{"an SCTP server", "sctp", loopback, sctpPort, sctp},
		{"the same at another address", "sctp", other, sctpPort, false},
		{"a tenant's server", "udp", loopback, port(tenants.LocalAddr()), os.Geteuid() != 0},
		{"a client", "tcp", loopback, port(client.LocalAddr()), false},
	} {
		if got := slices.ContainsFunc(servers, func(s Server) bool { return s.Serves(c.protocol, c.at, c.port) }); got != c.want {
			t.Errorf("%s: %t, want %t", c.what, got, c.want)
		}
	}
}

// The kernel lists sockets of the wanted states only: a node has many more connections than servers.
func TestListedStates(t *testing.T) {
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := net.Dial("tcp4", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	port := netip.MustParseAddrPort(server.Addr().String()).Port()
	for _, c := range []struct {
		states uint32
		want   int // sockets at the server's port
	}{{1 << stateListen, 1}, {allStates, 2}} {
		n := 0
		err := diagSockets(unix.AF_INET, unix.IPPROTO_TCP, c.states, func(s diagSocket) {
			if s.port == port {
				n++
			}
		})
		if err != nil || n != c.want {
			t.Errorf("states %#x: %d sockets at the server's port, want %d (%v)", c.states, n, c.want, err)
		}
	}
}

// setMark gives a socket a mark, if the test may.
func setMark(t *testing.T, c net.PacketConn, mark uint32) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) })
	if err != nil || set != nil && os.Geteuid() == 0 {
		t.Fatal(err, set)
	}
}

// listenSCTP listens on a port of an address; ok is false on a kernel without SCTP.
func listenSCTP(t *testing.T, addr netip.Addr) (ok bool, port uint16) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, 0
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4()}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("SCTP server at %+v", name)
	return true, uint16(name.(*unix.SockaddrInet4).Port)
}
