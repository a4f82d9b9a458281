// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ClusterIPs returns a Service's cluster IPs: none of a headless or external one.
func ClusterIPs(s *corev1.Service) []netip.Addr {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return ParseAddrs(s.Spec.ClusterIPs)
}

// LoadBalancerIPs returns the addresses that a load balancer has given a Service. One that is a
// proxy delivers to node ports.
func LoadBalancerIPs(s *corev1.Service) []netip.Addr {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var list []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			list = append(list, in.IP)
		}
	}
	return ParseAddrs(list)
}

// ParseAddrs returns those of the texts that are addresses, sorted, each once.
func ParseAddrs(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil {
			out = append(out, a.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
