// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"

	"bulkhead/pkg/network"
)

// splitConfigurations separates bases from generated FRRConfigurations, these by RouteAdvertisements.
func splitConfigurations(list []frrv1.FRRConfiguration) (bases []*frrv1.FRRConfiguration, generated map[string][]*frrv1.FRRConfiguration) {
	generated = map[string][]*frrv1.FRRConfiguration{}
	for i := range list {
		if source, ok := SourceOf(&list[i]); ok {
			generated[source.Advertisements] = append(generated[source.Advertisements], &list[i])
		} else if !IsGenerated(&list[i]) {
			bases = append(bases, &list[i])
		}
	}
	return bases, generated
}

// reserved is an address that the nodes need, and what it is.
type reserved struct {
	netip.Addr
	what string
}

// reservedBy returns the nodes' addresses and those of their default gateways, sorted.
func reservedBy(nodes []Node) []reserved {
	var out []reserved
	for _, n := range nodes {
		for _, a := range slices.Concat(n.InternalIPs, n.Addresses) {
			out = append(out, reserved{a, "node " + n.Name})
		}
		for _, a := range n.NextHops {
			out = append(out, reserved{a, "the default gateway of node " + n.Name})
		}
	}
	slices.SortStableFunc(out, func(x, y reserved) int { return x.Compare(y.Addr) })
	return out
}

// reservedIn returns the first address that the nodes need in the subnets of a network.
func (b *builder) reservedIn(n Network) (first reserved, subnet netip.Prefix, ok bool) {
	for _, p := range n.CIDRs() {
		i, _ := slices.BinarySearchFunc(b.reserved, p.Masked().Addr(), func(r reserved, a netip.Addr) int { return r.Compare(a) })
		if i < len(b.reserved) && p.Contains(b.reserved[i].Addr) {
			return b.reserved[i], p, true
		}
	}
	return reserved{}, netip.Prefix{}, false
}

// cutsOffNodes reports whether a network must not be in a VRF, because its subnets contain an address that the nodes
// need. Isolation and the routes to its pods would cut the nodes off from each other, and from the API server, by which
// they learn of a correction. So this does not depend on what is older. The nodes reach the pods of the cluster default
// network, and VRFs of networks have none of the nodes' addresses.
func (b *builder) cutsOffNodes(p placed) bool {
	if p.vrf != DefaultVRF || p.IsDefault() && p.CUDN == "" {
		return false
	}
	_, _, ok := b.reservedIn(p.Network)
	return ok
}

// refuseNodes removes from the requests what cutsOffNodes refuses.
func (b *builder) refuseNodes(requests []*request) {
	for _, r := range requests {
		r.networks = slices.DeleteFunc(r.networks, func(n Network) bool {
			refused := b.cutsOffNodes(placed{n, r.target()})
			if refused {
				at, subnet, _ := b.reservedIn(n)
				r.invalidf("network %s is not advertised: its subnet %s contains %s, the address of %s, and nodes would not reach each other: use subnets without addresses that the nodes need", n.Name, subnet, at.Addr, at.what)
			}
			return refused
		})
	}
}

// decision is where a network is advertised: in the nodes' default VRF, or in others.
type decision struct {
	inDefault bool
	by        string // the RouteAdvertisements
}

// mayBeIn reports whether refuseBoth has left a network in a VRF.
func (b *builder) mayBeIn(p placed) bool {
	d, ok := b.decided[p.Name]
	return !ok || d.inDefault == (p.vrf == DefaultVRF)
}

// refuseBoth removes networks from requests: what an older RouteAdvertisements advertises in another VRF must not be
// advertised in the nodes' default VRF, nor the reverse. Otherwise pods' replies to packets from one VRF would leave
// through the other. Like refuseOverlaps, it considers networks with sessions and networks that stay where they are. A
// RouteAdvertisements decides for the default VRF only if refuseOverlaps will leave the network there.
func (b *builder) refuseBoth(requests []*request) {
	byCreation := slices.Clone(requests)
	slices.SortStableFunc(byCreation, func(x, y *request) int {
		return x.ra.CreationTimestamp.Compare(y.ra.CreationTimestamp.Time)
	})
	type claim struct {
		placed
		by string
	}
	var claims []claim
	for _, r := range byCreation {
		with, without := b.bySession(r)
		for _, p := range b.kept(r, without) {
			claims = append(claims, claim{p, r.ra.Name})
		}
		for _, n := range with {
			claims = append(claims, claim{placed{n, r.target()}, r.ra.Name})
		}
	}
	slices.SortStableFunc(claims, func(x, y claim) int { return byAge(x.Network, y.Network) })
	var owners prefixOwners       // of the default VRF
	overlaps := map[string]bool{} // the networks of which refuseOverlaps gives the reason
	for _, c := range claims {
		if _, ok := b.decided[c.Name]; ok {
			continue
		}
		if c.vrf == DefaultVRF {
			if _, _, overlaps[c.Name] = owners.overlapping(c.CIDRs()); overlaps[c.Name] {
				continue
			}
			owners.add(c.Name, c.CIDRs())
		}
		b.decided[c.Name] = decision{c.vrf == DefaultVRF, c.by}
	}
	for _, r := range requests {
		r.networks = slices.DeleteFunc(r.networks, func(n Network) bool {
			d, ok := b.decided[n.Name]
			refused := ok && d.by != r.ra.Name && d.inDefault != (r.target() == DefaultVRF) && !(r.target() == DefaultVRF && overlaps[n.Name])
			if refused {
				where := "another VRF"
				if d.inDefault {
					where = "the default VRF"
				}
				r.invalidf("network %s is not advertised in VRF %s, because the older RouteAdvertisements %s advertises it in %s: a network cannot be in the default VRF and in another one, so select it in one of the two", n.Name, r.vrfOf(n), d.by, where)
			}
			return refused
		})
	}
}

