// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// descriptions is what the NADs of one network say of it. Several do where it
// spans namespaces, and none speaks for the others: what they agreed on last
// counts until all agree on another thing, and who differs is refused.
type descriptions struct {
	nads map[string]struct{} // keys of those that name it, usable or not
	// said is what each says, or said before it became unusable.
	said map[string]*description
	all  map[string]*description // by text

	agreed *description // nil: nobody has said anything yet
}

type description struct {
	text   string
	net    Network
	by     map[string]struct{} // NADs that say it, or said it before they became unusable
	usable int                 // of these, those that say it
}

func newDescriptions() *descriptions {
	return &descriptions{nads: map[string]struct{}{}, said: map[string]*description{}, all: map[string]*description{}}
}

// set records what a NAD says, in place of what it said before (was, if had).
// One that has become unusable stands by what it said.
func (d *descriptions) set(nad NAD, was NAD, had bool) {
	key := nad.Key()
	d.nads[key] = struct{}{}
	old := d.said[key]
	if had && was.Err == nil && old != nil {
		old.usable--
	}
	if nad.Err != nil {
		return
	}
	d.drop(key, old)
	text := describe(nad.Network)
	x, ok := d.all[text]
	if !ok {
		x = &description{text: text, net: nad.Network, by: map[string]struct{}{}}
		d.all[text] = x
	}
	x.by[key] = struct{}{}
	x.usable++
	d.said[key] = x
}

// remove forgets a NAD.
func (d *descriptions) remove(nad NAD) {
	key := nad.Key()
	delete(d.nads, key)
	old := d.said[key]
	if old != nil && nad.Err == nil {
		old.usable--
	}
	d.drop(key, old)
	delete(d.said, key)
}

func (d *descriptions) drop(key string, x *description) {
	if x == nil {
		return
	}
	delete(x.by, key)
	if len(x.by) == 0 {
		delete(d.all, x.text)
	}
}

// agree settles what counts. Before all NADs are known (settled is false) it is
// what most of them say, and of two said by as many, that of the lowest key.
func (d *descriptions) agree(settled bool) {
	switch {
	case len(d.all) == 0:
	case len(d.all) == 1 || !settled:
		var best *description
		for _, x := range d.all {
			if best == nil || len(x.by) > len(best.by) || len(x.by) == len(best.by) && x.lowest() < best.lowest() {
				best = x
			}
		}
		d.agreed = best
	case d.all[d.agreed.text] != nil:
		d.agreed = d.all[d.agreed.text] // said again after nobody did
	default:
		// Nobody says any more what counts: it does, until all say one thing.
		d.agreed = &description{text: d.agreed.text, net: d.agreed.net}
	}
}

func (x *description) lowest() string { return slices.Min(slices.Collect(maps.Keys(x.by))) }

// judged is the NAD with Err set if its network is described in another way.
func (d *descriptions) judged(nad NAD) NAD {
	if nad.Err != nil || d.agreed == nil || d.said[nad.Key()] == nil || d.said[nad.Key()].text == d.agreed.text {
		return nad
	}
	others := "what it is built from"
	if len(d.agreed.by) > 0 {
		others = "NetworkAttachmentDefinition " + d.agreed.lowest()
	}
	nad.Err = fmt.Errorf("network %s is described in another way than by %s: %s: make the network's NetworkAttachmentDefinitions say the same; one that a UserDefinedNetwork or ClusterUserDefinedNetwork made is written anew when it is deleted",
		nad.Network.Name, others, difference(nad.Network, d.agreed.net))
	return nad
}

// settings are everything that describes a network, by the keys that say it,
// but for its name.
var settings = []struct {
	key  string
	text func(Network) string
}{
	{AnnotationNetworkID, func(n Network) string { return strconv.Itoa(n.ID) }},
	{"topology", func(n Network) string { return string(n.Topology) }},
	{"role", func(n Network) string { return string(n.Role) }},
	{"mtu", func(n Network) string { return strconv.Itoa(n.MTU) }},
	{"subnets", func(n Network) string { return JoinSubnetList(n.Subnets) }},
	{"joinSubnet", func(n Network) string { return JoinCIDRs(n.JoinSubnets) }},
	{"transitSubnet", func(n Network) string { return JoinCIDRs(n.Transit) }},
	{"excludeSubnets", func(n Network) string { return JoinCIDRs(n.ExcludeSubnets) }},
	{"reservedSubnets", func(n Network) string { return JoinCIDRs(n.ReservedSubnets) }},
	{"infrastructureSubnets", func(n Network) string { return JoinCIDRs(n.InfrastructureSubnets) }},
	{"defaultGatewayIPs", func(n Network) string { return joinAddrs(n.DefaultGatewayIPs) }},
	{"physicalNetworkName", func(n Network) string { return n.PhysicalNetworkName }},
	{"vlanID", func(n Network) string { return strconv.Itoa(n.VLAN) }},
	{"allowPersistentIPs", func(n Network) string { return strconv.FormatBool(n.PersistentIPs) }},
	{"transport", func(n Network) string { return n.Transport }},
	{"outboundSNAT", func(n Network) string { return n.OutboundSNAT }},
}

func joinAddrs(as []netip.Addr) string {
	s := make([]string, len(as))
	for i, a := range as {
		s[i] = a.String()
	}
	return strings.Join(s, ",")
}

// describe is a text that is the same of networks that are described alike.
func describe(n Network) string {
	var b strings.Builder
	for _, s := range settings {
		fmt.Fprintf(&b, "%s=%q ", s.key, s.text(n))
	}
	return b.String()
}

// difference is where a is not described as b is.
func difference(a, b Network) string {
	var out []string
	for _, s := range settings {
		if x, y := s.text(a), s.text(b); x != y {
			out = append(out, fmt.Sprintf("%s is %q, not %q", s.key, x, y))
		}
	}
	return strings.Join(out, ", ")
}
