// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// A service belongs to the primary network of its namespace, or to the cluster default
// network. Its endpoints' addresses on a primary network are in the EndpointSlices of
// the endpoint mirror.

// Indexes of services and EndpointSlices.
const (
	indexExternal = "external" // services by external address
	indexService  = "service"  // slices by network and service
)

var serviceIndexers = cache.Indexers{
	indexExternal: func(obj any) ([]string, error) {
		if s, ok := obj.(*corev1.Service); ok {
			return texts(externalIPs(s)), nil
		}
		return nil, nil
	},
}

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
	was, ok := old.(*corev1.Service)
	if ok && reflect.DeepEqual(was.Spec, s.Spec) && reflect.DeepEqual(was.Status, s.Status) {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.enqueueService(s.Namespace, s.Name)
	external := externalIPs(s)
	if was != nil {
		external = append(external, externalIPs(was)...)
	}
	z.enqueueClaimants(external)
}

// enqueueClaimants enqueues the services that claim one of the external addresses: the oldest
// on a network is served. Each address is looked up once, however many services name it.
func (z *Zone) enqueueClaimants(external []netip.Addr) {
	slices.SortFunc(external, netip.Addr.Compare)
	for _, a := range slices.Compact(external) {
		for _, other := range indexed[*corev1.Service](z, z.services, indexExternal, a.String()) {
			z.enqueueService(other.Namespace, other.Name)
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
	}
	if slices.Contains(z.cfg.AllowedServices, key) {
		z.enqueueNetworks(exposedUnit(key))
		z.queue.AddUnits(network.DefaultName, topologyUnit) // has the set of these addresses
		z.enqueueVirtualMachines()                          // the service may be their DNS server
	}
}

// enqueueServices enqueues a namespace's services, whose network may have changed.
func (z *Zone) enqueueServices(namespace string) {
	var external []netip.Addr
	for _, s := range indexed[*corev1.Service](z, z.services, cache.NamespaceIndex, namespace) {
		z.enqueueService(s.Namespace, s.Name)
		external = append(external, externalIPs(s)...)
	}
	z.enqueueClaimants(external)
}

// servedBy returns the network of a namespace's services, "" for none yet. An unusable
// NAD does not take a network's services away.
func (z *Zone) servedBy(namespace string) string {
	ns, err := z.nsLister.Get(namespace)
	if err != nil {
		return ""
	}
	_, labelled := ns.Labels[network.LabelPrimaryUDN]
	if !labelled {
		return network.DefaultName
	}
	if nad, err := z.nadIndex.Primary(namespace, true); err == nil {
		return nad.Network.Name
	}
	var names []string
	for _, nad := range z.nadIndex.InNamespace(namespace) {
		if st, ok := z.nets[nad.Network.Name]; ok && st.net.IsPrimary() {
			names = append(names, nad.Network.Name)
		}
	}
	if len(names) != 1 {
		return ""
	}
	return names[0]
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
	served := map[string]string{} // by namespace
	var out []Service
	for _, s := range list {
		net, known := served[s.Namespace]
		if !known {
			net = z.servedBy(s.Namespace)
			served[s.Namespace] = net
		}
		if net == n.Name {
			if service, ok := z.service(n, s); ok {
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
	if err != nil || !ok || !isService || z.servedBy(s.Namespace) != n.Name {
		return nil
	}
	if service, ok := z.service(n, s); ok {
		return []Service{service}
	}
	return nil
}

// service returns a service with its endpoints, without the addresses that it must not
// have.
func (z *Zone) service(n network.Network, s *corev1.Service) (Service, bool) {
	key := s.Namespace + "/" + s.Name
	z.served[key] = n.Name
	out, ok := newService(s, indexed[*discoveryv1.EndpointSlice](z, z.slices, indexService, n.Name+"/"+key))
	for i := range out.Ports {
		out.Ports[i].Endpoints = slices.DeleteFunc(out.Ports[i].Endpoints, func(e Endpoint) bool {
			reason := z.cfg.Plan.RefusedEndpoint(n, e.Addr.Addr())
			if reason != "" {
				z.log.Warn("endpoint of a service gets no packets", "network", n.Name, "service", key, "address", e.Addr, "reason", reason)
			}
			return reason != ""
		})
	}
	out.ExternalIPs = slices.DeleteFunc(out.ExternalIPs, func(a netip.Addr) bool {
		reason := z.refusedExternal(n, a)
		for _, other := range indexed[*corev1.Service](z, z.services, indexExternal, a.String()) {
			if reason == "" && olderService(other, s) && sharePort(other, s) && z.servedBy(other.Namespace) == n.Name {
				reason = "the older service " + other.Namespace + "/" + other.Name + " has it"
			}
		}
		if reason != "" {
			z.log.Warn("external address of a service is not served", "network", n.Name, "service", key, "address", a, "reason", reason)
		}
		return reason != ""
	})
	return out, ok
}

// refusedExternal is Plan.RefusedExternal; the nodes have their addresses themselves.
func (z *Zone) refusedExternal(n network.Network, a netip.Addr) string {
	if node := z.nodes.withAddress(a); node != "" {
		return "it is an address of node " + node
	}
	return z.cfg.Plan.RefusedExternal(n, a)
}

// sharePort reports whether two services have a port in common.
func sharePort(a, b *corev1.Service) bool {
	return slices.ContainsFunc(a.Spec.Ports, func(p corev1.ServicePort) bool {
		return slices.ContainsFunc(b.Spec.Ports, func(q corev1.ServicePort) bool { return p.Port == q.Port && p.Protocol == q.Protocol })
	})
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
