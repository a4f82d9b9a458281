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
// through the other. Like refuseOverlaps, it considers networks with sessions and networks that stay where they are.
func (b *builder) refuseBoth(requests []*request) {
	byAge := slices.Clone(requests)
	slices.SortStableFunc(byAge, func(x, y *request) int {
		return x.ra.CreationTimestamp.Compare(y.ra.CreationTimestamp.Time)
	})
	for _, r := range byAge {
		with, without := b.bySession(r)
		places := b.kept(r, without)
		for _, n := range with {
			places = append(places, placed{n, r.target()})
		}
		for _, p := range places {
			if _, ok := b.decided[p.Name]; !ok {
				b.decided[p.Name] = decision{p.vrf == DefaultVRF, r.ra.Name}
			}
		}
	}
	for _, r := range requests {
		r.networks = slices.DeleteFunc(r.networks, func(n Network) bool {
			d, ok := b.decided[n.Name]
			refused := ok && d.by != r.ra.Name && d.inDefault != (r.target() == DefaultVRF)
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
