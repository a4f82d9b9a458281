// SPDX-License-Identifier: Apache-2.0

package process

import (
	"net"
	"net/netip"
	"sync"
)

// Connections that ServeTCP accepts from elsewhere than loopback: of one source, and of all.
const (
	maxOfRemote = 8
	maxRemote   = 64
)

// sourceLimit is a listener that closes new connections of a source that has perSource open, or
// while total are open.
type sourceLimit struct {
	net.Listener
	perSource, total int
	loopback         bool // connections from loopback are limited, too

	mu     sync.Mutex
	open   map[netip.Addr]int
	number int
}

// LimitSources returns a listener that accepts perSource connections of each source, and total of
// all, and closes others at once. It never waits for one to end, so that a client that holds many does not
// delay another. Every address is a source. All loopback addresses are one source, because any process of the
// node can use each of them.
func LimitSources(l net.Listener, perSource, total int) net.Listener {
	return &sourceLimit{Listener: l, perSource: perSource, total: total, loopback: true, open: map[netip.Addr]int{}}
}

// limitRemote is LimitSources that accepts all connections from loopback.
func limitRemote(l net.Listener, perSource, total int) net.Listener {
	return &sourceLimit{Listener: l, perSource: perSource, total: total, open: map[netip.Addr]int{}}
}

// source returns what a client is counted as. Those whose address is unknown are one source.
func source(a net.Addr) netip.Addr {
	p, _ := netip.ParseAddrPort(a.String())
	from := p.Addr().Unmap().WithZone("")
	if from.IsLoopback() {
		return netip.IPv6Loopback()
	}
	return from
}

// Accept implements net.Listener.
func (l *sourceLimit) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := source(c.RemoteAddr())
		if from.IsLoopback() && !l.loopback {
			return c, nil
		}
		if l.add(from) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { l.remove(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *sourceLimit) add(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.number >= l.total || l.open[from] >= l.perSource {
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

// limitedConn releases its place when it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
