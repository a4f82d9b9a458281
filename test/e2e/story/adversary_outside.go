// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"bulkhead/test/adversary"
)

// fromOutside are the parts in which a machine beside the cluster sends to addresses
// inside by the node as next hop, and forged datagrams to the overlay's port. It reaches the node's listeners.
func (a *attackSetup) fromOutside(ctx context.Context, inside []netip.Addr) ([]part, error) {
	external, near := actor{machine: a.w.Lab.External()}, actor{machine: a.near}
	links, err := readLinks(ctx, external.machine)
	if err != nil {
		return nil, err
	}
	own := addrs(external.machine)
	device := ""
	for name, list := range links.addrs {
		if slices.ContainsFunc(list, func(x netip.Addr) bool { return slices.Contains(own, x) }) {
			device = name
		}
	}
	if device == "" {
		return nil, fmt.Errorf("%s has none of its addresses %v on an interface: %v", external, own, links.addrs)
	}
	nodeMAC := a.nodes[a.near.Name].mac[bridgeOfANode]
	forged := slices.Concat(own, a.victim("green-3", false).Addrs, inside)
	out := part{what: "from a machine beside the cluster to addresses inside", victims: []string{"green-1", "green-2", near.String()},
		elsewhere: trials([]actor{external}, adversary.FromOutside(device, links.mac[device], nodeMAC, forged, inside))}
	for _, x := range adversary.FromOutside(device, links.mac[device], nodeMAC, own, addrs(a.near)) {
		if x.Frame == "" && x.DstMAC == nodeMAC && len(x.How) == 0 { // the node's listeners receive datagrams
			out.controls = append(out.controls, trial{external, x})
		}
	}
	overlay := part{what: "to the overlay's port, from a machine beside the cluster", victims: []string{"green-2"}, controls: trials([]actor{a.admin()}, a.tunnelWays()),
		elsewhere: trials([]actor{external}, a.tunnelWaysFrom(own, []adversary.Interface{{Name: device, MAC: links.mac[device]}}))}

	return []part{out, overlay}, nil
}
