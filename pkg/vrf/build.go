// SPDX-License-Identifier: Apache-2.0

// Package vrf reconciles the kernel state of a network on this node over
// netlink: the VRF device, the management port inside it, routes, policy rules
// and per-device sysctls.
//
// Our objects carry a mark: routes and rules have Protocol, VRF devices have
// Group and an alias that names the network. The package never changes other
// objects. pkg/ovs creates and deletes the management port; while the port is
// missing, State.Absent names it and Diff skips operations that need it.
package vrf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
)

const (
	// Protocol is the owner mark on our routes (rtm_protocol) and rules
	// (FRA_PROTOCOL).
	Protocol = 86
	// Group is the owner mark on our VRF devices. Unlike the alias, it is set by
	// the request that creates the device, so that a crash leaves no device
	// without it.
	Group = 0xb01d
	// AliasPrefix precedes the network's name in a VRF device's alias.
	AliasPrefix = "bulkhead:"
	// RouteMetric is worse than that of routes learned from BGP (20), which
	// must win over the node's own default route.
	RouteMetric = 1024
	// UnreachableMetric is worse than any other route's metric: the unreachable
	// route matches only if no other route does, and keeps such packets out of
	// the main table.
	UnreachableMetric = 4278198272
	// MainTable holds the cluster default network's routes.
	MainTable = 254
)

// Inputs are Build's inputs besides the network and the node.
type Inputs struct {
	Plan network.Plan
	// IPv6 reports whether this kernel has IPv6. If so, a network without IPv6
	// subnets still needs the IPv6 rule and unreachable default: otherwise its
	// tenant's IPv6 packets would use the main table.
	IPv6 bool
	// Foreign lists the VRF's possible names that links without our mark have:
	// State.Foreign of the actual state.
	Foreign []string
	// Taken names a VRF device without our mark that has the network's table:
	// State.Taken of the actual state.
	Taken string
	// Exposed lists the cluster IPs of the services of the cluster default network that all networks
	// reach.
	Exposed []netip.Addr
	// Devices lists the network's VRF devices: State.Devices of the actual
	// state. A device with the fallback name keeps it.
	Devices []Device
	// DeviceFirst makes Reconcile create a missing VRF device alone. Other programs read links and
	// routes independently: zebra of FRR can crash if it handles a route of the VRF's table before
	// the VRF.
	DeviceFirst bool
}

// maxAlias is the longest alias of a link, in bytes (IFALIASZ without the final 0).
const maxAlias = 255

// AliasOf returns the alias of a network's VRF device. The name of a network of a namespace may be too long for one: its
// end is replaced by a hash.
func AliasOf(name string) string {
	alias := AliasPrefix + name
	if len(alias) <= maxAlias {
		return alias
	}
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:8])
	return alias[:maxAlias-len(hash)-1] + "-" + hash
}

