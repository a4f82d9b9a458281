// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// TestNetworkOf: a network that exists is advertised although a changed configuration conflicts with it, and one that
// does not exist yet, or whose specification is invalid, is not.
func TestNetworkOf(t *testing.T) {
	cfg, err := config.Parse("[default]\ncluster-subnets = 10.244.0.0/16/24\nservice-cidrs = 10.96.0.0/16\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cidr string
		id   int
		ok   bool
	}{{"10.90.0.0/16", 7, true}, {"10.96.0.0/16", 7, true}, {"10.96.0.0/16", 0, false}, {"10.90.0.0", 7, false}} {
		cudn := &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
		cudn.Spec.Network = udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: &udnv1.Layer3Config{
			Role: udnv1.NetworkRolePrimary, Subnets: []udnv1.Layer3Subnet{{CIDR: udnv1.CIDR(c.cidr), HostSubnet: 24}},
		}}
		n, err := networkOf(cudn, cfg.Plan, func(string) int { return c.id })
		if c.ok != (err == nil) || c.ok && (n.ID != c.id || n.Name != network.CUDNName("blue") || len(n.Subnets) != 1) {
			t.Errorf("%s with id %d: %+v, %v", c.cidr, c.id, n, err)
		}
	}
}
