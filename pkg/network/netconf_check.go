// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// check refuses contradictory settings. The API server checks most of them for
// UserDefinedNetworks, but not for hand-written NADs. Errors name the key and
// the remedy.
func (n Network) check() error {
	if err := n.checkApplicable(); err != nil {
		return err
	}
	if err := n.checkRanges(); err != nil {
		return err
	}
	if err := checkAssignable("subnets", n.CIDRs()); err != nil {
		return err
	}
	if err := checkAssignable("joinSubnet", n.JoinSubnets); err != nil {
		return err
	}
	if err := n.checkTransport(); err != nil {
		return err
	}
	if n.Topology != Layer3 {
		if err := onePerFamily("subnets", n.CIDRs()); err != nil {
			return fmt.Errorf("%w: topology %s takes one IPv4 and one IPv6 CIDR", err, n.Topology)
		}
	}
	if n.Topology == Layer2 && n.Role == RolePrimary {
		for _, s := range n.Subnets {
			if s.CIDR.Addr().BitLen()-s.CIDR.Bits() < 2 {
				return fmt.Errorf("subnets: %s has no room for a gateway, the nodes and a pod: use a shorter prefix", s.CIDR)
			}
		}
	}
	if err := onePerFamily("joinSubnet", n.JoinSubnets); err != nil {
		return err
	}
	if err := onePerFamily("transitSubnet", n.Transit); err != nil {
		return err
	}
	for _, list := range []struct {
		key   string
		parts []netip.Prefix
	}{{"excludeSubnets", n.ExcludeSubnets}, {"reservedSubnets", n.ReservedSubnets}, {"infrastructureSubnets", n.InfrastructureSubnets}} {
		for _, p := range list.parts {
			if !inside(n.CIDRs(), p) {
				return fmt.Errorf("%s: %s is not inside one of subnets %s: choose a range inside", list.key, p, JoinCIDRs(n.CIDRs()))
			}
		}
	}
	for _, i := range n.InfrastructureSubnets {
		for _, r := range n.ReservedSubnets {
			if i.Overlaps(r) {
				return fmt.Errorf("infrastructureSubnets: %s overlaps %s of reservedSubnets: choose another range for one of them", i, r)
			}
		}
	}
	if err := n.checkGateways(); err != nil {
		return err
	}
	if strings.ContainsAny(n.PhysicalNetworkName, ",:") {
		return fmt.Errorf("physicalNetworkName: %q cannot contain , or : characters: choose another name, in the nodes' bridge mappings too", n.PhysicalNetworkName)
	}
	return nil
}

// checkApplicable refuses settings that do not apply to the network's topology
// or role.
func (n Network) checkApplicable() error {
	primary, layer2 := n.Role == RolePrimary, n.Topology == Layer2
	for _, k := range []struct {
		key        string
		set        bool
		applicable bool
		where      string
	}{
		{"joinSubnet", len(n.JoinSubnets) > 0, primary, "primary networks"},
		{"reservedSubnets", len(n.ReservedSubnets) > 0, primary && layer2, "primary networks of topology layer2"},
		{"infrastructureSubnets", len(n.InfrastructureSubnets) > 0, primary && layer2, "primary networks of topology layer2"},
		{"defaultGatewayIPs", len(n.DefaultGatewayIPs) > 0, primary && layer2, "primary networks of topology layer2"},
		{"vlanID", n.VLAN != 0, n.Topology == Localnet, "topology localnet"},
		{"physicalNetworkName", n.PhysicalNetworkName != "", n.Topology == Localnet, "topology localnet"},
		{"allowPersistentIPs", n.PersistentIPs, n.Topology != Layer3, "topologies layer2 and localnet"},
		{"excludeSubnets", len(n.ExcludeSubnets) > 0, len(n.Subnets) > 0, "networks with subnets"},
		{"allowPersistentIPs", n.PersistentIPs, len(n.Subnets) > 0, "networks with subnets"},
	} {
		if k.set && !k.applicable {
			return fmt.Errorf("%s is only for %s: remove it", k.key, k.where)
		}
	}
	return nil
}

func (n Network) checkRanges() error {
	if n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU) {
		return fmt.Errorf("mtu %d is outside %d..%d: choose a value inside, or remove it", n.MTU, minMTU, maxMTU)
	}
	if _, v6 := n.Families(); n.MTU != 0 && v6 && n.MTU < 1280 {
		return fmt.Errorf("mtu %d is below 1280, the minimum for IPv6: raise it, or remove the IPv6 subnet", n.MTU)
	}
	if n.VLAN < 0 || n.VLAN > 4094 {
		return fmt.Errorf("vlanID %d is outside 1..4094: choose a value inside, or remove it", n.VLAN)
	}
	return nil
}

