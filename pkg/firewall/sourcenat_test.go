// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/pkg/network"
)

// TestSourceNAT: in local gateway mode, which packets of the cluster default network get an address of the node, by
// transport and outbound SNAT. Packets between its pods never do where it has no overlay, and the rule for them comes first.
func TestSourceNAT(t *testing.T) {
	type behaviour struct{ betweenPods, outside string } // what the first rule that matches does
	for name, c := range map[string]struct {
		transport, outboundSNAT string
		want                    behaviour
	}{
		"overlay":                  {network.TransportGeneve, "", behaviour{"masquerade", "masquerade"}}, // these packets stay in OVN
		"no overlay, SNAT":         {network.TransportNoOverlay, "enabled", behaviour{"return", "masquerade"}},
		"no overlay, without SNAT": {network.TransportNoOverlay, "disabled", behaviour{"return", ""}},
	} {
		in := Inputs{Plan: plan, Mode: network.LocalGateway, Default: defaultNetwork}
		in.Default.Transport, in.Default.OutboundSNAT = c.transport, c.outboundSNAT
		rules := in.sourceNAT()
		for _, pods := range in.Default.CIDRs() {
			first := func(matches func(fields []string) bool) string {
				i := slices.IndexFunc(rules, func(r Rule) bool { return matches(strings.Fields(r.Text)) })
				if i < 0 {
					return ""
				}
				text := rules[i].Text
				for _, verdict := range []string{"return", "masquerade"} {
					if strings.HasSuffix(text, verdict) || strings.HasSuffix(text, verdict+" to :"+network.EgressPorts) {
						return verdict
					}
				}
				return text
			}
			from := func(fields []string) bool { return has(fields, "saddr", pods.String()) }
			got := behaviour{
				betweenPods: first(from), // every rule that has this source, whatever the destination
				outside:     first(func(fields []string) bool { return from(fields) && !slices.Contains(fields, "daddr") }),
			}
			if got != c.want {
				t.Errorf("%s, %s: %+v, want %+v", name, pods, got, c.want)
			}
		}
		for _, p := range plan.Masquerade {
			if !slices.ContainsFunc(rules, func(r Rule) bool {
				return has(strings.Fields(r.Text), "saddr", p.String()) && strings.HasSuffix(r.Text, "masquerade to :"+network.EgressPorts)
			}) {
				t.Errorf("%s: tenants' packets from %s keep their source", name, p)
			}
		}
	}
}

// has reports whether two fields follow each other.
func has(fields []string, first, second string) bool {
	for i := range len(fields) - 1 {
		if fields[i] == first && fields[i+1] == second {
			return true
		}
	}
	return false
}
