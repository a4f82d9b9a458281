// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// rateLimit limits how many packets of a network OVN's controller handles on a node. Few packets
// reach it, but pods can send as many of those as they want: with a TTL of 1, to addresses that nobody
// has, to services without endpoints. One process handles those of all networks, so each network has its
// own limits.
type rateLimit struct {
	kind      string
	rate      int      // packets per second
	protocols []string // OVN's names, see Copp in ovn-nb(5)
}

// Answers to neighbours and lookups of neighbours have separate limits: a pod that causes many lookups
// must not keep other pods from finding their gateway.
var (
	limitErrors  = rateLimit{"errors", 100, []string{"icmp4-error", "icmp6-error", "reject", "tcp-reset", "event-elb"}}
	limitAnswers = rateLimit{"answers", 500, []string{"arp", "nd-na", "nd-ns", "nd-ra-opts", "dhcpv4-opts", "dhcpv6-opts", "dns", "igmp"}}
	limitResolve = rateLimit{"resolve", 100, []string{"arp-resolve", "nd-ns-resolve"}}
	// All networks' packets leave the node through the uplink router, which finds their next hops.
	limitUplinkResolve = rateLimit{"resolve", 1000, limitResolve.protocols}
)

// rateLimits adds the limits of the network's routers and switches and, in the cluster default
// network's rows, of the uplink router.
func (b *builder) rateLimits() {
	b.rateLimitSet(b.networkLimits(), limitErrors, limitAnswers, limitResolve)
	if b.net.IsDefault() && b.hasGateway() {
		b.rateLimitSet(b.uplinkLimits(), limitErrors, limitAnswers, limitUplinkResolve)
	}
}

// networkLimits and uplinkLimits are the ids of the sets.
func (b *builder) networkLimits() string { return b.net.Name + " limits" }

func (b *builder) uplinkLimits() string { return b.net.Name + " uplink limits" }

// rateLimitSet adds a set of limits: a meter for each, and the row that names them.
func (b *builder) rateLimitSet(id string, limits ...rateLimit) {
	meters := map[string]string{}
	for _, l := range limits {
		meterID := id + " " + l.kind
		name := b.symbol(nbdb.MeterTable, meterID)
		b.add(Closes, nbdb.MeterTable, meterID, &nbdb.Meter{Name: name, Unit: nbdb.MeterUnitPktps}, nil)
		b.add(Closes, nbdb.MeterBandTable, meterID, &nbdb.MeterBand{Action: nbdb.MeterBandActionDrop, Rate: l.rate, BurstSize: l.rate},
			[]Ref{b.ref(nbdb.MeterTable, meterID, "bands")})
		for _, p := range l.protocols {
			meters[p] = name
		}
	}
	b.add(Closes, nbdb.CoppTable, id, &nbdb.Copp{Name: b.symbol(nbdb.CoppTable, id), Meters: meters}, nil)
}

// limitsOf returns the reference to the limits of a router or switch.
func (b *builder) limitsOf(name string) *string {
	id := b.networkLimits()
	if name == network.UplinkRouter(b.node.Name) || name == network.UplinkSwitch(b.node.Name) {
		id = b.uplinkLimits()
	}
	return ptr(b.uuid(nbdb.CoppTable, id))
}
