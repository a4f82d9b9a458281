// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Service's author chooses the number of ports and, with the pods, that of endpoints. Nodes get a limited
// number of both multiplied, and always the first port.
func TestServiceLimit(t *testing.T) {
	for _, c := range []struct{ ports, endpoints, served int }{
		{3, 5, 3}, {1, 1000, 1}, {16, 1000, 16}, {17, 1000, 16}, {20000, 1000, 16}, {20000, 0, maxBackends}, {1, 20000, 1}, {2, 20000, 1},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}}}
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
		for i := range c.ports {
			name, port := fmt.Sprint("p", i), int32(i+1)
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: port})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
		}
		for i := range c.endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.20.%d.%d", i/200, 1+i%200)}})
		}
		out, ok := newService(s, []*discoveryv1.EndpointSlice{slice})
		if !ok || len(out.Ports) != c.served || out.PortsLeft != c.ports-c.served {
			t.Errorf("%d ports and %d endpoints: %d ports are served, %d left out, want %d served", c.ports, c.endpoints, len(out.Ports), out.PortsLeft, c.served)
			continue
		}
		for i, p := range out.Ports {
			if int(p.Port) != i+1 || len(p.Endpoints) != c.endpoints {
				t.Fatalf("port %d of %d: number %d, %d endpoints, want %d", i, c.ports, p.Port, len(p.Endpoints), c.endpoints)
			}
		}
	}
}
