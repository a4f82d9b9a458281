// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Service's author chooses the number of ports and, with the pods, that of endpoints. Nodes get a limited
// number of both multiplied, and always the first port.
func TestServiceLimit(t *testing.T) {
	for _, c := range []struct{ ports, endpoints, external, served, first int }{
		{3, 5, 0, 3, 5}, {1, 1000, 0, 1, 1000}, {32, 1000, 0, 32, 1000}, {33, 1000, 0, 32, 1000}, {20000, 1000, 0, 32, 1000}, {40000, 0, 0, maxBackends, 0},
		{1, 40000, 0, 1, maxBackends}, {2, 40000, 0, 1, maxBackends}, {1, 1000, 15, 1, 1000}, {4, 1000, 15, 2, 1000}, {1, 5000, 1023, 1, 32},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}}}
		for i := range c.external {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("203.0.%d.%d", i/200, 1+i%200))
		}
		var list []*discoveryv1.EndpointSlice
		for i := range c.endpoints {
			if i%1000 == 0 {
				list = append(list, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i/1000)}, AddressType: discoveryv1.AddressTypeIPv4})
			}
			last := list[len(list)-1]
			last.Endpoints = append(last.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.20.%d.%d", i/200, 1+i%200)}})
		}
		for i := range c.ports {
			name, port := fmt.Sprint("p", i), int32(i+1)
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: port})
			for _, slice := range list {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
			}
		}
		out, ok := newService(s, list)
		if !ok || len(out.Ports) != c.served || out.PortsOmitted != c.ports-c.served || out.EndpointsOmitted != c.endpoints-c.first {
			t.Errorf("%+v: %d ports are served, %d and %d endpoints left out", c, len(out.Ports), out.PortsOmitted, out.EndpointsOmitted)
			continue
		}
		for i, p := range out.Ports {
			if int(p.Port) != i+1 || len(p.Endpoints) != c.first {
				t.Fatalf("%+v: port %d: number %d, %d endpoints", c, i, p.Port, len(p.Endpoints))
			}
		}
		slices.Reverse(list)
		if again, _ := newService(s, list); len(list) > 20 && !reflect.DeepEqual(again, out) {
			t.Errorf("%+v: the endpoints depend on the order of the slices", c)
		}
	}
}

// The limit counts the endpoints and addresses of an IP family together: the largest Deployments have Services of
// both families with a load balancer.
func TestServiceLimitDualStack(t *testing.T) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
		ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9", "fd96::9"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}, {IP: "2001:db8::1"}}}}}
	name, port, list := "", int32(8080), []*discoveryv1.EndpointSlice{}
	for i := range 10 {
		family, text := discoveryv1.AddressTypeIPv4, "10.20.%d.%d"
		if i%2 == 1 {
			family, text = discoveryv1.AddressTypeIPv6, "fd20::%x:%x"
		}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i)}, AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}}
		for k := range 1000 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(text, i*5+k/200, 1+k%200)}})
		}
		list = append(list, slice)
	}
	if out, ok := newService(s, list); !ok || len(out.Ports[0].Endpoints) != 10000 || out.EndpointsOmitted != 0 {
		t.Errorf("%d endpoints left out, %d served", out.EndpointsOmitted, len(out.Ports[0].Endpoints))
	}
}

// TestEndpointStates: which packets an endpoint gets, by its conditions, as with kube-proxy. With publishNotReadyAddresses,
// Kubernetes calls endpoints ready that are not, and those that terminate.
func TestEndpointStates(t *testing.T) {
	yes, no := ptr(true), ptr(false)
	for _, c := range []struct {
		desc                        string
		ready, serving, terminating *bool
		want                        EndpointState
	}{
		{"nothing known", nil, nil, nil, EndpointReady},
		{"ready", yes, yes, no, EndpointReady},
		{"published though not ready", yes, no, no, EndpointReady},
		{"published though it terminates", yes, yes, yes, EndpointReady},
		{"published though it terminates and does not serve", yes, no, yes, EndpointReady},
		{"not ready", no, no, no, EndpointNotServing},
		{"serving, not ready", no, yes, no, EndpointNotServing},
		{"terminating and serving", no, yes, yes, EndpointTerminating},
		{"terminating, serving unknown", no, nil, yes, EndpointTerminating},
		{"terminating, not serving", no, no, yes, EndpointNotServing},
	} {
		slice := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.10.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: c.ready, Serving: c.serving, Terminating: c.terminating}}}}
		if got := sliceEndpoints(slice, 80); len(got) != 1 || got[0].State != c.want {
			t.Errorf("%s: %+v, want state %d", c.desc, got, c.want)
		}
	}
}

// TestNamedPorts: a Service's port has the endpoints of the slices' port of its name and protocol, at the number that each
// slice has for it. The slices may be of a Service without a selector, without names of nodes or pods.
func TestNamedPorts(t *testing.T) {
	tcp, udp, sctp := corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.2"}, SessionAffinity: corev1.ServiceAffinityClientIP,
		Ports: []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "web-udp", Protocol: udp, Port: 80}, {Name: "assoc", Protocol: sctp, Port: 80}, {Name: "none", Port: 81}}}}
	slice := func(address string, number int32) *discoveryv1.EndpointSlice {
		port := func(name string, n int32, p corev1.Protocol) discoveryv1.EndpointPort {
			return discoveryv1.EndpointPort{Name: &name, Port: &n, Protocol: &p}
		}
		return &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports: []discoveryv1.EndpointPort{port("web", number, tcp), port("web-udp", number+1, udp), port("assoc", number+2, sctp), port("web", 1, udp), port("other", 2, tcp)}}
	}
	got, ok := newService(s, []*discoveryv1.EndpointSlice{slice("10.10.0.3", 8080), slice("10.10.0.4", 9080)})
	if !ok || got.Affinity != 3*time.Hour { // the API's default, without sessionAffinityConfig
		t.Errorf("%t, affinity %s", ok, got.Affinity)
	}
	var text []string
	for _, p := range got.Ports {
		text = append(text, fmt.Sprintf("%s %d: %v", p.Protocol, p.Port, eligible(p.Endpoints, "")))
	}
	want := []string{"tcp 80: [10.10.0.3:8080 10.10.0.4:9080]", "udp 80: [10.10.0.3:8081 10.10.0.4:9081]", "sctp 80: [10.10.0.3:8082 10.10.0.4:9082]", "tcp 81: []"}
	if !slices.Equal(text, want) {
		t.Errorf("ports\n%s\nwant\n%s", strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
	for name, lb := range balancersOf(t, got, nil) {
		protocol, _, _ := strings.Cut(name, "_")
		if lb.Protocol == nil || !strings.EqualFold(*lb.Protocol, protocol) || lb.Options["affinity_timeout"] != "10800" || lb.Vips["10.96.0.2:80"] == "" {
			t.Errorf("load balancer %s: protocol %v, affinity %q, addresses %v", name, lb.Protocol, lb.Options["affinity_timeout"], lb.Vips)
		}
	}
	if balancersOf(t, got, nil)["SCTP_switch"] == nil {
		t.Error("no load balancer for SCTP")
	}
}
