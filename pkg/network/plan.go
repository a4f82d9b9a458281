// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// Validate checks that the plan has room for MaxID networks and MaxNodeID nodes,
// and that no two of its parts overlap. Errors name the configuration keys.
func (p Plan) Validate() error {
	parts := p.parts()
	for i, a := range parts {
		if a.prefix != a.prefix.Masked() {
			return fmt.Errorf("%s %s has host bits set: write %s", a.name, a.prefix, a.prefix.Masked())
		}
		for _, b := range parts[i+1:] {
			if a.prefix.Overlaps(b.prefix) {
				return fmt.Errorf("%s %s overlaps %s %s: choose another range for one of them", a.name, a.prefix, b.name, b.prefix)
			}
		}
	}
	for _, s := range p.ClusterSubnets {
		if err := s.Validate(Layer3); err != nil {
			return fmt.Errorf("cluster-subnets: %w", err)
		}
	}
	if len(p.ClusterSubnets) == 0 {
		return fmt.Errorf("cluster-subnets is empty: set at least one CIDR")
	}
	for _, list := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"join-subnets", p.Join}, {"udn-join-subnets", p.UDNJoin}, {"transit-subnets", p.Transit}, {"masquerade-subnets", p.Masquerade}} {
		for _, s := range p.ClusterSubnets {
			if !slices.ContainsFunc(list.prefixes, func(o netip.Prefix) bool { return SameFamily(o, s.CIDR) }) {
				return fmt.Errorf("%s has no CIDR of the IP family of cluster-subnets %s: add one", list.name, s.CIDR)
			}
		}
	}
	for _, m := range p.Masquerade {
		if size(m).Cmp(big.NewInt(masqueradeOffset+2*MaxID+1)) < 0 {
			return fmt.Errorf("masquerade-subnets %s is too small for %d networks: use a prefix of length %d or shorter", m, MaxID, m.Addr().BitLen()-15)
		}
	}
	for _, set := range []struct {
		name     string
		prefixes []netip.Prefix
		min      *big.Int
	}{{"join-subnets", p.Join, maxNodes}, {"udn-join-subnets", p.UDNJoin, maxNodes}, {"transit-subnets", p.Transit, maxTransit}} {
		for _, j := range set.prefixes {
			if size(j).Cmp(set.min) < 0 {
				return fmt.Errorf("%s %s is too small for %d nodes: use a prefix of length %d or shorter", set.name, j, MaxNodeID, longestPrefix(j, set.min))
			}
		}
	}
	if p.VRFTableBase <= MasqueradeTable && AdvertisedTable <= p.VRFTableBase+MaxID {
		return fmt.Errorf("vrf-table-base %d gives networks the tables %d and %d, which all networks share: set it below %d or above these tables", p.VRFTableBase, AdvertisedTable, MasqueradeTable, AdvertisedTable-MaxID)
	}
	if p.VRFTableBase < 256 || p.VRFTableBase > 1<<31-1-MaxID {
		return fmt.Errorf("vrf-table-base %d is outside 256..%d: tables below 256 belong to the kernel and to routing daemons", p.VRFTableBase, 1<<31-1-MaxID)
	}
	if p.UnderlayMTU < minMTU+GeneveOverhead || p.UnderlayMTU > maxMTU {
		return fmt.Errorf("underlay-mtu %d is outside %d..%d", p.UnderlayMTU, minMTU+GeneveOverhead, maxMTU)
	}
	if p.ClusterMTU < minMTU {
		return fmt.Errorf("mtu %d is outside %d..%d", p.ClusterMTU, minMTU, maxMTU)
	}
	if p.ClusterMTU > p.UnderlayMTU-GeneveOverhead {
		return fmt.Errorf("mtu %d with the %d bytes that Geneve adds is more than underlay-mtu %d: remove mtu, or set underlay-mtu to the MTU of the nodes' links", p.ClusterMTU, GeneveOverhead, p.UnderlayMTU)
	}
	return nil
}

const minMTU, maxMTU = 576, 65536

// GeneveOverhead is what Geneve adds to a packet at most, in bytes: 58 with IPv4 between nodes, 78
// with IPv6, and room for options.
const GeneveOverhead = 100

// CheckMTU returns an error if the network between nodes does not carry n's packets. A Localnet
// network's depend on its physical network, which the plan does not know. It is for new
// networks: one that exists when underlay-mtu is lowered keeps working.
func (p Plan) CheckMTU(n Network) error {
	limit, less := p.UnderlayMTU, ""
	switch {
	case n.Topology == Localnet:
		return nil
	case n.Transport != TransportNoOverlay:
		limit, less = limit-GeneveOverhead, fmt.Sprintf(", less %d bytes for Geneve", GeneveOverhead)
	}
	if n.MTU > limit {
		return fmt.Errorf("mtu %d is more than %d, which the nodes' network carries (underlay-mtu of the configuration%s): choose a lower value, or remove it", n.MTU, limit, less)
	}
	return nil
}

