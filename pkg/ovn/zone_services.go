// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Events of a Service.
const (
	reasonNodePorts     = "NodePortsNeeded"
	reasonHostEndpoints = "HostEndpointsNotReached"
	reasonExternalIP    = "ExternalAddressNotServed"
	reasonTooLarge      = "PortsNotServed"
	reasonClusterIP     = "ClusterIPNotReached"
)

// A service belongs to the primary network of its namespace, or to the cluster default
// network. Its endpoints' addresses on a primary network are in the EndpointSlices of
// the endpoint mirror.

// indexService indexes EndpointSlices by network and service.
const indexService = "service"

var sliceIndexers = cache.Indexers{
	indexService: func(obj any) ([]string, error) {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			if service, net := sliceOf(s); service != "" {
				return []string{net + "/" + service}, nil
			}
		}
		return nil, nil
	},
}

func (z *Zone) serviceChanged(old, obj any) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	was, _ := old.(*corev1.Service)
	z.mu.Lock()
	defer z.mu.Unlock()
	_ = z.services.Update(s) // fails for objects without a name
	if was == nil || was.UID != s.UID || !reflect.DeepEqual(was.Spec, s.Spec) || !reflect.DeepEqual(was.Status, s.Status) {
		z.replaceService(was, s)
	}
}

func (z *Zone) serviceDeleted(obj any) {
	if s, ok := obj.(*corev1.Service); ok {
		z.mu.Lock()
		defer z.mu.Unlock()
		_ = z.services.Delete(s) // fails for objects without a name
		z.replaceService(s, nil)
	}
}

// replaceService replaces a service's external addresses in the index of claims. It enqueues the
// service, and those that lose or gain an external address by the change. old or s may be nil.
func (z *Zone) replaceService(old, s *corev1.Service) {
	either := cmp.Or(s, old)
	key := either.Namespace + "/" + either.Name
	networks := slices.Compact([]string{z.served[key], z.servedBy(either.Namespace)})
	var claimed []externalClaim
	if old != nil {
		claimed = externalClaims(old)
		for _, c := range claimed {
			z.claims.Remove(c.externalPort, c.by)
		}
	}
	if s != nil {
		claims := externalClaims(s)
		for _, c := range claims {
			z.claims.Add(c.externalPort, c.by)
		}
		claimed = append(claimed, claims...)
	}
	z.enqueueService(either.Namespace, either.Name)
	z.enqueueOwners(claimed, networks, func(string) bool { return true }, key)
}

// enqueueOwners enqueues, for each claimed port and each of the networks, the first claimant in the namespaces for which in
// returns true, besides except. Only that service can lose or gain the port by the change of the others: later claimants have it
// neither before nor after.
func (z *Zone) enqueueOwners(claimed []externalClaim, networks []string, in func(namespace string) bool, except string) {
	if !z.synced {
		return
	}
	servedBy, done := z.cachedServedBy(), map[externalPort]bool{}
	for _, e := range claimed {
		if done[e.externalPort] {
			continue
		}
		done[e.externalPort] = true
		for _, n := range networks {
			if n == "" {
				continue
			}
			if c, ok := z.claims.First(e.externalPort, func(namespace string) bool { return in(namespace) && servedBy(namespace) == n }, except); ok {
				namespace, name, _ := strings.Cut(c.Name, "/")
				z.enqueueService(namespace, name)
			}
		}
	}
}

// enqueueClaimants enqueues, for each claimed port at one of the addresses, the first claimant on each network. It reads
// all claims: nodes' addresses seldom change.
func (z *Zone) enqueueClaimants(addresses map[netip.Addr]bool) {
	if len(addresses) == 0 {
		return
	}
	servedBy := z.cachedServedBy()
	for e := range z.claims.Things() {
		if !addresses[e.addr] {
			continue
		}
		networks := map[string]bool{}
		for namespace := range z.claims.Namespaces(e) {
			networks[servedBy(namespace)] = true
		}
		delete(networks, "") // of namespaces without a network
		for n := range networks {
			c, _ := z.claims.First(e, func(namespace string) bool { return servedBy(namespace) == n }, "")
			namespace, name, _ := strings.Cut(c.Name, "/")
			z.enqueueService(namespace, name)
		}
	}
}

