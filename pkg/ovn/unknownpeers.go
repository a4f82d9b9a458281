// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"slices"
	"strconv"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// unknownPeerRows returns the rows of have, not in want, of peers that lack facts:
// they are kept unless another node now has the peer's tunnel key.
func unknownPeerRows(j job, want, have State) State {
	if len(j.unknown) == 0 {
		return nil
	}
	wanted, keys := map[string]struct{}{}, map[string]struct{}{strconv.Itoa(j.node.ID): {}}
	for _, r := range want {
		wanted[r.ID] = struct{}{}
	}
	for _, p := range j.in.Peers {
		keys[strconv.Itoa(p.ID)] = struct{}{}
	}
	taken := map[string]struct{}{} // peers
	kept := slices.DeleteFunc(slices.Clone(have), func(r Row) bool {
		_, u := parseUnitMark(r.Unit)
		if _, ok := keys[peerID(r)]; ok && u.Kind == KindPeer {
			taken[u.Name] = struct{}{}
		}
		_, isUnknown := j.unknown[u.Name]
		_, isWanted := wanted[r.ID]
		return u.Kind != KindPeer || !isUnknown || isWanted
	})
	return slices.DeleteFunc(kept, func(r Row) bool {
		_, u := parseUnitMark(r.Unit)
		_, ok := taken[u.Name]
		return ok
	})
}

// unknownPeerChassis is unknownPeerRows for chassis: a chassis is kept unless
// another node, or this one, now has its name or an address of it.
func unknownPeerChassis(node network.Node, want, have []Chassis, unknown map[string]struct{}) []Chassis {
	names, ips := map[string]struct{}{}, map[netip.Addr]struct{}{}
	for _, c := range slices.Concat(want, []Chassis{{Name: node.Chassis, EncapIPs: node.EncapIPs}}) {
		names[c.Name] = struct{}{}
		for _, ip := range c.EncapIPs {
			ips[ip] = struct{}{}
		}
	}
	var out []Chassis
	for _, c := range have {
		_, isUnknown := unknown[c.Node]
		_, known := names[c.Name]
		taken := slices.ContainsFunc(c.EncapIPs, func(ip netip.Addr) bool { _, ok := ips[ip]; return ok })
		if isUnknown && !known && !taken {
			out = append(out, c)
		}
	}
	return out
}

// peerID returns the node id that a peer's port implies by its tunnel key, "" for
// other rows.
func peerID(r Row) string {
	switch m := r.Model.(type) {
	case *nbdb.LogicalSwitchPort:
		return m.Options["requested-tnl-key"]
	case *nbdb.LogicalRouterPort:
		if key, err := strconv.Atoi(m.Options["requested-tnl-key"]); err == nil {
			return strconv.Itoa(key - transitGatewayKey)
		}
	}
	return ""
}