type planPart struct {
	name   string
	prefix netip.Prefix
}

func (p Plan) parts() []planPart {
	var out []planPart
	for _, s := range p.ClusterSubnets {
		out = append(out, planPart{"cluster-subnets", s.CIDR})
	}
	add := func(name string, ps []netip.Prefix) {
		for _, x := range ps {
			out = append(out, planPart{name, x})
		}
	}
	add("service-cidrs", p.ServiceCIDRs)
	add("join-subnets", p.Join)
	add("transit-subnets", p.Transit)
	add("masquerade-subnets", p.Masquerade)
	add("udn-join-subnets", p.UDNJoin)
	return out
}

// Conflict returns an error if a subnet of n overlaps one of the cluster's
// subnets or another subnet of n. Transit subnets of different networks may
// overlap, because they are used inside OVN only.
func (p Plan) Conflict(n Network) error {
	check := func(field string, own netip.Prefix, parts []planPart) error {
		for _, c := range parts {
			if own.Overlaps(c.prefix) {
				return fmt.Errorf("%s %s of network %s overlaps the cluster's %s %s: choose another range", field, own, n.Name, c.name, c.prefix)
			}
		}
		return nil
	}
	var reserved []planPart
	for _, c := range p.parts() {
		if c.name != "udn-join-subnets" { // the network's own join subnets are checked below
			reserved = append(reserved, c)
		}
	}
	for _, s := range n.Subnets {
		if err := check("subnet", s.CIDR, reserved); err != nil {
			return err
		}
		for _, j := range n.JoinSubnets {
			if s.CIDR.Overlaps(j) {
				return fmt.Errorf("subnet %s of network %s overlaps its join subnet %s: choose another range for one of them", s.CIDR, n.Name, j)
			}
		}
		for _, t := range n.Transit {
			if s.CIDR.Overlaps(t) {
				return fmt.Errorf("subnet %s of network %s overlaps its transit subnet %s: choose another range for one of them", s.CIDR, n.Name, t)
			}
		}
	}
	for _, j := range n.JoinSubnets {
		if err := check("join subnet", j, reserved); err != nil {
			return err
		}
		for _, t := range n.Transit {
			if j.Overlaps(t) {
				return fmt.Errorf("join subnet %s of network %s overlaps its transit subnet %s: choose another range for one of them", j, n.Name, t)
			}
		}
	}
	return nil
}

// Validate checks one subnet: its CIDR must have no host bits set, and a host
// subnet must have room for a gateway, a management port and a pod.
func (s Subnet) Validate(t Topology) error {
	if !s.CIDR.IsValid() {
		return fmt.Errorf("subnet is empty")
	}
	if s.CIDR != s.CIDR.Masked() {
		return fmt.Errorf("subnet %s has host bits set: write %s", s.CIDR, s.CIDR.Masked())
	}
	if t != Layer3 {
		if s.HostLen != 0 {
			return fmt.Errorf("subnet %s: a host subnet length is only for topology layer3: remove it", s)
		}
		return nil
	}
	limit := s.CIDR.Addr().BitLen() - 2
	if s.HostLen < s.CIDR.Bits() || s.HostLen > limit {
		return fmt.Errorf("subnet %s: the host subnet length must be between %d and %d", s, s.CIDR.Bits(), limit)
	}
	return nil
}

// DefaultHostLen is the default host subnet length of a CIDR: /24 for IPv4 and
// /64 for IPv6. A smaller CIDR is a single host subnet.
func DefaultHostLen(cidr netip.Prefix) int {
	want := 64
	if cidr.Addr().Is4() {
		want = 24
	}
	return max(want, cidr.Bits())
}

// maxNodes and maxTransit are the sizes of join subnets and transit subnets that
// have room for MaxNodeID nodes. On Layer 2 a node has two transit addresses.
var (
	maxNodes   = big.NewInt(MaxNodeID + 2)
	maxTransit = big.NewInt(2*MaxNodeID + 2)
)

func size(p netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
}

// longestPrefix returns the length of the longest prefix of p's IP family with min addresses.
func longestPrefix(p netip.Prefix, min *big.Int) int {
	return p.Addr().BitLen() - new(big.Int).Sub(min, big.NewInt(1)).BitLen()
}
