// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// Services and EndpointSlices as the zone reads them.

var protocols = map[corev1.Protocol]string{
	corev1.ProtocolTCP: nbdb.LoadBalancerProtocolTCP, corev1.ProtocolUDP: nbdb.LoadBalancerProtocolUDP, corev1.ProtocolSCTP: nbdb.LoadBalancerProtocolSCTP,
}

// newService converts a Service with its EndpointSlices on its network. ok is false
// if it has no address: a headless one, or one that is a DNS name.
func newService(s *corev1.Service, slicesOf []*discoveryv1.EndpointSlice) (out Service, ok bool) {
	external := kube.ExternalIPs(s)
	out = Service{Namespace: s.Namespace, Name: s.Name, ClusterIPs: kube.ClusterIPs(s), ExternalIPs: slices.Concat(external.Given, external.Claimed)}
	if len(out.ClusterIPs) == 0 {
		return out, false
	}
	out.ExternalLocal = s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if out.ExternalLocal && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		out.HealthPort = uint16(s.Spec.HealthCheckNodePort)
	}
	out.InternalLocal = s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.Affinity = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			out.Affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	endpoints := endpointsByPort(slicesOf)
	left := maxBackends
	var v4, v6 int // cluster IPs and external addresses
	for _, a := range slices.Concat(out.ClusterIPs, out.ExternalIPs) {
		if a.Is4() {
			v4++
		} else {
			v6++
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
		row, known := protocols[protocol]
		if !known {
			continue // of a newer API
		}
		of := endpoints[endpointPort{p.Name, protocol}]
		at := map[discoveryv1.AddressType]int{discoveryv1.AddressTypeIPv4: v4, discoveryv1.AddressTypeIPv6: v6}
		if p.NodePort != 0 {
			at[discoveryv1.AddressTypeIPv4]++
			at[discoveryv1.AddressTypeIPv6]++
		}
		size, number := v4+v6, 0 // a port counts even without endpoints
		for _, sp := range of {
			size += len(sp.slice.Endpoints) * at[sp.slice.AddressType]
			number += len(sp.slice.Endpoints)
		}
		port := ServicePort{Protocol: row, Port: uint16(p.Port), NodePort: uint16(p.NodePort)}
		if size > left {
			if len(out.Ports) > 0 {
				out.PortsOmitted = len(s.Spec.Ports) - i
				break
			}
			port.Endpoints = someEndpoints(of, left/max(at[discoveryv1.AddressTypeIPv4], at[discoveryv1.AddressTypeIPv6]))
			out.EndpointsOmitted, left = number-len(port.Endpoints), 0
		} else {
			for _, sp := range of {
				port.Endpoints = append(port.Endpoints, sliceEndpoints(sp.slice, sp.port)...)
			}
			left -= size
		}
		out.Ports = append(out.Ports, port)
	}
	return out, true
}

// maxBackends limits a Service's endpoints times its addresses of their IP family, over all ports: the lists are as long as
// tenants like, and every node's load balancers have each pair.
const maxBackends = 32768

// someEndpoints returns up to limit endpoints that serve, the same in whatever order the slices are.
func someEndpoints(of []slicePort, limit int) []Endpoint {
	var out []Endpoint
	for _, sp := range slices.SortedFunc(slices.Values(of), func(a, b slicePort) int { return cmp.Compare(a.slice.Name, b.slice.Name) }) {
		e := slices.DeleteFunc(sliceEndpoints(sp.slice, sp.port), func(e Endpoint) bool { return e.State == EndpointNotServing })
		if out = append(out, e[:min(len(e), limit-len(out))]...); len(out) == limit {
			break
		}
	}
	return out
}

// endpointPort is how a Service's port names a port of EndpointSlices.
type endpointPort struct {
	name     string
	protocol corev1.Protocol
}

// slicePort is a port of an EndpointSlice.
type slicePort struct {
	slice *discoveryv1.EndpointSlice
	port  uint16
}

