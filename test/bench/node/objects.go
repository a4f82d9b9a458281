// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

// benchPlan is the cluster's address plan.
func benchPlan() network.Plan {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, t := range texts {
			out = append(out, netip.MustParsePrefix(t))
		}
		return out
	}
	return network.Plan{
		ClusterSubnets: []network.Subnet{{CIDR: netip.MustParsePrefix("10.244.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd44::/48"), HostLen: 64}},
		ServiceCIDRs:   prefixes("10.96.0.0/16", "fd96::/112"),
		Join:           prefixes("100.64.0.0/16", "fd98::/64"), Transit: prefixes("100.88.0.0/16", "fd97::/64"),
		UDNJoin: prefixes("100.65.0.0/16", "fd99::/64"), Masquerade: prefixes("169.254.0.0/17", "fd69::/112"),
		VRFTableBase: 100000, UnderlayMTU: 1500, ClusterMTU: 1400,
	}
}

// benchNode is the only node.
func benchNode() network.Node {
	return network.Node{
		Name: "node1", ID: 1, Chassis: "chassis-1", EncapIPs: []netip.Addr{netip.MustParseAddr("172.30.0.1")},
		Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.1/16"), netip.MustParsePrefix("fc00::1/64")},
		NextHops:  []netip.Addr{netip.MustParseAddr("172.18.255.254"), netip.MustParseAddr("fc00::ffff")},
		BridgeMAC: "02:00:00:00:00:01", Bridge: kernelBridge, Mode: network.SharedGateway,
	}
}

// benchNetwork returns a dual-stack primary network: Layer 3 and Layer 2 in turn. All have the
// same addresses.
func benchNetwork(id int) network.Network {
	plan := benchPlan()
	n := network.Network{
		ID: id, Name: fmt.Sprintf("n%d_net", id), Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets:     []network.Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd20::/48"), HostLen: 64}},
		JoinSubnets: plan.UDNJoin, Transit: plan.Transit,
	}
	if id%2 == 0 {
		n.Topology = network.Layer2
		n.Subnets = []network.Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/16")}, {CIDR: netip.MustParsePrefix("fd20::/64")}}
	}
	return n
}