func (z *Zone) sliceChanged(old, obj any) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, o := range []any{old, obj} {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			if key, net := sliceOf(s); key != "" && z.synced && z.servedBy(s.Namespace) == net {
				z.queue.AddUnits(net, serviceUnit(key))
			}
		}
	}
}

// indexed returns the objects with a value in an index.
func indexed[T any](z *Zone, store cache.Indexer, index, value string) []T {
	objs, err := store.ByIndex(index, value)
	if err != nil {
		z.log.Error("cannot read an index", "index", index, "error", err)
	}
	out := make([]T, 0, len(objs))
	for _, obj := range objs {
		if x, ok := obj.(T); ok {
			out = append(out, x)
		}
	}
	return out
}

// enqueueService enqueues a service on its network, on the one that it was built on, and, if
// it is exposed, the way to it on all others. When a service is deleted, its namespace or
// NAD may be gone already, and then nothing else says on which network it was.
func (z *Zone) enqueueService(namespace, name string) {
	if !z.synced {
		return
	}
	key := namespace + "/" + name
	net, was := z.servedBy(namespace), z.served[key]
	if net != "" {
		z.queue.AddUnits(net, serviceUnit(key))
	}
	if was != "" && was != net {
		z.queue.AddUnits(was, serviceUnit(key))
	}
	if _, exists, err := z.services.GetByKey(key); err == nil && !exists {
		delete(z.served, key)
		delete(z.lastReports, key)
	}
	if slices.Contains(z.cfg.AllowedServices, key) {
		z.enqueueNetworks(exposedUnit(key))
		z.queue.AddUnits(network.DefaultName, topologyUnit) // has the set of these addresses
		z.enqueueVirtualMachines()                          // the service may be their DNS server
	}
}

// enqueueServices enqueues a namespace's services, whose network may have changed, and those
// whose external addresses they took or leave.
func (z *Zone) enqueueServices(namespace string) {
	networks := []string{z.servedBy(namespace)}
	var claimed []externalClaim
	for _, s := range indexed[*corev1.Service](z, z.services, cache.NamespaceIndex, namespace) {
		if was := z.served[s.Namespace+"/"+s.Name]; !slices.Contains(networks, was) {
			networks = append(networks, was)
		}
		z.enqueueService(s.Namespace, s.Name)
		claimed = append(claimed, externalClaims(s)...)
	}
	z.enqueueOwners(claimed, networks, func(other string) bool { return other != namespace }, "")
}

// servedBy returns the network of a namespace's services, "" for none yet. An unusable
// NAD does not take a network's services away. The id that the cluster controller has written on the NAD decides: anybody
// may write a name.
func (z *Zone) servedBy(namespace string) string {
	switch labelled, exists := z.namespaces[namespace]; {
	case !exists:
		return ""
	case !labelled:
		return network.DefaultName
	}
	if nad, err := z.nadIndex.Primary(namespace, true); err == nil {
		return nad.Network.Name
	}
	var names []string
	for _, nad := range z.nadIndex.InNamespace(namespace) {
		if st, ok := z.nets[nad.Network.Name]; ok && st.net.IsPrimary() && nad.Network.ID == st.net.ID {
			names = append(names, nad.Network.Name)
		}
	}
	if len(names) != 1 {
		return ""
	}
	return names[0]
}

// cachedServedBy returns servedBy with a cache, valid while mu is held: a namespace may have many NADs, and
// the authors of Services choose how often it is asked for.
func (z *Zone) cachedServedBy() func(namespace string) string {
	known := map[string]string{}
	return func(namespace string) string {
		n, ok := known[namespace]
		if !ok {
			n = z.servedBy(namespace)
			known[namespace] = n
		}
		return n
	}
}

