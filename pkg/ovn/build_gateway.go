// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// podRouter is the router that is the gateway of the network's pods.
func (b *builder) podRouter() string {
	if b.net.Topology == network.Layer2 {
		return b.net.TransitRouter()
	}
	return b.net.ClusterRouter()
}

// toPods is the pod router's port on the switch of the pods.
func (b *builder) toPods() string {
	if b.net.Topology == network.Layer2 {
		return "trtos-" + b.net.Layer2Switch()
	}
	return "rtos-" + b.nodeSwitch()
}

// inside is the connection of the gateway router with the pod router, by two ports
// that are peers.
type inside struct {
	port      string         // the gateway router's
	podPort   string         // the pod router's
	podRouter []netip.Prefix // the pod router's addresses
	gateway   []netip.Prefix // the gateway router's addresses, one per IP family
}

func (b *builder) inside(gr string) inside {
	if b.net.Topology == network.Layer2 {
		return inside{"rtotr-" + gr, b.transitPeer(b.node.Name), b.net.TransitRouterPort(b.node.ID), singles(b.net.JoinGateway(b.node.ID))}
	}
	return inside{"rtoj-" + gr, "rtoj-" + b.podRouter(), b.net.JoinRouter(), b.net.JoinGateway(b.node.ID)}
}

// connectInside adds the rows of the connection of gateway router and pod router.
func (b *builder) connectInside(gr string) {
	in := b.inside(gr)
	var options map[string]string
	if b.net.Topology == network.Layer2 {
		options = keyOption(transitGatewayKey + b.node.ID)
	}
	// No switch between them: on a zone's one chassis it would only cost flows.
	b.peerPort(b.podRouter(), in.podPort, in.port, in.podRouter, options)
	b.peerPort(gr, in.port, in.podPort, in.gateway, nil)
	if b.net.Topology == network.Layer2 || b.localGateway() {
		b.toGatewayRouter(in)
	}
}

// sources returns the prefix of the route by source for this node's host subnet. OVN prefers the route with the longest
// prefix, whether of sources or of destinations, and among equally long ones that by destination. The prefix must not be
// longer than another node's host subnet, because the route to that subnet must win.
func (b *builder) sources(host netip.Prefix) netip.Prefix {
	bits := host.Bits()
	for _, s := range b.net.Subnets {
		if b.net.Topology == network.Layer3 && network.SameFamily(s.CIDR.Addr(), host.Addr()) {
			bits = min(bits, s.HostLen)
		}
	}
	return netip.PrefixFrom(host.Addr(), bits).Masked()
}

// toGatewayRouter adds the pod router's route to this node's gateway router, for the replies of
// services. On Layer 2 the two have no common subnet. On Layer 3 they have, but in local gateway
// mode the route by source that managementRoutes adds is longer, and leads to the management
// port. In that mode pods also reach the node itself through the gateway router: the node's servers
// do not receive what arrives in a VRF.
func (b *builder) toGatewayRouter(in inside) {
	for _, join := range singles(in.gateway) {
		b.route(b.podRouter(), dstIP, join, join.Addr(), in.podPort)
	}
	if !b.localGateway() {
		return
	}
	for _, own := range singles(b.filterFamilies(b.node.Addresses)) {
		if via, ok := addrOfFamily(in.gateway, own.Addr()); ok {
			b.route(b.podRouter(), dstIP, own, via, in.podPort)
		}
	}
}

// gateway adds a primary network's gateway router on this node, and the routes and
// NAT on the pod router that lead to it. Outside OVN the router has a masquerade
// address of its own, so that networks with equal addresses differ there, and no address
// of the node: the agent's flows on the bridge translate between the two and send
// packets to the router. It resolves no neighbours: see uplink.
func (b *builder) gateway() {
	b.managementRoutes()
	if !b.hasGateway() {
		return
	}
	gr, ext := b.net.GatewayRouter(b.node.Name), b.net.ExternalSwitch(b.node.Name)
	b.router(gr, map[string]string{
		"chassis":               b.node.Chassis,
		"dynamic_neigh_routers": "false",
		"disable_garp_rarp":     "true",
		// Load-balanced packets are SNATed to the address of the port by which they leave:
		// to pods the join address, to which replies from any node return, and outside
		// OVN the masquerade address.
		"lb_force_snat_ip": "router_ip",
	})
	b.connectInside(gr)

	external := "rtoe-" + gr
	b.logicalSwitch(ext, nil)
	b.connect(link{router: gr, routerPort: external, addrs: singles(b.masqueradeGateway()), mac: network.GatewayMAC, sw: ext, switchPort: "etor-" + gr})
	b.localnetPort(ext, b.net.ExternalLSP(b.node.Bridge, b.node.Name), b.in.PhysicalNetwork)

	b.gatewayRoutes(gr, external)
	b.gatewayNAT(gr)
	if b.net.Topology == network.Layer2 {
		b.nodeToPods(gr)
	}
}

