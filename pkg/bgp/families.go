// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"

	"bulkhead/pkg/network"
)

// families are IP families.
type families struct{ v4, v6 bool }

func (f families) or(g families) families  { return families{f.v4 || g.v4, f.v6 || g.v6} }
func (f families) and(g families) families { return families{f.v4 && g.v4, f.v6 && g.v6} }

// carriesUnicast reports whether a session carries routes to addresses. Without address families it does, as the API
// server's default says.
func carriesUnicast(n frrv1.Neighbor) bool {
	return len(n.AddressFamilies) == 0 || slices.Contains(n.AddressFamilies, frrv1.AddressFamilyUnicast)
}

// familiesOf returns the IP families that a session carries, if carriesUnicast.
func familiesOf(n frrv1.Neighbor) families {
	if n.Interface != "" || n.DualStackAddressFamily {
		return families{true, true}
	}
	a, err := netip.ParseAddr(n.Address)
	return families{err == nil && a.Unmap().Is4(), err == nil && !a.Unmap().Is4()}
}

// nodeFamilies returns the IP families in which a node has an InternalIP.
func nodeFamilies(n Node) (f families) {
	for _, a := range n.InternalIPs {
		f = f.or(families{a.Is4(), !a.Is4()})
	}
	return f
}

// sessions returns the IP families that a node's sessions of the base carry, by VRF. A node of the managed fabric has
// sessions only from its InternalIPs.
func (b base) sessions(node Node) map[string]families {
	if !isManagedBase(b.FRRConfiguration) {
		return b.vrfs
	}
	out := map[string]families{}
	for vrf, f := range b.vrfs {
		out[vrf] = f.and(nodeFamilies(node))
	}
	return out
}

// gap is a VRF in which nodes have sessions, but none that carries the routes of an IP family of
// networks there.
type gap struct {
	vrf, family string
	managed     bool // all sessions are those of the managed fabric
	noOverlay   bool // some of the networks have no overlay
}

func (g gap) compare(o gap) int {
	return cmp.Or(strings.Compare(g.vrf, o.vrf), strings.Compare(g.family, o.family), cmp.Compare(g.remedy(), o.remedy()))
}

func (g gap) remedy() string {
	if g.managed {
		return fmt.Sprintf("give each node an InternalIP of %s, with kubelet's --node-ip", g.family)
	}
	return fmt.Sprintf("add a neighbor with an %s address to the selected FRRConfigurations, or set dualStackAddressFamily of one", g.family)
}

// addGaps notes the gaps of a node, which has sessions of the bases, with the families in covered by VRF.
func (r *request) addGaps(node Node, bases []base, covered map[string]families) {
	found := map[gap]bool{} // by a gap without noOverlay
	for _, n := range r.networks {
		vrf := r.vrfOf(n)
		have, ok := covered[vrf]
		if !ok {
			continue // reported as a VRF without sessions
		}
		for _, p := range n.CIDRs() {
			is4 := p.Addr().Is4()
			if is4 && have.v4 || !is4 && have.v6 {
				continue
			}
			g := gap{vrf: vrf, family: map[bool]string{true: "IPv4", false: "IPv6"}[is4], managed: !slices.ContainsFunc(bases, func(b base) bool {
				_, ok := b.vrfs[vrf]
				return ok && !isManagedBase(b.FRRConfiguration)
			})}
			found[g] = found[g] || n.Transport == network.TransportNoOverlay
		}
	}
	for g, noOverlay := range found {
		g.noOverlay = noOverlay
		r.gaps[g] = append(r.gaps[g], node.Name)
	}
}

// reportGaps adds the gaps to the condition. Pods of a network without an overlay do not reach each other on
// other nodes without routes, so that a gap there is an error. Other networks may have one IP family that
// the fabric does not know.
func (r *request) reportGaps() {
	for _, g := range slices.SortedFunc(maps.Keys(r.gaps), gap.compare) {
		nodes := r.gaps[g]
		shown := strings.Join(nodes[:min(len(nodes), mostNodes)], ", ")
		if more := len(nodes) - mostNodes; more > 0 {
			shown += fmt.Sprintf(" and %d more", more)
		}
		text := fmt.Sprintf("no neighbor in VRF %s carries %s routes on nodes %s, so that %s addresses of networks are not advertised there: %s", g.vrf, g.family, shown, g.family, g.remedy())
		if g.noOverlay {
			r.invalidf("%s", text)
		} else {
			r.warnings = append(r.warnings, text)
		}
	}
}
