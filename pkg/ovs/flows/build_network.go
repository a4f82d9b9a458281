// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"bulkhead/pkg/network"
)

// Gateway is the patch port to a network's gateway router.
type Gateway struct {
	Network int // id
	Port    int // OpenFlow port; 0: there is none yet
	// Addresses are the router's masquerade addresses, at most one per IP family.
	Addresses []netip.Addr
	// Mark is the ct_mark of the network's connections.
	Mark  uint32
	Ports []ServicePort
	// Advertised are the network's subnets, if routers outside the cluster know the addresses of
	// its pods. Pods are those of this node among them.
	Advertised, Pods []netip.Prefix
}

// ServicePort is a port of a network's services that is reached from outside the network.
type ServicePort struct {
	Addr     netip.Addr // external; invalid: the node's own, for a node port
	Protocol string     // tcp, udp or sctp
	Port     uint16
	// Claimed: the service's owner chose the address. Only packets from the wire are sent
	// to the network: it may be any host's, to which this node and other networks' pods send.
	Claimed bool
	// Local: only packets from outside the cluster that have an endpoint on this node reach the
	// service, with their client's address. NodePort is the service's node port; 0: none.
	Local    bool
	NodePort uint16
	// HostPort: Addr is the masquerade address of pods' host ports at loopback, which all
	// networks share.
	HostPort bool
}

// BuildNetwork returns a network's flows. In shared gateway mode, packets from the gateway
// router pass the uplink router and then get the node's address; replies are translated back.
// In local mode the host does both. Without an uplink there are no flows; without the network's patch port only those that
// isolate it: the node may have no pods of the network, and others that send to it.
func BuildNetwork(bridge Bridge, in Inputs, g Gateway) State {
	b := newBuilder(bridge, in, Cookie(g.Network))
	if !b.routed() {
		return nil
	}
	// The cluster controller lets BGP advertise no such network, but may not know yet what the node has.
	g.Advertised, g.Pods = network.Without(g.Advertised, in.Reserved), network.Without(g.Pods, in.Reserved)
	b.isolate(g)
	if g.Port <= 0 {
		sortFlows(b.out)
		return b.out
	}
	for _, a := range g.Addresses {
		b.add(tableInput, priorityNetwork, matchIP(inPort(g.Port), single(a), anywhere), toDestinations(fromNetwork))
		b.add(tableNetworks, priorityNetwork, matchIP("", anywhere, single(a)), b.to(g))
		if own, ok := network.FirstOfFamily(in.Addresses, a); ok && !b.local() {
			b.add(tableSource, priorityNetwork, matchIP("", single(a), anywhere), fmt.Sprintf("ct(commit,table=%d,nat(src=%s:%s),exec(load:%#x->NXM_NX_CT_MARK[]))",
				tableToWire, addrText(own.Addr()), network.EgressPorts, g.Mark))
		}
	}
	for _, own := range in.Addresses {
		if router, ok := network.FirstOfFamily(g.Addresses, own.Addr()); ok {
			b.add(tableDestinations, priorityNode, matchIP(join(origin(fromNodePort), inPort(g.Port)), single(own.Addr()), anywhere), setAddr("src", router)+","+toDestinations(fromService))
		}
	}
	for _, p := range g.Ports {
		if p.HostPort {
			b.hostPort(g, p)
			continue
		}
		b.service(g, p)
	}
	if g.Network == network.DefaultID {
		b.services(g)
	}
	b.advertised(g)
	sortFlows(b.out)
	return b.out
}

// isolate adds the flows that, unless isolation is loose, let nothing pass between an advertised network and the node or
// another network's pods. In local gateway mode the node's firewall does the same for what passes the host; gateway routers
// send what is for backends of services.
func (b *builder) isolate(g Gateway) {
	isolated := []int{fromNetwork, fromService, fromHost}
	if b.local() || g.Network == network.DefaultID { // whose pods the node reaches
		isolated = isolated[:2]
	}
	if b.in.Loose {
		isolated = nil
	}
	for _, subnet := range g.Advertised {
		for _, from := range isolated {
			b.add(tableDestinations, priorityIsolated, matchIP(origin(from), anywhere, subnet), "drop")
		}
	}
}

// advertised adds the flows of pods that keep their addresses outside OVN. A gateway
// router's port sends only with its own pods' addresses, and never directly to another gateway router.
func (b *builder) advertised(g Gateway) {
	port, out := inPort(g.Port), setMAC(b.in.MAC)+","+outputs([]int{b.bridge.Router})
	if b.local() {
		out = setMAC(b.in.MAC) + ",LOCAL"
	}
	for _, subnet := range g.Advertised {
		b.add(tableDestinations, priorityOwn, matchIP(join(origin(fromNetwork), port), anywhere, subnet), out)
	}
	// A service of another network may claim a pod's address as its external address: what
	// arrives for the pod is the pod's nevertheless.
	in, answers := b.to(g), b.to(g)
	if b.local() {
		in, answers = "LOCAL", setMAC(b.in.MAC)+",LOCAL"
	}
	for _, pods := range g.Pods {
		b.add(tableDestinations, priorityOwn, matchIP(origin(fromWire), anywhere, pods), in)
		// Answers of another network's service on this node to a pod that has connected to it.
		b.add(tableDestinations, priorityOwn, matchIP(origin(fromService), anywhere, pods), answers)
	}
	if b.local() {
		return
	}
	for _, pods := range g.Pods {
		b.add(tableInput, priorityNetwork, matchIP(port, pods, anywhere), toDestinations(fromNetwork))
		b.add(tableInput, priorityNetwork, matchIP(inPort(b.bridge.Router), pods, anywhere), b.toWire)
		b.add(tableInput, priorityNode, matchIP(inPort(b.bridge.Router), anywhere, pods), b.to(g)) // its own ICMP errors
	}
}

