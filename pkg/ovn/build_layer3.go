// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A Layer 3 network in one zone:
//
//	pods ── node switch ── cluster router ── transit switch ══ other zones
//	          │                  │
//	   management port     gateway router ── external switch ── bridge
//
// A secondary network has no management port and nothing from the gateway router on.
// In a cluster of one node there is no transit switch.
// Names are those of OVN-Kubernetes, with the prefix that pkg/network defines.

func (b *builder) nodeSwitch() string          { return b.net.NodeSwitch(b.node.Name) }
func (b *builder) toTransit() string           { return b.net.Prefix() + "rtots-" + b.node.Name }
func (b *builder) transitPort(n string) string { return b.net.Prefix() + "tstor-" + n }

// layer3 adds the cluster router, the node switch, the management port of a primary
// network and, if the network has an overlay, the transit switch. A secondary
// network has no way out, and so no NAT and no gateway router.
func (b *builder) layer3() {
	router, sw := b.net.ClusterRouter(), b.nodeSwitch()
	options := b.routerOptions()
	if b.primary() {
		options["chassis"] = b.node.Chassis // NAT then applies without a gateway port
	}
	b.router(router, options, "k8s-cluster-router", "yes")
	b.logicalSwitch(sw, nil)
	b.connect(link{
		router: router, routerPort: b.toPods(), addrs: b.gateways(),
		sw: sw, switchPort: "stor-" + sw, groups: b.advertisedGroups(),
	})
	if b.primary() {
		b.managementPort(sw, 0)
	}
	if !b.noOverlay() && !b.in.OneNode {
		b.transit()
	}
}

// transit connects this zone's cluster router with those of the other zones.
func (b *builder) transit() {
	own, ok := b.net.TransitAddr(b.node.ID)
	if !ok {
		return
	}
	ts := b.net.TransitSwitch()
	// With vlan-passthru the switch has no flows that answer ARP and neighbour
	// solicitations. Nothing asks there: OVN's routers know each other's addresses by their
	// ports, and drop frames with a VLAN tag themselves.
	b.interconnSwitch(ts, map[string]string{"vlan-passthru": "true"})
	b.connect(link{
		router: b.net.ClusterRouter(), routerPort: b.toTransit(), addrs: []netip.Prefix{own},
		sw: ts, switchPort: b.transitPort(b.node.Name), key: b.node.ID,
	})
}

// layer3Peer adds another node: a remote port on the transit switch, and routes to
// its pods and its gateway router.
func (b *builder) layer3Peer(peer network.Node) {
	transit, ok := b.net.TransitAddr(peer.ID)
	if !ok || b.noOverlay() {
		return
	}
	hosts, err := b.net.HostSubnets(peer.ID)
	if err != nil {
		return // the peer has no subnet to route to; the cluster controller reports it
	}
	options := keyOption(peer.ID)
	options["requested-chassis"] = peer.Chassis
	b.switchPort(b.net.TransitSwitch(), b.transitPort(peer.Name), &nbdb.LogicalSwitchPort{
		Type: "remote", Addresses: []string{addressLine(network.MAC(transit.Addr()), []netip.Prefix{transit})}, Options: options,
	}, markNode, peer.Name)
	b.routesToPeer(b.net.ClusterRouter(), append(hosts, singles(b.net.JoinGateway(peer.ID))...), transit.Addr(), peer)
}
