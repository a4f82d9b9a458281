// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The product of addresses and ports is limited, and a load balancer's addresses come first.
func TestExternalIPs(t *testing.T) {
	for _, c := range []struct {
		name                             string
		given, claimed, ports            int
		wantGiven, wantClaimed, wantLeft int
	}{
		{"none", 0, 0, 1, 0, 0, 0},
		{"a few", 2, 3, 2, 2, 3, 0},
		{"many addresses", 1, 20000, 1, 1, 1023, 18977},
		{"many ports", 1, 3, 1000, 1, 0, 3},
		{"more ports than the limit", 1, 0, 5000, 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: make([]corev1.ServicePort, c.ports)}}
			for i := range c.given {
				ip := fmt.Sprintf("198.51.100.%d", i)
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, ip) // counted once
			}
			for i := range c.claimed {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("203.0.%d.%d", i/256, i%256))
			}
			e := ExternalIPs(s)
			if len(e.Given) != c.wantGiven || len(e.Claimed) != c.wantClaimed || e.Omitted != c.wantLeft {
				t.Errorf("%d given, %d claimed, %d left out; want %d, %d, %d", len(e.Given), len(e.Claimed), e.Omitted, c.wantGiven, c.wantClaimed, c.wantLeft)
			}
		})
	}
}
