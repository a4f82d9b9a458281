// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes and flags that golang.org/x/sys/unix does not have.
const (
	attrRoutePriority = 9  // IFA_RT_PRIORITY
	attrProto         = 11 // IFA_PROTO
	attrExpires       = 23 // RTA_EXPIRES
	attrNextHopID     = 30 // RTA_NH_ID

	protocolRA = 9 // RTPROT_RA
	// protocolOwn marks routes of ours, which pkg/vrf reconciles: they stay with the bridge.
	protocolOwn = 86

	// settableFlags are those that the kernel takes from user space, except for nodad.
	settableFlags = unix.IFA_F_HOMEADDRESS | unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN
	routeFlags    = unix.RTNH_F_ONLINK | unix.RTNH_F_PERVASIVE

	// thisLink stands for the link's index in a normal route message.
	thisLink = ^uint32(0)
)

// daemons are the protocols of routing daemons, which install their routes again by themselves, and remove them:
// a route that was moved, or recorded, would stay after its daemon has withdrawn it.
var daemons = []uint8{
	unix.RTPROT_GATED, unix.RTPROT_ZEBRA, unix.RTPROT_BIRD, unix.RTPROT_XORP, unix.RTPROT_MROUTED, unix.RTPROT_BABEL,
	unix.RTPROT_BGP, unix.RTPROT_ISIS, unix.RTPROT_OSPF, unix.RTPROT_RIP, unix.RTPROT_EIGRP,
	193, 194, 195, 196, 197, 198, // FRR's: NHRP, sharp, PBR, static, OpenFabric, SR-TE
}

var native = binary.NativeEndian

type attribute struct {
	kind uint16
	data []byte
}

// attributes parses the attributes of a message; the kernel's are well-formed.
func attributes(b []byte) []attribute {
	var out []attribute
	for len(b) >= unix.SizeofRtAttr {
		n := int(native.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			break
		}
		out = append(out, attribute{native.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:n]})
		b = b[min(len(b), (n+3)&^3):]
	}
	return out
}

func (a attribute) uint32() uint32 {
	if len(a.data) < 4 {
		return 0
	}
	return native.Uint32(a.data)
}

func (a attribute) addr() netip.Addr {
	addr, _ := netip.AddrFromSlice(a.data)
	return addr
}

