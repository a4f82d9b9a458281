// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// gateway is the network's way out of OVN on this node, with the routes and
// NAT on the cluster router that lead to it. Every network's gateway router
// has the node's own addresses; the agent's flows on the bridge decide which
// packets come to which, so nothing here relies on ARP through the bridge and
// only the cluster default network announces itself there.
func (b *builder) gateway() {
	if !b.net.IsDefault() && !b.net.IsPrimary() {
		return
	}
	b.managementRoutes()
	if !b.hasGateway() {
		return
	}
	gr, join, ext := b.net.GatewayRouter(b.node.Name), b.net.JoinSwitch(), b.net.ExternalSwitch(b.node.Name)
	cluster := b.net.ClusterRouter()

	options := map[string]string{
		"chassis":                       b.node.Chassis,
		"always_learn_from_arp_request": "false",
		"dynamic_neigh_routers":         "false",
		"mac_binding_age_threshold":     "300",
		"lb_force_snat_ip":              "router_ip",
	}
	if b.net.IsDefault() {
		options["snat-ct-zone"] = "0" // shared with the host, which owns the same address
	} else {
		options["disable_garp_rarp"] = "true"
		// The external port has two addresses a family, so OVN could not tell
		// which "router_ip" is. What is load-balanced gets the join address,
		// and outwards, by the NAT below, the masquerade address.
		options["lb_force_snat_ip"] = strings.TrimSpace(addressLine("", b.net.JoinGateway(b.node.ID)))
	}
	b.router(gr, options)

	b.add(nbdb.LogicalSwitchTable, join, &nbdb.LogicalSwitch{Name: join}, nil)
	b.connect(link{router: cluster, routerPort: b.toJoin(cluster), addrs: b.net.JoinRouter(), sw: join, switchPort: "jtor-" + cluster})
	b.connect(link{router: gr, routerPort: b.toJoin(gr), addrs: b.net.JoinGateway(b.node.ID), sw: join, switchPort: "jtor-" + gr})

	external := "rtoe-" + gr
	addrs := b.ofFamilies(b.node.Addresses)
	if !b.net.IsDefault() {
		for _, m := range b.ofFamilies(b.in.Plan.MasqueradeGateway(b.net)) {
			addrs = append(addrs, single(m.Addr()))
		}
	}
	b.add(nbdb.LogicalSwitchTable, ext, &nbdb.LogicalSwitch{Name: ext}, nil)
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
}

// managementRoutes lead from the cluster router out of OVN: in shared gateway
// mode to the gateway router, in local mode to the node's own port. What a
// pod sends to the node through that port gets an address that says which
// network it is of: networks may have the same pod addresses.
func (b *builder) managementRoutes() {
	cluster := b.net.ClusterRouter()
	out := b.management()
	if !b.localGateway() {
		out = nil
		if b.hasGateway() {
			out = b.net.JoinGateway(b.node.ID)
		}
	}
	for _, host := range b.hosts {
		if via, ok := familyOf(out, host.Addr()); ok {
			b.route(cluster, srcIP, host, via, "")
		}
	}
	if b.net.IsDefault() {
		return // its pod addresses are unique in the cluster
	}
	for _, host := range b.hosts {
		if outside, ok := familyOf(b.masqueradeManagement(), host.Addr()); ok {
			b.snat(cluster, host, outside, b.toNodeSwitch(), "eth.dst == "+network.MACOf(b.management()))
		}
	}
}

// gatewayRoutes are the gateway router's: pods inwards, the host by the fixed
// masquerade next hop, the world by the node's next hops.
func (b *builder) gatewayRoutes(gr, external string) {
	for _, cidr := range b.net.CIDRs() {
		if b.net.Transport == "no-overlay" {
			break
		}
		if via, ok := familyOf(b.net.JoinRouter(), cidr.Addr()); ok {
			b.route(gr, dstIP, cidr, via, b.toJoin(gr))
		}
	}
	if b.net.Transport == "no-overlay" {
		for _, host := range b.hosts {
			if via, ok := familyOf(b.net.JoinRouter(), host.Addr()); ok {
				b.route(gr, dstIP, host, via, b.toJoin(gr))
			}
		}
	}
	hop := b.ofFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeNextHop))
	for _, masquerade := range b.ofFamilies(b.in.Plan.Masquerade) {
		if via, ok := familyOf(hop, masquerade.Addr()); ok {
			b.route(gr, dstIP, masquerade, via, external)
		}
	}
	for _, via := range b.node.NextHops {
		if len(b.ofFamilies([]netip.Prefix{single(via)})) == 1 {
			b.route(gr, dstIP, defaultRoute(via), via, external)
		}
	}
	// The host has the bridge's MAC; nobody on the bridge answers ARP for
	// these addresses.
	for _, p := range append(hop, b.masqueradeHosts()...) {
		ip := p.Addr().String()
		b.add(nbdb.StaticMACBindingTable, macBindingID(external, ip), &nbdb.StaticMACBinding{
			LogicalPort: external, IP: ip, MAC: b.node.BridgeMAC, OverrideDynamicMAC: true,
		}, nil)
	}
}

// masqueradeHosts are the addresses that the host has towards this network's
// gateway router.
func (b *builder) masqueradeHosts() []netip.Prefix {
	if b.net.IsDefault() {
		return b.ofFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeHost))
	}
	return b.masqueradeManagement()
}

// gatewayNAT hides pods: behind the node on the cluster default network,
// behind the network's masquerade address on others, which the agent's flows
// turn into the node's. Only this node's pods leave through this router.
func (b *builder) gatewayNAT(gr string) {
	outside := b.ofFamilies(b.node.Addresses)
	if !b.net.IsDefault() {
		outside = b.ofFamilies(b.in.Plan.MasqueradeGateway(b.net))
		for _, join := range b.net.JoinGateway(b.node.ID) {
			if via, ok := familyOf(outside, join.Addr()); ok {
				b.snat(gr, single(join.Addr()), via, "", "")
			}
		}
	}
	for _, host := range b.hosts {
		if via, ok := familyOf(outside, host.Addr()); ok {
			b.snat(gr, host, via, "", "")
		}
	}
}

// macBindingID is the id of a static MAC binding, whose table has no
// external_ids: ours are those on our router ports.
func macBindingID(port, ip string) string { return port + " " + ip }
