// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// Networks whose pods BGP advertises, and networks without an overlay, which are
// always advertised. Pods of an advertised network keep their addresses outside the
// cluster. A network without an overlay has neither transit switch nor routes to
// other nodes: the source route that managementRoutes adds leads to the underlay, in
// shared gateway mode through the gateway router and the uplink router's imported routes, in local
// mode through the kernel's routes.

// BGP is what route advertisements add to a network's inputs.
type BGP struct {
	// Loose: pods of different advertised networks reach each other if routers outside the
	// cluster connect them. Otherwise the node drops what they send to each other: their
	// addresses are routable, so it takes more than separate routers.
	Loose bool
	// The rest is for the cluster default network, which has the address sets that
	// all networks use.

	// NodeAddresses are those of all nodes. Towards them pods are SNATed, so that
	// they reach node ports of other networks.
	NodeAddresses []netip.Addr
	// DefaultServices are the addresses of the default network's services that all
	// tenants' pods reach.
	DefaultServices []netip.Addr
	// AdvertisedSubnets are the subnets of all networks that BGP announces in the nodes' default VRF.
	AdvertisedSubnets []netip.Prefix
	// NoOverlaySubnets are those of the networks without an overlay among them.
	NoOverlaySubnets []netip.Prefix
}

// ImportedRoute is a route that the node has learned by BGP.
type ImportedRoute struct {
	Prefix   netip.Prefix
	NextHops []netip.Addr
}

// Address sets of the cluster default network; a suffix tells the IP family. The
// zone enqueues that network first.
const (
	setNodes      = "bulkhead_nodes"
	setServices   = "bulkhead_services"
	setAdvertised = "bulkhead_advertised"
)

func (b *builder) noOverlay() bool { return b.net.Transport == network.TransportNoOverlay }

func (b *builder) advertised() bool { return b.primary() && b.net.Advertised() }

// outboundSNAT reports whether a network without an overlay has its pods SNATed
// outside the cluster.
func (b *builder) outboundSNAT() bool { return b.noOverlay() && b.net.OutboundSNAT == "enabled" }

// setName returns the name of a shared address set of a's IP family.
func setName(set string, a netip.Addr) string { return set + "_" + ipKeyword(a) }

// ipKeyword returns OVN's name of a's IP family in matches.
func ipKeyword(a netip.Addr) string {
	if a.Is4() {
		return "ip4"
	}
	return "ip6"
}

// toSets returns the match of packets to the addresses of shared sets of a's IP
// family.
func toSets(a netip.Addr, sets ...string) string {
	names := make([]string, len(sets))
	for i, set := range sets {
		names[i] = "$" + setName(set, a)
	}
	return fmt.Sprintf("%s.dst == {%s}", ipKeyword(a), strings.Join(names, ", "))
}

// addressSet adds an address set.
func (b *builder) addressSet(effect Effect, id, name string, addresses []string) {
	slices.Sort(addresses)
	b.add(effect, nbdb.AddressSetTable, id, &nbdb.AddressSet{Name: name, Addresses: slices.Compact(addresses)}, nil)
}

// sharedSets adds the cluster default network's address sets. They exist even if
// they are empty: a match that names a missing set matches nothing.
func (b *builder) sharedSets() {
	if !b.net.IsDefault() {
		return
	}
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		is4 := a.Is4()
		for _, set := range []struct {
			name      string
			effect    Effect
			addresses []string
		}{
			{setNodes, Neutral, texts(network.FilterFamilies(b.in.BGP.NodeAddresses, is4, !is4))},
			{setServices, Neutral, texts(network.FilterFamilies(b.in.BGP.DefaultServices, is4, !is4))},
			{setAdvertised, Closes, texts(network.FilterFamilies(b.in.BGP.AdvertisedSubnets, is4, !is4))},
		} {
			b.addressSet(set.effect, setName(set.name, a), setName(set.name, a), set.addresses)
		}
	}
}

func texts[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = x.String()
	}
	return out
}

// exemptID is the id of the address set of destinations to which a network's pods
// are not SNATed.
func (b *builder) exemptID(a netip.Addr) string { return b.net.Prefix() + "exempt_" + ipKeyword(a) }

// exemptSets adds the destinations to which pods are not SNATed. On a Layer 2 network it
// is the node's processes: packets to them are replies. On a network without an overlay
// it is the network's pods.
func (b *builder) exemptSets() {
	layer2 := b.net.Topology == network.Layer2
	if !b.outboundSNAT() && !layer2 {
		return
	}
	for _, host := range b.hosts {
		is4 := host.Addr().Is4()
		if own, ok := addrOfFamily(b.in.Plan.MasqueradeFixed(network.MasqueradeNode), host.Addr()); ok && layer2 {
			id := b.exemptID(host.Addr())
			b.addressSet(Neutral, id, b.symbol(nbdb.AddressSetTable, id), []string{own.String()})
			continue
		}
		id := b.exemptID(host.Addr())
		b.addressSet(Neutral, id, b.symbol(nbdb.AddressSetTable, id), texts(network.FilterFamilies(b.net.CIDRs(), is4, !is4)))
	}
}

// managementSNAT returns what the SNAT of pods towards the management port applies
// to. By default it is all packets to that port, and no others: the gateway router expects
// the pods' addresses. Pods of an advertised network are only SNATed to addresses that are not
// unique to their network.
func (b *builder) managementSNAT(host netip.Prefix) natScope {
	toPort := "eth.dst == " + network.MACOf(b.management())
	switch {
	case b.outboundSNAT() && b.localGateway():
		return natScope{match: toPort, exempt: b.uuid(nbdb.AddressSetTable, b.exemptID(host.Addr()))}
	case b.advertised():
		return natScope{match: toPort + " && " + toSets(host.Addr(), setNodes, setServices)}
	case b.net.Topology == network.Layer2:
		return natScope{match: toPort, exempt: b.uuid(nbdb.AddressSetTable, b.exemptID(host.Addr()))}
	default:
		return natScope{match: toPort}
	}
}

// gatewaySNAT returns what the gateway router's SNAT of pods applies to.
func (b *builder) gatewaySNAT(host netip.Prefix) natScope {
	switch {
	case b.outboundSNAT():
		return natScope{exempt: b.uuid(nbdb.AddressSetTable, b.exemptID(host.Addr()))}
	case b.advertised():
		return natScope{match: toSets(host.Addr(), setNodes)}
	default:
		return natScope{}
	}
}
