// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
)

// In local gateway mode pods of advertised networks leave and enter the node through the kernel, with their
// own addresses. In shared mode the external bridge's flows do this. A network that is not advertised
// into the nodes' default VRF leaves and enters through interfaces that the operator has added to
// the VRFs.

// ofFamily returns the one for an IP family, as nft names it.
func ofFamily(ip, v4, v6 string) string {
	if ip == "ip6" {
		return v6
	}
	return v4
}

// families are the IP families as nft names them.
var families = []string{"ip", "ip6"}

// rangeText returns a prefix as nft lists it.
func rangeText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Masked().String()
}

// advertisedElements adds the elements of advertised networks. A network without a host subnet on this
// node has no pods here.
func (in Inputs) advertisedElements(sets map[string][]string) {
	add := func(p netip.Prefix, v4, v6, element string) {
		set := ofFamily(ipOf(p), v4, v6)
		sets[set] = append(sets[set], element)
	}
	var all []netip.Prefix
	for _, n := range append(slices.Clone(in.Networks), in.Default) {
		if n.Announced() {
			all = append(all, n.CIDRs()...)
		}
		if !n.Announced() && !n.LeavesThroughVRF() {
			continue
		}
		hosts, err := n.HostSubnets(in.NodeID)
		if err != nil || in.NodeID == 0 {
			continue
		}
		var router []netip.Prefix
		for _, h := range hosts {
			router = append(router, n.GatewayIn(h))
		}
		for _, h := range hosts {
			add(h, SetDirect4, SetDirect6, fmt.Sprintf("%s . %s . %s", n.ManagementPort(), network.MACOf(router), rangeText(h)))
			if n.Announced() {
				for _, p := range network.Without([]netip.Prefix{h}, in.Reserved) {
					add(p, SetPods4, SetPods6, rangeText(p))
				}
			}
		}
		if n.LeavesThroughVRF() {
			sets[SetOwnVRF] = append(sets[SetOwnVRF], n.ManagementPort())
			sets[SetVRFs] = append(sets[SetVRFs], n.VRF(), n.FallbackVRF())
			continue
		}
		for _, c := range n.CIDRs() {
			add(c, SetRouted4, SetRouted6, fmt.Sprintf("%s . %s", n.ManagementPort(), rangeText(c)))
		}
	}
	if in.Loose {
		return
	}
	for _, c := range network.Without(disjoint(all), in.Reserved) {
		add(c, SetAdvertised4, SetAdvertised6, rangeText(c))
	}
}

