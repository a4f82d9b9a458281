// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// datagram sends one datagram from an IP socket; proto -1 is the family's ICMP.
// "connect" in How connects first, "mapped" uses an IPv6 socket for IPv4.
func datagram(typ, proto int) func(Attempt) error {
	return func(a Attempt) error {
		to, err := a.dest()
		if err != nil {
			return err
		}
		fam, p := family(to), proto
		if p == -1 {
			p = unix.IPPROTO_ICMP
			if fam == unix.AF_INET6 {
				p = unix.IPPROTO_ICMPV6
			}
		}
		fd, err := unix.Socket(fam, typ|unix.SOCK_CLOEXEC, p)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		problems := a.set(fd, fam == unix.AF_INET6)
		port := a.Port
		payload := a.Token()
		if proto == -1 {
			port = 0
			payload = append(echoRequest(fam, uint16(a.ID)), payload...)
			if typ == unix.SOCK_RAW && fam == unix.AF_INET {
				fillChecksum(payload, 2, 0) // the kernel fills in ICMPv6's
			}
		}
		if a.Geneve != nil {
			if payload, err = a.Geneve.packet(a); err != nil {
				return err
			}
		}
		sa, err := sockaddr(to, port)
		if err != nil {
			return err
		}
		control, err := a.control(fam == unix.AF_INET6)
		if err != nil {
			return err
		}
		if _, ok := a.option("connect"); ok {
			if err := unix.Connect(fd, sa); err != nil {
				return withProblems(problems, fmt.Errorf("connect: %w", err))
			}
			sa = nil
		}
		// The first datagram can be lost during neighbour discovery.
		for range 2 {
			n, err := unix.SendmsgN(fd, payload, control, sa, unix.MSG_DONTWAIT)
			if err != nil {
				return withProblems(problems, fmt.Errorf("sendmsg: %w", err))
			}
			if n < len(payload) {
				return errShort
			}
		}
		return withProblems(problems, nil)
	}
}

// unixSocket sends the token to a unix socket. "connect" in How connects a datagram socket first.
func unixSocket(typ int) func(Attempt) error {
	return func(a Attempt) error {
		fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		to := &unix.SockaddrUnix{Name: a.To}
		if _, ok := a.option("connect"); !ok && typ == unix.SOCK_DGRAM {
			return unix.Sendto(fd, a.Token(), unix.MSG_DONTWAIT, to)
		}
		if err := unix.Connect(fd, to); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		_, err = unix.Write(fd, a.Token())
		return err
	}
}

func withProblems(problems []string, err error) error {
	if len(problems) == 0 {
		return err
	}
	return errors.Join(errors.New(strings.Join(problems, "; ")), err)
}

// stream connects from the attempt's port and sends the token. "fastopen" in
// How connects by sending, "connectx=ADDRESS" by SCTP to that address first.
func stream(typ, proto int) func(Attempt) error {
	return func(a Attempt) error {
		to, err := a.dest()
		if err != nil {
			return err
		}
		fam := family(to)
		fd, err := unix.Socket(fam, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		problems := a.set(fd, fam == unix.AF_INET6)
		// The source port identifies the attempt to listeners that receive only
		// the SYN. It is not set by bind, which the bind hook of a tenant's
		// host-network pod handles as a server's.
		ports := uint32(a.SourcePort())<<16 | uint32(a.SourcePort())
		if unix.SetsockoptInt(fd, unix.SOL_IP, ipLocalPortRange, int(int32(ports))) != nil {
			any := netip.IPv4Unspecified()
			if fam == unix.AF_INET6 {
				any = netip.IPv6Unspecified()
			}
			if sa, err := sockaddr(any, a.SourcePort()); err == nil {
				_ = unix.Bind(fd, sa)
			}
		}
		sa, err := sockaddr(to, a.Port)
		if err != nil {
			return err
		}
		if _, ok := a.option("fastopen"); ok {
			_, err = unix.SendmsgN(fd, a.Token(), nil, sa, unix.MSG_FASTOPEN)
		} else if first, ok := a.option("connectx"); ok {
			err = connectx(fd, first, a.To, a.Port)
		} else if typ == unix.SOCK_SEQPACKET { // connects by itself
			_, err = unix.SendmsgN(fd, a.Token(), nil, sa, unix.MSG_DONTWAIT)
		} else {
			err = unix.Connect(fd, sa)
		}
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return withProblems(problems, fmt.Errorf("connect: %w", err))
		}
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		patience := time.Duration(a.Patience) * time.Millisecond
		if patience == 0 {
			patience = 1500 * time.Millisecond
		}
		if n, err := poll(pfd, patience); err != nil || n == 0 {
			return withProblems(problems, errors.Join(errors.New("connect: no answer"), err))
		}
		if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			return withProblems(problems, fmt.Errorf("connect: %w", errors.Join(err, unix.Errno(code))))
		}
		if _, err := unix.Write(fd, a.Token()); err != nil {
			return withProblems(problems, fmt.Errorf("write: %w", err))
		}
		// Give the server time to accept and read before the socket is closed.
		pfd[0].Events = unix.POLLIN
		_, _ = poll(pfd, 300*time.Millisecond)
		return withProblems(problems, nil)
	}
}

