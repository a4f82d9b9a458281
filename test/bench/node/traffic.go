// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/ovs/flows"
	"bulkhead/test/native"
)

const (
	streamPort, connectPort, echoPort = 9090, 9091, 9092
	onePort                           = 40000 // from which all pods send at once
	trafficTime                       = 5 * time.Second
)

// trace counts the lookups of packets with ofproto/trace.
func (s *switchNode) trace(r *switchResult, last flows.Gateway) error {
	own, hop, mac := s.node.Addresses[0].Addr(), s.node.NextHops[0], s.node.BridgeMAC
	for _, p := range []struct {
		to     *lookups
		packet string
	}{
		{&r.broadcast, fmt.Sprintf("in_port=%d,arp,dl_dst=ff:ff:ff:ff:ff:ff,arp_op=1,arp_spa=%s,arp_tpa=172.18.9.9", s.uplink, hop)},
		{&r.reply, fmt.Sprintf("in_port=LOCAL,tcp,dl_dst=%s,nw_src=%s,nw_dst=%s,tp_src=80,tp_dst=40000,nw_ttl=64", mac, own, last.Addresses[0])},
		{&r.service, fmt.Sprintf("in_port=%d,tcp,dl_dst=%s,nw_src=%s,nw_dst=%s,tp_src=40000,tp_dst=%d,nw_ttl=64", s.uplink, mac, hop, own, last.Ports[0].Port)},
	} {
		out, err := s.Run("ovs-appctl", "-t", s.Path("vswitchd.ctl"), "ofproto/trace", s.node.Bridge, p.packet)
		if err != nil {
			return fmt.Errorf("trace %s: %w", p.packet, err)
		}
		if *p.to = countLookups(out); p.to.bridge == 0 {
			return fmt.Errorf("trace %s: no lookup in\n%s", p.packet, out)
		}
	}
	return nil
}

var tracedLookup = regexp.MustCompile(`^\s*\d+\. `)

// countLookups counts the flow table lookups in the output of ofproto/trace: those of the
// external bridge, before the packet is elsewhere, and all.
func countLookups(trace string) (n lookups) {
	inBridge := true
	for line := range strings.Lines(trace) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "bridge(\"br-int\")"):
			inBridge = false
		case tracedLookup.MatchString(line):
			n.all++
			if inBridge {
				n.bridge++
			}
		}
	}
	return n
}

// traffic measures the bridge's processor time, and the last pod's traffic to the outside.
func (s *switchNode) traffic() (t traffic, err error) {
	if t.idle, err = s.vswitchdCPU(stormTime); err != nil {
		return t, err
	}
	stop, err := s.startStorm()
	if err != nil {
		return t, fmt.Errorf("send ARP requests: %w", err)
	}
	t.storm, err = s.vswitchdCPU(stormTime)
	if sent := stop(); err == nil && float64(sent) < stormRate*stormTime.Seconds()*0.9 {
		err = fmt.Errorf("only %d ARP requests were sent", sent)
	}
	if err != nil {
		return t, err
	}
	pod, hop := s.pods[len(s.pods)-1], s.node.NextHops[0]
	if t.bytesPerSecond, err = stream(pod, netip.AddrPortFrom(hop, streamPort)); err != nil {
		return t, fmt.Errorf("send a stream: %w", err)
	}
	t.connectionsPerSecond, err = connections(pod, netip.AddrPortFrom(hop, connectPort))
	return t, err
}

// startStorm sends ARP requests for an unknown address from the outside. stop returns how many.
func (s *switchNode) startStorm() (stop func() int64, err error) {
	var fd, index int
	if err := native.InNamespace(s.outside, func() error {
		link, err := net.InterfaceByName(native.OutsideLink)
		if err != nil {
			return err
		}
		index = link.Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	}); err != nil {
		return nil, err
	}
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0x99, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0x99},
		172, 18, 255, 253, 0, 0, 0, 0, 0, 0, 172, 18, 9, 9)
	frame = append(frame, make([]byte, 60-len(frame))...)
	ctx, cancel := context.WithCancel(s.ctx)
	var sent atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		const every = 10 * time.Millisecond
		tick := time.NewTicker(every)
		defer tick.Stop()
		start := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				for due := int64(time.Since(start).Seconds() * stormRate); sent.Load() < due; {
					if unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index}) == nil {
						sent.Add(1)
					}
				}
			}
		}
	})
	return func() int64 { cancel(); running.Wait(); _ = unix.Close(fd); return sent.Load() }, nil
}

