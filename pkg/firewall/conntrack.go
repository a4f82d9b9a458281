// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// translations are the node ports, external addresses and host ports that the table translates.
type translations struct {
	ports map[translation]netip.Addr        // node ports, to the router's address
	hosts map[netip.AddrPort]netip.Addr     // host ports, to the router's address
	local map[netip.AddrPort]netip.AddrPort // Inputs.LocalPorts, to the management port's address
	node  []netip.Addr
	to    []netip.Prefix // routers' addresses
}

type translation struct {
	ipv6 bool
	port uint16
}

// udpTranslations returns what the table for in translates of UDP.
func (in Inputs) udpTranslations() translations {
	t := translations{ports: map[translation]netip.Addr{}, hosts: map[netip.AddrPort]netip.Addr{}, local: map[netip.AddrPort]netip.AddrPort{}, node: in.Node, to: in.Plan.Masquerade}
	for _, p := range in.NodePorts {
		if p.Protocol == "udp" {
			t.ports[translation{p.Router.Is6(), p.Port}] = p.Router
		}
	}
	for _, p := range in.HostPorts {
		at := netip.AddrPortFrom(p.Addr, p.Port.Port)
		if _, claimed := t.hosts[at]; p.Protocol == "udp" && !claimed {
			t.hosts[at] = p.To
		}
	}
	for _, p := range in.LocalPorts {
		if p.Protocol == "udp" {
			t.local[netip.AddrPortFrom(p.Addr, p.Port.Port)] = p.To
		}
	}
	return t
}

// changesUDP reports whether an operation begins or ends a translation of UDP. Of the maps' elements, those of
// translations alone have a protocol.
func changesUDP(o Op) bool {
	return (o.Verb == AddElements || o.Verb == DeleteElements) && isMap(o.Set) &&
		slices.ContainsFunc(o.Elements, func(e string) bool { return strings.Contains(e, "udp . ") })
}

// connection is a connection of the kernel's table.
type connection struct {
	protocol     uint8
	zone         uint16 // 0: the host's, in which nftables translates
	from         netip.Addr
	to, answered netip.AddrPort // where the client sent its first packet, and from where it is answered
	seen         netip.Addr     // the client's address as the server sees it
}

// stale reports whether a connection is translated to a router, or to a network's management port, that
// no longer has the port to which the client sent its first packet; or is not translated, and would be
// if it began now. Nothing else translates to masquerade addresses.
func (t translations) stale(c connection) bool {
	switch {
	case c.protocol != unix.IPPROTO_UDP || c.zone != 0 || t.masquerade(c.to.Addr()):
		return false
	case c.answered == c.to:
		return t.translates(c)
	case !t.masquerade(c.answered.Addr()):
		return false
	}
	nodePort := slices.Contains(t.node, c.to.Addr()) && t.ports[translation{c.to.Addr().Is6(), c.to.Port()}] == c.answered.Addr()
	return !nodePort && t.hosts[c.to] != c.answered.Addr() && t.local[c.to] != c.answered
}

// translates reports whether the table translates a new connection like c. It may be wrong about a connection to a server
// of the node. Removing such a connection does no harm: the next packet adds it again.
func (t translations) translates(c connection) bool {
	_, nodePort := t.ports[translation{c.to.Addr().Is6(), c.to.Port()}]
	_, hostPort := t.hosts[c.to]
	_, local := t.local[c.to] // of packets from outside only
	// What leaves this node for a host whose address a Service claims is not translated: the node's own packets, and those
	// of pods, which get the node's address. A tenant's claim must not end others' connections.
	outside := !slices.Contains(t.node, c.from) && c.seen == c.from
	return nodePort && slices.Contains(t.node, c.to.Addr()) || hostPort && !c.from.IsLoopback() || local && outside
}

func (t translations) masquerade(a netip.Addr) bool {
	return slices.ContainsFunc(t.to, func(p netip.Prefix) bool { return p.Contains(a) })
}

// forgetStale removes UDP connections to node ports, external addresses and host ports that are
// gone, are another network's now, or did not exist yet when they began. The kernel translates a connection by
// its first packet, and a UDP client that continues to send keeps it alive.
func forgetStale(t translations) error {
	var failed []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		failed = append(failed, t.forget(family))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("remove UDP connections that began before a change of node ports, external addresses and host ports: %w", err)
	}
	return nil
}

// forget removes the stale connections of an IP family. A node may have hundreds of thousands of
// connections: forget checks each entry as it is read, and stores only stale ones.
func (t translations) forget(family uint8) error {
	var stale [][]byte
	err := netdump.Retry(func() error {
		stale = nil
		req := connectionRequest(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
		return req.ExecuteIter(unix.NETLINK_NETFILTER, connectionType(nl.IPCTNL_MSG_CT_NEW), func(m []byte) bool {
			if t.stale(parseConnection(m)) {
				stale = append(stale, bytes.Clone(m))
			}
			return true
		})
	})
	var failed []error
	if err != nil {
		failed = append(failed, fmt.Errorf("list connections: %w", err))
	}
	for _, m := range stale {
		req := connectionRequest(family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		req.AddRawData(m[nl.SizeofNfgenmsg:])
		if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			c := parseConnection(m)
			failed = append(failed, fmt.Errorf("connection to %s, answered from %s: %w", c.to, c.answered, err))
		}
	}
	return errors.Join(failed...)
}

func connectionType(message uint16) uint16 { return unix.NFNL_SUBSYS_CTNETLINK<<8 | message }

func connectionRequest(family uint8, message uint16, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(int(connectionType(message)), flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// parseConnection returns the connection in a message of the kernel. What the message lacks is the zero value.
func parseConnection(m []byte) (c connection) {
	if len(m) < nl.SizeofNfgenmsg {
		return c
	}
	m = m[nl.SizeofNfgenmsg:]
	there, back := attribute(m, nl.CTA_TUPLE_ORIG), attribute(m, nl.CTA_TUPLE_REPLY)
	if p := attribute(attribute(there, nl.CTA_TUPLE_PROTO), nl.CTA_PROTO_NUM); len(p) == 1 {
		c.protocol = p[0]
	}
	if z := attribute(m, nl.CTA_ZONE); len(z) == 2 {
		c.zone = binary.BigEndian.Uint16(z)
	}
	c.from = endpoint(there, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT).Addr()
	c.to = endpoint(there, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
	c.seen = endpoint(back, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT).Addr()
	c.answered = endpoint(back, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
	return c
}

// endpoint returns the address and port in those attributes of a direction of a connection.
func endpoint(tuple []byte, ipv4, ipv6, port uint16) netip.AddrPort {
	ips := attribute(tuple, nl.CTA_TUPLE_IP)
	addr, ok := netip.AddrFromSlice(attribute(ips, ipv4))
	if !ok {
		addr, _ = netip.AddrFromSlice(attribute(ips, ipv6))
	}
	var number uint16
	if p := attribute(attribute(tuple, nl.CTA_TUPLE_PROTO), port); len(p) == 2 {
		number = binary.BigEndian.Uint16(p)
	}
	return netip.AddrPortFrom(addr, number)
}

// attribute returns the value of the first attribute of that type; nil: there is none.
func attribute(b []byte, typ uint16) []byte {
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK == typ {
			return b[unix.SizeofNlAttr:length]
		}
		b = b[min(len(b), (length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}
