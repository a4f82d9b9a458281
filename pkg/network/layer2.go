// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"
)

// GatewayIn returns n's router in host, one of its host subnets: .1, unless n
// is a Layer 2 network with defaultGatewayIPs or infrastructureSubnets.
func (n Network) GatewayIn(host netip.Prefix) netip.Prefix {
	if n.Topology != Layer2 {
		return Gateway(host)
	}
	for _, gw := range n.DefaultGatewayIPs {
		if host.Contains(gw) {
			return netip.PrefixFrom(gw, host.Bits())
		}
	}
	return netip.PrefixFrom(n.ownAddress(host, netip.Addr{}, 1, 2, 0), host.Bits())
}

// ManagementIn returns the node's management port in host: .2, with the
// exceptions of GatewayIn. On Layer 2 it is the same on every node.
func (n Network) ManagementIn(host netip.Prefix) netip.Prefix {
	if n.Topology != Layer2 {
		return Management(host)
	}
	return netip.PrefixFrom(n.ownAddress(host, n.GatewayIn(host).Addr(), 2, 1, 3, 0), host.Bits())
}

// ownAddress returns the first usable address of host at one of the offsets
// that is not other. Infrastructure subnets take precedence.
func (n Network) ownAddress(host netip.Prefix, other netip.Addr, offsets ...uint64) netip.Addr {
	ranges := make([]netip.Prefix, 0, len(n.InfrastructureSubnets)+1)
	for _, p := range n.InfrastructureSubnets {
		if host.Overlaps(p) {
			ranges = append(ranges, p)
		}
	}
	for _, p := range append(ranges, host) {
		for _, offset := range offsets {
			if a, ok := NthAddr(p, offset); ok && a != other && Usable(host, a) {
				return a
			}
		}
	}
	return netip.Addr{}
}

// Usable reports whether an interface can have address a in subnet host. It
// excludes the first address and the IPv4 broadcast address.
func Usable(host netip.Prefix, a netip.Addr) bool {
	next := a.Next()
	return host.Contains(a) && a != host.Masked().Addr() && (!a.Is4() || next.IsValid() && host.Contains(next))
}

// Unallocatable returns the addresses of host that no pod can have, even on
// request: those of the network itself.
func (n Network) Unallocatable(host netip.Prefix) []netip.Prefix {
	out := slices.Clone(n.InfrastructureSubnets)
	if n.IsPrimary() {
		for _, p := range []netip.Prefix{n.GatewayIn(host), n.ManagementIn(host)} {
			if a := p.Addr(); a.IsValid() {
				out = append(out, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return slices.DeleteFunc(out, func(p netip.Prefix) bool { return !p.Overlaps(host) })
}

// TransitRouterPort are the addresses, on a Layer 2 network's transit router, of
// the port towards a node's gateway router: base + 2 × node id. The next address is not used.
func (n Network) TransitRouterPort(nodeID int) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(n.Transit))
	for _, p := range n.Transit {
		a, _ := NthAddr(p, 2*uint64(nodeID))
		out = append(out, netip.PrefixFrom(a, a.BitLen()-1))
	}
	return out
}
