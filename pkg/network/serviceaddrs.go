// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"net/netip"
	"slices"
)

var ipv4Compatible = netip.MustParsePrefix("::/96")

// RefusedExternal returns why a service of n must not have the external address a, "" if it may: a
// belongs to the cluster, and the service would receive what others send there.
func (p Plan) RefusedExternal(n Network, a netip.Addr) string {
	if !a.IsGlobalUnicast() {
		return "it is not a unicast address"
	}
	if ipv4Compatible.Contains(a) {
		return "it is in " + ipv4Compatible.String() + ", deprecated addresses (RFC 4291)" // and programs write them in two ways
	}
	return cmp.Or(p.RefusedEndpoint(n, a), inRange(a, "the network's subnets", n.CIDRs()))
}

// RefusedEndpoint returns why an address cannot be an endpoint of a service of n, "" if it may be:
// it is another network's, or leads to the cluster's routers and hosts. Whoever may write
// EndpointSlices chooses it.
func (p Plan) RefusedEndpoint(n Network, a netip.Addr) string {
	var defaultNetwork []netip.Prefix
	if !n.IsDefault() {
		defaultNetwork = Network{Subnets: p.ClusterSubnets}.CIDRs()
	}
	return cmp.Or(inRange(a, "services' addresses", p.ServiceCIDRs), inRange(a, "the cluster default network", defaultNetwork),
		inRange(a, "join subnets", slices.Concat(p.Join, p.UDNJoin, n.JoinSubnets)), inRange(a, "transit subnets", slices.Concat(p.Transit, n.Transit)),
		inRange(a, "masquerade subnets", p.Masquerade))
}

// inRange says that an address is in one of the prefixes, or returns "".
func inRange(a netip.Addr, what string, prefixes []netip.Prefix) string {
	for _, p := range prefixes {
		if p.Contains(a) {
			return "it is in " + p.String() + ", " + what
		}
	}
	return ""
}
