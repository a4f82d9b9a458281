// SPDX-License-Identifier: Apache-2.0

package process

import (
	"net"
	"net/netip"
	"sync"
)

// maxRemote is how many connections ServeTCP accepts from elsewhere than loopback.
const maxRemote = 64

// remoteLimit is a listener that closes new connections from elsewhere than loopback while as many are open as
// slots has. It never waits for one to end, so that those from loopback are always accepted.
type remoteLimit struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *remoteLimit) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || isLoopback(c.RemoteAddr()) {
			return c, err
		}
		select {
		case l.slots <- struct{}{}:
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			_ = c.Close()
		}
	}
}

// limitedConn releases its slot when it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

func isLoopback(a net.Addr) bool {
	p, err := netip.ParseAddrPort(a.String())
	return err == nil && p.Addr().Unmap().IsLoopback()
}