// unassignable are ranges with addresses that nodes and routers cannot have on an interface, or do not
// forward: a network with some of them fails on every node.
var unassignable = []struct {
	prefix    netip.Prefix
	kind, why string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified", "no interface can have"},
	{netip.MustParsePrefix("::/128"), "unspecified", "no interface can have"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", "every host has for itself"},
	{netip.MustParsePrefix("::1/128"), "loopback", "every host has for itself"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local", "are for a single link, and which nodes use themselves (masquerade-subnets)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local", "are for a single link"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", "no interface can have"},
	{netip.MustParsePrefix("ff00::/8"), "multicast", "no interface can have"},
}

// checkAssignable refuses ranges with unassignable addresses.
func checkAssignable(key string, list []netip.Prefix) error {
	for _, p := range list {
		for _, s := range unassignable {
			if p.Overlaps(s.prefix) {
				return fmt.Errorf("%s: %s contains %s addresses (%s), which %s: choose another range", key, p, s.kind, s.prefix, s.why)
			}
		}
	}
	return nil
}

func (n Network) checkTransport() error {
	switch n.Transport {
	case "":
		if n.OutboundSNAT != "" {
			return fmt.Errorf("outboundSNAT is only for transport %s: remove it", TransportNoOverlay)
		}
	case TransportNoOverlay:
		// Its packets leave OVN as they are, so it takes an administrator. A tenant cannot
		// have a network with such a name.
		if _, ok := CutCUDN(n.Name); !ok {
			return fmt.Errorf("transport %s is only for ClusterUserDefinedNetworks: remove it", TransportNoOverlay)
		}
		if n.Topology != Layer3 || n.Role != RolePrimary {
			return fmt.Errorf("transport %s is only for primary networks of topology layer3: remove it", TransportNoOverlay)
		}
		if !slices.Contains([]string{"enabled", "disabled"}, n.OutboundSNAT) {
			return fmt.Errorf("outboundSNAT %q is unknown: transport %s needs enabled or disabled", n.OutboundSNAT, TransportNoOverlay)
		}
	default:
		return fmt.Errorf("transport %q is unknown: remove it for Geneve", n.Transport)
	}
	return nil
}

func (n Network) checkGateways() error {
	if len(n.DefaultGatewayIPs) == 0 {
		return nil
	}
	for _, gw := range n.DefaultGatewayIPs {
		i := slices.IndexFunc(n.Subnets, func(s Subnet) bool { return s.CIDR.Contains(gw) })
		if i < 0 {
			return fmt.Errorf("defaultGatewayIPs: %s is not inside one of subnets %s: choose an address inside", gw, JoinCIDRs(n.CIDRs()))
		}
		if !Usable(n.Subnets[i].CIDR, gw) {
			return fmt.Errorf("defaultGatewayIPs: %s is the first or the last address of %s, which is not usable: choose another address", gw, n.Subnets[i].CIDR)
		}
		if len(n.InfrastructureSubnets) > 0 && !slices.ContainsFunc(n.InfrastructureSubnets, func(p netip.Prefix) bool { return p.Contains(gw) }) {
			return fmt.Errorf("defaultGatewayIPs: %s is not inside one of infrastructureSubnets %s: choose an address inside", gw, JoinCIDRs(n.InfrastructureSubnets))
		}
	}
	if err := onePerFamily("defaultGatewayIPs", n.DefaultGatewayIPs); err != nil {
		return err
	}
	if len(n.DefaultGatewayIPs) != len(n.Subnets) {
		return errors.New("defaultGatewayIPs has no address in one of subnets: add one")
	}
	return nil
}

// onePerFamily refuses two items of the same IP family.
func onePerFamily[T IP](key string, list []T) error {
	if first, second, ok := DuplicateFamily(list); ok {
		return fmt.Errorf("%s: %v and %v have the same IP family: keep one of them", key, first, second)
	}
	return nil
}

func inside(outer []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(outer, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Overlaps(p) })
}

// withDefaults returns the prefixes of own, and the default for each IP family
// that own lacks, of the selected IP families.
func withDefaults(own, defaults []netip.Prefix, v4, v6 bool) []netip.Prefix {
	out := FilterFamilies(own, v4, v6)
	for _, p := range FilterFamilies(defaults, v4, v6) {
		if _, ok := FirstOfFamily(own, p); !ok {
			out = append(out, p)
		}
	}
	return out
}