// serve starts the servers outside: one that reads, one that closes, and one that answers
// datagrams.
func (s *switchNode) serve() error {
	end := func(c io.Closer) {
		s.cleanup = append(s.cleanup, func() error { _ = c.Close(); return nil })
	}
	listen := func(port int, handle func(net.Conn)) error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		end(l)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { handle(c); _ = c.Close() }()
			}
		}()
		return nil
	}
	return native.InNamespace(s.outside, func() error {
		if err := errors.Join(
			listen(streamPort, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }),
			listen(connectPort, func(net.Conn) {})); err != nil {
			return err
		}
		// On the address: an answer from another would belong to no connection.
		p, err := net.ListenPacket("udp", netip.AddrPortFrom(s.node.NextHops[0], echoPort).String())
		if err != nil {
			return err
		}
		end(p)
		go func() {
			buf := make([]byte, 100)
			for {
				n, from, err := p.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = p.WriteTo(buf[:n], from)
			}
		}()
		return nil
	})
}

// askAll sends a question from one port of each pod at once, and returns how many got the
// answer to theirs. Datagrams are repeated: the first ones wait for the next hop's address.
func (s *switchNode) askAll() (answered int, err error) {
	to := netip.AddrPortFrom(s.node.NextHops[0], echoPort)
	conns := make([]*net.UDPConn, len(s.pods))
	for i, ns := range s.pods {
		if err := native.InNamespace(ns, func() error {
			conns[i], err = net.DialUDP("udp", &net.UDPAddr{Port: onePort}, net.UDPAddrFromAddrPort(to))
			return err
		}); err != nil {
			return 0, fmt.Errorf("open a socket in %s: %w", ns, err)
		}
		defer conns[i].Close()
	}
	var wrong, right atomic.Int64
	var asking sync.WaitGroup
	for i, c := range conns {
		asking.Go(func() {
			question, buf := fmt.Sprintf("pod %d", i), make([]byte, 100)
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && s.ctx.Err() == nil; {
				_, _ = c.Write([]byte(question))
				_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
				n, err := c.Read(buf)
				switch {
				case err != nil:
				case string(buf[:n]) == question:
					right.Add(1)
					return
				default:
					wrong.Add(1)
					return
				}
			}
		})
	}
	asking.Wait()
	if n := wrong.Load(); n > 0 {
		return int(right.Load()), fmt.Errorf("%d pods got another pod's answer", n)
	}
	return int(right.Load()), nil
}

// stream returns the bytes a second that a pod sends over one connection.
func stream(ns string, to netip.AddrPort) (rate float64, err error) {
	err = native.InNamespace(ns, func() error {
		c, err := net.DialTimeout("tcp", to.String(), 20*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		buf, sent, start := make([]byte, 64<<10), 0, time.Now()
		_ = c.SetDeadline(start.Add(trafficTime + 20*time.Second))
		for time.Since(start) < trafficTime {
			n, err := c.Write(buf)
			if sent += n; err != nil {
				return err
			}
		}
		rate = float64(sent) / time.Since(start).Seconds()
		return nil
	})
	return rate, err
}

// connections returns the connections a second that a pod opens one after the other.
func connections(ns string, to netip.AddrPort) (rate float64, err error) {
	err = native.InNamespace(ns, func() error {
		n, start := 0, time.Now()
		for ; time.Since(start) < trafficTime; n++ {
			c, err := net.DialTimeout("tcp", to.String(), 20*time.Second)
			if err != nil {
				return fmt.Errorf("connection %d: %w", n, err)
			}
			_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: ports are used again
			_ = c.Close()
		}
		rate = float64(n) / time.Since(start).Seconds()
		return nil
	})
	return rate, err
}
