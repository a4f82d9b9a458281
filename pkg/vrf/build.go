// SPDX-License-Identifier: Apache-2.0

// Package vrf keeps the kernel's side of a network on this node: the VRF
// device, the management port inside it, routes, policy rules and per-device
// sysctls, over netlink.
//
// What is ours is a query: routes and rules carry Protocol, VRF devices carry
// Group and an alias that names the network. Anything else is never touched.
// The management port itself belongs to pkg/ovs, which creates and deletes it;
// until it is there, State.Absent names it and Diff leaves out what needs it.
package vrf

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"bulkhead/pkg/network"
)

const (
	// Protocol is the owner mark on our routes (rtm_protocol) and rules
	// (FRA_PROTOCOL).
	Protocol = 86
	// Group is the owner mark on our VRF devices. Unlike the alias, the kernel
	// sets it in the very step that creates the device, so that a crash leaves
	// no device without it.
	Group = 0xb01d
	// AliasPrefix stands before the network's name in a VRF device's alias.
	AliasPrefix = "bulkhead:"
	// MarkPriority and ToPriority stand behind the kernel's own l3mdev rule
	// (1000). The mark decides first: a tenant's process that sends to another
	// network's masquerade address must not be routed by that network's table.
	MarkPriority = 2000
	ToPriority   = 2001
	// RouteMetric leaves room below it for routes learned from BGP (20), which
	// are to win over the node's own default route.
	RouteMetric = 1024
	// UnreachableMetric is the worst a route can have: it decides only when
	// nothing else matches, and then lets nothing fall through to the main table.
	UnreachableMetric = 4278198272
	// MainTable holds the cluster default network's routes.
	MainTable = 254
)

// Inputs are the facts, beside the network and the node, that decide what
// should be.
type Inputs struct {
	Plan network.Plan
	// IPv6 tells whether this kernel has IPv6. Where it has, a network without
	// IPv6 subnets still gets the IPv6 rule and unreachable default, or its
	// tenant's IPv6 packets would take the main table.
	IPv6 bool
	// Foreign are names that a VRF could have had but a link that is not ours
	// has taken: State.Foreign of what was read.
	Foreign []string
	// Devices are the VRF devices the network has now: State.Devices of what
	// was read. One under the fallback name is kept, not renamed.
	Devices []Device
}

// Build is what the node's kernel should hold for net.
func Build(net network.Network, node network.Node, in Inputs) (State, error) {
	hosts, err := net.HostSubnets(node.ID)
	if err != nil {
		return State{}, fmt.Errorf("network %s: %w", net.Name, err)
	}
	st := State{ID: net.ID, Network: net.Name}
	st.Port = Port{Name: net.ManagementPort(), MTU: net.MTU, Up: true}
	for _, h := range hosts {
		st.Port.Addrs = append(st.Port.Addrs, network.Management(h))
	}
	st.Sysctls = portSysctls(st.Port.Name, in.IPv6)
	table := MainTable
	if !net.IsDefault() {
		name, err := deviceName(net, in)
		if err != nil {
			return State{}, err
		}
		table = in.Plan.VRFTable(net)
		st.Devices = []Device{{Name: name, Table: table, Alias: AliasPrefix + net.Name, Up: true}}
		st.Port.Master = name
		st.Sysctls = append(st.Sysctls, deviceSysctls(name)...)
		st.Rules = rules(net, in, table)
		st.Routes = denied(in, table)
		st.Routes = append(st.Routes, outward(net, node, table)...)
	}
	for _, h := range hosts {
		gw := network.Gateway(h).Addr()
		for _, c := range podCIDRs(net, node) {
			// Where the whole CIDR is this node's, the address brings the route.
			if c.Addr().Is4() == gw.Is4() && c != h.Masked() {
				st.Routes = append(st.Routes, Route{Table: table, Dst: c, Via: gw, Dev: st.Port.Name, Metric: RouteMetric})
			}
		}
		if net.IsDefault() {
			continue
		}
		for _, m := range in.Plan.MasqueradeManagement(net) {
			if m.Addr().Is4() == gw.Is4() {
				st.Routes = append(st.Routes, Route{Table: table, Dst: single(m.Addr()), Via: gw, Dev: st.Port.Name, Metric: RouteMetric})
			}
		}
	}
	st.normalise()
	return st, nil
}

