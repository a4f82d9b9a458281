// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// serveSCTP answers each message with the server's name. Package net cannot open such a
// socket, but serves one that is open like TCP.
func serveSCTP(ctx context.Context, name, listen string) error {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return fmt.Errorf("address for SCTP: %w", err)
	}
	fd, err := socketSCTP(at.Addr())
	if errors.Is(err, unix.EAFNOSUPPORT) && at.Addr() == netip.IPv6Unspecified() { // a kernel without IPv6
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
		fd, err = socketSCTP(at.Addr())
	}
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "sctp")
	defer file.Close() // net.FileListener duplicates it
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		return os.NewSyscallError("bind SCTP", err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		return os.NewSyscallError("listen on SCTP", err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("listen on SCTP: %w", err)
	}
	go func() {
		<-ctx.Done()
		l.Close()
	}()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(10 * time.Second))
				buf := make([]byte, 64)
				if _, err := conn.Read(buf); err != nil {
					return
				}
				if _, err := conn.Write([]byte(name)); err == nil {
					_, _ = conn.Read(buf) // the client closes first
				}
			}()
		}
	}()
	return nil
}

func socketSCTP(a netip.Addr) (int, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	return fd, os.NewSyscallError("SCTP socket", err)
}

// checkSCTP returns what the server answers.
func checkSCTP(ctx context.Context, addr string) (string, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return "", err
	}
	fd, err := socketSCTP(to.Addr())
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	// connect, too, waits as long as a write may.
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		deadline, _ := ctx.Deadline()
		left := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &left); err != nil {
			return "", os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return "", os.NewSyscallError("connect", err)
	}
	if _, err := unix.Write(fd, []byte("who")); err != nil {
		return "", os.NewSyscallError("write", err)
	}
	buf := make([]byte, 2048)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", os.NewSyscallError("read", err)
	}
	if n == 0 {
		return "", errors.New("closed without an answer")
	}
	return string(buf[:n]), nil
}
