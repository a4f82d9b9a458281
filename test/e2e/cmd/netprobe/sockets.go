// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// askClient asks a server for the client's address.
const askClient = "client"

// clientOf returns the address of a client's address and port.
func clientOf(addrPort string) string {
	at, err := netip.ParseAddrPort(addrPort)
	if err != nil {
		return err.Error()
	}
	return at.Addr().Unmap().String()
}

// serve answers HTTP requests on TCP and datagrams on UDP with the server's name or
// the client's address, and HTTP requests for /stream with an endless body.
func serve(ctx context.Context, name, listen string) error {
	udp, err := net.ListenPacket("udp", listen)
	if err != nil {
		return fmt.Errorf("listen on UDP: %w", err)
	}
	go func() {
		buf := make([]byte, 2*largeDatagram)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			reply := name
			switch {
			case string(buf[:n]) == askClient:
				reply = clientOf(from.String())
			case n == largeDatagram:
				reply = fmt.Sprintf("%-*s", largeDatagram, name)
			}
			if _, err := udp.WriteTo([]byte(reply), from); err != nil {
				fmt.Fprintln(os.Stderr, "netprobe: answer UDP:", err)
			}
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("/"+askClient, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, clientOf(r.RemoteAddr)) })
	mux.HandleFunc("/stream", stream)
	srv := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		udp.Close()
		srv.Close()
	}()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("listen on TCP: %w", err)
	}
	return nil
}

// stream sends a numbered line every 20 ms until the client disconnects.
func stream(w http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return
		}
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

func checkTCP(ctx context.Context, t target, path string) (string, error) {
	var d net.Dialer
	if t.source != 0 {
		d.LocalAddr = &net.TCPAddr{Port: t.source}
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); e != nil {
				return e
			}
			return err
		}
	}
	conn, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if len(line) > 0 && line[len(line)-1] == '\n' {
		line = line[:len(line)-1]
	}
	return line, nil
}

func checkUDP(ctx context.Context, t target, request string) (string, error) {
	answer, err := exchangeUDP(ctx, t.addr, t.source, []byte(request))
	return string(answer), err
}

// largeDatagram is the size of a datagram that no link carries in one packet.
const largeDatagram = 4000

// checkLargeUDP checks that a large datagram arrives as a whole, and its answer too.
func checkLargeUDP(ctx context.Context, t target) (string, error) {
	answer, err := exchangeUDP(ctx, t.addr, t.source, make([]byte, largeDatagram))
	if err == nil && len(answer) != largeDatagram {
		err = fmt.Errorf("the answer has %d bytes, want %d", len(answer), largeDatagram)
	}
	return strings.TrimRight(string(answer), " "), err
}

// exchangeUDP sends from an unconnected socket, as DNS resolvers do, and retries
// every second: a single lost datagram does not fail the check. source is a port or 0.
func exchangeUDP(ctx context.Context, addr string, source int, request []byte) ([]byte, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	conn, err := unboundUDP(to)
	if err != nil {
		return nil, err
	}
	defer unix.Close(conn)
	if source != 0 {
		if err := unix.Bind(conn, sockaddr(netip.AddrPortFrom(unspecified(to.Addr()), uint16(source)))); err != nil {
			return nil, os.NewSyscallError("bind", err)
		}
	}
	dest := sockaddr(to)
	buf := make([]byte, 2*largeDatagram)
	for {
		if err := unix.Sendto(conn, request, 0, dest); err != nil {
			return nil, os.NewSyscallError("sendto", err)
		}
		n, _, err := unix.Recvfrom(conn, buf, 0) // times out after a second
		if err == nil {
			return buf[:n], nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no answer: %w", ctx.Err())
		}
	}
}

// unspecified returns the address that is any of a's family.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// unboundUDP returns a socket that is neither bound nor connected, which package
// net does not offer.
func unboundUDP(to netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	second := unix.Timeval{Sec: 1}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &second); err != nil {
		unix.Close(fd)
		return 0, os.NewSyscallError("setsockopt", err)
	}
	return fd, nil
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is6() {
		return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
}

// pinger is one ICMP echo socket: a raw socket if the process may open one, else
// a ping socket, as ping(8) does.
type pinger struct {
	ip      netip.Addr
	conn    *icmp.PacketConn
	to      net.Addr
	request icmp.Type
	reply   icmp.Type
	proto   int
	id      int
	raw     bool
}

// pingers numbers the pingers of this process: a raw socket receives the replies
// of all of them.
var pingers atomic.Int32

func newPinger(addr string) (*pinger, error) {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	p := &pinger{ip: ip, id: (os.Getpid()<<8 + int(pingers.Add(1))) & 0xffff, request: ipv4.ICMPTypeEcho, reply: ipv4.ICMPTypeEchoReply, proto: 1, raw: true}
	raw, ping, any := "ip4:icmp", "udp4", "0.0.0.0"
	if ip.Is6() {
		p.request, p.reply, p.proto = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58
		raw, ping, any = "ip6:ipv6-icmp", "udp6", "::"
	}
	p.to = &net.IPAddr{IP: ip.AsSlice()}
	if p.conn, err = icmp.ListenPacket(raw, any); err == nil {
		return p, nil
	}
	p.raw, p.to = false, &net.UDPAddr{IP: ip.AsSlice()}
	p.conn, err = icmp.ListenPacket(ping, any)
	return p, err
}

func (p *pinger) send(seq int) error {
	body := make([]byte, 16)
	binary.BigEndian.PutUint64(body, uint64(time.Now().UnixNano()))
	m := icmp.Message{Type: p.request, Body: &icmp.Echo{ID: p.id, Seq: seq, Data: body}}
	b, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	_, err = p.conn.WriteTo(b, p.to)
	return err
}

// receive returns the next reply's sequence number and round-trip time.
func (p *pinger) receive(deadline time.Time) (seq int, took time.Duration, err error) {
	buf := make([]byte, 2048)
	for {
		p.conn.SetReadDeadline(deadline)
		n, from, err := p.conn.ReadFrom(buf)
		if err != nil {
			return 0, 0, err
		}
		if !p.isTarget(from) {
			continue
		}
		m, err := icmp.ParseMessage(p.proto, buf[:n])
		if err != nil || m.Type != p.reply {
			continue
		}
		echo, ok := m.Body.(*icmp.Echo)
		if !ok || p.raw && echo.ID != p.id || len(echo.Data) < 8 {
			continue
		}
		sent := time.Unix(0, int64(binary.BigEndian.Uint64(echo.Data)))
		return echo.Seq, time.Since(sent), nil
	}
}

// isTarget reports whether a reply is from the pinged address.
func (p *pinger) isTarget(from net.Addr) bool {
	var ip net.IP
	switch a := from.(type) {
	case *net.IPAddr:
		ip = a.IP
	case *net.UDPAddr:
		ip = a.IP
	}
	addr, ok := netip.AddrFromSlice(ip)
	return ok && addr.Unmap() == p.ip
}

func checkICMP(ctx context.Context, addr string) error {
	p, err := newPinger(addr)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	for seq := 1; ; seq++ {
		if err := p.send(seq); err != nil {
			return err
		}
		until := time.Now().Add(time.Second)
		if d, ok := ctx.Deadline(); ok && d.Before(until) {
			until = d
		}
		if _, _, err := p.receive(until); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no answer: %w", ctx.Err())
		}
	}
}