// managementRoutes adds the pod router's routes out of OVN: in shared gateway
// mode to the gateway router, in local mode to the management port. Packets to the
// node through that port are SNATed to an address that identifies the network:
// networks may have the same pod addresses.
func (b *builder) managementRoutes() {
	router := b.podRouter()
	out, port := b.management(), ""
	if !b.localGateway() {
		out = nil
		if b.hasGateway() {
			in := b.inside(b.net.GatewayRouter(b.node.Name))
			out, port = in.gateway, in.podPort
		}
	}
	for _, host := range b.hosts {
		if via, ok := addrOfFamily(out, host.Addr()); ok {
			b.route(router, srcIP, b.sources(host), via, port)
		}
	}
	if b.net.IsDefault() {
		return // pod addresses of the default network are unique in the cluster
	}
	for _, host := range b.hosts {
		if outside, ok := addrOfFamily(b.masqueradeManagement(), host.Addr()); ok {
			b.snat(router, host, outside, b.gatewayPort(), b.managementSNAT(host))
		}
	}
}

// gatewayPort is the pod router's port that NAT on it names: on Layer 2 the router spans
// the zones, and NAT needs a port that is bound to a chassis.
func (b *builder) gatewayPort() string {
	if b.net.Topology == network.Layer2 {
		return b.toPods()
	}
	return ""
}

// gatewayRoutes adds the gateway router's routes: to pods through the pod router, and
// everything else to a next hop that only the agent's flows know.
func (b *builder) gatewayRoutes(gr, external string) {
	in, pods := b.inside(gr), b.net.CIDRs()
	if b.noOverlay() {
		pods = b.hosts // other nodes' pods are outside OVN
	}
	for _, dest := range pods {
		if via, ok := addrOfFamily(in.podRouter, dest.Addr()); ok {
			b.route(gr, dstIP, dest, via, in.port)
		}
	}
	// One next hop for both IP families, the IPv6 one if there is one: each costs flows.
	hops := b.filterFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeNextHop))
	hop, ok := addrOfFamily(hops, netip.IPv6Unspecified())
	if !ok && len(hops) > 0 {
		hop = hops[0].Addr()
	}
	for _, own := range b.masqueradeGateway() {
		b.route(gr, dstIP, defaultRoute(own.Addr()), hop, external)
	}
	// Nothing on the bridge answers ARP for it. The agent's flows replace its MAC.
	b.add(Neutral, nbdb.StaticMACBindingTable, macBindingID(external, hop.String()), &nbdb.StaticMACBinding{
		LogicalPort: external, IP: hop.String(), MAC: network.MAC(hop), OverrideDynamicMAC: true,
	}, nil)
}

// masqueradeGateway returns the gateway router's addresses outside OVN.
func (b *builder) masqueradeGateway() []netip.Prefix {
	return b.filterFamilies(b.in.Plan.MasqueradeGateway(b.net))
}

// gatewayNAT SNATs pods to the gateway router's masquerade address. Only this node's
// pods leave through this router.
func (b *builder) gatewayNAT(gr string) {
	outside := b.masqueradeGateway()
	for _, host := range b.hosts {
		if via, ok := addrOfFamily(outside, host.Addr()); ok {
			b.snat(gr, host, via, "", b.gatewaySNAT(host))
		}
	}
}

// macBindingID returns the id of a static MAC binding. The table has no
// external_ids: the bindings of our router ports are ours.
func macBindingID(port, ip string) string { return port + " " + ip }
