// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
)

// Of many services with one external address an event concerns the service itself and the one
// that has the address, has had it or gets it: a tenant who creates many makes no work that
// grows with the square of their number.
func TestZoneClaimsCost(t *testing.T) {
	env := newZoneEnv(t)
	z := env.newZone()
	z.namespaces["plain"] = false
	z.slices = cache.NewIndexer(cache.MetaNamespaceKeyFunc, sliceIndexers)
	z.synced = true
	service := func(n int) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "plain", Name: fmt.Sprintf("s%04d", n), CreationTimestamp: metav1.Unix(int64(n), 0)},
			Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.9"}, ExternalIPs: []string{"203.0.113.1"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	enqueued := func() (names []string) {
		units, _, _ := z.queue.take(network.DefaultName)
		for _, u := range units {
			names = append(names, u.Name)
		}
		slices.Sort(names)
		return names
	}
	add := func(n int) {
		z.serviceChanged(nil, service(n))
	}
	remove := func(n int) {
		z.serviceDeleted(service(n))
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := enqueued(); !slices.Equal(got, want) {
			t.Errorf("%s: %d enqueued, %.5q, want %q", what, len(got), got, want)
		}
	}
	has := func(n int) bool {
		s, ok := z.service(network.Network{Name: network.DefaultName}, service(n), z.cachedServedBy())
		return ok && len(s.ExternalIPs) == 1 && len(s.Ports[0].NotAt) == 0
	}
	const many = 1000
	for n := range many {
		add(10 + n)
	}
	enqueued()
	add(5000)
	expect("a younger one", "plain/s0010", "plain/s5000")
	add(1)
	expect("the oldest", "plain/s0001", "plain/s0010")
	if !has(1) || has(10) || has(5000) {
		t.Errorf("the address is s0001's: %t, s0010's: %t, s5000's: %t", has(1), has(10), has(5000))
	}
	remove(1)
	expect("the oldest is gone", "plain/s0001", "plain/s0010")
	remove(5000)
	expect("the youngest is gone", "plain/s0010", "plain/s5000")
	moved := service(10)
	moved.Spec.ExternalIPs = []string{"203.0.113.2"}
	z.serviceChanged(service(10), moved)
	expect("the oldest has another address", "plain/s0010", "plain/s0011")
	if !has(11) || has(12) {
		t.Errorf("the address is s0011's: %t, s0012's: %t", has(11), has(12))
	}
}
