// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"strconv"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A Layer 3 network in one zone:
//
//	pods ── node switch ── cluster router ── transit switch ══ other zones
//	          │                  │
//	   management port      join switch ── gateway router ── external switch ── bridge
//
// Names are those of OVN-Kubernetes, with the prefix that pkg/network defines.

func (b *builder) nodeSwitch() string          { return b.net.NodeSwitch(b.node.Name) }
func (b *builder) toNodeSwitch() string        { return "rtos-" + b.nodeSwitch() }
func (b *builder) toJoin(router string) string { return "rtoj-" + router }
func (b *builder) toTransit() string           { return b.net.Prefix() + "rtots-" + b.node.Name }
func (b *builder) transitPort(n string) string { return b.net.Prefix() + "tstor-" + n }

// layer3 adds the cluster router, the node switch with the management port and, if
// the network has an overlay, the transit switch.
func (b *builder) layer3() {
	router, sw := b.net.ClusterRouter(), b.nodeSwitch()
	options := map[string]string{
		// Otherwise every router of every network would learn a MAC binding for
		// every host of the uplink. The neighbours that a router needs are rows.
		"always_learn_from_arp_request": "false",
	}
	if b.localGateway() && b.net.IsPrimary() {
		// The kernel routes both directions through this router. Without
		// committing all connections, replies to SNATed ones would be lost.
		options["ct-commit-all"] = "true"
	}
	b.router(router, options, "k8s-cluster-router", "yes")

	b.add(Neutral, nbdb.LogicalSwitchTable, sw, &nbdb.LogicalSwitch{Name: sw}, nil)
	b.connect(link{
		router: router, routerPort: b.toNodeSwitch(), addrs: mapPrefixes(b.hosts, network.Gateway),
		sw: sw, switchPort: "stor-" + sw,
	})
	// NAT on a router that spans zones needs a gateway port bound to this chassis.
	gc := b.toNodeSwitch() + "-" + b.node.Chassis
	b.add(Neutral, nbdb.GatewayChassisTable, gc, &nbdb.GatewayChassis{Name: gc, ChassisName: b.node.Chassis, Priority: 1},
		[]Ref{b.ref(nbdb.LogicalRouterPortTable, b.toNodeSwitch(), "gateway_chassis")})

	if b.net.IsDefault() || b.net.IsPrimary() {
		mgmt := b.management()
		b.switchPort(sw, b.net.ManagementLSP(b.node.Name), &nbdb.LogicalSwitchPort{
			Addresses: []string{addressLine(network.MACOf(mgmt), mgmt)},
		}, markNode, b.node.Name)
	}
	if b.net.Transport != network.TransportNoOverlay {
		b.transit()
	}
}

// transit connects this zone's cluster router with those of the other zones. The
// tunnel keys are functions of the network's and the node's id, so all zones use
// the same keys without an allocator.
func (b *builder) transit() {
	ts := b.net.TransitSwitch()
	b.add(Neutral, nbdb.LogicalSwitchTable, ts, &nbdb.LogicalSwitch{Name: ts, OtherConfig: map[string]string{
		"interconn-ts": ts, "requested-tnl-key": strconv.Itoa(b.net.TunnelKey()),
	}}, nil)
	b.connect(link{
		router: b.net.ClusterRouter(), routerPort: b.toTransit(), addrs: b.net.TransitAddrs(b.node.ID),
		sw: ts, switchPort: b.transitPort(b.node.Name), key: b.node.ID,
	})
}

// peer adds another node: a remote port on the transit switch, and routes to its
// pods and its gateway router.
func (b *builder) peer(peer network.Node) {
	if b.net.Transport == network.TransportNoOverlay {
		return
	}
	hosts, err := b.net.HostSubnets(peer.ID)
	if err != nil {
		return // the peer has no subnet to route to; the cluster role reports it
	}
	transit := b.net.TransitAddrs(peer.ID)
	b.switchPort(b.net.TransitSwitch(), b.transitPort(peer.Name), &nbdb.LogicalSwitchPort{
		Type:      "remote",
		Addresses: []string{addressLine(network.MACOf(transit), transit)},
		Options:   map[string]string{"requested-tnl-key": strconv.Itoa(peer.ID), "requested-chassis": peer.Chassis},
	}, markNode, peer.Name)
	dests := hosts
	for _, join := range b.net.JoinGateway(peer.ID) {
		dests = append(dests, single(join.Addr()))
	}
	for _, dest := range dests {
		if via, ok := addrOfFamily(transit, dest.Addr()); ok {
			b.route(b.net.ClusterRouter(), dstIP, dest, via, "", markPeer, peer.Name)
		}
	}
}

// pod adds the logical port of a pod of this node.
func (b *builder) pod(pod PodPort) {
	name := network.PodLSP(pod.NADKey, pod.Namespace, pod.Pod)
	line := addressLine(network.MACOf(pod.IPs), pod.IPs)
	in := []Ref{b.ref(nbdb.LogicalSwitchTable, b.nodeSwitch(), "ports")}
	if pod.Locked {
		// In one operation with the port, so that it never exists unlocked.
		locked := b.ref(nbdb.PortGroupTable, LockedPortGroup, "ports")
		locked.Closes = true
		in = append([]Ref{locked}, in...)
	}
	b.add(Opens, nbdb.LogicalSwitchPortTable, name, &nbdb.LogicalSwitchPort{
		Name: name, Addresses: []string{line}, PortSecurity: []string{line},
		// Keeps ovn-controller from binding an interface of a deleted pod of the
		// same name.
		Options: map[string]string{"iface-id-ver": pod.UID},
	}, in, markNamespace, pod.Namespace, markPod, pod.Pod, markPodUID, pod.UID, markNAD, pod.NADKey)
}
