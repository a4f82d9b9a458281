// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
	"bulkhead/test/bench/proc"
	"bulkhead/test/bench/report"
)

// learned is what a number of routes that BGP has learned cost. Times begin when the kernel has all of
// them, as after a session has come up.
type learned struct {
	routes                          int
	committed, southbound, switched time.Duration
	cpu                             time.Duration // of the zone, from the first route in the kernel
	podRow, pod                     time.Duration // one more pod, created when the first rows are written: to its row, and to its bound port
	withdrawn                       time.Duration // of one route: to the removal of its row
}

// maxWithdrawn is the target for a withdrawn route.
const maxWithdrawn = 2 * time.Second

// measureRoutes measures each number of routes on a node with a network without an overlay. The first
// result is without routes.
func measureRoutes(ctx context.Context, o options) (out []learned, err error) {
	remove, err := createBridge(node(0))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	s := shape{networks: 1, nodes: 1, pods: 1, topology: network.Layer3, noOverlay: true}
	err = withShape(ctx, o, s, func(b *bench) error {
		if err := b.startOVN(ctx); err != nil {
			return err
		}
		if err := b.startZone(); err != nil {
			return err
		}
		if err := b.settle(ctx, traffic{}); err != nil {
			return err
		}
		for i, n := range append([]int{0}, o.routes...) {
			l, err := b.learn(ctx, n, i+1)
			if err != nil {
				return fmt.Errorf("%d routes: %w", n, err)
			}
			out = append(out, l)
		}
		return nil
	})
	return out, err
}

// createBridge creates a link with the name and addresses of the node's external bridge. The zone
// reads the routes of its own network namespace, which must be empty.
func createBridge(n network.Node) (remove func() error, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	if len(links) != 1 || links[0].Attrs().Name != "lo" {
		return nil, errors.New("-routes needs an empty network namespace: run it by `unshare -n`, as make bench-bgp does")
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.Bridge}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("create link %s: %w", n.Bridge, err)
	}
	for _, l := range []netlink.Link{links[0], bridge} {
		if err := netlink.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("set link %s up: %w", l.Attrs().Name, err)
		}
	}
	for _, a := range n.Addresses {
		addr := &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(bridge, addr); err != nil {
			return nil, fmt.Errorf("add address %s: %w", a, err)
		}
	}
	for _, hop := range n.NextHops { // kube-apiserver takes the address of the default route
		if err := netlink.RouteAdd(&netlink.Route{Gw: hop.AsSlice(), LinkIndex: bridge.Index}); err != nil {
			return nil, fmt.Errorf("add the default route via %s: %w", hop, err)
		}
	}
	return func() error { return netlink.LinkDel(bridge) }, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// learnedRoutes returns n routes as FRR installs them, IPv4 and IPv6 in turn, to prefixes of RFC 2544 and
// RFC 5180.
func learnedRoutes(nextHops []netip.Addr, n int) ([]*netlink.Route, error) {
	link, err := netlink.LinkByName(node(0).Bridge)
	if err != nil {
		return nil, fmt.Errorf("read link %s: %w", node(0).Bridge, err)
	}
	var out []*netlink.Route
	for i := range n {
		k := i / 2
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(k>>13), byte(k >> 5), byte(k << 3)}), 29)
		if i%2 == 1 {
			dst = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2, 0, 0, byte(k >> 8), byte(k)}), 64)
		}
		for _, hop := range nextHops {
			if hop.Is4() == dst.Addr().Is4() {
				out = append(out, &netlink.Route{Dst: ipNet(dst), Gw: hop.AsSlice(), LinkIndex: link.Attrs().Index, Protocol: unix.RTPROT_BGP, Priority: 20})
			}
		}
	}
	return out, nil
}

// learn adds n routes to the kernel, measures, and removes them again. pod numbers the one more pod.
func (b *bench) learn(ctx context.Context, n, pod int) (learned, error) {
	b.o.progress("%d learned routes", n)
	l := learned{routes: n}
	routes, err := learnedRoutes(node(0).NextHops, n)
	if err != nil {
		return l, err
	}
	before := b.proxy.traffic()
	cpu, err := proc.CPU(b.zone.PID())
	if err != nil {
		return l, err
	}
	for _, r := range routes {
		if err := netlink.RouteAdd(r); err != nil {
			return l, fmt.Errorf("add route %s: %w", r, err)
		}
	}
	start := time.Now()
	if n > 0 {
		if err := b.written(ctx, before); err != nil {
			return l, err
		}
	}
	if l.podRow, l.pod, err = b.bindOneMore(ctx, pod); err != nil {
		return l, err
	}
	f := b.follow()
	err = b.settle(ctx, before)
	t := b.proxy.traffic()
	l.committed = t.last.Sub(start)
	after, cpuErr := proc.CPU(b.zone.PID())
	if err = errors.Join(err, cpuErr); err != nil {
		f.stop()
		return l, err
	}
	l.cpu = after - cpu
	m, err := f.finish(t.last)
	if err != nil {
		return l, err
	}
	if !m.southbound.IsZero() {
		l.southbound = m.southbound.Sub(start)
	}
	if !m.switched.IsZero() {
		l.switched = m.switched.Sub(start)
	}
	if n == 0 {
		return l, nil
	}
	if l.withdrawn, err = b.withdraw(ctx, routes[0], routes[1:]); err != nil {
		return l, err
	}
	for _, r := range routes[1:] {
		if err := netlink.RouteDel(r); err != nil {
			return l, fmt.Errorf("delete route %s: %w", r, err)
		}
	}
	return l, b.poll(ctx, "the rows of all routes are gone", func() error {
		left, err := b.routeRows()
		if err == nil && left > 0 {
			err = fmt.Errorf("%d are left", left)
		}
		return err
	})
}