// deviceName is the VRF's name: the network's own, or the fallback where a
// link that is not ours has it, or where the fallback is in use already.
func deviceName(net network.Network, in Inputs) (string, error) {
	names := DeviceNames(net)
	for _, d := range in.Devices {
		if slices.Contains(names, d.Name) && d.Table == in.Plan.VRFTable(net) {
			return d.Name, nil
		}
	}
	for _, n := range names {
		if !slices.Contains(in.Foreign, n) {
			return n, nil
		}
	}
	return "", fmt.Errorf("network %s: links named %v are not Bulkhead's: rename one of them, a VRF device is needed", net.Name, names)
}

// DeviceNames are the names that net's VRF may have, best first.
func DeviceNames(net network.Network) []string {
	if net.IsDefault() {
		return nil
	}
	fallback := FallbackName(net.ID)
	if name := net.VRF(); name != fallback {
		return []string{name, fallback}
	}
	return []string{fallback}
}

// FallbackName is the VRF's name that is made from the network's id alone.
func FallbackName(id int) string { return "mp" + strconv.Itoa(id) + "-udn-vrf" }

// rules steer what carries the network's mark, and what answers its pods, into
// its table. The mark rule exists in both families whatever the network's:
// a marked packet of the other family must end at the unreachable default.
func rules(net network.Network, in Inputs, table int) []Rule {
	out := []Rule{{Priority: MarkPriority, Mark: net.PacketMark(), Table: table}}
	if in.IPv6 {
		out = append(out, Rule{IPv6: true, Priority: MarkPriority, Mark: net.PacketMark(), Table: table})
	}
	v4, v6 := net.Families()
	for _, m := range in.Plan.MasqueradeManagement(net) {
		if is4 := m.Addr().Is4(); is4 && v4 || !is4 && v6 {
			out = append(out, Rule{IPv6: !is4, Priority: ToPriority, To: single(m.Addr()), Table: table})
		}
	}
	return out
}

// denied are the routes that say no: the default of both families, so that a
// miss never falls into the main table, and the cluster's own ranges, so that
// they never follow the VRF's default route to the outside. Routes that lead
// there on purpose have a better metric.
func denied(in Inputs, table int) []Route {
	var out []Route
	deny := func(p netip.Prefix) {
		if p.Addr().Is4() || in.IPv6 {
			out = append(out, Route{Table: table, Dst: p, Unreachable: true, Metric: UnreachableMetric})
		}
	}
	deny(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	deny(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	for _, c := range in.Plan.ClusterSubnets {
		deny(c.CIDR)
	}
	for _, c := range slices.Concat(in.Plan.ServiceCIDRs, in.Plan.Masquerade) {
		deny(c)
	}
	return out
}

// outward is the way to the outside: by the node's next hops, the first one
// first, of the families that the network has. The external bridge is outside
// the VRF, so the next hop has to be told to be on the link.
func outward(net network.Network, node network.Node, table int) []Route {
	if node.Bridge == "" {
		return nil
	}
	v4, v6 := net.Families()
	var out []Route
	var count [2]int // a family
	for _, hop := range node.NextHops {
		dst, i := netip.PrefixFrom(netip.IPv4Unspecified(), 0), 0
		if hop.Is6() {
			dst, i = netip.PrefixFrom(netip.IPv6Unspecified(), 0), 1
		}
		if hop.Is4() && v4 || hop.Is6() && v6 {
			out = append(out, Route{Table: table, Dst: dst, Via: hop.WithZone(""), Dev: node.Bridge, Metric: RouteMetric + count[i]})
			count[i]++
		}
	}
	return out
}

// podCIDRs are reached through the network's router. On a no-overlay network
// in local gateway mode the fabric's routes say where other nodes' pods are.
func podCIDRs(net network.Network, node network.Node) []netip.Prefix {
	if net.Transport == "no-overlay" && node.Mode == network.LocalGateway {
		return nil
	}
	return net.CIDRs()
}

// portSysctls: loose reverse path check, because pods' masqueraded packets
// come back by other ways; IPv6 addresses outlive a link flap, as IPv4's do;
// a pod must not configure the node by router advertisements.
func portSysctls(dev string, ipv6 bool) []Sysctl {
	out := deviceSysctls(dev)
	if ipv6 {
		out = append(out,
			Sysctl{"net/ipv6/conf/" + dev + "/accept_ra", "0"},
			Sysctl{"net/ipv6/conf/" + dev + "/forwarding", "1"},
			Sysctl{"net/ipv6/conf/" + dev + "/keep_addr_on_down", "1"})
	}
	return out
}

// deviceSysctls apply to the VRF device too: the kernel takes it for the
// input device of what arrives on its ports.
func deviceSysctls(dev string) []Sysctl {
	return []Sysctl{
		{"net/ipv4/conf/" + dev + "/forwarding", "1"},
		{"net/ipv4/conf/" + dev + "/rp_filter", "2"},
	}
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
