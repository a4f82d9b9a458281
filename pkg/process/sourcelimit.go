// SPDX-License-Identifier: Apache-2.0

package process

import (
	"net"
	"net/netip"
	"sync"
)

// sourceLimit is a listener that closes new connections of a source address that has perSource open, or
// while total are open.
type sourceLimit struct {
	net.Listener
	perSource, total int

	mu     sync.Mutex
	open   map[netip.Addr]int
	number int
}

// LimitSources returns a listener that accepts perSource connections of each client's address, and total of
// all, and closes others at once. It never waits for one to end, so that a client that holds many does not
// delay another.
func LimitSources(l net.Listener, perSource, total int) net.Listener {
	return &sourceLimit{Listener: l, perSource: perSource, total: total, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *sourceLimit) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // clients whose address is unknown are one source
		from := p.Addr().Unmap().WithZone("")
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