// endpointsByPort indexes the ports of EndpointSlices. A port without a protocol is of each.
func endpointsByPort(slicesOf []*discoveryv1.EndpointSlice) map[endpointPort][]slicePort {
	out := map[endpointPort][]slicePort{}
	for _, slice := range slicesOf {
		for _, sp := range slice.Ports {
			if sp.Port == nil {
				continue
			}
			for protocol := range protocols {
				if sp.Protocol == nil || *sp.Protocol == protocol {
					key := endpointPort{str(sp.Name), protocol}
					out[key] = append(out[key], slicePort{slice, uint16(*sp.Port)})
				}
			}
		}
	}
	return out
}

// sliceEndpoints returns the endpoints in a slice that have a port.
func sliceEndpoints(slice *discoveryv1.EndpointSlice, port uint16) []Endpoint {
	var out []Endpoint
	for _, e := range slice.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		state := EndpointNotServing
		switch {
		case e.Conditions.Ready == nil || *e.Conditions.Ready:
			state = EndpointReady
		case (e.Conditions.Serving == nil || *e.Conditions.Serving) && e.Conditions.Terminating != nil && *e.Conditions.Terminating:
			state = EndpointTerminating
		}
		// An endpoint's other addresses are the same endpoint.
		if a, err := netip.ParseAddr(e.Addresses[0]); err == nil {
			out = append(out, Endpoint{Addr: netip.AddrPortFrom(a.Unmap(), port), Node: str(e.NodeName), State: state})
		}
	}
	return out
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// sliceOf returns the key of a slice's Service and the network that its addresses are
// on. "" is a slice for others, e.g. without a Service.
func sliceOf(slice *discoveryv1.EndpointSlice) (service, net string) {
	if slice.Labels[discoveryv1.LabelManagedBy] == network.EndpointSliceManager {
		service, net = slice.Labels[network.LabelMirrorService], slice.Annotations[network.AnnotationMirrorOn]
	} else {
		service, net = slice.Labels[discoveryv1.LabelServiceName], network.DefaultName
	}
	if service == "" || net == "" || slice.AddressType == discoveryv1.AddressTypeFQDN {
		return "", ""
	}
	return slice.Namespace + "/" + service, net
}

// trimService keeps what load balancers are built from.
func trimService(obj any) (any, error) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	out := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion, CreationTimestamp: s.CreationTimestamp,
	}, Spec: s.Spec, Status: corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer}}
	out.Spec.Selector = nil
	return out, nil
}

// trimSlice keeps what load balancers are built from. The cache holds the slices of
// the whole cluster.
func trimSlice(obj any) (any, error) {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return obj, nil
	}
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion,
			Labels:      keep(s.Labels, discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, network.LabelMirrorService),
			Annotations: keep(s.Annotations, network.AnnotationMirrorOn),
		},
		AddressType: s.AddressType, Ports: s.Ports,
	}
	out.Endpoints = make([]discoveryv1.Endpoint, len(s.Endpoints))
	for i, e := range s.Endpoints {
		out.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses[:min(1, len(e.Addresses))], Conditions: e.Conditions, NodeName: e.NodeName}
	}
	return out, nil
}

// externalPort is a port at an address outside the cluster, which Services claim.
type externalPort struct {
	addr     netip.Addr
	protocol string // as in ServicePort
	port     uint16
}

// externalClaim is what a Service claims.
type externalClaim struct {
	externalPort
	by network.Claimant
}

// externalClaims returns a Service's claims. A Service without a cluster IP has none: no node serves it.
func externalClaims(s *corev1.Service) []externalClaim {
	if len(kube.ClusterIPs(s)) == 0 {
		return nil
	}
	var out []externalClaim
	external := kube.ExternalIPs(s)
	for i, list := range [][]netip.Addr{external.Given, external.Claimed} {
		for _, a := range list {
			for _, p := range s.Spec.Ports {
				e := externalPort{a, protocols[cmp.Or(p.Protocol, corev1.ProtocolTCP)], uint16(p.Port)}
				out = append(out, externalClaim{e, claimantOf(s, i == 1)})
			}
		}
	}
	return out
}

// claimantOf returns the claimant of an address that a Service was given, or, with own, that its
// author chose.
func claimantOf(s *corev1.Service, own bool) network.Claimant {
	return network.Claimant{Own: own, Created: s.CreationTimestamp.Time, Name: s.Namespace + "/" + s.Name}
}
