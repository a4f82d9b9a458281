// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// The uplink router of a zone, of which there is one for all networks:
//
//	bridge ── external switch ── uplink router
//
// It finds the neighbour, a router or a host on the node's link, to which a packet that
// leaves the node goes. The agent's flows on the bridge send packets of gateway routers
// through it and then to the wire. So ARP and neighbour discovery cost a node the same
// however many networks it has. The router has no way to any network: packets from the
// wire do not pass it.

// uplink adds the uplink router, a part of the cluster default network's rows.
func (b *builder) uplink() {
	if !b.net.IsDefault() || !b.hasGateway() {
		return
	}
	router, sw := network.UplinkRouter(b.node.Name), network.UplinkSwitch(b.node.Name)
	b.router(router, map[string]string{
		"chassis":                       b.node.Chassis,
		"always_learn_from_arp_request": "false",
		"disable_garp_rarp":             "true", // the host announces the addresses, which are its own
		"mac_binding_age_threshold":     "300",
	})
	b.logicalSwitch(sw, nil)
	b.connect(link{router: router, routerPort: b.toWire(), addrs: b.node.Addresses, mac: b.node.BridgeMAC, sw: sw, switchPort: "etor-" + router})
	b.localnetPort(sw, network.UplinkLSP(b.node.Bridge, b.node.Name), b.in.PhysicalNetwork)
	for _, via := range b.node.NextHops {
		b.route(router, dstIP, defaultRoute(via), via, b.toWire())
	}
}

// toWire is the uplink router's port.
func (b *builder) toWire() string { return "rtoe-" + network.UplinkRouter(b.node.Name) }

// importedRoutes adds the uplink router's routes that BGP has learned. Packets to pods of a
// network without an overlay that no route leads to are dropped: the default route would send
// them out of the cluster.
func (b *builder) importedRoutes() {
	if !b.net.IsDefault() || !b.hasGateway() {
		return
	}
	seen := map[string]struct{}{}
	routed := map[netip.Prefix]bool{}
	for _, r := range b.in.ImportedRoutes {
		if r.Prefix.Bits() == 0 && slices.ContainsFunc(b.node.NextHops, func(a netip.Addr) bool { return a.Is4() == r.Prefix.Addr().Is4() }) {
			continue // the node's default routes are those that the kernel prefers: see uplink
		}
		for _, via := range r.NextHops {
			hop := r.Prefix.String() + " " + via.String()
			if _, dup := seen[hop]; dup {
				continue
			}
			seen[hop], routed[r.Prefix] = struct{}{}, true
			b.route(network.UplinkRouter(b.node.Name), dstIP, r.Prefix, via, b.toWire(), markController, network.ControllerRouteImport)
		}
	}
	for _, subnet := range b.in.BGP.NoOverlaySubnets {
		// A network of a single host subnet has a route of the same prefix, with which OVN would
		// balance this one.
		if _, ok := addrOfFamily(b.node.Addresses, subnet.Addr()); ok && !routed[subnet] {
			b.discard(network.UplinkRouter(b.node.Name), subnet)
		}
	}
}

// localnetPort adds a switch's port to the bridge of a physical network.
func (b *builder) localnetPort(sw, name, physicalNetwork string) {
	b.switchPort(sw, name, &nbdb.LogicalSwitchPort{
		Type: "localnet", Addresses: []string{"unknown"}, Options: map[string]string{"network_name": physicalNetwork},
	})
}
