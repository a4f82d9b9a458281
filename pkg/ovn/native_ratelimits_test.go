// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
	"bulkhead/test/native"
)

// TestNativeRateLimits: a pod that makes OVN's controller answer each of its packets gets a limited number
// of answers, and keeps pods of other networks from none.
func TestNativeRateLimits(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	a := zones[0]
	red, blue, _ := withGateways(t, zones)
	for f := range 2 {
		outside := a.node.NextHops[f]
		limits := map[string]int{"red": limitErrors.rate, "blue": limitErrors.rate}
		for ns, n := range map[string]network.Network{"red": red, "blue": blue} {
			eventually(t, fmt.Sprintf("%s: an ICMP error", n.Name), func() error {
				if answers, _, err := expire(a.podNamespace(ns, "p"), outside, 1, 100*time.Millisecond); answers == 0 {
					return fmt.Errorf("no answer: %w", err)
				}
				return nil
			})
		}
		var flooded atomic.Bool
		done := make(chan error, 1)
		go func() {
			defer flooded.Store(true)
			const packets = 1000
			answers, took, err := expire(a.podNamespace("red", "p"), outside, packets, 500*time.Microsecond)
			// The meter's burst is as many as its rate has in a second.
			if most := limits["red"] + int(float64(limits["red"])*1.2*took.Seconds()) + 10; err == nil && (answers == 0 || answers > most) {
				err = fmt.Errorf("%d answers to %d packets in %s, want at most %d", answers, packets, took, most)
			}
			done <- err
		}()
		tries, answered := 0, 0
		for !flooded.Load() {
			n, _, err := expire(a.podNamespace("blue", "p"), outside, 1, 100*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			tries, answered = tries+1, answered+n
		}
		if err := <-done; err != nil {
			t.Errorf("red: %v", err)
		}
		if tries < 5 || answered < tries-1 {
			t.Errorf("blue: %d answers to %d packets meanwhile", answered, tries)
		}
	}
}

// expire sends datagrams with a TTL of 1 from a namespace, at the given intervals, and returns how many
// ICMP errors come back.
func expire(ns string, to netip.Addr, packets int, interval time.Duration) (answers int, took time.Duration, err error) {
	family, level, ttl, receive := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TTL, unix.IP_RECVERR
	if to.Is6() {
		family, level, ttl, receive = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_RECVERR
	}
	err = native.InNamespace(ns, func() error {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.SetsockoptInt(fd, level, ttl, 1), unix.SetsockoptInt(fd, level, receive, 1)); err != nil {
			return err
		}
		var sa unix.Sockaddr = &unix.SockaddrInet4{Port: 9, Addr: [4]byte(to.AsSlice()[:4])}
		if to.Is6() {
			sa = &unix.SockaddrInet6{Port: 9, Addr: to.As16()}
		}
		start := time.Now()
		buf := make([]byte, 2048)
		for range packets {
			_ = unix.Sendto(fd, []byte("x"), 0, sa) // may return an earlier ICMP error
			time.Sleep(interval)
			for {
				if _, _, _, _, err := unix.Recvmsg(fd, buf, buf[1024:], unix.MSG_ERRQUEUE); err != nil {
					break
				}
				answers++
			}
		}
		took = time.Since(start)
		return nil
	})
	return answers, took, err
}
