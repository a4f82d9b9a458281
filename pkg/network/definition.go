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

// definitions holds the definitions of one network: a network that spans
// namespaces has one NAD in each. No NAD decides alone. The definition that all
// NADs last agreed on stays in effect until all of them agree on another one,
// and a NAD that differs is refused.
type definitions struct {
	nads   map[string]struct{}    // keys of all NADs of the network, usable or not
	latest map[string]*definition // by NAD key; an unusable NAD keeps its last usable definition
	byText map[string]*definition

	agreed *definition // nil until the first usable NAD
}

// definition is one set of settings of a network, with the NADs that have it.
type definition struct {
	text   string
	net    Network
	nads   map[string]struct{} // keys of the NADs with this definition, including NADs that became unusable since
	usable int                 // number of nads that are usable
}

func newDefinitions() *definitions {
	return &definitions{nads: map[string]struct{}{}, latest: map[string]*definition{}, byText: map[string]*definition{}}
}

// set adds or replaces a NAD. old is its previous state, if had is set. A NAD
// that became unusable keeps its last usable definition.
func (d *definitions) set(nad NAD, old NAD, had bool) {
	key := nad.Key()
	d.nads[key] = struct{}{}
	last := d.latest[key]
	if had && old.Err == nil && last != nil {
		last.usable--
	}
	if nad.Err != nil {
		return
	}
	d.drop(key, last)
	text := settingsText(nad.Network)
	x, ok := d.byText[text]
	if !ok {
		x = &definition{text: text, net: nad.Network, nads: map[string]struct{}{}}
		d.byText[text] = x
	}
	x.nads[key] = struct{}{}
	x.usable++
	d.latest[key] = x
}

// remove deletes a NAD.
func (d *definitions) remove(nad NAD) {
	key := nad.Key()
	delete(d.nads, key)
	last := d.latest[key]
	if last != nil && nad.Err == nil {
		last.usable--
	}
	d.drop(key, last)
	delete(d.latest, key)
}

// drop removes a NAD from definition x, and x itself if no other NAD has it.
func (d *definitions) drop(key string, x *definition) {
	if x == nil {
		return
	}
	delete(x.nads, key)
	if len(x.nads) == 0 {
		delete(d.byText, x.text)
	}
}

// agree updates the definition in effect. Before the initial list of NADs is
// complete (synced is false), this is the definition that most NADs have; if
// two are equally frequent, the one whose NAD has the lowest key.
func (d *definitions) agree(synced bool) {
	switch {
	case len(d.byText) == 0:
	case len(d.byText) == 1 || !synced:
		var best *definition
		for _, x := range d.byText {
			if best == nil || len(x.nads) > len(best.nads) || len(x.nads) == len(best.nads) && x.lowestKey() < best.lowestKey() {
				best = x
			}
		}
		d.agreed = best
	case d.byText[d.agreed.text] != nil:
		d.agreed = d.byText[d.agreed.text] // it may have been deleted and recreated
	default:
		// No NAD has the definition in effect any more. It stays in effect
		// until all NADs agree.
		d.agreed = &definition{text: d.agreed.text, net: d.agreed.net}
	}
}

func (x *definition) lowestKey() string { return slices.Min(slices.Collect(maps.Keys(x.nads))) }

// check returns the NAD, with Err set if its definition is not the one in effect.
func (d *definitions) check(nad NAD) NAD {
	if nad.Err != nil || d.agreed == nil || d.latest[nad.Key()] == nil || d.latest[nad.Key()].text == d.agreed.text {
		return nad
	}
	others := "the settings in effect"
	if len(d.agreed.nads) > 0 {
		others = "NetworkAttachmentDefinition " + d.agreed.lowestKey()
	}
	nad.Err = fmt.Errorf("its settings for network %s differ from %s: %s: give all NetworkAttachmentDefinitions of the network the same settings; one that belongs to a UserDefinedNetwork or ClusterUserDefinedNetwork is recreated when it is deleted",
		nad.Network.Name, others, difference(nad.Network, d.agreed.net))
	return nad
}

// settings lists every setting of a network except its name, by NAD key.
var settings = []struct {
	key  string
	text func(Network) string
}{
	{AnnotationNetworkID, func(n Network) string { return strconv.Itoa(n.ID) }},
	{"owner's uid", func(n Network) string { return n.OwnerUID }},
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
	{AnnotationAdvertisedVRFs, func(n Network) string { return n.AdvertisedVRFs }},
}

func joinAddrs(as []netip.Addr) string {
	s := make([]string, len(as))
	for i, a := range as {
		s[i] = a.String()
	}
	return strings.Join(s, ",")
}

// settingsText returns a text that is equal for networks with equal settings.
func settingsText(n Network) string {
	var b strings.Builder
	for _, s := range settings {
		fmt.Fprintf(&b, "%s=%q ", s.key, s.text(n))
	}
	return b.String()
}

// difference lists the settings in which a differs from b.
func difference(a, b Network) string {
	var out []string
	for _, s := range settings {
		if x, y := s.text(a), s.text(b); x != y {
			out = append(out, fmt.Sprintf("%s is %q, not %q", s.key, x, y))
		}
	}
	return strings.Join(out, ", ")
}
