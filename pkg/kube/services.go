// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ClusterIPs returns a Service's cluster IPs; headless and ExternalName Services have none.
func ClusterIPs(s *corev1.Service) []netip.Addr {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return ParseAddrs(s.Spec.ClusterIPs)
}

// MaxExternalPorts limits a Service's ports at external addresses: their number is the product of two
// lists that the Service's author chooses, and each node has rows and flows of each.
const MaxExternalPorts = 1024

// External are the addresses outside the cluster at which a Service is reached.
type External struct {
	// Given are a load balancer's, Claimed are others that the Service's author chose.
	Given, Claimed []netip.Addr
	// Omitted is the number of addresses that are left out because of MaxExternalPorts.
	Omitted int
}

// ExternalIPs returns a Service's external addresses.
func ExternalIPs(s *corev1.Service) External {
	var e External
	limit := max(1, MaxExternalPorts/max(1, len(s.Spec.Ports)))
	e.Given = loadBalancerIPs(s)
	e.Claimed = slices.DeleteFunc(ParseAddrs(s.Spec.ExternalIPs), func(a netip.Addr) bool { return slices.Contains(e.Given, a) })
	given, claimed := min(len(e.Given), limit), min(len(e.Claimed), max(0, limit-len(e.Given)))
	e.Omitted = len(e.Given) - given + len(e.Claimed) - claimed
	e.Given, e.Claimed = e.Given[:given], e.Claimed[:claimed]
	return e
}

// loadBalancerIPs returns the addresses that a load balancer has given a Service. One that is a
// proxy delivers to node ports.
func loadBalancerIPs(s *corev1.Service) []netip.Addr {
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

// ParseAddrs returns the addresses among the texts, sorted, without duplicates.
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
