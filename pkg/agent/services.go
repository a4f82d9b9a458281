// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// service is what the agent reads from a Service.
type service struct {
	namespace string
	created   time.Time
	cluster   []firewall.Port // at its cluster IPs
	// published are its ports that are reached from outside its network.
	published []flows.ServicePort
}

// trimService keeps what parseService reads.
func trimService(obj any) (any, error) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion, CreationTimestamp: s.CreationTimestamp},
		Spec:       corev1.ServiceSpec{Type: s.Spec.Type, ClusterIPs: s.Spec.ClusterIPs, ExternalIPs: s.Spec.ExternalIPs, Ports: s.Spec.Ports, ExternalTrafficPolicy: s.Spec.ExternalTrafficPolicy},
		Status:     corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer},
	}, nil
}

func parseService(s *corev1.Service) service {
	out := service{namespace: s.Namespace, created: s.CreationTimestamp.Time}
	if len(kube.ClusterIPs(s)) == 0 {
		return out
	}
	external, local := kube.ExternalIPs(s), s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	for _, p := range s.Spec.Ports {
		protocol := strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP)))
		for _, a := range kube.ClusterIPs(s) {
			out.cluster = append(out.cluster, firewall.Port{Addr: a, Protocol: protocol, Port: uint16(p.Port)})
		}
		if p.NodePort != 0 {
			out.published = append(out.published, flows.ServicePort{Protocol: protocol, Port: uint16(p.NodePort), Local: local, NodePort: uint16(p.NodePort)})
		}
		for _, a := range external.Given {
			out.published = append(out.published, flows.ServicePort{Addr: a, Protocol: protocol, Port: uint16(p.Port), Local: local, NodePort: uint16(p.NodePort)})
		}
		for _, a := range external.Claimed {
			out.published = append(out.published, flows.ServicePort{Addr: a, Protocol: protocol, Port: uint16(p.Port), Claimed: true, Local: local, NodePort: uint16(p.NodePort)})
		}
	}
	return out
}

// external is an address and port outside the cluster that a service has.
type external struct {
	addr     netip.Addr
	protocol string
	port     uint16
}

// serviceIndex holds the cluster's services.
type serviceIndex struct {
	byKey       map[string]service
	byNamespace map[string]map[string]struct{} // keys of those with published ports
	byExternal  *network.Claims[external]
}

func newServiceIndex() serviceIndex {
	return serviceIndex{map[string]service{}, map[string]map[string]struct{}{}, &network.Claims[external]{}}
}