// Build returns the desired kernel state of net on the node.
func Build(net network.Network, node network.Node, in Inputs) (State, error) {
	hosts, err := net.HostSubnets(node.ID)
	if err != nil {
		return State{}, fmt.Errorf("network %s: %w", net.Name, err)
	}
	st := State{ID: net.ID, Network: net.Name}
	st.Port = Port{Name: net.ManagementPort(), MTU: net.MTU, Up: true}
	for _, h := range hosts {
		st.Port.Addrs = append(st.Port.Addrs, portAddresses(net, in.Plan, h)...)
	}
	st.Sysctls = portSysctls(st.Port.Name, in.IPv6, net, node)
	if net.IsDefault() && node.Bridge != "" {
		st.Sysctls = append(st.Sysctls, bridgeSysctls(node.Bridge, node.Mode)...)
		// To gateway routers, through the external bridge's flows: to that of the cluster default
		// network, which has its services, and to all of them by their masquerade addresses.
		// network.MasqueradeTable comes first and leads to tenants' management ports.
		st.Routes = routesVia(node, MainTable, slices.Concat(in.Plan.ServiceCIDRs, in.Plan.Masquerade))
	}
	table := MainTable
	if net.IsDefault() {
		st.Rules = sharedRules(in.Plan, st.Port.Name, in.IPv6)
		if node.Mode == network.LocalGateway && node.Bridge != "" {
			st.Rules = append(st.Rules, outsideRules(node.Bridge, in.IPv6)...)
		}
	} else {
		name, err := deviceName(net, in)
		if err != nil {
			return State{}, err
		}
		table = in.Plan.VRFTable(net)
		if in.Taken != "" {
			return State{}, fmt.Errorf("network %s: its table %d belongs to the VRF device %s, which is not Bulkhead's: give that device another table", net.Name, table, in.Taken)
		}
		st.Devices = []Device{{Name: name, Table: table, Alias: AliasOf(net.Name), Up: true}}
		st.Port.Master = name
		_, v6 := net.Families()
		st.Sysctls = append(st.Sysctls, vrfSysctls(name, v6 && in.IPv6)...)
		st.Rules = markRules(net, in.IPv6, table)
		st.Routes = unreachableRoutes(in, table)
		st.Routes = append(st.Routes, routesOut(net, node, in.Plan, table)...)
	}
	st.Routes = append(st.Routes, unlearnedRoutes(net, node, in, table)...)
	for _, h := range hosts {
		gw, src := net.GatewayIn(h).Addr(), sourceToPods(net, in.Plan, h)
		if !net.IsDefault() && net.Announced() && node.Mode == network.LocalGateway {
			st.Routes = append(st.Routes, Route{Table: network.AdvertisedTable, Dst: h.Masked(), Via: gw, Dev: st.Port.Name, Metric: RouteMetric})
		}
		for _, c := range podCIDRs(net, node) {
			// If the whole CIDR is this node's, the kernel adds the route with
			// the address.
			if network.SameFamily(c, gw) && (c != h.Masked() || src.IsValid()) {
				st.Routes = append(st.Routes, Route{Table: table, Dst: c, Via: gw, Src: src, Dev: st.Port.Name, Metric: RouteMetric})
			}
		}
		if !net.IsDefault() {
			st.Routes = append(st.Routes, routesToServices(net, in, table, h)...)
		}
		// The cluster default network's pods keep their addresses on the way out. In local gateway
		// mode packets to its services from outside come in with this one.
		if net.IsDefault() && node.Mode != network.LocalGateway {
			continue
		}
		for _, m := range in.Plan.MasqueradeManagement(net) {
			if network.SameFamily(m, gw) {
				st.Routes = append(st.Routes, Route{Table: table, Dst: hostPrefix(m.Addr()), Via: gw, Dev: st.Port.Name, Metric: RouteMetric})
				if !net.IsDefault() { // for packets outside the network: replies to its pods
					st.Routes = append(st.Routes, Route{Table: network.MasqueradeTable, Dst: hostPrefix(m.Addr()), Via: gw, Dev: st.Port.Name, Metric: RouteMetric})
				}
			}
		}
	}
	st.normalise()
	return st, nil
}

// portAddresses returns the management port's addresses of one IP family. On a Layer 2
// network the subnet is not on-link: see sourceToPods.
func portAddresses(net network.Network, plan network.Plan, host netip.Prefix) []netip.Prefix {
	own := net.ManagementIn(host)
	if net.Topology != network.Layer2 {
		return []netip.Prefix{own}
	}
	return []netip.Prefix{hostPrefix(own.Addr()), hostPrefix(sourceToPods(net, plan, host))}
}

// sourceToPods returns the source address of routes to pods of a Layer 2 network. It is zero on
// other networks, whose management port has one address.
func sourceToPods(net network.Network, plan network.Plan, host netip.Prefix) netip.Addr {
	if net.Topology != network.Layer2 {
		return netip.Addr{}
	}
	return plan.NodeSource(net, host)
}

