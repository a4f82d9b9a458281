// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/test/native"
)

// arrival is what a receiver counts: frames of a flow that reached it.
type arrival struct{ flow, at string }

func (a arrival) String() string { return a.flow + " at " + a.at }

// probes send datagrams from network namespaces without a pause, and count in others
// which of them arrive, by the interfaces' frames: what a pod's own kernel would drop counts too.
type probes struct {
	t       *testing.T
	ended   chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	counts  map[arrival]int
	senders []*sender
}

// sender sends one flow.
type sender struct {
	flow string
	sent atomic.Int64
}

const (
	probeInterval = 20 * time.Millisecond
	probeStart    = "bulkhead probe: "
)

func newProbes(t *testing.T) *probes {
	p := &probes{t: t, ended: make(chan struct{}), counts: map[arrival]int{}}
	t.Cleanup(func() { close(p.ended); p.running.Wait() })
	return p
}

// send sends a flow from a namespace until the test ends. With fresh, each datagram is from
// a port of its own: OVN judges it as a new connection.
func (p *probes) send(flow, ns string, to netip.AddrPort, fresh bool) {
	p.t.Helper()
	s := &sender{flow: flow}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.senders = append(p.senders, s)
	entered := make(chan error)
	p.running.Go(func() {
		runtime.LockOSThread() // the thread stays in the namespace, and ends with this function
		err := native.EnterNamespace(ns)
		entered <- err
		tick := time.NewTicker(probeInterval)
		defer tick.Stop()
		for err == nil {
			s.burst(net.UDPAddrFromAddrPort(to), fresh, tick, p.over)
			if p.over() {
				return
			}
		}
	})
	if err := <-entered; err != nil {
		p.t.Fatalf("%s: %v", flow, err)
	}
}

// burst sends from one port: one datagram if fresh, or else until over.
func (s *sender) burst(to net.Addr, fresh bool, tick *time.Ticker, over func() bool) {
	conn, err := net.ListenPacket("udp", ":0")
	if err == nil {
		defer conn.Close()
	}
	for !over() {
		if err == nil {
			// What cannot be sent yet, for lack of a route, is not counted.
			if _, err := conn.WriteTo([]byte(probeStart+s.flow+";"), to); err == nil {
				s.sent.Add(1)
			}
		}
		<-tick.C
		if fresh || err != nil {
			return
		}
	}
}

// over tells whether the test has ended.
func (p *probes) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// listen counts what arrives at the interfaces of a namespace.
func (p *probes) listen(at, ns string) {
	p.t.Helper()
	fd := -1
	if err := native.InNamespace(ns, func() (err error) {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
		return err
	}); err != nil {
		p.t.Fatalf("listen in %s: %v", ns, err)
	}
	wake := unix.Timeval{Usec: 100_000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake); err != nil {
		p.t.Fatal(err)
	}
	p.running.Go(func() {
		defer unix.Close(fd)
		buf := make([]byte, 2000)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if p.over() {
				return
			}
			if err != nil {
				continue // nothing for a while
			}
			if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype != unix.PACKET_OUTGOING {
				p.received(at, string(buf[:n]))
			}
		}
	})
}

func (p *probes) received(at, frame string) {
	_, rest, ok := strings.Cut(frame, probeStart)
	if !ok {
		return
	}
	// An ICMP error quotes the datagram that it is about, and comes back to its sender.
	flow, _, ok := strings.Cut(rest, ";")
	if from, _, _ := strings.Cut(flow, " "); ok && from != at {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.counts[arrival{flow, at}]++
	}
}

func (p *probes) snapshot() map[arrival]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// since returns what has arrived since a snapshot, with the numbers.
func (p *probes) since(before map[arrival]int) map[arrival]int {
	out := p.snapshot()
	for a, n := range before {
		if out[a] -= n; out[a] == 0 {
			delete(out, a)
		}
	}
	return out
}

// rounds waits until each sender has sent that many more datagrams.
func (p *probes) rounds(n int64) {
	p.t.Helper()
	p.mu.Lock()
	want := map[*sender]int64{}
	for _, s := range p.senders {
		want[s] = s.sent.Load() + n
	}
	p.mu.Unlock()
	for s, n := range want {
		eventually(p.t, "flow "+s.flow+" is sent", func() error {
			if sent := s.sent.Load(); sent < n {
				return fmt.Errorf("%d of %d datagrams", sent, n)
			}
			return nil
		})
	}
}

// arrive waits until each of these has arrived since now.
func (p *probes) arrive(what string, want map[arrival]bool) {
	p.t.Helper()
	before := p.snapshot()
	eventually(p.t, what, func() error {
		got := p.since(before)
		var missing []string
		for a := range want {
			if got[a] == 0 {
				missing = append(missing, a.String())
			}
		}
		if slices.Sort(missing); len(missing) > 0 {
			return fmt.Errorf("nothing arrives of: %s", strings.Join(missing, "; "))
		}
		return nil
	})
}

// only fails the test if anything else has arrived since a snapshot.
func (p *probes) only(what string, before map[arrival]int, allowed ...map[arrival]bool) {
	p.t.Helper()
	for a, n := range p.since(before) {
		if !slices.ContainsFunc(allowed, func(m map[arrival]bool) bool { return m[a] }) {
			p.t.Errorf("%s: %d datagrams of a flow that is never allowed: %s", what, n, a)
		}
	}
}
