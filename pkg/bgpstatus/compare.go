// SPDX-License-Identifier: Apache-2.0

package bgpstatus

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Network is an advertised network.
type Network struct {
	Name      string         `json:"name"`
	VRFs      []string       `json:"vrfs"`     // FRR's names of the VRFs into which it is advertised
	Prefixes  []netip.Prefix `json:"prefixes"` // what this node announces
	Subnets   []netip.Prefix `json:"subnets"`
	NoOverlay bool           `json:"noOverlay"`
}

// VRF is what a node knows in one VRF.
type VRF struct {
	Name    string         `json:"name"`
	Own     []netip.Prefix `json:"own"`     // that FRR originates
	Learned []Route        `json:"learned"` // FRR's best routes
	Kernel  []Route        `json:"kernel"`  // those of protocol bgp
}

// Status is what a node announces and has learned.
type Status struct {
	Node     string              `json:"node"`
	Mode     network.GatewayMode `json:"gatewayMode"`
	Networks []Network           `json:"networks"`
	Sessions []Session           `json:"sessions"`
	VRFs     []VRF               `json:"vrfs"`
	// BridgeRoutes are the kernel's routes through the external bridge, which OVN's uplink router imports in
	// shared gateway mode.
	BridgeRoutes []Route `json:"bridgeRoutes,omitempty"`
	// OVN are the uplink router's routes that have been imported, in shared gateway mode.
	OVN []Route `json:"ovn,omitempty"`
	// Differences are sentences, in the order FRR, kernel, OVN: an earlier one may explain
	// the rest.
	Differences []string `json:"differences"`
}

// Compare sets Differences.
func (s *Status) Compare() {
	s.Differences = nil
	differ := func(format string, a ...any) { s.Differences = append(s.Differences, fmt.Sprintf(format, a...)) }
	for _, n := range s.Networks {
		for _, name := range n.VRFs {
			vrf := s.vrf(name)
			if !slices.ContainsFunc(s.Sessions, func(x Session) bool { return x.VRF == name }) {
				differ("network %s is advertised into VRF %s, in which FRR has no session: see the FRRConfigurations for this node", n.Name, name)
			}
			for _, p := range n.Prefixes {
				if !slices.Contains(vrf.Own, p) {
					differ("FRR does not announce %s of network %s in VRF %s: see the FRRConfigurations for this node, and the log of frr-k8s", p, n.Name, name)
				}
			}
		}
	}
	for _, x := range s.Sessions {
		switch {
		case x.State != established:
			differ("the session with %s in VRF %s is in state %s", x.Peer, x.VRF, x.State)
		case x.Sent == 0 && slices.ContainsFunc(s.vrf(x.VRF).Own, func(p netip.Prefix) bool { return p.Addr().Is4() == (x.Family == familyIPv4) }):
			differ("nothing is announced to %s in VRF %s: see `show bgp vrf %[2]s neighbors %[1]s`", x.Peer, x.VRF)
		}
	}
	for _, v := range s.VRFs {
		for _, r := range v.Learned {
			if !hasRoute(v.Kernel, r.Prefix) {
				differ("FRR has learned %s in VRF %s, and the kernel does not have the route: another route to it may come first, see `show ip route vrf %[2]s`", r.Prefix, v.Name)
			}
		}
	}
	if s.Mode == network.LocalGateway {
		return
	}
	for _, r := range s.BridgeRoutes {
		if hop := missingHop(s.OVN, r); hop.IsValid() && s.imported(r.Prefix) {
			differ("the kernel has %s via %s, and OVN's uplink router has not: see the log of the node's zone controller", r.Prefix, hop)
		}
	}
	for _, r := range s.OVN {
		if hop := missingHop(s.BridgeRoutes, r); hop.IsValid() {
			differ("OVN's uplink router has %s via %s, and the kernel has not: see the log of the node's zone controller", r.Prefix, hop)
		}
	}
}

// vrf returns the VRF of that name, empty if FRR does not have it.
func (s *Status) vrf(name string) VRF {
	for _, v := range s.VRFs {
		if v.Name == name {
			return v
		}
	}
	return VRF{Name: name}
}

// imported reports whether OVN's uplink router imports a prefix's routes. It does not import default
// routes: it has those that the kernel prefers, whoever wrote them.
func (s *Status) imported(p netip.Prefix) bool { return p.Bits() > 0 && !s.overlay(p) }

// overlay reports whether a prefix belongs to a network whose pods are reached by its overlay, so
// that its routes are not imported.
func (s *Status) overlay(p netip.Prefix) bool {
	return slices.ContainsFunc(s.Networks, func(n Network) bool {
		return !n.NoOverlay && slices.ContainsFunc(n.Subnets, func(x netip.Prefix) bool { return x.Bits() <= p.Bits() && x.Overlaps(p) })
	})
}

func hasRoute(list []Route, p netip.Prefix) bool {
	return slices.ContainsFunc(list, func(r Route) bool { return r.Prefix == p })
}

// missingHop returns a next hop of a route that the list lacks; it is invalid if there is none.
func missingHop(list []Route, r Route) netip.Addr {
	for _, hop := range r.NextHops {
		if !slices.ContainsFunc(list, func(x Route) bool { return x.Prefix == r.Prefix && slices.Contains(x.NextHops, hop) }) {
			return hop
		}
	}
	return netip.Addr{}
}

// names joins what a table's cell lists.
func names[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = x.String()
	}
	return cmp.Or(strings.Join(out, ","), "-")
}