// refuseOverlaps chooses the networks that may be in each VRF, and removes the others from the requests: in the
// default VRF those whose subnets overlap an older network's. A VRF that targetVRF names carries one network, the
// oldest: whatever reaches one network from that VRF would reach all of them.
//
// A network competes for a VRF if nodes have sessions for it there. One that stays where it is competes
// too: a mistake must not hand its addresses to a younger network.
func (b *builder) refuseOverlaps(requests []*request) {
	claims := map[string][]Network{} // by VRF
	for _, r := range requests {
		with, without := b.bySession(r)
		claims[r.target()] = append(claims[r.target()], with...)
		for _, k := range b.kept(r, without) {
			if b.mayBeIn(k) {
				claims[k.vrf] = append(claims[k.vrf], k.Network)
			}
		}
	}
	refused := map[string]map[string]string{} // the reason, by target and network
	for target, list := range claims {
		if len(list) == 0 || target == network.VRFAuto { // auto: every network has a VRF of its own
			continue
		}
		slices.SortStableFunc(list, byAge)
		list = slices.CompactFunc(list, func(x, y Network) bool { return x.Name == y.Name })
		refused[target], b.owns[target] = map[string]string{}, map[string]bool{}
		if target != DefaultVRF {
			b.owns[target][list[0].Name] = true
			for _, c := range list[1:] {
				refused[target][c.Name] = fmt.Sprintf("network %s is not advertised: VRF %s has network %s, which is older, and a VRF that is named carries only one: name another VRF, or set spec.targetVRF to %s", c.Name, target, list[0].Name, network.VRFAuto)
			}
			continue
		}
		var owners prefixOwners
		for _, c := range list {
			if older, subnet, ok := owners.overlapping(c.CIDRs()); ok {
				refused[target][c.Name] = fmt.Sprintf("network %s is not advertised: its subnet %s overlaps network %s, which is older and is advertised into the same VRF: use other subnets", c.Name, subnet, older)
				continue
			}
			owners.add(c.Name, c.CIDRs())
			b.owns[target][c.Name] = true
		}
	}
	for _, r := range requests {
		r.networks = slices.DeleteFunc(r.networks, func(n Network) bool {
			reason, is := refused[r.target()][n.Name]
			if is {
				r.invalid = append(r.invalid, reason)
			}
			return is
		})
	}
}

// byAge sorts networks, the oldest first.
func byAge(x, y Network) int {
	return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
}

// prefixOwners are disjoint prefixes, sorted, with their networks.
type prefixOwners struct {
	prefixes []netip.Prefix
	owners   []string
}

// overlapping returns a network that has a prefix which overlaps one of list.
func (o *prefixOwners) overlapping(list []netip.Prefix) (owner string, of netip.Prefix, ok bool) {
	for _, p := range list {
		// The prefixes are disjoint: only the neighbours of p's position can overlap it.
		i, _ := slices.BinarySearchFunc(o.prefixes, p, netip.Prefix.Compare)
		for _, at := range []int{i - 1, i} {
			if at >= 0 && at < len(o.prefixes) && o.prefixes[at].Overlaps(p) {
				return o.owners[at], p, true
			}
		}
	}
	return "", netip.Prefix{}, false
}

func (o *prefixOwners) add(owner string, list []netip.Prefix) {
	for _, p := range list {
		i, _ := slices.BinarySearchFunc(o.prefixes, p, netip.Prefix.Compare)
		o.prefixes, o.owners = slices.Insert(o.prefixes, i, p), slices.Insert(o.owners, i, owner)
	}
}
