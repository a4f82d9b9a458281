// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/config"
	"bulkhead/pkg/netdump"
	"bulkhead/pkg/network"
)

// BridgeLink is the external bridge's link in the kernel.
type BridgeLink struct {
	MAC       string
	MTU       int
	Addresses []LinkAddress
	NextHops  []netip.Addr // of default routes via the bridge, best first
}

// LinkAddress is an address of a link.
type LinkAddress struct {
	Prefix netip.Prefix
	// Transient: the kernel may delete the address at any time (deprecated,
	// temporary) or does not use it yet (tentative).
	Transient bool
	// Leased: it is valid for a limited time, as those that a DHCP server or a router assigns.
	Leased bool
}

// Facts are what the agent finds out about its node. Other nodes read the Node alone.
type Facts struct {
	network.Node
	// Floating are the external bridge's other addresses, which keepalived and similar programs
	// move between nodes. Elsewhere are the addresses of other interfaces, without Bulkhead's own.
	Floating, Elsewhere []netip.Addr
}

// Has reports whether an address is the node's, on any interface.
func (f Facts) Has(a netip.Addr) bool {
	return f.HasAddress(a) || slices.Contains(f.Floating, a) || slices.Contains(f.Elsewhere, a)
}

// floating returns the usable addresses of the bridge that are not among the node's.
func floating(n network.Node, plan network.Plan, link BridgeLink) (out []netip.Addr) {
	for _, a := range link.Addresses {
		if isUsable(a.Prefix.Addr(), plan) && !slices.Contains(n.Addresses, a.Prefix) {
			out = append(out, a.Prefix.Addr())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// BuildNode returns the node as the agent reports it: name, chassis, geneve
// addresses, external bridge and next hops. elsewhere are the addresses of its other interfaces. The cluster controller
// assigns the ID.
func BuildNode(name, chassis string, c config.OVS, plan network.Plan, link BridgeLink, elsewhere []netip.Addr) (network.Node, error) {
	n := network.Node{Name: name, Chassis: chassis, Bridge: c.ExternalBridge, BridgeMAC: link.MAC, MTU: link.MTU, Mode: c.GatewayMode,
		NextHops: link.NextHops}
	for _, a := range link.Addresses {
		if a.Transient || !isUsable(a.Prefix.Addr(), plan) || isFloating(a, link.Addresses) {
			continue
		}
		n.Addresses = append(n.Addresses, a.Prefix)
	}
	if len(n.Addresses) == 0 {
		return n, fmt.Errorf("external bridge %s has no usable address: move the node's address from the uplink to the bridge", c.ExternalBridge)
	}
	if len(c.Encap) == 0 {
		n.EncapIPs = encapOf(n.Addresses)
		return n, nil
	}
	own := slices.Clone(elsewhere)
	for _, a := range n.Addresses {
		own = append(own, a.Addr())
	}
	slices.SortFunc(own, netip.Addr.Compare)
	for _, p := range c.Encap {
		for _, a := range own {
			if p.Contains(a) && !slices.Contains(n.EncapIPs, a) {
				n.EncapIPs = append(n.EncapIPs, a)
			}
		}
	}
	if len(n.EncapIPs) == 0 {
		return n, fmt.Errorf("the node has no address in %v: correct [ovs] encap-ips, or give the node an address there", c.Encap)
	}
	return n, nil
}

// encapOf returns the tunnel address of a node for which none is configured: its first IPv4 address, or its first.
func encapOf(addresses []netip.Prefix) []netip.Addr {
	byFamily := slices.Concat(network.FilterFamilies(addresses, true, false), network.FilterFamilies(addresses, false, true))
	if len(byFamily) == 0 {
		return nil
	}
	return []netip.Addr{byFamily[0].Addr()}
}

// KeepOrder returns the node with its addresses in order. In an IP family without a default route, the address that was
// the first at the last read stays the first. With a default route the kernel's preference counts. Without KeepOrder the
// tunnels and the networks' way out would get other addresses while a router is away. The tunnel address does not follow
// the kernel's preference: other nodes' tunnels would break until they have read it.
func KeepOrder(n, last network.Node, c config.OVS) network.Node {
	for _, first := range last.Addresses {
		inFamily := func(p netip.Prefix) bool { return network.SameFamily(p, first) }
		from, to := slices.Index(n.Addresses, first), slices.IndexFunc(n.Addresses, inFamily)
		if from < 0 || last.Addresses[slices.IndexFunc(last.Addresses, inFamily)] != first ||
			slices.ContainsFunc(n.NextHops, func(a netip.Addr) bool { return network.SameFamily(a, first) }) {
			continue
		}
		n.Addresses = slices.Insert(slices.Delete(slices.Clone(n.Addresses), from, from+1), to, first)
	}
	if len(c.Encap) == 0 {
		n.EncapIPs = keepEncap(encapOf(n.Addresses), n, last)
	}
	return n
}

// keepEncap returns the last tunnel address if the node still has it, or else those given. One of the other IP family is not
// kept: a node that gets its IPv4 address late would have no tunnels to nodes with theirs.
func keepEncap(given []netip.Addr, n, last network.Node) []netip.Addr {
	for _, a := range last.EncapIPs {
		if n.HasAddress(a) && len(given) > 0 && network.SameFamily(a, given[0]) {
			return []netip.Addr{a}
		}
	}
	return given
}

// isUsable reports whether an address is valid outside the node. Link-local
// addresses and our masquerade addresses on the bridge are not.
func isUsable(a netip.Addr, plan network.Plan) bool {
	if !a.IsGlobalUnicast() {
		return false
	}
	return !slices.ContainsFunc(plan.Masquerade, func(m netip.Prefix) bool { return m.Contains(a) })
}

// isFloating reports whether an address is a floating address, which keepalived
// and similar programs add as /32 or /128 and move between nodes. It is not one
// if it is leased, as DHCPv6 addresses are (RFC 8415), or if the bridge has no address with a subnet in that
// IP family.
func isFloating(a LinkAddress, all []LinkAddress) bool {
	p := a.Prefix
	return p.IsSingleIP() && !a.Leased && slices.ContainsFunc(all, func(o LinkAddress) bool {
		return network.SameFamily(o.Prefix, p) && !o.Prefix.IsSingleIP() && o.Prefix.Addr().IsGlobalUnicast()
	})
}

// readBridgeLink reads the bridge's link from the kernel.
func readBridgeLink(bridge string) (BridgeLink, error) {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return BridgeLink{}, fmt.Errorf("external bridge %s: %w", bridge, err)
	}
	out := BridgeLink{MAC: link.Attrs().HardwareAddr.String(), MTU: link.Attrs().MTU}
	addrs, err := netdump.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return out, fmt.Errorf("list addresses of %s: %w", bridge, err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if !ok {
			continue
		}
		out.Addresses = append(out.Addresses, LinkAddress{Prefix: netip.PrefixFrom(ip.Unmap(), bits),
			Leased: a.ValidLft > 0 && a.ValidLft < math.MaxUint32,
			Transient: a.Flags&(unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 ||
				a.Flags&unix.IFA_F_TEMPORARY != 0 && ip.Is6() && !ip.Is4In6()})
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := readDefaultRoutes(family)
		if err != nil {
			return out, fmt.Errorf("list default routes: %w", err)
		}
		failed, err := failedNeighbours(routes, link.Attrs().Index)
		if err != nil {
			return out, fmt.Errorf("find which routers on %s answer: %w", bridge, err)
		}
		hops, source := nextHops(routes, link.Attrs().Index, failed)
		out.NextHops = append(out.NextHops, hops...)
		if len(hops) > 0 && !source.IsValid() {
			source = sourceTo(family, hops[0], link.Attrs().Index)
		}
		out.Addresses = preferred(out.Addresses, source)
	}
	return out, nil
}

// readElsewhere reads the addresses of other interfaces than the external bridge and Bulkhead's own:
// management ports and what is in a VRF.
func readElsewhere(bridge string, plan network.Plan) ([]netip.Addr, error) {
	links, err := netdump.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	vrfs, skip := map[int]bool{}, map[int]bool{}
	for _, l := range links {
		vrfs[l.Attrs().Index] = l.Type() == "vrf"
	}
	for _, l := range links {
		a := l.Attrs()
		skip[a.Index] = a.Name == bridge || strings.HasPrefix(a.Name, network.ManagementPrefix) || vrfs[a.Index] || vrfs[a.MasterIndex]
	}
	addrs, err := netdump.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && !skip[a.LinkIndex] && isUsable(ip.Unmap(), plan) {
			out = append(out, ip.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// ReadNode returns the facts of this machine. With an error they may be incomplete.
func (c *Client) ReadNode(ctx context.Context, name string, conf config.OVS, plan network.Plan) (Facts, error) {
	ids, err := c.ExternalIDs(ctx)
	if err != nil {
		return Facts{Node: network.Node{Name: name}}, err
	}
	link, linkErr := readBridgeLink(conf.ExternalBridge)
	elsewhere, elsewhereErr := readElsewhere(conf.ExternalBridge, plan)
	node, buildErr := BuildNode(name, ChassisID(name, ids), conf, plan, link, elsewhere)
	facts := Facts{Node: node, Floating: floating(node, plan, link), Elsewhere: elsewhere}
	if linkErr != nil {
		return facts, linkErr // the cause of a node without an address
	}
	return facts, errors.Join(elsewhereErr, buildErr)
}
