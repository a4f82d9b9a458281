// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// Service is a Kubernetes Service of a network.
type Service struct {
	Namespace, Name string
	ClusterIPs      []netip.Addr
	ExternalIPs     []netip.Addr // also those of load balancers
	Ports           []ServicePort
	// ExternalLocal and InternalLocal are the traffic policies Local: only this
	// node's endpoints get packets from outside the cluster, or to the cluster IPs.
	ExternalLocal, InternalLocal bool
	// PortsOmitted and EndpointsOmitted are the numbers of ports, and of the first port's endpoints, that are
	// left out because of maxBackends.
	PortsOmitted, EndpointsOmitted int
	// HealthPort is where load balancers outside the cluster ask whether this node has endpoints; 0: nowhere.
	HealthPort uint16
	// Affinity is for how long a client keeps its endpoint; 0: for one connection.
	Affinity time.Duration
}

// Key is the service's namespace/name.
func (s Service) Key() string { return s.Namespace + "/" + s.Name }

// ServicePort is a port of a Service.
type ServicePort struct {
	Protocol       string // nbdb.LoadBalancerProtocolTCP, …UDP or …SCTP
	Port, NodePort uint16 // NodePort 0: none
	Endpoints      []Endpoint
	NotAt          []netip.Addr // external addresses at which another service has the port
}

// Endpoint is an address on the network that serves a port.
type Endpoint struct {
	Addr  netip.AddrPort
	Node  string
	State EndpointState
}

// EndpointState says which packets an endpoint gets.
type EndpointState uint8

const (
	EndpointReady       EndpointState = iota
	EndpointTerminating               // new connections only while no endpoint is ready (KEP-1669)
	EndpointNotServing                // no new connections, but those that it has go on
)

// ExposedService is a service of the cluster default network that the pods of all
// networks reach.
type ExposedService struct {
	Namespace, Name string
	ClusterIPs      []netip.Addr
	DNS             bool // it serves DNS: UDP port 53
}

// Key is the service's namespace/name.
func (s ExposedService) Key() string { return s.Namespace + "/" + s.Name }

// maxAffinity is the longest affinity that OVN knows. A Service can have up to a day.
const maxAffinity = 65535 * time.Second

// vips are load balancers' virtual addresses ("address:port") with their backends.
type vips map[string]string

// add adds a virtual address with those of the backends that have its IP family.
func (v vips) add(vip netip.AddrPort, backends []netip.AddrPort) {
	same := slices.DeleteFunc(slices.Clone(backends), func(a netip.AddrPort) bool { return a.Addr().Is4() != vip.Addr().Is4() })
	v[vip.String()] = strings.Join(texts(same), ",")
}

// balancers are a service's load balancers for one protocol. Policies and endpoints
// only change their contents: northd (25.03) loses flows of an address that moves from
// one load balancer of a router to another.
type balancers struct {
	onSwitch vips // for pods and the node's own processes
	onRouter vips // cluster IPs
	external vips // other addresses, on the gateway router
	// local are where the node redirects packets from outside in local gateway mode, on the
	// router of the pods.
	local vips
	// toHost: with external traffic policy Local, an endpoint is in the node's own network.
	toHost bool
}

// service adds a service's load balancers to the switch of the pods and to the gateway
// router. A group of load balancers would hold them for many switches and routers;
// a network has one of each in a zone.
func (b *builder) service(podSwitch string, s Service) {
	byProtocol := map[string]*balancers{}
	for _, p := range s.Ports {
		lb := byProtocol[p.Protocol]
		if lb == nil {
			lb = &balancers{onSwitch: vips{}, onRouter: vips{}, external: vips{}, local: vips{}}
			byProtocol[p.Protocol] = lb
		}
		b.servicePort(lb, s, p)
	}
	router := b.net.GatewayRouter(b.node.Name)
	for _, protocol := range slices.Sorted(maps.Keys(byProtocol)) {
		lb := byProtocol[protocol]
		b.loadBalancer(s, protocol, "switch", b.ref(nbdb.LogicalSwitchTable, podSwitch, "load_balancer"), lb.onSwitch, false)
		if b.hasGateway() {
			b.loadBalancer(s, protocol, "router", b.ref(nbdb.LogicalRouterTable, router, "load_balancer"), lb.onRouter, false)
			// With traffic policy Local, replies pass this gateway router anyway:
			// the endpoints are on this node and see the client's address. The external bridge
			// drops packets from the router to a process of the node that have a client's address.
			b.loadBalancer(s, protocol, "external", b.ref(nbdb.LogicalRouterTable, router, "load_balancer"), lb.external, s.ExternalLocal && !lb.toHost)
		}
		// This router has no lb_force_snat_ip, so sources stay. With skip_snat, northd (25.03)
		// omits the translation of replies on a router with a gateway port, as Layer 2 has.
		b.loadBalancer(s, protocol, "local", b.ref(nbdb.LogicalRouterTable, b.podRouter(), "load_balancer"), lb.local, false)
		if s.ExternalLocal && !lb.toHost {
			b.repliesToPods(s, protocol)
		}
	}
}