// SCTP's socket options, of linux/sctp.h.
const (
	sctpRTOInfo  = 0
	sctpConnectX = 110
)

// connectx connects an SCTP socket to a server that has two addresses. When the first does
// not answer, the kernel tries the second, which no later call names. Both are of one family.
func connectx(fd int, first, second string, port uint16) error {
	// The association, and milliseconds until the first, at most and at least.
	var timeouts []byte
	for _, n := range []uint32{0, 100, 200, 100} {
		timeouts = binary.NativeEndian.AppendUint32(timeouts, n)
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_SCTP, sctpRTOInfo, string(timeouts)); err != nil {
		return fmt.Errorf("timeouts: %w", err)
	}
	var list []byte
	for _, text := range []string{first, second} {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		list = append(list, rawSockaddr(a, port)...)
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_SCTP, sctpConnectX, string(list)); err != nil {
		return fmt.Errorf("connectx: %w", err)
	}
	return nil
}

// rawSockaddr is an address as the kernel's sockaddr_in or sockaddr_in6.
func rawSockaddr(a netip.Addr, port uint16) []byte {
	out := binary.NativeEndian.AppendUint16(nil, uint16(family(a)))
	out = binary.BigEndian.AppendUint16(out, port)
	if a.Is4() {
		return append(append(out, a.AsSlice()...), make([]byte, 8)...)
	}
	out = append(out, make([]byte, 4)...) // flow label
	return append(append(out, a.AsSlice()...), make([]byte, 4)...)
}

const ipLocalPortRange = 51 // IP_LOCAL_PORT_RANGE, Linux 6.3

func poll(fds []unix.PollFd, timeout time.Duration) (int, error) {
	deadline := time.Now().Add(timeout)
	for {
		n, err := unix.Poll(fds, int(max(time.Until(deadline), 0)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// headerIncluded sends a datagram, or the packet of Frame, with a hand-made IP header. "fragments" in How
// sends a datagram as two fragments, and with the value harmless-first or harmless-between another first fragment, to Port, that
// overlaps the real one.
func headerIncluded(a Attempt) error {
	to, err := a.dest()
	if err != nil {
		return err
	}
	src, err := netip.ParseAddr(a.Src)
	if err != nil {
		return fmt.Errorf("source address: %w", err)
	}
	fam, level, opt := unix.AF_INET, unix.SOL_IP, unix.IP_HDRINCL
	if to.Is6() {
		fam, level, opt = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_HDRINCL
	}
	fd, err := unix.Socket(fam, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, level, opt, 1); err != nil {
		return fmt.Errorf("header included: %w", err)
	}
	problems := a.set(fd, to.Is6())
	control, err := a.control(to.Is6())
	if err != nil {
		return err
	}
	payload := a.Token()
	if a.Geneve != nil {
		if payload, err = a.Geneve.packet(a); err != nil {
			return err
		}
	}
	packets := [][]byte{ipUDP(src, to.WithZone(""), a.udpSource(), a.Port, payload)}
	if a.Frame != "" {
		p, err := a.packet()
		if err != nil {
			return err
		}
		packets[0] = p
	}
	if overlap, ok := a.option("fragments"); ok {
		whole := packets[0]
		packets = fragments(whole, uint32(a.ID))
		// Another header in the same place: who reads the first, and who keeps the last?
		harmless := fragments(ipUDP(src, to.WithZone(""), a.udpSource(), Port, payload), uint32(a.ID))[0]
		switch overlap {
		case "harmless-first":
			packets = append([][]byte{harmless}, packets...)
		case "harmless-between":
			packets = [][]byte{packets[0], harmless, packets[1]}
		}
	}
	sa, err := sockaddr(to, 0)
	if err != nil {
		return err
	}
	for range 2 {
		for _, p := range packets {
			if _, err := unix.SendmsgN(fd, p, control, sa, unix.MSG_DONTWAIT); err != nil {
				return withProblems(problems, fmt.Errorf("sendmsg: %w", err))
			}
		}
	}
	return withProblems(problems, nil)
}
