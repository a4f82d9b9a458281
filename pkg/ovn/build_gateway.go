// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"strings"

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
	port       string         // the gateway router's
	podRouter  []netip.Prefix // the pod router's addresses
	gateway    []netip.Prefix // the gateway router's addresses
	additional []netip.Prefix // others of them, which are not in the pod router's subnets
}

func (b *builder) inside(gr string) inside {
	if b.net.Topology == network.Layer2 {
		return inside{"rtotr-" + gr, b.net.TransitRouterPort(b.node.ID), b.net.TransitGatewayPort(b.node.ID), singles(b.net.JoinGateway(b.node.ID))}
	}
	return inside{"rtoj-" + gr, b.net.JoinRouter(), b.net.JoinGateway(b.node.ID), nil}
}

// connectInside adds the rows of the connection of gateway router and pod router.
func (b *builder) connectInside(gr string) {
	router, in := b.podRouter(), b.inside(gr)
	if b.net.Topology == network.Layer2 {
		b.connectTransitRouter(gr, in)
		return
	}
	// No switch between them: on a zone's one chassis it would only cost flows.
	b.peerPort(router, "rtoj-"+router, in.port, in.podRouter, nil)
	b.peerPort(gr, in.port, "rtoj-"+router, in.gateway, nil)
}

// gateway adds a primary network's gateway router on this node, and the routes and
// NAT on the pod router that lead to it. All networks' gateway routers have the
// node's own addresses, and the agent's flows on the bridge steer packets to them.
// So nothing here relies on ARP through the bridge, and only the cluster default
// network announces its addresses there.
func (b *builder) gateway() {
	b.managementRoutes()
	if !b.hasGateway() {
		return
	}
	gr, ext := b.net.GatewayRouter(b.node.Name), b.net.ExternalSwitch(b.node.Name)

	options := map[string]string{
		"chassis":                       b.node.Chassis,
		"always_learn_from_arp_request": "false",
		"dynamic_neigh_routers":         "false",
		"mac_binding_age_threshold":     "300",
		"lb_force_snat_ip":              "router_ip",
	}
	if b.net.IsDefault() {
		options["snat-ct-zone"] = "0" // shared with the host, which has the same address
	} else {
		options["disable_garp_rarp"] = "true"
		// The external port has two addresses per IP family, so "router_ip" is
		// ambiguous. Load-balanced packets are SNATed to the join address and, if
		// they leave the node, by the NAT below to the masquerade address.
		options["lb_force_snat_ip"] = strings.TrimSpace(addressLine("", b.net.JoinGateway(b.node.ID)))
	}
	b.router(gr, options)
	b.connectInside(gr)

	external := "rtoe-" + gr
	addrs := b.filterFamilies(b.node.Addresses)
	b.add(Neutral, nbdb.LogicalSwitchTable, ext, &nbdb.LogicalSwitch{Name: ext}, nil)
	l := link{router: gr, routerPort: external, addrs: addrs, mac: b.node.BridgeMAC, sw: ext, switchPort: "etor-" + gr}
	if b.net.IsDefault() {
		l.options = map[string]string{"nat-addresses": "router", "exclude-lb-vips-from-garp": "true"}
	}
	b.connect(l)
	b.switchPort(ext, b.net.ExternalLSP(b.node.Bridge, b.node.Name), &nbdb.LogicalSwitchPort{
		Type: "localnet", Addresses: []string{"unknown"}, Options: map[string]string{"network_name": b.in.PhysicalNetwork},
	})

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
	out := b.management()
	if !b.localGateway() {
		out = nil
		if b.hasGateway() {
			out = b.inside(b.net.GatewayRouter(b.node.Name)).gateway
		}
	}
	for _, host := range b.hosts {
		if via, ok := addrOfFamily(out, host.Addr()); ok {
			b.route(router, srcIP, host, via, "")
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

// gatewayRoutes adds the gateway router's routes: to pods through the pod router, to
// the host through the fixed masquerade next hop, and by default through the node's
// next hops.
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
	hop := b.filterFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeNextHop))
	for _, masquerade := range b.filterFamilies(b.in.Plan.Masquerade) {
		if via, ok := addrOfFamily(hop, masquerade.Addr()); ok {
			b.route(gr, dstIP, masquerade, via, external)
		}
	}
	for _, via := range b.node.NextHops {
		if len(b.filterFamilies([]netip.Prefix{single(via)})) == 1 {
			b.route(gr, dstIP, defaultRoute(via), via, external)
		}
	}
	// These addresses are the host's. Nothing on the bridge answers ARP for them. The
	// bridge's MAC is the router port's too: the external switch would send such packets
	// back to the router, so they have another MAC, which the agent's flows replace.
	for _, p := range append(hop, b.masqueradeHosts()...) {
		ip := p.Addr().String()
		b.add(Neutral, nbdb.StaticMACBindingTable, macBindingID(external, ip), &nbdb.StaticMACBinding{
			LogicalPort: external, IP: ip, MAC: network.MAC(p.Addr()), OverrideDynamicMAC: true,
		}, nil)
	}
}

// masqueradeHosts returns the host's addresses towards this network's gateway
// router.
func (b *builder) masqueradeHosts() []netip.Prefix {
	if b.net.IsDefault() {
		return b.filterFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeHost))
	}
	return b.masqueradeManagement()
}

// gatewayNAT SNATs pods: to the node's address on the cluster default network, and
// on others to the network's masquerade address, which the agent's flows translate
// to the node's. Only this node's pods leave through this router.
func (b *builder) gatewayNAT(gr string) {
	outside := b.filterFamilies(b.node.Addresses)
	if !b.net.IsDefault() {
		outside = b.filterFamilies(b.in.Plan.MasqueradeGateway(b.net))
		for _, join := range b.net.JoinGateway(b.node.ID) {
			if via, ok := addrOfFamily(outside, join.Addr()); ok {
				b.snat(gr, single(join.Addr()), via, "", natScope{})
			}
		}
	}
	for _, host := range b.hosts {
		if via, ok := addrOfFamily(outside, host.Addr()); ok {
			b.snat(gr, host, via, "", b.gatewaySNAT(host))
		}
	}
}

// macBindingID returns the id of a static MAC binding. The table has no
// external_ids: the bindings of our router ports are ours.
func macBindingID(port, ip string) string { return port + " " + ip }
