// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// defaultRoute is a default route of the main table.
type defaultRoute struct {
	metric     uint32
	advertised bool // by a router: the kernel uses one such route at a time
	preference int8 // among routes of one metric (RFC 4191); 0: medium, or IPv4
	source     netip.Addr
	hops       []hop
}

type hop struct {
	link    int
	gateway netip.Addr
}

// nextHops returns the gateways on a link of the default routes that the kernel uses, and the source address of the
// first route, if it has one. Others are backups, and the networks' routers would share packets out among all. The kernel
// prefers a low metric, then a router that answers, then the router's preference; of several routers that are equal in this,
// it uses the first one. failed are the hosts on the link that do not answer.
func nextHops(routes []defaultRoute, link int, failed []netip.Addr) (hops []netip.Addr, source netip.Addr) {
	answers := func(r defaultRoute) bool {
		return !r.advertised || slices.ContainsFunc(r.hops, func(h hop) bool { return h.link != link || !slices.Contains(failed, h.gateway) })
	}
	slices.SortStableFunc(routes, func(a, b defaultRoute) int {
		if x, y := answers(a), answers(b); a.metric == b.metric && x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(b.preference, a.preference))
	})
	var best defaultRoute
	for _, r := range routes {
		if len(hops) > 0 && (r.metric != best.metric || r.preference != best.preference || r.advertised || best.advertised) {
			break
		}
		for _, h := range r.hops {
			if h.link != link || slices.Contains(hops, h.gateway) {
				continue
			}
			if len(hops) == 0 {
				best, source = r, r.source
			}
			hops = append(hops, h.gateway)
		}
	}
	return hops, source
}

// readDefaultRoutes reads the default routes of an IP family. The netlink library does not parse preferences.
func readDefaultRoutes(family int) ([]defaultRoute, error) {
	var out []defaultRoute
	err := dumpMainTable(family, func() { out = nil }, func(m []byte) {
		if r, ok := parseDefaultRoute(m, family); ok {
			out = append(out, r)
		}
	})
	return out, err
}

// dumpMainTable calls each with the messages of the main table's routes, after reset when it starts again. The check is
// strict: without it the kernel ignores the filter and sends the routes of all networks' tables.
func dumpMainTable(family int, reset func(), each func([]byte)) error {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer s.Close()
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return fmt.Errorf("set strict checking on netlink socket (Linux 4.20 or later): %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	err = netdump.Retry(func() error {
		reset()
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Table: unix.RT_TABLE_MAIN}})
		return req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool { each(m); return true })
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // no route was ever there, or no such IP family
	}
	return err
}

// parseDefaultRoute parses a route's message; ok is false for other routes than default routes of the family. Next hops
// of another family are left out.
func parseDefaultRoute(m []byte, family int) (r defaultRoute, ok bool) {
	if len(m) < unix.SizeofRtMsg {
		return r, false
	}
	msg := nl.DeserializeRtMsg(m)
	attrs, err := netdump.Attributes(m[unix.SizeofRtMsg:])
	if err != nil || int(msg.Family) != family || msg.Dst_len != 0 {
		return r, false
	}
	r.advertised = msg.Protocol == unix.RTPROT_RA
	var single hop
	for _, at := range attrs {
		switch v := at.Value; {
		case at.Attr.Type == unix.RTA_GATEWAY:
			single.gateway, _ = netip.AddrFromSlice(v)
		case at.Attr.Type == unix.RTA_PREFSRC:
			r.source, _ = netip.AddrFromSlice(v)
		case at.Attr.Type == unix.RTA_MULTIPATH:
			r.hops = append(r.hops, parseHops(v)...)
		case at.Attr.Type == unix.RTA_PREF && len(v) > 0 && v[0] != reservedPreference:
			r.preference = int8(v[0]<<6) >> 6 // a signed number of two bits
		case len(v) < 4:
		case at.Attr.Type == unix.RTA_PRIORITY:
			r.metric = nl.NativeEndian().Uint32(v)
		case at.Attr.Type == unix.RTA_OIF:
			single.link = int(nl.NativeEndian().Uint32(v))
		}
	}
	if single.gateway.IsValid() {
		r.hops = append(r.hops, single)
	}
	return r, true
}

// reservedPreference counts as medium (RFC 4191, section 2.1).
const reservedPreference = 2

// parseHops parses the next hops of a route.
func parseHops(b []byte) (out []hop) {
	for len(b) >= unix.SizeofRtNexthop {
		n := int(nl.NativeEndian().Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			break
		}
		attrs, _ := netdump.Attributes(b[unix.SizeofRtNexthop:n])
		for _, at := range attrs {
			if gateway, ok := netip.AddrFromSlice(at.Value); ok && at.Attr.Type == unix.RTA_GATEWAY {
				out = append(out, hop{int(nl.NativeEndian().Uint32(b[4:])), gateway})
			}
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return out
}

// failedNeighbours returns the hosts on a link that have not answered the kernel. With one router at most it does not matter.
func failedNeighbours(routes []defaultRoute, link int) ([]netip.Addr, error) {
	advertised := 0
	for _, r := range routes {
		if r.advertised {
			advertised++
		}
	}
	if advertised < 2 {
		return nil, nil
	}
	entries, err := netdump.List(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, netlink.FAMILY_V6) })
	if err != nil {
		return nil, fmt.Errorf("list IPv6 neighbours: %w", err)
	}
	var out []netip.Addr
	for _, e := range entries {
		if a, ok := netip.AddrFromSlice(e.IP); ok && e.State&netlink.NUD_FAILED != 0 {
			out = append(out, a)
		}
	}
	return out, nil
}

// sourceTo returns the source address that the kernel chooses for packets out of the cluster, through
// a next hop on a link. It is not valid if there is none.
func sourceTo(family int, hop netip.Addr, link int) netip.Addr {
	// An address that is nobody's, in the range of the global ones (RFC 4291).
	to := net.ParseIP("2000::1")
	if family == netlink.FAMILY_V4 { // the source depends on the next hop alone
		to = hop.AsSlice()
	}
	routes, err := netlink.RouteGet(to)
	if err != nil || len(routes) == 0 || routes[0].LinkIndex != link {
		return netip.Addr{}
	}
	source, _ := netip.AddrFromSlice(routes[0].Src)
	return source.Unmap()
}

// preferred returns the addresses with this one first. The kernel lists an IPv6 address that it gets
// later, such as one of another prefix that a router begins to advertise, before the others.
func preferred(list []LinkAddress, source netip.Addr) []LinkAddress {
	i := slices.IndexFunc(list, func(a LinkAddress) bool { return a.Prefix.Addr() == source })
	if i < 0 {
		return list
	}
	return slices.Concat(list[i:i+1], list[:i], list[i+1:])
}