// servicesOn returns a network's services.
func (z *Zone) servicesOn(n network.Network) []Service {
	var list []*corev1.Service
	if n.IsDefault() {
		for _, obj := range z.services.List() {
			if s, ok := obj.(*corev1.Service); ok {
				list = append(list, s)
			}
		}
	} else {
		var namespaces []string
		for _, key := range z.nadIndex.Keys(n.Name) {
			nad, _ := z.nadIndex.NAD(key)
			namespaces = append(namespaces, nad.Namespace)
		}
		slices.Sort(namespaces)
		for _, namespace := range slices.Compact(namespaces) {
			list = append(list, indexed[*corev1.Service](z, z.services, cache.NamespaceIndex, namespace)...)
		}
	}
	servedBy := z.cachedServedBy()
	var out []Service
	for _, s := range list {
		if servedBy(s.Namespace) == n.Name {
			if service, ok := z.service(n, s, servedBy); ok {
				out = append(out, service)
			}
		}
	}
	return out
}

// serviceOn returns a service, if it is on the network.
func (z *Zone) serviceOn(n network.Network, key string) []Service {
	obj, ok, err := z.services.GetByKey(key)
	s, isService := obj.(*corev1.Service)
	servedBy := z.cachedServedBy()
	if err != nil || !ok || !isService || servedBy(s.Namespace) != n.Name {
		return nil
	}
	if service, ok := z.service(n, s, servedBy); ok {
		return []Service{service}
	}
	return nil
}

// service returns a service with its endpoints, without the addresses that it must not
// have. It reports what is not served.
func (z *Zone) service(n network.Network, s *corev1.Service, servedBy func(namespace string) string) (Service, bool) {
	key := s.Namespace + "/" + s.Name
	z.served[key] = n.Name
	report := serviceReport{zone: z, service: s}
	out, ok := newService(s, indexed[*discoveryv1.EndpointSlice](z, z.slices, indexService, n.Name+"/"+key))
	reasons := map[netip.Addr]string{} // of endpoints, which several ports have
	var noPackets []string
	for i := range out.Ports {
		out.Ports[i].Endpoints = slices.DeleteFunc(out.Ports[i].Endpoints, func(e Endpoint) bool {
			reason, known := reasons[e.Addr.Addr()]
			if !known {
				if reason = z.cfg.Plan.RefusedEndpoint(n, e.Addr.Addr()); reason != "" {
					noPackets = append(noPackets, fmt.Sprintf("%s (%s)", e.Addr.Addr(), reason))
				}
				reasons[e.Addr.Addr()] = reason
			}
			return reason != ""
		})
	}
	// One line, and one event, that name a few: authors of Services and EndpointSlices choose how many there are.
	few := func(of []string) string { return strings.Join(of[:min(3, len(of))], ", ") }
	if len(noPackets) > 0 {
		report.warn("endpoints of a service get no packets", "network", n.Name, "service", key, "endpoints", len(noPackets), "first", few(noPackets))
	}
	if left := out.PortsOmitted + out.EndpointsOmitted; left > 0 && out.endpointsOn(z.self().Name) > 0 { // other nodes do not repeat it
		report.event(reasonTooLarge, "the last %d ports and %d endpoints of the first port are not served: a Service may have at most %d pairs of an endpoint and an address, over all ports: use fewer, or several Services", out.PortsOmitted, out.EndpointsOmitted, maxBackends)
	}
	for _, a := range kube.ClusterIPs(s) {
		inside := func(p netip.Prefix) bool { return p.Contains(a) }
		if !slices.ContainsFunc(z.cfg.Plan.ServiceCIDRs, inside) && out.endpointsOn(z.self().Name) > 0 { // other nodes do not repeat it
			report.event(reasonClusterIP, "nodes do not reach %s: it is outside service-cidrs %v: an administrator must correct that in Bulkhead's configuration", a, z.cfg.Plan.ServiceCIDRs)
		}
	}
	var refused []string
	external := kube.ExternalIPs(s) // once: its author chooses how many addresses there are
	out.ExternalIPs = slices.DeleteFunc(out.ExternalIPs, func(a netip.Addr) bool {
		if reason := z.refusedExternal(n, a); reason != "" {
			refused = append(refused, fmt.Sprintf("%s (%s)", a, reason))
			return true
		}
		own := claimantOf(s, !slices.Contains(external.Given, a))
		for i := range out.Ports {
			p := &out.Ports[i]
			if reason := z.otherClaimant(n, own, externalPort{a, p.Protocol, p.Port}, servedBy); reason != "" {
				refused, p.NotAt = append(refused, fmt.Sprintf("%s port %d (%s)", a, p.Port, reason)), append(p.NotAt, a)
			}
		}
		return false
	})
	if external.Omitted > 0 {
		refused = append(refused, fmt.Sprintf("%d more: a service has at most %d ports at external addresses", external.Omitted, kube.MaxExternalPorts))
	}
	if len(refused) > 0 {
		report.warn("external addresses of a service are not served", "network", n.Name, "service", key, "addresses", len(refused), "first", few(refused))
	}
	if len(refused) > 0 && out.endpointsOn(z.self().Name) > 0 { // other nodes do not repeat it
		report.event(reasonExternalIP, "external addresses are not served (%d): %s: choose others (spec.externalIPs, or the load balancer's range)", len(refused), few(refused))
	}
	if node := z.self(); out.ExternalLocal && out.reachedOn(node) < out.endpointsOn(node.Name) {
		report.event(reasonHostEndpoints, "node %s sends nothing from outside to endpoints in the host's network: in local gateway mode spec.externalTrafficPolicy Local reaches pods only: set the policy Cluster", node.Name)
	}
	if node := z.self(); out.needsNodePorts(node) {
		report.event(reasonNodePorts, "node %s drops packets from outside for the external addresses: in local gateway mode spec.externalTrafficPolicy Local needs node ports: set spec.allocateLoadBalancerNodePorts, or the policy Cluster", node.Name)
	}
	report.tell(time.Now())
	return out, ok
}

