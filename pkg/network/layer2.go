// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"
)

// GatewayIn is the address of n's router in host, which is one of its host
// subnets: .1 but on a Layer 2 network that names another or keeps its own
// addresses in infrastructureSubnets.
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

// ManagementIn is the node's own address in host: .2 but as for GatewayIn. On
// Layer 2 it is the same on every node.
func (n Network) ManagementIn(host netip.Prefix) netip.Prefix {
	if n.Topology != Layer2 {
		return Management(host)
	}
	return netip.PrefixFrom(n.ownAddress(host, n.GatewayIn(host).Addr(), 2, 1, 3, 0), host.Bits())
}

// ownAddress is the first address of host at one of those places that is not
// other, in the infrastructure subnets where they have room for it.
func (n Network) ownAddress(host netip.Prefix, other netip.Addr, places ...uint64) netip.Addr {
	ranges := make([]netip.Prefix, 0, len(n.InfrastructureSubnets)+1)
	for _, p := range n.InfrastructureSubnets {
		if host.Overlaps(p) {
			ranges = append(ranges, p)
		}
	}
	for _, p := range append(ranges, host) {
		for _, place := range places {
			if a, ok := NthAddr(p, place); ok && a != other && Usable(host, a) {
				return a
			}
		}
	}
	return netip.Addr{}
}

// Usable tells whether an interface can have an address in host: the first is
// the subnet's own and, of IPv4, the last everybody's.
func Usable(host netip.Prefix, a netip.Addr) bool {
	next := a.Next()
	return host.Contains(a) && a != host.Masked().Addr() && (!a.Is4() || next.IsValid() && host.Contains(next))
}

// Withheld are the addresses of host that no pod may have, whatever it asks
// for: those of the network itself.
func (n Network) Withheld(host netip.Prefix) []netip.Prefix {
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
