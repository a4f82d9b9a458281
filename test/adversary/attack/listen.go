// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Listener is a way to receive what others send.
type Listener struct {
	// Kind is "sniff" or "sniff-device" for a packet socket on all devices or on
	// Device, "raw-icmp", "raw-udp" or "raw-tcp" for a raw socket, "raw-udp-errors" for the packets that ICMP
	// errors quote, "udp", "tcp", "unix-stream" or
	// "unix-dgram" for a server at At.
	Kind   string   `json:"kind"`
	IPv6   bool     `json:"ipv6,omitempty"`
	At     string   `json:"at,omitempty"` // address and port of a server, or an abstract unix socket's name, with @
	Device string   `json:"device,omitempty"`
	How    []string `json:"how,omitempty"` // see Attempt.How
}

// Listen calls received with the id of each attempt that the listener receives,
// until ctx ends. It calls ready once the socket is open. If the kernel refuses
// to open it, Listen returns the error at once.
func (l Listener) Listen(ctx context.Context, ready func(), received func(id int)) error {
	fd, err := l.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ready()
	buf := make([]byte, 65536)
	report := func(b []byte) {
		for _, id := range FindTokens(b) {
			received(id)
		}
		switch l.Kind {
		case "sniff", "sniff-device", "raw-tcp":
			if id, ok := FindPort(b); ok {
				received(id)
			}
		}
	}
	for {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		ended := ctx.Err() != nil
		n, err := poll(pfd, 100*time.Millisecond)
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if n == 0 {
			if ended {
				return nil // the socket's queue is empty
			}
			continue
		}
		if l.Kind == "tcp" || l.Kind == "unix-stream" {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				continue
			}
			go func() {
				defer unix.Close(conn)
				pfd := []unix.PollFd{{Fd: int32(conn), Events: unix.POLLIN}}
				if n, err := poll(pfd, 2*time.Second); err == nil && n > 0 {
					b := make([]byte, 256)
					if n, err := unix.Read(conn, b); err == nil && n > 0 {
						report(b[:n])
					}
				}
			}()
			continue
		}
		if l.Kind == "raw-udp-errors" {
			if n, _, _, _, err := unix.Recvmsg(fd, buf, make([]byte, 512), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); err == nil {
				report(buf[:n])
			}
			_, _, _ = unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT) // what is no error
			continue
		}
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			continue
		}
		// "sniff" ignores what this host sends; "sniff-device" does not.
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING && l.Kind == "sniff" {
			continue
		}
		report(buf[:n])
	}
}

func (l Listener) open() (int, error) {
	fam := unix.AF_INET
	if l.IPv6 {
		fam = unix.AF_INET6
	}
	icmp := unix.IPPROTO_ICMP
	if l.IPv6 {
		icmp = unix.IPPROTO_ICMPV6
	}
	switch l.Kind {
	case "sniff", "sniff-device":
		return l.openPacket()
	case "raw-icmp":
		return l.openIP(fam, unix.SOCK_RAW, icmp)
	case "raw-udp":
		return l.openIP(fam, unix.SOCK_RAW, unix.IPPROTO_UDP)
	case "raw-tcp":
		return l.openIP(fam, unix.SOCK_RAW, unix.IPPROTO_TCP)
	case "raw-udp-errors":
		fd, err := l.openIP(fam, unix.SOCK_RAW, unix.IPPROTO_UDP)
		if err != nil {
			return 0, err
		}
		level, option := unix.SOL_IP, unix.IP_RECVERR
		if l.IPv6 {
			level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
		}
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			unix.Close(fd)
			return 0, fmt.Errorf("read errors: %w", err)
		}
		return fd, nil
	case "udp":
		return l.openIP(fam, unix.SOCK_DGRAM, 0)
	case "tcp":
		return l.openIP(fam, unix.SOCK_STREAM, 0)
	case "unix-stream":
		return l.openUnix(unix.SOCK_STREAM)
	case "unix-dgram":
		return l.openUnix(unix.SOCK_DGRAM)
	}
	return 0, fmt.Errorf("unknown kind of listener %q", l.Kind)
}

func (l Listener) openPacket() (int, error) {
	proto := 0
	if l.Kind == "sniff" {
		proto = int(htons(unix.ETH_P_ALL))
	}
	// SOCK_DGRAM strips link headers: the first byte tells the IP version.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	if l.Kind == "sniff" {
		return fd, nil
	}
	i, err := index(l.Device)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: i})
	}
	if err != nil {
		unix.Close(fd)
		return 0, fmt.Errorf("bind: %w", err)
	}
	return fd, nil
}

func (l Listener) openUnix(typ int) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: l.At})
	if err == nil && typ == unix.SOCK_STREAM {
		err = unix.Listen(fd, 64)
	}
	if err != nil {
		unix.Close(fd)
		return 0, fmt.Errorf("bind %s: %w", l.At, err)
	}
	return fd, nil
}

func (l Listener) openIP(fam, typ, proto int) (int, error) {
	fd, err := unix.Socket(fam, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	a := Attempt{How: l.How, Device: l.Device, To: "0.0.0.0"}
	problems := a.set(fd, l.IPv6)
	if l.At != "" {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		at, err := netip.ParseAddrPort(l.At)
		if err == nil {
			var sa unix.Sockaddr
			if sa, err = sockaddr(at.Addr(), at.Port()); err == nil {
				err = unix.Bind(fd, sa)
			}
		}
		if err == nil && typ == unix.SOCK_STREAM {
			err = unix.Listen(fd, 64)
		}
		if err != nil {
			unix.Close(fd)
			return 0, withProblems(problems, fmt.Errorf("bind %s: %w", l.At, err))
		}
	}
	if len(problems) > 0 && l.At == "" {
		unix.Close(fd)
		return 0, withProblems(problems, errors.New("the kernel refused socket options"))
	}
	return fd, nil
}