// needsNodePorts reports whether a node drops packets from outside to the service's external
// addresses, although it has endpoints.
func (s Service) needsNodePorts(node network.Node) bool {
	return s.ExternalLocal && node.Mode == network.LocalGateway && len(s.ExternalIPs) > 0 && s.endpointsOn(node.Name) > 0 &&
		slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return p.NodePort == 0 })
}

// refusedExternal is Plan.RefusedExternal; the nodes have their addresses themselves.
func (z *Zone) refusedExternal(n network.Network, a netip.Addr) string {
	if node := z.nodes.withAddress(a); node != "" {
		return "it is an address of node " + node
	}
	return z.cfg.Plan.RefusedExternal(n, a)
}

// otherClaimant returns why another service on the network has a service's external port, "" if
// the service has it. own is its claim.
func (z *Zone) otherClaimant(n network.Network, own network.Claimant, e externalPort, servedBy func(namespace string) string) string {
	switch c, ok := z.claims.First(e, func(namespace string) bool { return servedBy(namespace) == n.Name }, ""); {
	case !ok || !c.Before(own):
		return ""
	case own.Own && !c.Own:
		return "the service " + c.Name + " has it from a load balancer"
	default:
		return "the older service " + c.Name + " has it"
	}
}

// exposed returns the services of the cluster default network that pods of all
// networks reach.
func (z *Zone) exposed() []ExposedService {
	var out []ExposedService
	for _, key := range z.cfg.AllowedServices {
		obj, ok, err := z.services.GetByKey(key)
		if s, isService := obj.(*corev1.Service); err == nil && ok && isService && z.servedBy(s.Namespace) == network.DefaultName {
			dns := slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 53 && p.Protocol == corev1.ProtocolUDP })
			out = append(out, ExposedService{s.Namespace, s.Name, kube.ClusterIPs(s), dns})
		}
	}
	return out
}
