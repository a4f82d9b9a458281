// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster/podaddr"
)

func TestMetrics(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := udnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	udn := func(ns string, status metav1.ConditionStatus, reason string) *udnv1.UserDefinedNetwork {
		return &udnv1.UserDefinedNetwork{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "net"},
			Spec:       udnv1.UserDefinedNetworkSpec{Topology: udnv1.NetworkTopologyLayer2, Layer2: &udnv1.Layer2Config{Role: udnv1.NetworkRolePrimary}},
			Status:     udnv1.UserDefinedNetworkStatus{Conditions: []metav1.Condition{{Type: udnv1.ConditionNetworkCreated, Status: status, Reason: reason}}},
		}
	}
	cudn := &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: udnv1.ClusterUserDefinedNetworkSpec{Network: udnv1.NetworkSpec{
		Topology: udnv1.NetworkTopologyLayer3, Layer3: &udnv1.Layer3Config{Role: udnv1.NetworkRolePrimary}, Transport: udnv1.TransportOptionNoOverlay}}}
	cache := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		udn("a", metav1.ConditionTrue, "Fine"), udn("b", metav1.ConditionTrue, "Fine"), udn("c", metav1.ConditionFalse, "SyncError"), cudn).Build()
	ready := false
	c := newCollector(cache, func() bool { return ready }, map[string]func() (int, int){"network-ids": func() (int, int) { return 4, 10000 }}, func() []podaddr.Usage {
		return []podaddr.Usage{{Network: "a", Family: "ipv4", Used: 3, Size: 4}, {Network: "b", Family: "ipv4", Used: 1, Size: 256}}
	})
	const allocators = `
# HELP bulkhead_allocator_limit Ids that an allocator can allocate.
# TYPE bulkhead_allocator_limit gauge
bulkhead_allocator_limit{allocator="network-ids"} 10000
# HELP bulkhead_allocator_used Ids that an allocator has allocated.
# TYPE bulkhead_allocator_used gauge
bulkhead_allocator_used{allocator="network-ids"} 4
# HELP bulkhead_pod_addresses_fullest_ratio Ratio of allocated addresses in the fullest Layer2 or Localnet network.
# TYPE bulkhead_pod_addresses_fullest_ratio gauge
bulkhead_pod_addresses_fullest_ratio{family="ipv4"} 0.75
bulkhead_pod_addresses_fullest_ratio{family="ipv6"} 0
# HELP bulkhead_pod_addresses_used Addresses that pods and IPAMClaims hold on Layer2 and Localnet networks.
# TYPE bulkhead_pod_addresses_used gauge
bulkhead_pod_addresses_used{family="ipv4"} 4
bulkhead_pod_addresses_used{family="ipv6"} 0
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(allocators)); err != nil {
		t.Errorf("before the cache is synced: %v", err)
	}
	ready = true
	want := allocators + `
# HELP bulkhead_network_conditions Networks by the status and reason of their conditions.
# TYPE bulkhead_network_conditions gauge
bulkhead_network_conditions{condition="NetworkCreated",kind="UserDefinedNetwork",reason="Fine",status="True"} 2
bulkhead_network_conditions{condition="NetworkCreated",kind="UserDefinedNetwork",reason="SyncError",status="False"} 1
# HELP bulkhead_networks UserDefinedNetworks and ClusterUserDefinedNetworks.
# TYPE bulkhead_networks gauge
bulkhead_networks{kind="ClusterUserDefinedNetwork",role="primary",topology="layer3",transport="nooverlay"} 1
bulkhead_networks{kind="UserDefinedNetwork",role="primary",topology="layer2",transport="geneve"} 3
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
