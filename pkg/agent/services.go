// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/kube"
)

// trimService keeps what servicePorts reads.
func trimService(obj any) (any, error) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion},
		Spec:       corev1.ServiceSpec{Type: s.Spec.Type, ClusterIPs: s.Spec.ClusterIPs, Ports: s.Spec.Ports},
	}, nil
}

// servicePorts returns the service's cluster IPs with each of its ports.
func servicePorts(s *corev1.Service) []firewall.Port {
	var out []firewall.Port
	for _, a := range kube.ClusterIPs(s) {
		for _, p := range s.Spec.Ports {
			out = append(out, firewall.Port{Addr: a, Protocol: strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))), Port: uint16(p.Port)})
		}
	}
	return out
}

// SetService stores the ports of a service, none of a deleted one, and returns whether
// they changed.
func (c *Cache) SetService(key string, ports []firewall.Port) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = !slices.Equal(c.services[key], ports)
	if len(ports) > 0 {
		c.services[key] = ports
	} else {
		delete(c.services, key)
	}
	return changed
}

// Services returns the ports of all services in namespaces of the cluster default
// network.
func (c *Cache) Services() []firewall.Port {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []firewall.Port
	for key, ports := range c.services {
		namespace, _, _ := strings.Cut(key, "/")
		if !c.namespaces[namespace].Labelled {
			out = append(out, ports...)
		}
	}
	return out
}

func (h eventHandlers) setService(s *corev1.Service) {
	if h.cache.SetService(s.Namespace+"/"+s.Name, servicePorts(s)) {
		h.queue.EnqueueHosts()
	}
}

func (h eventHandlers) deleteService(key string) {
	if h.cache.SetService(key, nil) {
		h.queue.EnqueueHosts()
	}
}
