// SPDX-License-Identifier: Apache-2.0

// Package routeimport reads the routes that BGP has learned from the kernel, where FRR installs
// them. Reading needs no privilege.
package routeimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Route is a route that BGP has learned.
type Route struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHops []netip.Addr `json:"nextHops"` // sorted, at least one
}

// debounce is the delay between the first change of a route and the read of all. A BGP session
// that comes up changes many at once.
const debounce = 100 * time.Millisecond

// retry is the delay before the subscription is renewed after an error, such as the overflow
// of the socket's buffer.
const retry = time.Second

// receiveBuffer is for a few thousand messages.
const receiveBuffer = 4 << 20

// Read returns the main table's routes of both IP families via next hops on the bridge, sorted.
// There are none without the bridge.
func Read(bridge string) ([]Route, error) {
	link, err := netlink.LinkByName(bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read link %s: %w", bridge, err)
	}
	return read(unix.RT_TABLE_MAIN, link.Attrs().Index)
}

// ReadTable returns the routes of a table of both IP families, sorted.
func ReadTable(table int) ([]Route, error) { return read(table, 0) }

// read returns the routes of a table via next hops on a link; 0: on any.
func read(table, link int) ([]Route, error) {
	h, err := open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var out []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := list(h, family, table)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) { // no such table yet, or no such IP family
			return nil, fmt.Errorf("list the routes of table %d: %w", table, err)
		}
		for i := range routes {
			if r, ok := convert(&routes[i], link); ok {
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return out, nil
}

// open returns a handle whose dumps the kernel filters. Without the strict check it would send the routes of all networks'
// tables, and the library would filter them, up to ten times a second while a route changes.
func open() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := h.SetStrictCheck(true); err != nil {
		h.Close()
		return nil, fmt.Errorf("set strict checking on netlink socket (Linux 4.20 or later): %w", err)
	}
	return h, nil
}

// list dumps the routes of a table and IP family that BGP has learned.
func list(h *netlink.Handle, family, table int) ([]netlink.Route, error) {
	return netdump.List(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: table, Protocol: unix.RTPROT_BGP}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
}

// convert converts a route; ok is false if no next hop is on the link.
func convert(r *netlink.Route, link int) (out Route, ok bool) {
	if out.Prefix, ok = prefixOf(r); !ok {
		return out, false
	}
	// An IPv4 route may have an IPv6 next hop (RFC 5549), as those of unnumbered sessions.
	add := func(index int, gateway net.IP, via netlink.Destination) {
		if v, ok := via.(*netlink.Via); ok {
			gateway = v.Addr
		}
		if hop, ok := netip.AddrFromSlice(gateway); ok && (link == 0 || index == link) {
			out.NextHops = append(out.NextHops, hop.Unmap())
		}
	}
	add(r.LinkIndex, r.Gw, r.Via)
	for _, hop := range r.MultiPath {
		add(hop.LinkIndex, hop.Gw, hop.Via)
	}
	slices.SortFunc(out.NextHops, netip.Addr.Compare)
	out.NextHops = slices.Compact(out.NextHops)
	return out, len(out.NextHops) > 0
}

func prefixOf(r *netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		if r.Family == unix.AF_INET6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0), true
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	if addr = addr.Unmap(); addr.Is4() && len(r.Dst.Mask) == net.IPv6len {
		bits -= 96
	}
	return netip.PrefixFrom(addr, bits), ok && bits >= 0
}

// RereadInterval is how often all routes are read: the kernel does not report the IPv4 routes that it
// removes when their link goes down.
const RereadInterval = time.Minute

// Watch calls changed with all routes, first at once, then when they have changed, and again after each
// interval reread, until ctx ends.
func Watch(ctx context.Context, bridge string, reread time.Duration, log *slog.Logger, changed func([]Route)) {
	for ctx.Err() == nil {
		if err := watch(ctx, bridge, reread, changed); err != nil && ctx.Err() == nil {
			log.Warn("cannot watch the routes that BGP has learned, will retry", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// watch subscribes to changes, reads, and reads again after changes and after each interval reread. It returns when the
// subscription ends: messages may have been lost then.
func watch(ctx context.Context, bridge string, reread time.Duration, changed func([]Route)) error {
	done := make(chan struct{})
	defer close(done)
	updates := make(chan netlink.RouteUpdate, 1024)
	failed := make(chan error, 1)
	err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		ReceiveBufferSize: receiveBuffer,
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	defer func() { // the sender must not block
		go func() {
			for range updates { //nolint:revive // drained until it is closed
			}
		}()
	}()
	read := func() error {
		routes, err := Read(bridge)
		if err == nil {
			changed(routes)
		}
		return err
	}
	if err := read(); err != nil {
		return err
	}
	again := time.NewTicker(reread)
	defer again.Stop()
	var timer <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case u, ok := <-updates:
			if !ok {
				return errors.New("the subscription has ended")
			}
			if timer == nil && u.Protocol == unix.RTPROT_BGP && u.Table == unix.RT_TABLE_MAIN {
				timer = time.After(debounce)
			}
		case <-timer:
			timer = nil
			if err := read(); err != nil {
				return err
			}
		case <-again.C:
			if err := read(); err != nil {
				return err
			}
		}
	}
}
