// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"net"
	"net/netip"
	"sync"
)

// sourceLimit is a listener that closes new connections of a source address that has maxOfSource open, or
// while maxConnections are open. It never waits for one to end: a pod that holds many, which has
// its network's or its node's address, or its own, must not delay a load balancer's checks.
type sourceLimit struct {
	net.Listener
	mu     sync.Mutex
	open   map[netip.Addr]int
	number int
}

func limitSources(l net.Listener) *sourceLimit {
	return &sourceLimit{Listener: l, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *sourceLimit) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := sourceOf(c)
		if l.add(from) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { l.remove(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *sourceLimit) add(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.number >= maxConnections || l.open[from] >= maxOfSource {
		return false
	}
	l.number++
	l.open[from]++
	return true
}

func (l *sourceLimit) remove(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number--
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

// limitedConn no longer counts when it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// sourceOf returns the client's address; all of whom it is not known are one source.
func sourceOf(c net.Conn) netip.Addr {
	p, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return p.Addr().Unmap().WithZone("")
}
