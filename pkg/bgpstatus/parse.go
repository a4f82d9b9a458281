// SPDX-License-Identifier: Apache-2.0

// Package bgpstatus compares what a node should announce and has learned by BGP, from FRR over
// the kernel to OVN, and names what differs.
package bgpstatus

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"bulkhead/pkg/routeimport"
)

// Session is a BGP session of one VRF and IP family.
type Session struct {
	VRF      string `json:"vrf"`
	Peer     string `json:"peer"`   // address or interface
	Family   string `json:"family"` // of the prefixes: ipv4 or ipv6
	State    string `json:"state"`
	Uptime   string `json:"uptime"`
	Received int    `json:"received"` // prefixes
	Sent     int    `json:"sent"`
}

const familyIPv4, familyIPv6 = "ipv4", "ipv6"

// established is FRR's name of a session's state that is up (RFC 4271).
const established = "Established"

// Route is a route with its next hops.
type Route = routeimport.Route

// ParseSummary parses the output of FRR's `show bgp vrf all summary json`. A peer that carries
// both IP families has a session of each. Peers without negotiated family are left out.
func ParseSummary(raw []byte) ([]Session, error) {
	// VRF → IP family → summary; the VRF's object has members of other kinds too.
	var vrfs map[string]map[string]json.RawMessage
	if err := json.Unmarshal(raw, &vrfs); err != nil {
		return nil, fmt.Errorf("parse FRR's summary: %w", err)
	}
	var out []Session
	for vrf, members := range vrfs {
		for _, family := range []string{familyIPv4, familyIPv6} {
			var summary struct {
				Peers map[string]struct {
					State, PeerUptime string
					PfxRcd, PfxSnt    int
				}
			}
			summaryOf := members[family+"Unicast"]
			if summaryOf == nil {
				continue
			}
			if err := json.Unmarshal(summaryOf, &summary); err != nil {
				return nil, fmt.Errorf("parse FRR's summary of VRF %s: %w", vrf, err)
			}
			for peer, p := range summary.Peers {
				if p.State == "NoNeg" {
					continue
				}
				out = append(out, Session{VRF: vrf, Peer: peer, Family: family, State: p.State, Uptime: p.PeerUptime, Received: p.PfxRcd, Sent: p.PfxSnt})
			}
		}
	}
	slices.SortFunc(out, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.VRF, b.VRF), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Family, b.Family))
	})
	return out, nil
}

// ParseRoutes parses the output of FRR's `show bgp vrf NAME FAMILY unicast json`: the best paths.
// own are the prefixes that FRR originates.
func ParseRoutes(raw []byte) (own []netip.Prefix, learned []Route, err error) {
	var table struct {
		Routes map[string][]struct {
			Bestpath, Multipath bool
			Nexthops            []struct {
				IP   string
				Used bool
			}
		}
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		return nil, nil, fmt.Errorf("parse FRR's routes: %w", err)
	}
	for text, paths := range table.Routes {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, nil, fmt.Errorf("parse FRR's routes: %w", err)
		}
		r := Route{Prefix: prefix}
		best := false
		for _, p := range paths {
			if !p.Bestpath && !p.Multipath {
				continue
			}
			best = true
			for _, hop := range p.Nexthops {
				if a, err := netip.ParseAddr(hop.IP); err == nil && hop.Used && !a.IsUnspecified() {
					r.NextHops = append(r.NextHops, a)
				}
			}
		}
		switch {
		case !best:
		case len(r.NextHops) == 0:
			own = append(own, prefix)
		default:
			slices.SortFunc(r.NextHops, netip.Addr.Compare)
			learned = append(learned, r)
		}
	}
	slices.SortFunc(own, netip.Prefix.Compare)
	slices.SortFunc(learned, func(a, b Route) int { return a.Prefix.Compare(b.Prefix) })
	return own, learned, nil
}