func appendAttribute(b []byte, kind uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
	b = append(native.AppendUint16(b, kind), data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// parseAddress parses an address message. name is the link's, to which labels are relative. ok is
// false for an IPv6 link-local address: every link has its own.
func parseAddress(m []byte, name string) (a Address, index int, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return a, 0, false
	}
	msg := nl.DeserializeIfAddrmsg(m)
	a = Address{Scope: msg.Scope, Valid: Forever, Preferred: Forever}
	flags := uint32(msg.Flags)
	var local, addr netip.Addr
	for _, at := range attributes(m[unix.SizeofIfAddrmsg:]) {
		switch at.kind {
		case unix.IFA_LOCAL:
			local = at.addr()
		case unix.IFA_ADDRESS:
			addr = at.addr()
		case unix.IFA_BROADCAST:
			a.Broadcast = at.addr()
		case unix.IFA_LABEL:
			if suffix, ok := strings.CutPrefix(strings.TrimRight(string(at.data), "\x00"), name); ok {
				a.Label = suffix
			}
		case unix.IFA_FLAGS:
			flags = at.uint32()
		case unix.IFA_CACHEINFO:
			if len(at.data) >= 8 {
				a.Preferred, a.Valid = native.Uint32(at.data), native.Uint32(at.data[4:])
			}
		case attrRoutePriority:
			a.Metric = at.uint32()
		case attrProto:
			if len(at.data) > 0 {
				a.Proto = at.data[0]
			}
		}
	}
	if !local.IsValid() {
		local = addr
	}
	if !local.IsValid() || local.Is6() && local.IsLinkLocalUnicast() {
		return a, int(msg.Index), false
	}
	bits := int(msg.Prefixlen)
	a.Prefix = netip.PrefixFrom(local, bits)
	if addr.IsValid() && addr != local {
		a.Peer = netip.PrefixFrom(addr, bits)
	}
	a.Flags = flags & settableFlags
	if local.Is6() {
		a.Temporary = flags&unix.IFA_F_TEMPORARY != 0
		a.Tentative, a.Failed = flags&unix.IFA_F_TENTATIVE != 0, flags&unix.IFA_F_DADFAILED != 0
	}
	return a, int(msg.Index), true
}

// addressMessage returns the message that adds the address to a link.
func addressMessage(a Address, index int, name string) []byte {
	family, flags := uint8(unix.AF_INET), a.Flags
	if a.is6() {
		family = unix.AF_INET6
		if !a.Tentative {
			flags |= unix.IFA_F_NODAD // the node has used the address on this wire until now
		}
	}
	b := keyMessage(a, index)
	b[0], b[2], b[3] = family, uint8(flags), a.Scope
	if a.Broadcast.IsValid() {
		b = appendAttribute(b, unix.IFA_BROADCAST, a.Broadcast.AsSlice())
	}
	if label := name + a.Label; family == unix.AF_INET && len(label) < unix.IFNAMSIZ {
		b = appendAttribute(b, unix.IFA_LABEL, append([]byte(label), 0))
	}
	b = appendAttribute(b, unix.IFA_FLAGS, native.AppendUint32(nil, flags))
	if a.Valid != Forever || a.Preferred != Forever {
		info := native.AppendUint32(native.AppendUint32(nil, a.Preferred), a.Valid)
		b = appendAttribute(b, unix.IFA_CACHEINFO, append(info, make([]byte, 8)...))
	}
	if a.Metric != 0 {
		b = appendAttribute(b, attrRoutePriority, native.AppendUint32(nil, a.Metric))
	}
	if a.Proto != 0 {
		b = appendAttribute(b, attrProto, []byte{a.Proto})
	}
	return b
}

// keyMessage returns the message that deletes the address from a link.
func keyMessage(a Address, index int) []byte {
	b := []byte{unix.AF_INET, uint8(a.Prefix.Bits()), 0, 0}
	if a.is6() {
		b[0] = unix.AF_INET6
	}
	b = native.AppendUint32(b, uint32(index))
	b = appendAttribute(b, unix.IFA_LOCAL, a.Prefix.Addr().AsSlice())
	peer := a.Prefix.Addr()
	if a.Peer.IsValid() {
		peer = a.Peer.Addr()
	}
	return appendAttribute(b, unix.IFA_ADDRESS, peer.AsSlice())
}

// routeHeader is the fixed part of a route message.
type routeHeader struct {
	family, dstLen, srcLen, tos, table, protocol, scope, kind uint8
	flags                                                     uint32
}

func parseHeader(m []byte) (h routeHeader, ok bool) {
	if len(m) < unix.SizeofRtMsg {
		return h, false
	}
	return routeHeader{m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7], native.Uint32(m[8:])}, true
}

func (h routeHeader) bytes() []byte {
	return native.AppendUint32([]byte{h.family, h.dstLen, h.srcLen, h.tos, h.table, h.protocol, h.scope, h.kind}, h.flags)
}

// parsedRoute is a route, and what decides whether it moves.
type parsedRoute struct {
	Route
	header   routeHeader
	table    uint32
	dst      netip.Prefix
	metric   uint32
	src      netip.Addr
	expiring bool
}

