// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestServices(t *testing.T) {
	service := func(namespace string, ips []string, ports ...corev1.ServicePort) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s", Labels: map[string]string{"a": "b"}}, Spec: corev1.ServiceSpec{ClusterIPs: ips, Ports: ports}}
		trimmed, err := trimService(s)
		if err != nil {
			t.Fatal(err)
		}
		return trimmed.(*corev1.Service)
	}
	dns := []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 53}, {Port: 53}}
	c := NewCache()
	c.SetNamespace("tenant", Namespace{Labelled: true})
	for _, s := range []struct {
		key     string
		service *corev1.Service
		changed bool
	}{
		{"kube-system/s", service("kube-system", []string{"10.96.0.10", "fd10:96::a"}, dns...), true},
		{"kube-system/s", service("kube-system", []string{"10.96.0.10", "fd10:96::a"}, dns...), false},
		{"default/s", service("default", []string{"None"}, dns...), false},
		{"tenant/s", service("tenant", []string{"10.96.0.20"}, dns...), true},
	} {
		if got := c.SetService(s.key, servicePorts(s.service)); got != s.changed {
			t.Errorf("%s: changed %t", s.key, got)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, s := range c.Services() {
			got = append(got, fmt.Sprint(s.Addr, " ", s.Protocol, " ", s.Port))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("services %q, want %q", got, want)
		}
	}
	// A tenant's own service is not led to, whatever the configuration lists.
	expect("10.96.0.10 tcp 53", "10.96.0.10 udp 53", "fd10:96::a tcp 53", "fd10:96::a udp 53")
	if !c.SetService("kube-system/s", nil) || c.SetService("kube-system/s", nil) {
		t.Error("a deleted service")
	}
	expect()
}