// repliesToPods lets this node's endpoints of a service with external traffic policy Local answer pods of
// other networks, which they see with the masquerade addresses of these pods' gateway routers on
// this node. The external bridge drops everything but answers. In local gateway mode the node gives such packets
// its own address.
func (b *builder) repliesToPods(s Service, protocol string) {
	if b.net.IsDefault() || b.localGateway() || !b.hasGateway() {
		return
	}
	sources := map[string][]string{} // by IP family: an endpoint's address and port
	for _, p := range s.Ports {
		if p.Protocol != protocol {
			continue
		}
		for _, e := range p.Endpoints { // whatever their states are: connections outlast readiness
			if e.Node != b.node.Name {
				continue
			}
			a := e.Addr
			ip := ipKeyword(a.Addr())
			sources[ip] = append(sources[ip], fmt.Sprintf("(%s.src == %s && %s.src == %d)", ip, a.Addr(), protocol, a.Port()))
		}
	}
	for _, p := range b.filterFamilies(b.in.Plan.Masquerade) {
		ip := ipKeyword(p.Addr())
		if from := slices.Compact(slices.Sorted(slices.Values(sources[ip]))); len(from) > 0 {
			b.policy(Opens, "replies "+s.Key()+" "+protocol+" "+p.String(), policyReplies, fmt.Sprintf("%s.dst == %s && (%s)", ip, p, strings.Join(from, " || ")),
				nbdb.LogicalRouterPolicyActionAllow, nil, markService, s.Key())
		}
	}
}

// servicePort adds the virtual addresses of a port. Pods reach external addresses as
// they reach cluster IPs, whatever the external traffic policy is, as with kube-proxy.
func (b *builder) servicePort(lb *balancers, s Service, p ServicePort) {
	all, local := eligible(p.Endpoints, ""), eligible(p.Endpoints, b.node.Name)
	internal, external := all, all
	if s.InternalLocal {
		internal = local
	}
	if s.ExternalLocal {
		external = local
		// Whatever their states are: a change of sources would cut all connections.
		lb.toHost = lb.toHost || slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Node == b.node.Name && b.node.HasAddress(e.Addr.Addr()) })
	}
	for _, ip := range b.served(s.ClusterIPs) {
		vip := netip.AddrPortFrom(ip, p.Port)
		lb.onSwitch.add(vip, internal)
		lb.onRouter.add(vip, internal)
	}
	for _, ip := range b.served(s.ExternalIPs) {
		if slices.Contains(p.NotAt, ip) {
			continue
		}
		vip := netip.AddrPortFrom(ip, p.Port)
		lb.onSwitch.add(vip, all)
		lb.external.add(vip, external)
	}
	if p.NodePort == 0 {
		return
	}
	for _, own := range b.filterFamilies(b.node.Addresses) {
		vip := netip.AddrPortFrom(own.Addr(), p.NodePort)
		lb.onSwitch.add(vip, all)
		lb.external.add(vip, external)
	}
	if s.ExternalLocal && b.localGateway() {
		// Packets from outside enter through the management port. The endpoints see the client's
		// address, and their replies leave through that port. The router of the pods translates
		// them back before it translates sources: a switch would see replies later, with the
		// network's masquerade address in place of the endpoint's.
		// Processes of the node would answer through the gateway router, which does not translate back.
		pods := slices.DeleteFunc(slices.Clone(local), func(a netip.AddrPort) bool { return b.node.HasAddress(a.Addr()) })
		for _, a := range b.masqueradeManagement() {
			lb.local.add(netip.AddrPortFrom(a.Addr(), p.NodePort), pods)
		}
		b.repliesOfOthers(lb, p, pods)
	}
}

// repliesOfOthers keeps the connections of this node's endpoints that get no new ones, besides serving. On a router with a
// gateway port, as Layer 2 has, northd (25.03) translates back only what backends of a load balancer send. So these
// endpoints are the backends of an address to which nobody sends.
func (b *builder) repliesOfOthers(lb *balancers, p ServicePort, serving []netip.AddrPort) {
	var others []netip.AddrPort
	for _, e := range p.Endpoints {
		if e.Node == b.node.Name && !slices.Contains(serving, e.Addr) && !b.node.HasAddress(e.Addr.Addr()) {
			others = append(others, e.Addr)
		}
	}
	if b.net.Topology != network.Layer2 || len(others) == 0 {
		return
	}
	slices.SortFunc(others, netip.AddrPort.Compare)
	for _, a := range b.filterFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeHairpin)) {
		lb.local.add(netip.AddrPortFrom(a.Addr(), p.NodePort), slices.Compact(others))
	}
}

// loadBalancer adds a service's load balancer of one kind, if it has virtual addresses.
func (b *builder) loadBalancer(s Service, protocol, kind string, in Ref, v vips, keepSource bool) {
	options := b.balancerOptions(protocol, keepSource)
	if s.Affinity > 0 {
		options["affinity_timeout"] = strconv.Itoa(int(min(s.Affinity, maxAffinity).Seconds()))
	}
	name := b.net.Prefix() + "Service_" + s.Key() + "_" + strings.ToUpper(protocol) + "_" + kind
	b.balancer(name, protocol, in, v, options, markService, s.Key())
}