// bindOneMore creates a pod and returns the times until its row is there and until its port is bound.
func (b *bench) bindOneMore(ctx context.Context, pod int) (row, bound time.Duration, err error) {
	start := time.Now()
	if err := b.createPod(ctx, network.Layer3, 0, pod, 0); err != nil {
		return 0, 0, fmt.Errorf("create pod %d: %w", pod, err)
	}
	if err := b.bind(ctx, 0, podName(pod)); err != nil {
		return 0, 0, err
	}
	lsp := b.lsp(0, podName(pod))
	err = b.poll(ctx, "there is a row of port "+lsp, func() error {
		_, err := b.host.Run("ovn-nbctl", "--no-leader-only", "--timeout=50", "wait-until", "Logical_Switch_Port", lsp)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	row = time.Since(start)
	err = b.poll(ctx, "port "+lsp+" is bound", func() error {
		_, err := b.host.Run("ovn-sbctl", "--no-leader-only", "--timeout=50", "wait-until", "Port_Binding", lsp, "up=true")
		return err
	})
	return row, time.Since(start), err
}

// written waits until the zone has written since before.
func (b *bench) written(ctx context.Context, before traffic) error {
	return b.poll(ctx, "the zone writes rows of routes", func() error {
		if b.proxy.traffic().writes == before.writes {
			return errors.New("no transaction")
		}
		return nil
	})
}

// withdraw deletes a route beside others and returns how long its row remains.
func (b *bench) withdraw(ctx context.Context, r *netlink.Route, others []*netlink.Route) (time.Duration, error) {
	rows, err := b.routeRows()
	if err != nil {
		return 0, err
	}
	if rows < len(others)+1 {
		return 0, fmt.Errorf("the northbound database has %d rows of %d routes", rows, len(others)+1)
	}
	before := b.proxy.traffic()
	start := time.Now()
	if err := netlink.RouteDel(r); err != nil {
		return 0, fmt.Errorf("delete route %s: %w", r, err)
	}
	if err := b.written(ctx, before); err != nil {
		return 0, err
	}
	if err := b.settle(ctx, before); err != nil {
		return 0, err
	}
	t := b.proxy.traffic()
	left, err := b.routeRows()
	if err == nil && left != rows-1 {
		err = fmt.Errorf("%d of %d rows are left after the withdrawal of one route", left, rows)
	}
	return t.last.Sub(start), err
}

// routeRows counts the rows of learned routes.
func (b *bench) routeRows() (int, error) {
	out, err := b.host.Run("ovn-nbctl", "--no-leader-only", "--bare", "--columns=ip_prefix", "list", "Logical_Router_Static_Route")
	if err != nil {
		return 0, err
	}
	n := 0
	for prefix := range strings.FieldsSeq(out) {
		p, err := netip.ParsePrefix(prefix)
		if err == nil && (netip.MustParsePrefix("198.18.0.0/15").Contains(p.Addr()) || netip.MustParsePrefix("2001:2::/48").Contains(p.Addr())) {
			n++
		}
	}
	return n, nil
}

// routeFigures are the figures of learned routes.
func routeFigures(list []learned) []report.Figure {
	var out []report.Figure
	for _, l := range list {
		at := fmt.Sprintf("%d learned routes: ", l.routes)
		show := func(name, value string) { out = append(out, report.Figure{Name: at + name, Value: value}) }
		if l.routes > 0 {
			show("all rows committed", report.Seconds(l.committed))
			show("northd has followed", within(l.southbound))
			show("ovn-controller has followed", within(l.switched))
			show("zone CPU", report.Seconds(l.cpu))
			out = append(out, report.Figure{Name: at + "one withdrawn, to the removal of its row", Value: report.Seconds(l.withdrawn),
				Target: "≤ " + report.Seconds(maxWithdrawn), Met: l.withdrawn > 0 && l.withdrawn <= maxWithdrawn})
		}
		show("one more pod, to its row, to its bound port", report.Seconds(l.podRow)+", "+report.Seconds(l.pod))
	}
	return out
}