// set stores a service, or removes it if it has no ports, and returns the namespaces of which
// services' published ports may have changed.
func (x serviceIndex) set(key string, s service) (namespaces []string) {
	old := x.byKey[key]
	publishedChanged := !slices.Equal(old.published, s.published) || !old.created.Equal(s.created)
	if publishedChanged {
		x.unindex(key, old)
		namespaces = append(x.affected(old), x.affected(s)...)
	}
	if delete(x.byKey, key); len(s.cluster) > 0 {
		x.byKey[key] = s
	}
	if publishedChanged {
		x.index(key, s)
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// has reports whether a namespace has services that publish ports.
func (x serviceIndex) has(namespace string) bool { return len(x.byNamespace[namespace]) > 0 }

func (x serviceIndex) index(key string, s service) {
	if len(s.published) == 0 {
		return
	}
	addTo(x.byNamespace, s.namespace, key)
	for e, own := range s.externals() {
		x.byExternal.Add(e, network.Claimant{Own: own, Created: s.created, Name: key})
	}
}

func (x serviceIndex) unindex(key string, s service) {
	if len(s.published) == 0 {
		return
	}
	removeFrom(x.byNamespace, s.namespace, key)
	for e, own := range s.externals() {
		x.byExternal.Remove(e, network.Claimant{Own: own, Created: s.created, Name: key})
	}
}

// affected returns the namespaces whose published ports change when s, which is not in the index, is added or has been
// removed: its own, and for each of its external ports that of the first other claimant. Later claimants do not have the
// port in either case.
func (x serviceIndex) affected(s service) (namespaces []string) {
	if len(s.published) > 0 {
		namespaces = append(namespaces, s.namespace)
	}
	for e := range s.externals() {
		if first, ok := x.byExternal.First(e, nil, ""); ok {
			namespace, _, _ := strings.Cut(first.Name, "/")
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces
}

// externals are what a service claims outside the cluster, and whether its author chose it.
func (s service) externals() iter.Seq2[external, bool] {
	return func(yield func(external, bool) bool) {
		for _, p := range s.published {
			if p.Addr.IsValid() && !yield(external{p.Addr, p.Protocol, p.Port}, p.Claimed) {
				return
			}
		}
	}
}

// owns reports whether the service with that key has the external address and port, which
// several services may claim.
func (x serviceIndex) owns(key string, e external) bool {
	first, ok := x.byExternal.First(e, nil, "")
	return ok && first.Name == key
}

func addTo[K comparable](m map[K]map[string]struct{}, k K, key string) {
	if m[k] == nil {
		m[k] = map[string]struct{}{}
	}
	m[k][key] = struct{}{}
}

func removeFrom[K comparable](m map[K]map[string]struct{}, k K, key string) {
	if delete(m[k], key); len(m[k]) == 0 {
		delete(m, k)
	}
}

// SetService stores a service, or removes one without ports. It returns the ids of the
// networks whose published ports may have changed, and whether cluster IPs have.
func (c *Cache) SetService(key string, s service) (networks []int, clusterChanged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clusterChanged = !slices.Equal(c.services.byKey[key].cluster, s.cluster)
	for _, namespace := range c.services.set(key, s) {
		networks = append(networks, c.networksOfServices(namespace)...)
	}
	slices.Sort(networks)
	return slices.Compact(networks), clusterChanged
}

// networksOfServices returns the network of a namespace's services, if it is known.
func (c *Cache) networksOfServices(namespace string) []int {
	id := c.primaryID(namespace)
	if id == network.DefaultID && c.namespaces[namespace].Labelled {
		return nil
	}
	return []int{id}
}

// AllowedServices returns the ports of those services that are in namespaces of the cluster
// default network.
func (c *Cache) AllowedServices(keys []string) []firewall.Port {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []firewall.Port
	for _, key := range keys {
		if s := c.services.byKey[key]; !c.namespaces[s.namespace].Labelled {
			out = append(out, s.cluster...)
		}
	}
	return out
}

// AllowedAddresses returns the cluster IPs of AllowedServices.
func (c *Cache) AllowedAddresses(keys []string) []netip.Addr {
	var out []netip.Addr
	for _, p := range c.AllowedServices(keys) {
		out = append(out, p.Addr)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// PublishedPorts returns the ports at which a network's services are reached from outside it. If
// services of any networks share an external address and port, one gets it: the oldest to which a
// load balancer gave the address, or else the oldest.
func (c *Cache) PublishedPorts(id int) []flows.ServicePort {
	c.mu.Lock()
	defer c.mu.Unlock()
	var namespaces []string
	n, ok := c.networkByID(id)
	switch {
	case id == network.DefaultID:
		for namespace := range c.services.byNamespace {
			namespaces = append(namespaces, namespace)
		}
	case ok:
		namespaces = c.nads.AllNamespaces(n.Name)
	}
	var out []flows.ServicePort
	for _, namespace := range namespaces {
		if !slices.Contains(c.networksOfServices(namespace), id) {
			continue
		}
		for key := range c.services.byNamespace[namespace] {
			for _, p := range c.services.byKey[key].published {
				if !p.Addr.IsValid() || c.services.owns(key, external{p.Addr, p.Protocol, p.Port}) {
					out = append(out, p)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b flows.ServicePort) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(out)
}

// NodePorts returns the node ports of all networks' services, each with the masquerade
// addresses of its network's gateway router.
func (c *Cache) NodePorts(plan network.Plan, defaultNetwork network.Network) []firewall.NodePort {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []firewall.NodePort
	for namespace, keys := range c.services.byNamespace {
		for _, id := range c.networksOfServices(namespace) {
			n, ok := c.networkByID(id)
			if id == network.DefaultID {
				n, ok = defaultNetwork, true
			}
			if !ok {
				continue
			}
			v4, v6 := n.Families()
			routers := network.FilterFamilies(plan.MasqueradeGateway(n), v4, v6)
			for key := range keys {
				for _, p := range c.services.byKey[key].published {
					for _, router := range routers {
						if !p.Addr.IsValid() {
							out = append(out, firewall.NodePort{Protocol: p.Protocol, Port: p.Port, Router: router.Addr()})
						}
					}
				}
			}
		}
	}
	return out
}

// LocalPorts returns what networks' services with external traffic policy Local publish, at the
// node's addresses and at external ones that refused does not name. Addresses of pods that the
// fabric knows are left out, whoever claims them: nftables would translate before the kernel routes.
func (c *Cache) LocalPorts(plan network.Plan, defaultNetwork network.Network, node []netip.Addr, refused func(network.Network, flows.ServicePort) bool) []firewall.LocalPort {
	var out []firewall.LocalPort
	var announced []netip.Prefix
	networks := append(c.Networks(), defaultNetwork)
	for _, n := range networks {
		if n.Announced() {
			announced = append(announced, n.CIDRs()...)
		}
	}
	ofPod := func(a netip.Addr) bool {
		return slices.ContainsFunc(announced, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, n := range networks {
		v4, v6 := n.Families()
		inside := network.FilterFamilies(plan.MasqueradeManagement(n), v4, v6)
		for _, p := range c.PublishedPorts(n.ID) {
			at := node
			if p.Addr.IsValid() {
				at = []netip.Addr{p.Addr}
			}
			for _, a := range at {
				to, ok := network.FirstOfFamily(inside, a)
				if !p.Local || p.NodePort == 0 || !ok || p.Addr.IsValid() && (refused(n, p) || ofPod(a)) {
					continue
				}
				out = append(out, firewall.LocalPort{Port: firewall.Port{Addr: a, Protocol: p.Protocol, Port: p.Port}, To: netip.AddrPortFrom(to.Addr(), p.NodePort)})
			}
		}
	}
	return out
}

func (h eventHandlers) setService(s *corev1.Service) {
	h.storeService(s.Namespace+"/"+s.Name, parseService(s))
}

func (h eventHandlers) deleteService(key string) { h.storeService(key, service{}) }

func (h eventHandlers) storeService(key string, s service) {
	networks, clusterChanged := h.cache.SetService(key, s)
	h.queue.EnqueueGateways(networks...)
	allowed := clusterChanged && slices.Contains(h.config.AllowedServices, key)
	// Most services are of no concern to the node, and whoever may create services chooses how often they change.
	if len(networks) > 0 || allowed || clusterChanged && h.cache.hasIngressPods(h.config.IngressNamespaces) {
		h.queue.EnqueueHosts()
	}
	if allowed {
		for _, n := range h.cache.Networks() {
			if n.Topology == network.Layer2 { // it has a route to the service
				h.queue.enqueueNetworkBatched(n.ID)
			}
		}
	}
}