// parseRoutes parses a message of a route. It returns the routes through the link with that index, without those that
// stay with a link: local and broadcast ones, IPv6 link-local ones, ours, and routing daemons'. A route of IPv4 is one, with all
// its next hops. Of IPv6 each next hop is a route, which the kernel adds and deletes by itself; their
// weights are lost.
func parseRoutes(m []byte, index int) []parsedRoute {
	h, ok := parseHeader(m)
	if !ok || h.kind != unix.RTN_UNICAST || h.protocol == protocolOwn || slices.Contains(daemons, h.protocol) || h.flags&unix.RTM_F_CLONED != 0 {
		return nil
	}
	h.flags &= routeFlags
	attrs := attributes(m[unix.SizeofRtMsg:])
	i := slices.IndexFunc(attrs, func(a attribute) bool { return a.kind == unix.RTA_MULTIPATH })
	var out []parsedRoute
	if h.family != unix.AF_INET6 || i < 0 {
		if r, ok := parseRoute(h, attrs, index); ok {
			out = append(out, r)
		}
		return out
	}
	common := slices.Delete(slices.Clone(attrs), i, i+1)
	eachHop(attrs[i].data, func(hop []byte) {
		h := h
		h.flags |= uint32(hop[2]) & routeFlags
		single := append(slices.Clone(common), attribute{unix.RTA_OIF, hop[4:8]})
		if r, ok := parseRoute(h, append(single, attributes(hop[unix.SizeofRtNexthop:])...), index); ok {
			out = append(out, r)
		}
	})
	return out
}

