// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"slices"
	"strconv"

	"bulkhead/pkg/network"
)

// sourceNAT gives packets that networks send out of the node the address of the interface by
// which they leave. To services of the cluster default network they keep their network's
// masquerade address, which the external bridge's flows know.
func (in Inputs) sourceNAT() []Rule {
	var rules []Rule
	for _, p := range in.Plan.ServiceCIDRs {
		rules = append(rules, rule("to services "+p.String(), ipOf(p), "daddr", p.String(), "return"))
	}
	sources := in.Plan.Masquerade
	if in.Default.Transport != network.TransportNoOverlay || in.Default.OutboundSNAT == "enabled" {
		sources = slices.Concat(sources, in.Default.CIDRs())
	}
	if in.Default.Transport == network.TransportNoOverlay {
		for _, p := range in.Default.CIDRs() {
			rules = append(rules, rule("to pods "+p.String(), ipOf(p), "daddr", p.String(), ipOf(p), "saddr", p.String(), "return"))
		}
	}
	for _, p := range sources {
		from := []string{"oifname !=", managementPorts, ipOf(p), "saddr", p.String()}
		rules = append(rules,
			rule("from "+p.String(), append(from, "meta l4proto { tcp, udp, sctp } masquerade to :"+network.EgressPorts)...),
			rule("from "+p.String()+", other protocols", append(from, "masquerade")...))
	}
	return rules
}

// toLocalPorts redirects packets from outside to services with external traffic policy Local into
// the service's network, with their client's address. Packets of gateway routers are not redirected: they
// reach node ports as the node's own packets do. Their source is a masquerade address or, in answers to clients
// outside, a Service's external address: a tenant who claims a client's address gets none of its answers.
func (in Inputs) toLocalPorts() []Rule {
	if in.Bridge == "" {
		return nil
	}
	var rules []Rule
	for _, f := range []struct{ ip, ports string }{{"ip", MapLocalPorts4}, {"ip6", MapLocalPorts6}} {
		match := []string{fmt.Sprintf("iifname %q ether saddr != %s", in.Bridge, network.GatewayMAC)}
		for _, p := range in.Plan.Masquerade {
			if ipOf(p) == f.ip {
				match = append(match, f.ip, "saddr !=", p.String())
			}
		}
		rules = append(rules, rule("external traffic policy Local, "+f.ip, append(match, "meta l4proto { tcp, udp, sctp } dnat",
			f.ip, "to", f.ip, "daddr . meta l4proto . th dport map @"+f.ports)...))
	}
	return rules
}

// localForward filters what the node forwards in local gateway mode, besides what all modes do.
// OVN gives tenants' packets their network's masquerade address on the way to the management
// port, unless the network is advertised: packets with another went past its router.
func (in Inputs) localForward() []Rule {
	var rules []Rule
	drop := func(name, counter string, match ...string) {
		rules = append(rules, rule(name, append(match, "counter name", counter, "drop")...))
	}
	for _, ip := range families {
		drop("not by the network's router, "+ip, CounterForwarded, "meta sdifname", managementPorts, "meta sdifname .", ip, "saddr !=", "@"+ofFamily(ip, SetSources4, SetSources6),
			"meta sdifname . ether saddr .", ip, "saddr !=", "@"+ofFamily(ip, SetDirect4, SetDirect6))
	}
	rules = append(rules, in.betweenAdvertised()...)
	if in.Bridge != "" {
		rules = append(rules, in.ownVRFs()...)
	}
	for _, f := range []struct{ name, match string }{{"", "iifname " + managementPorts}, {", VRF", "meta sdifname " + managementPorts}} {
		for _, link := range in.Links {
			drop("BGP to "+link.String()+f.name, CounterForwarded, f.match, ipOf(link), "daddr", link.String(), "tcp dport", bgpPort)
		}
		for _, p := range in.Plan.Masquerade { // leaves with the node's address, which a router may have as a neighbour's
			drop("BFD from "+p.String()+f.name, CounterForwarded, f.match, ipOf(p), "saddr", p.String(), "udp dport", strconv.Itoa(network.BFDMultiPort))
		}
		for _, p := range in.Plan.ServiceCIDRs {
			drop("other services "+p.String()+f.name, CounterForwarded, f.match, ipOf(p), "daddr", p.String())
		}
		for _, p := range in.Plan.Masquerade {
			rules = append(rules, rule("node ports "+p.String()+f.name, f.match, ipOf(p), "daddr", p.String(), "ct status dnat accept"))
			drop("gateway routers "+p.String()+f.name, CounterForwarded, f.match, ipOf(p), "daddr", p.String())
		}
	}
	rules = append(rules, rule("replies into a network", "oifname", managementPorts, "ct state established,related accept"))
	if in.Bridge != "" {
		for _, p := range in.Plan.Masquerade {
			rules = append(rules, rule("external traffic policy Local "+p.String(), fmt.Sprintf("iifname %q oifname", in.Bridge), managementPorts,
				ipOf(p), "daddr", p.String(), "ct status dnat ct direction original accept"))
		}
		rules = append(rules, in.toAdvertised()...)
	}
	drop("into a network", CounterForwarded, "oifname", managementPorts)
	return rules
}