// routesToServices returns the routes of the network's own processes to services, of one IP family.
// OVN treats their packets like pods' packets: it balances those to the network's services, and sends
// those to services that all networks reach back through the management port. On a Layer 2 network the
// latter need the port's address as source: OVN translates only addresses of the subnet there.
func routesToServices(net network.Network, in Inputs, table int, host netip.Prefix) []Route {
	route := Route{Table: table, Via: net.GatewayIn(host).Addr(), Src: sourceToPods(net, in.Plan, host), Dev: net.ManagementPort(), Metric: RouteMetric}
	var out []Route
	for _, c := range in.Plan.ServiceCIDRs {
		if network.SameFamily(c, host) {
			route.Dst = c.Masked()
			out = append(out, route)
		}
	}
	if net.Topology != network.Layer2 {
		return out
	}
	route.Src = net.ManagementIn(host).Addr()
	for _, a := range in.Exposed {
		if network.SameFamily(a, host) {
			route.Dst = hostPrefix(a)
			out = append(out, route)
		}
	}
	return out
}

// deviceName returns the VRF's name: the network's own, or the fallback if
// another link has that name or the VRF device already has the fallback.
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
	return "", fmt.Errorf("network %s: no free name for its VRF device: links named %v are not Bulkhead's: rename one of them", net.Name, names)
}

// DeviceNames lists the names that net's VRF may have, best first.
func DeviceNames(net network.Network) []string {
	if net.IsDefault() {
		return nil
	}
	fallback := net.FallbackVRF()
	if name := net.VRF(); name != fallback {
		return []string{name, fallback}
	}
	return []string{fallback}
}