func parseRoute(h routeHeader, attrs []attribute, index int) (r parsedRoute, ok bool) {
	r.header = h
	r.table = uint32(h.table)
	via := ""
	r.dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if h.family == unix.AF_INET6 {
		r.dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	var kept []attribute
	byLink := false
	for _, at := range attrs {
		switch at.kind {
		case unix.RTA_TABLE:
			r.table = at.uint32()
		case unix.RTA_DST:
			r.dst = netip.PrefixFrom(at.addr(), int(h.dstLen))
		case unix.RTA_PRIORITY:
			r.metric = at.uint32()
		case unix.RTA_PREFSRC:
			r.src = at.addr()
		case unix.RTA_GATEWAY:
			r.Gateway, via = true, " via "+at.addr().String()
		case unix.RTA_VIA:
			r.Gateway, via = true, " via another family's next hop"
		case unix.RTA_OIF:
			byLink = byLink || int(at.uint32()) == index
			at.data = native.AppendUint32(nil, thisLink)
		case unix.RTA_MULTIPATH:
			r.Gateway, via = true, " via several next hops"
			var found bool
			at.data, found = replaceIndex(at.data, uint32(index), thisLink)
			byLink = byLink || found
		case unix.RTA_CACHEINFO:
			if len(at.data) >= 12 {
				if ticks := int32(native.Uint32(at.data[8:])); ticks != 0 {
					r.expiring, r.Expires = true, uint32(max(ticks/100, 1))
				}
			}
			continue
		case attrNextHopID:
			r.NextHopID = at.uint32()
			continue
		case attrExpires:
			continue
		}
		kept = append(kept, at)
	}
	if !byLink || r.table == unix.RT_TABLE_LOCAL || r.dst.Addr().Is6() && (r.dst.Addr().IsLinkLocalUnicast() || r.dst.Addr().IsMulticast()) {
		return r, false
	}
	r.RA = h.protocol == protocolRA
	slices.SortStableFunc(kept, func(a, b attribute) int { return cmp.Compare(a.kind, b.kind) })
	r.Message = h.bytes()
	for _, at := range kept {
		r.Message = appendAttribute(r.Message, at.kind, at.data)
	}
	r.Text = fmt.Sprintf("%s%s metric %d table %d", r.dst, via, r.metric, r.table)
	return r, true
}

// eachHop calls f with each next hop of a route.
func eachHop(hops []byte, f func(hop []byte)) {
	for len(hops) >= unix.SizeofRtNexthop {
		n := int(native.Uint16(hops))
		if n < unix.SizeofRtNexthop || n > len(hops) {
			return
		}
		f(hops[:n])
		hops = hops[min(len(hops), (n+3)&^3):]
	}
}

// replaceIndex replaces a link's index in the next hops of a route.
func replaceIndex(hops []byte, from, to uint32) (out []byte, found bool) {
	out = slices.Clone(hops)
	eachHop(out, func(hop []byte) {
		hop[2] &= routeFlags // the others are the hop's condition
		if native.Uint32(hop[4:]) == from {
			native.PutUint32(hop[4:], to)
			found = true
		}
	})
	return out, found
}

// routeMessage returns the message that adds or deletes the route on the link with that index.
func routeMessage(r Route, index int) []byte {
	out := slices.Clone(r.Message[:unix.SizeofRtMsg])
	for _, at := range attributes(r.Message[unix.SizeofRtMsg:]) {
		switch at.kind {
		case unix.RTA_OIF:
			at.data = native.AppendUint32(nil, uint32(index))
		case unix.RTA_MULTIPATH:
			at.data, _ = replaceIndex(at.data, thisLink, uint32(index))
		}
		out = appendAttribute(out, at.kind, at.data)
	}
	if r.Expires != 0 {
		out = appendAttribute(out, attrExpires, native.AppendUint32(nil, r.Expires))
	}
	return out
}

// deleteMessage returns the message that deletes the route from the link with that index. With the id of a
// next hop object the kernel finds no route if the message also says where it leads.
func deleteMessage(r Route, index int) []byte {
	r.Expires = 0
	if r.NextHopID == 0 {
		return routeMessage(r, index)
	}
	out := slices.Clone(r.Message[:unix.SizeofRtMsg])
	for _, at := range attributes(r.Message[unix.SizeofRtMsg:]) {
		if !slices.Contains([]uint16{unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_MULTIPATH}, at.kind) {
			out = appendAttribute(out, at.kind, at.data)
		}
	}
	return appendAttribute(out, attrNextHopID, native.AppendUint32(nil, r.NextHopID))
}

// moved returns the route as the other link gets it. A route from a router advertisement gets another
// metric there: the kernel does not process an advertisement whose route it finds with its own
// metric and that user space has added.
func (r Route) moved() Route {
	if !r.RA {
		return r
	}
	out := slices.Clone(r.Message[:unix.SizeofRtMsg])
	for _, at := range attributes(r.Message[unix.SizeofRtMsg:]) {
		if at.kind == unix.RTA_PRIORITY && at.uint32() == defaultRAMetric {
			at.data = native.AppendUint32(nil, defaultRAMetric+1)
			r.Text += ", worse by 1"
		}
		out = appendAttribute(out, at.kind, at.data)
	}
	r.Message = out
	return r
}

// defaultRAMetric is the metric of routes from router advertisements (IP6_RT_PRIO_USER).
const defaultRAMetric = 1024

// byKernel reports whether the kernel added the route by itself and will do so on the other link: with one of
// the link's addresses, or because of a router advertisement's prefix. Programs add routes with the
// kernel's mark too, for addresses without a route.
func (r parsedRoute) byKernel(addrs []Address) bool {
	if r.header.protocol != unix.RTPROT_KERNEL || r.Gateway || r.table != unix.RT_TABLE_MAIN {
		return false
	}
	return r.expiring || slices.ContainsFunc(addrs, func(a Address) bool {
		net, metric := a.Prefix, a.Metric
		if a.Peer.IsValid() {
			net = a.Peer
		}
		if a.is6() {
			metric = cmp.Or(metric, prefixMetric)
		}
		return a.Flags&unix.IFA_F_NOPREFIXROUTE == 0 && net.Masked() == r.dst && metric == r.metric && (a.is6() || r.src == a.Prefix.Addr())
	})
}

// prefixMetric is the metric of the route that the kernel adds with an IPv6 address (IP6_RT_PRIO_ADDRCONF).
const prefixMetric = 256
