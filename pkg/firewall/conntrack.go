// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// translations are the node ports and host ports that the table translates.
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

// stale reports whether a connection goes to a router, or a network's management port, that no
// longer has the node port to which the client sent its first packet.
func (t translations) stale(protocol uint8, to, answered netip.AddrPort) bool {
	if protocol != unix.IPPROTO_UDP || !slices.Contains(t.node, to.Addr()) && !to.Addr().IsLoopback() {
		return false
	}
	if !slices.ContainsFunc(t.to, func(p netip.Prefix) bool { return p.Contains(answered.Addr()) }) {
		return false
	}
	return t.ports[translation{to.Addr().Is6(), to.Port()}] != answered.Addr() && t.hosts[to] != answered.Addr() && t.local[to] != answered
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (t translations) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to, ok1 := netip.AddrFromSlice(flow.Forward.DstIP)
	answered, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok1 && ok2 && t.stale(flow.Forward.Protocol,
		netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort), netip.AddrPortFrom(answered.Unmap(), flow.Reverse.SrcPort))
}

// forgetStale removes UDP connections to node ports and host ports that are gone or are
// another network's now. The kernel translates a connection by its first packet, and a UDP
// client that continues to send keeps it alive.
func forgetStale(t translations) error {
	var failed []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, t); err != nil {
			failed = append(failed, err)
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("remove UDP connections to node ports and host ports that are gone: %w", err)
	}
	return nil
}
