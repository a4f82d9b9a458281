// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// addBGPInputs adds what route advertisements add to the inputs of the cluster default network.
func (z *Zone) addBGPInputs(b *BGP) {
	peers, _ := z.nodes.peers()
	for _, n := range append(peers, z.self()) {
		for _, p := range n.Addresses {
			b.NodeAddresses = append(b.NodeAddresses, p.Addr())
		}
	}
	for _, s := range z.exposed() {
		b.DefaultServices = append(b.DefaultServices, s.ClusterIPs...)
	}
	// Several networks may have a subnet. BGP announces one of them.
	add := func(list []netip.Prefix, n network.Network) []netip.Prefix {
		return append(list, slices.DeleteFunc(n.CIDRs(), func(p netip.Prefix) bool { return slices.Contains(list, p) })...)
	}
	for _, n := range z.advertisedNetworks() {
		// A network that is not announced has no routes. Its subnets may be another network's or the nodes': isolation
		// would cut these off, and discarding packets to it would hide that network's routes.
		if !n.Announced() {
			continue
		}
		b.AdvertisedSubnets = add(b.AdvertisedSubnets, n)
		if n.Transport == network.TransportNoOverlay {
			b.NoOverlaySubnets = add(b.NoOverlaySubnets, n)
		}
	}
}

// keepNodeAddresses adds the addresses of nodes that the rows have, because the facts of some
// nodes are not known.
func keepNodeAddresses(b *BGP, have State) {
	for _, r := range have {
		set, ok := r.Model.(*nbdb.AddressSet)
		if !ok || !strings.HasPrefix(r.ID, setNodes+"_") {
			continue
		}
		for _, text := range set.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(b.NodeAddresses, a) {
				b.NodeAddresses = append(b.NodeAddresses, a)
			}
		}
	}
}

// advertisedNetworks returns the advertised networks, sorted by name.
func (z *Zone) advertisedNetworks() []network.Network {
	var out []network.Network
	if z.cfg.DefaultNetwork.Advertised() {
		out = append(out, z.cfg.DefaultNetwork)
	}
	out = slices.AppendSeq(out, maps.Values(z.advertised))
	slices.SortFunc(out, func(a, b network.Network) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// updateAdvertised is called when the definition of a network may have changed. It enqueues
// what all advertised networks share. A network whose NADs are unusable, or gone while pods still use it,
// stays as it is: its pods stay isolated.
func (z *Zone) updateAdvertised(name string) {
	n, ok := z.desiredNetwork(name)
	if st := z.nets[name]; !ok && (z.nadIndex.HasNADs(name) || st != nil && len(st.pods) > 0) {
		return
	}
	before, had := z.advertised[name]
	is := ok && n.IsPrimary() && n.Advertised() && !n.LeavesThroughVRF()
	if is {
		z.advertised[name] = n
	} else {
		delete(z.advertised, name)
	}
	if is == had && (!is || before.Transport == n.Transport && before.Announced() == n.Announced() && slices.Equal(before.CIDRs(), n.CIDRs())) {
		return
	}
	if z.restored {
		z.queue.AddUnits(network.DefaultName, topologyUnit, importUnit)
	}
}

// SetImportedRoutes replaces the routes that BGP has learned. The zone must know them before
// it runs: it removes those that it does not know.
func (z *Zone) SetImportedRoutes(routes []ImportedRoute) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if reflect.DeepEqual(z.imported, routes) {
		return
	}
	z.imported = routes
	z.metrics.learned.Set(float64(len(routes)))
	if z.restored {
		z.queue.AddUnits(network.DefaultName, importUnit)
	}
}

// importedRoutes returns the routes to import, without those to pods of networks with an
// overlay: their routers reach them.
func (z *Zone) importedRoutes() []ImportedRoute {
	var overlays []netip.Prefix
	for _, n := range z.advertisedNetworks() {
		if n.Transport != network.TransportNoOverlay {
			overlays = append(overlays, n.CIDRs()...)
		}
	}
	if z.cfg.DefaultNetwork.Transport != network.TransportNoOverlay {
		overlays = append(overlays, z.cfg.DefaultNetwork.CIDRs()...)
	}
	return slices.DeleteFunc(slices.Clone(z.imported), func(r ImportedRoute) bool {
		return slices.ContainsFunc(overlays, func(p netip.Prefix) bool { return p.Bits() <= r.Prefix.Bits() && p.Overlaps(r.Prefix) })
	})
}
