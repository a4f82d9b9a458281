// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"slices"

	"bulkhead/pkg/network"
)

// outOfNode filters what local processes send by the external bridge.
func (in Inputs) outOfNode() []Rule {
	if in.Bridge == "" {
		return nil
	}
	bridge := fmt.Sprintf("oifname %q", in.Bridge)
	var rules []Rule
	for _, p := range in.Plan.Masquerade {
		rules = append(rules, rule("masquerade address "+p.String(), bridge, ipOf(p), "saddr", p.String(), "counter name", CounterNotLocal, "drop"))
	}
	rules = append(rules, in.nodeToAdvertised()...)
	// Gateway routers take what comes from the node for answers to their pods. A pod in the host's
	// network sends there only by node ports and host ports, which are translated, and as an answer.
	for _, p := range in.Plan.Masquerade {
		for _, g := range in.PodRoots {
			if m, ok := g.match(); ok {
				rules = append(rules, rule("forged answers to "+p.String()+g.suffix(), bridge, ipOf(p), "daddr", p.String(), "ct direction original ct status & dnat == 0", m, "counter name", CounterForeign, "drop"))
			}
		}
	}
	// Gateway routers take what comes from the node for its servers' answers, and in local gateway
	// mode VRFs have a route to them, for pods.
	for _, p := range slices.Concat(in.Plan.ServiceCIDRs, in.Plan.Masquerade) {
		rules = append(rules, rule("tenants' processes to "+p.String(), bridge, ipOf(p), "daddr", p.String(),
			fmt.Sprintf("meta mark %#x-%#x", network.FirstPacketMark, network.LastPacketMark), "counter name", CounterForeign, "reject with icmpx type admin-prohibited"))
	}
	return rules
}