// to returns the actions that send to the gateway router. Open vSwitch does not forward between protected ports, and
// patch ports are protected for the time without flows: so the actions first clear the packet's input port.
func (b *builder) to(g Gateway) string {
	return "load:0xffff->NXM_OF_IN_PORT[]," + setMAC(network.GatewayMAC) + "," + outputs([]int{g.Port})
}

// service adds the flows of a port that is reached from outside the network. A node port is at
// the node's first address of each IP family: the uplink router sees the gateway router's address in
// place of the node's, and cannot tell two apart. In local mode the host translates all of the node's
// addresses to that one.
func (b *builder) service(g Gateway, p ServicePort) {
	if !p.Addr.IsValid() {
		for _, router := range g.Addresses {
			if own, ok := network.FirstOfFamily(b.in.Addresses, router); ok {
				b.nodePort(g, p, own.Addr(), router)
			}
		}
		return
	}
	from := ""
	if p.Claimed {
		from = origin(fromWire)
	}
	own := single(p.Addr)
	if p.Local && b.local() {
		// The host translates the address, because endpoints' replies to the client pass the
		// management port, and it needs a node port for that. Without one the packets must
		// not go the other way, on which the answers would have another address.
		to := "drop"
		if p.NodePort != 0 {
			to = "LOCAL"
		}
		b.add(tableDestinations, priorityExternalLocal, matchTransport(p.Protocol, origin(fromWire), anywhere, own, p.to()), to)
	}
	b.add(tableDestinations, priorityService, matchTransport(p.Protocol, from, anywhere, own, p.to()), b.to(g))
	b.add(tableInput, priorityNetwork, matchTransport(p.Protocol, inPort(g.Port), own, anywhere, p.from()), toDestinations(fromService))
	b.add(tableInput, priorityNetwork, matchTransport(p.Protocol, inPort(b.bridge.Router), own, anywhere, p.from()), b.toWire)
}

// hostPort adds the flows of a port at the address that networks share.
func (b *builder) hostPort(g Gateway, p ServicePort) {
	b.add(tableNetworks, priorityService, matchTransport(p.Protocol, "", anywhere, single(p.Addr), p.to()), b.to(g))
	b.add(tableInput, priorityNetwork, matchTransport(p.Protocol, inPort(g.Port), single(p.Addr), anywhere, p.from()), toDestinations(fromNetwork))
}

// nodePort adds the flows of a node port at the node's address own, at which the gateway router
// has a load balancer. Answers that pass the uplink router or go to the host have the gateway
// router's masquerade address as source: the receiver would take the node's address for its own.
// The host sends to the masquerade address, too. Other networks' pods send to the node's address,
// and get answers from it.
func (b *builder) nodePort(g Gateway, p ServicePort, own, router netip.Addr) {
	if !b.local() { // else the host translates what is from outside
		b.add(tableDestinations, priorityService, matchTransport(p.Protocol, "", anywhere, single(own), p.to()), b.to(g))
		b.add(tableSource, priorityService, matchTransport(p.Protocol, "", single(router), anywhere, p.from()), setAddr("src", own)+","+b.toWire)
	}
	b.add(tableNetworks, priorityService, matchTransport(p.Protocol, "", anywhere, single(router), p.to()), setAddr("dst", own)+","+b.to(g))
	b.add(tableInput, priorityNetwork, matchTransport(p.Protocol, inPort(g.Port), single(own), anywhere, p.from()), toDestinations(fromNodePort))
}

func (p ServicePort) to() string { return fmt.Sprintf("tp_dst=%d", p.Port) }

func (p ServicePort) from() string { return fmt.Sprintf("tp_src=%d", p.Port) }

// setAddr returns the actions that set the source or destination address.
func setAddr(end string, a netip.Addr) string {
	if a.Is4() {
		return fmt.Sprintf("mod_nw_%s:%s", end, a)
	}
	b, field := a.As16(), "NXM_NX_IPV6_"+strings.ToUpper(end)
	return fmt.Sprintf("load:%#x->%s[0..63],load:%#x->%s[64..127]", binary.BigEndian.Uint64(b[8:]), field, binary.BigEndian.Uint64(b[:8]), field)
}

// services adds the way to cluster IPs of the cluster default network: from the host's
// processes, and from tenants' pods, which the host forwards with their network's masquerade
// address. The node's firewall decides which services the latter are.
func (b *builder) services(g Gateway) {
	for _, service := range b.in.Services {
		b.add(tableInput, priorityHost, matchIP("in_port=LOCAL", anywhere, service), b.to(g))
		back := setMAC(b.in.MAC) + ",LOCAL"
		for _, own := range b.in.Addresses {
			if network.SameFamily(own, service) {
				b.add(tableInput, priorityService, matchIP(inPort(g.Port), service, single(own.Addr())), back)
			}
		}
		for _, masquerade := range b.in.Masquerade {
			if network.SameFamily(masquerade, service) {
				b.add(tableInput, priorityService, matchIP("in_port=LOCAL", masquerade, service), b.to(g))
				b.add(tableInput, priorityService, matchIP(inPort(g.Port), service, masquerade), back)
			}
		}
	}
}

// addrText returns an address as ovs-ofctl writes it before a port.
func addrText(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}
