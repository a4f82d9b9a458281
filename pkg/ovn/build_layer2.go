// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"strconv"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A Layer 2 network in one zone:
//
//	pods ── switch ══ other zones ══ transit router ── gateway router ── external switch ── bridge
//	           │  └──────────────────────┘
//	    management port
//
// The switch and the transit router span the zones: they have the same keys in each
// of them. The transit router's address on the switch, the pods' gateway, and its
// MAC are the same on every node, so that they stay the same for a virtual machine
// that moves. A secondary network has the switch only.

// Keys of ports that span the zones. On the switch, the cluster controller gives pods the
// keys from 10. The ports between switch and transit router do not request keys: no
// other zone sends packets to them, and northd would request the same key again for
// their bindings to the chassis, and warn. Northd gives these ports the keys after the
// switch's highest one, and begins at 1 after the highest possible key. So the management
// port requests that key. Otherwise these ports would get the key of the next new pod, and
// northd and ovn-controller would recompute everything to move them.
const (
	layer2ManagementKey = network.MaxPortKey
	transitGatewayKey   = 10 // plus the node id: the transit router's ports to gateway routers
)

// layer2 adds the switch.
func (b *builder) layer2() { b.interconnSwitch(b.net.Layer2Switch(), nil) }

// transitRouter adds the transit router and the management port.
func (b *builder) transitRouter() {
	router, sw := b.net.TransitRouter(), b.net.Layer2Switch()
	options := b.routerOptions()
	options["requested-tnl-key"] = strconv.Itoa(b.net.TransitRouterKey())
	b.router(router, options)
	l := link{
		router: router, routerPort: b.toPods(), addrs: b.gateways(),
		sw: sw, switchPort: "stotr-" + sw, groups: b.advertisedGroups(),
	}
	if _, v6 := b.net.Families(); v6 {
		// Virtual machines learn the default route. Its preference is low, so that
		// the route that a pod gets with its addresses prevails.
		l.ra = map[string]string{
			"address_mode": "dhcpv6_stateful", "send_periodic": "true", "max_interval": "900", "min_interval": "300",
			"router_preference": "LOW",
		}
		if b.net.MTU != 0 {
			l.ra["mtu"] = strconv.Itoa(b.net.MTU)
		}
	}
	b.connect(l)
	b.bindRouterPort(b.toPods())
	b.managementPort(sw, layer2ManagementKey)
}

// transitPeer returns the transit router's port to a node's gateway router.
func (b *builder) transitPeer(node string) string { return "trtor-" + b.net.GatewayRouter(node) }

// nodeToPods connects the node's own processes with pods on other nodes. The management
// port has the same address on every node, so that replies to it would stay on the
// pod's node. Towards pods, processes therefore use a masquerade address, which the
// gateway router turns into its join address.
func (b *builder) nodeToPods(gr string) {
	router, in := b.podRouter(), b.inside(gr)
	for _, own := range singles(b.filterFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeNode))) {
		management, _ := addrOfFamily(b.management(), own.Addr())
		join, _ := addrOfFamily(in.gateway, own.Addr())
		toPods, _ := addrOfFamily(in.podRouter, own.Addr())
		b.route(router, srcIP, own, join, in.podPort)
		b.route(router, dstIP, own, management, "")
		b.route(gr, dstIP, own, toPods, in.port)
		b.snat(gr, own, join, "", natScope{})
	}
}

// layer2Peer adds another node: the transit router's port to the node's gateway
// router, and routes to it.
func (b *builder) layer2Peer(peer network.Node) {
	options := keyOption(transitGatewayKey + peer.ID)
	options["requested-chassis"] = peer.Chassis
	b.peerPort(b.net.TransitRouter(), b.transitPeer(peer.Name), "", b.net.TransitRouterPort(peer.ID), options, markNode, peer.Name)
	for _, join := range singles(b.net.JoinGateway(peer.ID)) {
		b.route(b.net.TransitRouter(), dstIP, join, join.Addr(), b.transitPeer(peer.Name), markPeer, peer.Name)
	}
}

// remotePod adds the port of a pod of another node. It has the same name and key in
// all zones.
func (b *builder) remotePod(sw string, pod RemotePod) {
	name := network.PodLSP(pod.NADKey, pod.Namespace, pod.Pod)
	options := keyOption(pod.TunnelKey)
	options["requested-chassis"] = pod.Chassis
	b.add(portEffect(pod.Disabled), nbdb.LogicalSwitchPortTable, name, &nbdb.LogicalSwitchPort{
		Name: name, Type: "remote", Addresses: activeAddresses(portAddresses(pod.MAC, pod.IPs), pod.Disabled), Enabled: portEnabled(pod.Disabled), Options: options,
	}, []Ref{b.ref(nbdb.LogicalSwitchTable, sw, "ports")},
		markNode, pod.Node, markNamespace, pod.Namespace, markPod, pod.Pod, markNAD, pod.NADKey)
}
