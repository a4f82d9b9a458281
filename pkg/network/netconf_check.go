// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// check refuses settings that contradict one another. Networks of
// UserDefinedNetworks have passed most of it at the API; those of NADs that
// somebody wrote by hand have not. Errors name the key and the remedy.
func (n Network) check() error {
	if err := n.checkPlaces(); err != nil {
		return err
	}
	if err := n.checkNumbers(); err != nil {
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
				return fmt.Errorf("%s: %s is not inside one of subnets %s: choose a part of those", list.key, p, JoinCIDRs(n.CIDRs()))
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

// checkPlaces refuses settings on networks that have no use for them.
func (n Network) checkPlaces() error {
	primary, layer2 := n.Role == RolePrimary, n.Topology == Layer2
	for _, k := range []struct {
		key      string
		set      bool
		possible bool
		where    string
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
		if k.set && !k.possible {
			return fmt.Errorf("%s is only for %s: remove it", k.key, k.where)
		}
	}
	return nil
}

func (n Network) checkNumbers() error {
	if n.MTU != 0 && (n.MTU < 576 || n.MTU > 65536) {
		return fmt.Errorf("mtu %d is outside 576..65536: choose one inside, or remove it", n.MTU)
	}
	if _, v6 := n.Families(); n.MTU != 0 && v6 && n.MTU < 1280 {
		return fmt.Errorf("mtu %d is below 1280, which IPv6 needs: raise it, or remove the IPv6 subnet", n.MTU)
	}
	if n.VLAN < 0 || n.VLAN > 4094 {
		return fmt.Errorf("vlanID %d is outside 1..4094: choose one inside, or remove it", n.VLAN)
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
		if n.Topology != Layer3 || n.Role != RolePrimary {
			return fmt.Errorf("transport %s is only for primary networks of topology layer3: remove it", TransportNoOverlay)
		}
		if !slices.Contains([]string{"enabled", "disabled"}, n.OutboundSNAT) {
			return fmt.Errorf("outboundSNAT %q is unknown: transport %s needs enabled or disabled", n.OutboundSNAT, TransportNoOverlay)
		}
	default:
		return fmt.Errorf("transport %q is unknown: use %s, or leave it out for Geneve", n.Transport, TransportNoOverlay)
	}
	return nil
}

func (n Network) checkGateways() error {
	if len(n.DefaultGatewayIPs) == 0 {
		return nil
	}
	var hosts []netip.Prefix
	for _, gw := range n.DefaultGatewayIPs {
		i := slices.IndexFunc(n.Subnets, func(s Subnet) bool { return s.CIDR.Contains(gw) })
		if i < 0 {
			return fmt.Errorf("defaultGatewayIPs: %s is not inside one of subnets %s: choose an address of those", gw, JoinCIDRs(n.CIDRs()))
		}
		if !Usable(n.Subnets[i].CIDR, gw) {
			return fmt.Errorf("defaultGatewayIPs: %s is the first or the last address of %s, which no router can have: choose another", gw, n.Subnets[i].CIDR)
		}
		if len(n.InfrastructureSubnets) > 0 && !slices.ContainsFunc(n.InfrastructureSubnets, func(p netip.Prefix) bool { return p.Contains(gw) }) {
			return fmt.Errorf("defaultGatewayIPs: %s is not inside one of infrastructureSubnets %s: choose an address of those", gw, JoinCIDRs(n.InfrastructureSubnets))
		}
		hosts = append(hosts, netip.PrefixFrom(gw, gw.BitLen()))
	}
	if err := onePerFamily("defaultGatewayIPs", hosts); err != nil {
		return err
	}
	if len(hosts) != len(n.Subnets) {
		return errors.New("defaultGatewayIPs lacks one for one of subnets: add it")
	}
	return nil
}

// onePerFamily refuses a second prefix of an IP family.
func onePerFamily(key string, ps []netip.Prefix) error {
	for i, p := range ps {
		for _, q := range ps[:i] {
			if p.Addr().Is4() == q.Addr().Is4() {
				return fmt.Errorf("%s: %s and %s are of one IP family: keep one of them", key, q, p)
			}
		}
	}
	return nil
}

func inside(outer []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(outer, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Overlaps(p) })
}

// forFamilies is own, completed by defaults, of the IP families that are used.
func forFamilies(own, defaults []netip.Prefix, v4, v6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range own {
		if p.Addr().Is4() && v4 || !p.Addr().Is4() && v6 {
			out = append(out, p)
		}
	}
	for _, p := range defaults {
		is4 := p.Addr().Is4()
		if (is4 && v4 || !is4 && v6) && !slices.ContainsFunc(own, func(o netip.Prefix) bool { return o.Addr().Is4() == is4 }) {
			out = append(out, p)
		}
	}
	return out
}