// disjoint returns the prefixes that no other prefix contains. nft refuses overlapping elements, and a
// network that takes another's place has overlapping subnets until the other one's change has arrived.
func disjoint(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Masked().Addr().Compare(b.Masked().Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, p := range list { // after the one that it is within
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// outChains mark what pods send out of the node and what arrives for advertised pods, so that the main
// table routes it, and clear the mark afterwards. Packets to addresses that only have a meaning within
// the cluster use their network's table.
func (in Inputs) outChains() []Chain {
	c := Chain{Name: chainOut, Hook: "prerouting"}
	inside := slices.Concat(in.Plan.Masquerade, in.Plan.ServiceCIDRs)
	if in.Default.Transport != network.TransportNoOverlay {
		inside = slices.Concat(inside, in.Default.CIDRs())
	}
	mark := fmt.Sprintf("meta mark set meta mark & %#x | %#x", ^network.MarkMask, network.OutMark)
	for _, ip := range families {
		match := []string{"iifname", managementPorts, "iifname != @" + SetOwnVRF, "meta nfproto", ofFamily(ip, "ipv4", "ipv6")}
		for _, p := range inside {
			if ipOf(p) == ip {
				match = append(match, ip, "daddr !=", p.String())
			}
		}
		c.Rules = append(c.Rules, rule("out of the node, "+ip, append(match, mark)...))
	}
	if in.Bridge != "" {
		// The kernel checks a marked packet's source with the mark, as it will route the answer.
		for _, ip := range families {
			c.Rules = append(c.Rules, rule("from outside, "+ip, fmt.Sprintf("iifname %q", in.Bridge), ip, "daddr @"+ofFamily(ip, SetPods4, SetPods6), mark))
		}
	}
	return []Chain{c, {Name: chainRouted, Hook: "postrouting", Rules: []Rule{
		rule("clear the mark", fmt.Sprintf("meta mark %#x-%#x", network.OutMark, network.OutMark|^network.MarkMask), unmark),
	}}}
}

// betweenAdvertised keeps pods from the pods of other networks that are advertised, wherever these are. In a network's own
// VRF the addresses are other hosts': those of the network itself, or of its fabric. Only through the external bridge a
// packet reaches the networks that are advertised in the nodes' default VRF.
func (in Inputs) betweenAdvertised() []Rule {
	if in.Loose {
		return nil
	}
	var rules []Rule
	from := []struct{ name, match, port string }{{"", "iifname " + managementPorts, "iifname"}, {", VRF", "meta sdifname " + managementPorts + " meta sdifname != @" + SetOwnVRF, "meta sdifname"}}
	if in.Bridge != "" {
		from = append(from, struct{ name, match, port string }{", own VRF", fmt.Sprintf("meta sdifname @%s oifname %q", SetOwnVRF, in.Bridge), "meta sdifname"})
	}
	for _, from := range from {
		for _, ip := range families {
			rules = append(rules, rule("other advertised networks, "+ip+from.name, from.match, ip, "daddr @"+ofFamily(ip, SetAdvertised4, SetAdvertised6),
				from.port, ".", ip, "daddr != @"+ofFamily(ip, SetRouted4, SetRouted6), "counter name", CounterCrossNetwork, "drop"))
		}
	}
	return rules
}

// backIntoNetwork rejects what a network's router has sent to the node for the network's pods elsewhere
// if BGP has no route to them: the table of the network's VRF would return it to the router.
func (in Inputs) backIntoNetwork() []Rule {
	if in.Mode != network.LocalGateway {
		return nil
	}
	var rules []Rule
	for _, from := range []struct{ name, port string }{{"", "iifname"}, {", VRF", "meta sdifname"}} {
		for _, ip := range families {
			routed := ip + " daddr @" + ofFamily(ip, SetRouted4, SetRouted6)
			rules = append(rules, rule("no route to a pod, "+ip+from.name, from.port, ".", routed, "oifname .", routed, "reject with icmpx type no-route"))
		}
	}
	return rules
}

// nodeToAdvertised keeps the node's processes from tenants' pods that are advertised.
func (in Inputs) nodeToAdvertised() []Rule {
	if in.Loose || in.Mode != network.LocalGateway {
		return nil
	}
	var rules []Rule
	for _, ip := range families {
		match := []string{fmt.Sprintf("oifname %q", in.Bridge), ip, "daddr @" + ofFamily(ip, SetAdvertised4, SetAdvertised6)}
		for _, p := range in.Default.CIDRs() {
			if ipOf(p) == ip {
				match = append(match, ip, "daddr !=", p.String())
			}
		}
		rules = append(rules, rule("the node to advertised networks, "+ip, append(match, "counter name", CounterForeign, "reject with icmpx type admin-prohibited")...))
	}
	return rules
}

// toAdvertised accepts what comes from outside for pods of advertised networks: through the external bridge,
// or through an interface in the network's own VRF. From a VRF that a RouteAdvertisements names, BGP's routes
// lead there, too: through the network's VRF device, not through its management port.
func (in Inputs) toAdvertised() []Rule {
	var rules []Rule
	for _, ip := range families {
		rules = append(rules, rule("from outside to pods of advertised networks, "+ip, fmt.Sprintf("iifname %q oifname . %s daddr", in.Bridge, ip), "@"+ofFamily(ip, SetRouted4, SetRouted6), "accept"))
	}
	return append(rules, rule("from outside in the network's own VRF", "iifname @"+SetVRFs, "meta sdifname !=", managementPorts, "oifname @"+SetOwnVRF, "accept"))
}

// ownVRFs drops what networks that are advertised into their own VRF, and hosts in that VRF, send through the
// external bridge, except packets with the network's masquerade address, which pods send to services and
// nodes.
func (in Inputs) ownVRFs() []Rule {
	bridge := fmt.Sprintf("oifname %q", in.Bridge)
	rules := []Rule{rule("from a network's own VRF to the external bridge", "iifname @"+SetVRFs, "meta sdifname !=", managementPorts, bridge, "counter name", CounterForwarded, "drop")}
	for _, p := range in.Plan.Masquerade {
		rules = append(rules, rule("through the external bridge from an address outside "+p.String(), "meta sdifname @"+SetOwnVRF, bridge, ipOf(p), "saddr !=", p.String(), "counter name", CounterForwarded, "drop"))
	}
	return rules
}