// hostPorts adds the load balancers of a pod's host ports to the gateway router, to which the
// node redirects what is sent to them.
func (b *builder) hostPorts(pod PodPort) {
	byProtocol := map[string]vips{}
	for _, p := range pod.HostPorts {
		if byProtocol[p.Protocol] == nil {
			byProtocol[p.Protocol] = vips{}
		}
		var backends []netip.AddrPort
		for _, ip := range pod.IPs {
			backends = append(backends, netip.AddrPortFrom(ip.Addr(), p.PodPort))
		}
		for _, r := range p.Routes(b.in.Plan, b.net, b.node.Addresses) {
			at := HostPortAt{p.Protocol, netip.AddrPortFrom(r.To, p.Port)}
			if !slices.Contains(pod.TakenHostPorts, at) {
				byProtocol[p.Protocol].add(at.At, backends)
			}
		}
	}
	router := b.ref(nbdb.LogicalRouterTable, b.net.GatewayRouter(b.node.Name), "load_balancer")
	for _, protocol := range slices.Sorted(maps.Keys(byProtocol)) {
		name := b.net.Prefix() + "HostPort_" + pod.Key() + "_" + strings.ToUpper(protocol)
		b.balancer(name, protocol, router, byProtocol[protocol], b.balancerOptions(protocol, false), markNamespace, pod.Namespace, markPod, pod.Pod)
	}
}

// balancer adds a load balancer, if it has virtual addresses.
func (b *builder) balancer(name, protocol string, in Ref, v vips, options map[string]string, marks ...string) {
	if len(v) > 0 {
		b.add(Opens, nbdb.LoadBalancerTable, name, &nbdb.LoadBalancer{Name: name, Protocol: ptr(protocol), Vips: v, Options: options}, []Ref{in}, marks...)
	}
}

// balancerOptions returns the options of a load balancer. With keepSource, endpoints see the
// addresses of clients.
func (b *builder) balancerOptions(protocol string, keepSource bool) map[string]string {
	options := map[string]string{
		"reject": "true", "event": "false", // without endpoints
		"neighbor_responder": "none", // the agent's flows send packets here
		"skip_snat":          strconv.FormatBool(keepSource),
		"hairpin_snat_ip":    strings.TrimSpace(addressLine("", b.filterFamilies(b.in.Plan.MasqueradeFixed(network.MasqueradeHairpin)))),
	}
	if protocol == nbdb.LoadBalancerProtocolUDP {
		options["ct_flush"] = "true" // clients would continue to send to an endpoint that is gone
	}
	return options
}

// exposed sends a tenant's pods' packets to a service of the cluster default network: through
// the management port to the host, which forwards them to it.
func (b *builder) exposed(s ExposedService) {
	for _, ip := range b.served(s.ClusterIPs) {
		if via, ok := addrOfFamily(b.management(), ip); ok {
			b.policy(Opens, "exposed "+ip.String(), policyExposed, fmt.Sprintf("%s.dst == %s", ipKeyword(ip), ip), nbdb.LogicalRouterPolicyActionReroute, []string{via.String()}, markExposed, s.Key())
		}
	}
}

// ingress sends what an ingress pod sends to cluster IPs that are not of this network to the management
// port: the node forwards it to the network that has the service (User Defined Networks proposal, "OpenShift Router/Ingress").
func (b *builder) ingress(pod PodPort) {
	for _, ip := range pod.IPs {
		via, ok := addrOfFamily(b.management(), ip.Addr())
		services := prefixStrings(network.FilterFamilies(b.in.Plan.ServiceCIDRs, ip.Addr().Is4(), ip.Addr().Is6()))
		if !ok || len(services) == 0 {
			continue
		}
		keyword := ipKeyword(ip.Addr())
		b.policy(Opens, fmt.Sprintf("ingress %s", ip.Addr()), policyIngress, fmt.Sprintf("%s.src == %s && %s.dst == {%s}", keyword, ip.Addr(), keyword, strings.Join(services, ", ")),
			nbdb.LogicalRouterPolicyActionReroute, []string{via.String()}, markNamespace, pod.Namespace, markPod, pod.Pod)
	}
}

// served returns the addresses of the network's IP families.
func (b *builder) served(addrs []netip.Addr) []netip.Addr {
	v4, v6 := b.net.Families()
	return network.FilterFamilies(addrs, v4, v6)
}

// eligible returns the addresses of the endpoints that get packets, sorted: those on
// a node, or all for "". Terminating ones are the last resort.
func eligible(endpoints []Endpoint, node string) []netip.AddrPort {
	var ready, terminating []netip.AddrPort
	for _, e := range endpoints {
		switch {
		case node != "" && e.Node != node, e.State == EndpointNotServing:
		case e.State == EndpointTerminating:
			terminating = append(terminating, e.Addr)
		default:
			ready = append(ready, e.Addr)
		}
	}
	if len(ready) == 0 {
		ready = terminating
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}