// unreachableRoutes returns the unreachable default routes of both IP families,
// so that a miss never falls through to the main table, and those of the
// cluster's own subnets, so that such packets never use the VRF's default route.
// The network's routes into these subnets have a better metric.
func unreachableRoutes(in Inputs, table int) []Route {
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

// routesOut returns the network's routes out of the node: the default route, those to the node's own
// link and, in local gateway mode, in which pods use them, those to other networks' gateway routers,
// which have their node ports.
func routesOut(net network.Network, node network.Node, plan network.Plan, table int) []Route {
	v4, v6 := net.Families()
	node.NextHops = network.FilterFamilies(node.NextHops, v4, v6)
	var out []Route
	var to []netip.Prefix
	if !net.LeavesThroughVRF() { // else BGP brings the routes
		to = append(to, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	for _, a := range network.FilterFamilies(node.Addresses, v4, v6) {
		if node.Bridge != "" && !a.IsSingleIP() {
			out = append(out, Route{Table: table, Dst: a.Masked(), Dev: node.Bridge, Metric: RouteMetric})
		}
	}
	if node.Mode == network.LocalGateway {
		to = append(to, plan.Masquerade...)
	}
	return append(out, routesVia(node, table, to)...)
}

// routesVia returns routes via the node's next hops of the same IP family, in their order of
// preference. They need onlink in a VRF's table, because the external bridge is outside it.
func routesVia(node network.Node, table int, destinations []netip.Prefix) []Route {
	if node.Bridge == "" {
		return nil
	}
	var out []Route
	var count [2]int // per IP family
	for _, hop := range node.NextHops {
		i := 0
		if hop.Is6() {
			i = 1
		}
		for _, to := range destinations {
			if network.SameFamily(to, hop) {
				out = append(out, Route{Table: table, Dst: to.Masked(), Via: hop.WithZone(""), Dev: node.Bridge, Metric: RouteMetric + count[i]})
			}
		}
		count[i]++
	}
	return out
}

// podCIDRs lists the pod subnets that are routed via the network's router. There
// are none for a network without an overlay in local gateway mode if FRR's routes to other nodes'
// pods are in the same table. If these routes are in the main table, a tenant's processes do not use them: they send to
// the network's router, which returns the packets to the node, and the node forwards them like pods' packets.
func podCIDRs(net network.Network, node network.Node) []netip.Prefix {
	if forwardsToPods(net, node) && (net.IsDefault() || net.LeavesThroughVRF()) {
		return nil
	}
	return net.CIDRs()
}

// forwardsToPods reports whether the kernel forwards packets from the network's pods to those on
// other nodes.
func forwardsToPods(net network.Network, node network.Node) bool {
	return net.Transport == network.TransportNoOverlay && node.Mode == network.LocalGateway
}

// unlearnedRoutes returns the unreachable routes to the pods of a network without an overlay, in
// local gateway mode: packets to pods that BGP has no route to must not use a default route.
func unlearnedRoutes(net network.Network, node network.Node, in Inputs, table int) []Route {
	if !forwardsToPods(net, node) {
		return nil
	}
	var out []Route
	for _, c := range net.CIDRs() {
		if c.Addr().Is4() || in.IPv6 {
			out = append(out, Route{Table: table, Dst: c, Unreachable: true, Metric: UnreachableMetric})
		}
	}
	return out
}

// portSysctls returns the management port's sysctls. rp_filter is loose because
// replies to masqueraded packets of pods may arrive on another interface.
// keep_addr_on_down keeps IPv6 addresses on a link flap, like IPv4 addresses.
// accept_ra is off: a pod must not configure the node by router advertisements. On the cluster
// default network's port the kernel looks up packets' sources with their mark: those of ingress
// pods as it would route the reply, and not in the table of the service's network.
// accept_local is on where the router returns packets of the node's own processes (podCIDRs).
func portSysctls(dev string, ipv6 bool, net network.Network, node network.Node) []Sysctl {
	out := deviceSysctls(dev)
	switch {
	case net.IsDefault():
		out = append(out, Sysctl{"net/ipv4/conf/" + dev + "/src_valid_mark", "1"})
	case net.Transport == network.TransportNoOverlay:
		out = append(out, acceptLocal(dev, forwardsToPods(net, node) && !net.LeavesThroughVRF()))
	}
	if ipv6 {
		if _, v6 := net.Families(); v6 {
			out = append(out, enableIPv6(dev))
		}
		out = append(out,
			Sysctl{"net/ipv6/conf/" + dev + "/accept_ra", "0"},
			Sysctl{"net/ipv6/conf/" + dev + "/forwarding", "1"},
			Sysctl{"net/ipv6/conf/" + dev + "/keep_addr_on_down", "1"})
	}
	return out
}

// vrfSysctls returns a VRF device's sysctls. The kernel sends packets to the addresses of its ports through it.
func vrfSysctls(dev string, ipv6 bool) []Sysctl {
	out := deviceSysctls(dev)
	if ipv6 {
		out = append(out, enableIPv6(dev))
	}
	return out
}

// enableIPv6 returns the sysctl that enables IPv6, which new links lack where the operator has disabled it by default.
func enableIPv6(dev string) Sysctl {
	return Sysctl{"net/ipv6/conf/" + dev + "/disable_ipv6", "0"}
}

// acceptLocal returns the sysctl that lets packets with one of the node's addresses in by dev.
func acceptLocal(dev string, on bool) Sysctl {
	value := "0"
	if on {
		value = "1"
	}
	return Sysctl{"net/ipv4/conf/" + dev + "/accept_local", value}
}

// allPortSysctls returns all sysctls that any network's management port has.
func allPortSysctls(dev string) []Sysctl {
	return append(portSysctls(dev, true, network.Network{}, network.Node{}), acceptLocal(dev, false), enableIPv6(dev))
}

// deviceSysctls returns the sysctls of a port, and of a VRF device, which the
// kernel treats as the input device of packets that arrive on its ports.
func deviceSysctls(dev string) []Sysctl {
	return []Sysctl{
		{"net/ipv4/conf/" + dev + "/forwarding", "1"},
		{"net/ipv4/conf/" + dev + "/rp_filter", "2"},
	}
}

// bridgeSysctls returns the external bridge's sysctls: replies of services arrive there,
// for the node to forward, and the route to a service may use another interface. In local
// gateway mode what comes for pods has a mark: the kernel must look up its source with
// network.OutMark too, because the network's table lacks the routes that FRR has learned.
func bridgeSysctls(dev string, mode network.GatewayMode) []Sysctl {
	out := deviceSysctls(dev)
	if mode == network.LocalGateway {
		out = append(out, Sysctl{"net/ipv4/conf/" + dev + "/src_valid_mark", "1"})
	}
	return out
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
