// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

// Networks and nodes shared by the tests.

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func testPlan(dual bool) network.Plan {
	p := network.Plan{
		ClusterSubnets: []network.Subnet{{CIDR: netip.MustParsePrefix("10.244.0.0/16"), HostLen: 24}},
		ServiceCIDRs:   prefixes("10.96.0.0/16"),
		Join:           prefixes("100.64.0.0/16", "fd98::/64"), Transit: prefixes("100.88.0.0/16", "fd97::/64"),
		UDNJoin: prefixes("100.65.0.0/16", "fd99::/64"), Masquerade: prefixes("169.254.0.0/17", "fd69::/112"),
		VRFTableBase: 100000, UnderlayMTU: 1500, ClusterMTU: 1400,
	}
	if dual {
		p.ClusterSubnets = append(p.ClusterSubnets, network.Subnet{CIDR: netip.MustParsePrefix("fd44::/48"), HostLen: 64})
		p.ServiceCIDRs = append(p.ServiceCIDRs, netip.MustParsePrefix("fd96::/112"))
	}
	return p
}

func families(ps []netip.Prefix, dual bool) []netip.Prefix {
	if dual {
		return ps
	}
	return ps[:1]
}

func testDefault(dual bool) network.Network {
	p := testPlan(dual)
	return network.Network{
		ID: network.DefaultID, Name: network.DefaultName, Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets: p.ClusterSubnets, JoinSubnets: families(p.Join, dual), Transit: families(p.Transit, dual),
	}
}

// testTenant returns a primary network. All of them have the same addresses.
func testTenant(id int, name string, dual bool) network.Network {
	p := testPlan(dual)
	n := network.Network{
		ID: id, Name: name, Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets:     []network.Subnet{{CIDR: netip.MustParsePrefix("10.10.0.0/16"), HostLen: 24}},
		JoinSubnets: families(p.UDNJoin, dual), Transit: families(p.Transit, dual),
	}
	if dual {
		n.Subnets = append(n.Subnets, network.Subnet{CIDR: netip.MustParsePrefix("fd10::/48"), HostLen: 64})
	}
	return n
}

// testNetwork returns a network with subnets of "ipv4", "ipv6" or "dual", or without
// subnets for "". Networks of one topology and role have the same addresses.
func testNetwork(id int, name string, topology network.Topology, role network.Role, ipFamilies string) network.Network {
	p := testPlan(true)
	v4, v6 := ipFamilies == "ipv4" || ipFamilies == "dual", ipFamilies == "ipv6" || ipFamilies == "dual"
	n := network.Network{ID: id, Name: name, Topology: topology, Role: role, MTU: 1400, Transit: network.FilterFamilies(p.Transit, v4, v6)}
	if role == network.RolePrimary {
		n.JoinSubnets = network.FilterFamilies(p.UDNJoin, v4, v6)
	}
	for _, cidr := range network.FilterFamilies(prefixes("10.20.0.0/16", "fd20::/48"), v4, v6) {
		s := network.Subnet{CIDR: cidr}
		if topology == network.Layer3 {
			s.HostLen = network.DefaultHostLen(cidr)
		}
		n.Subnets = append(n.Subnets, s)
	}
	if topology == network.Localnet {
		n.PhysicalNetworkName = "physical"
	}
	return n
}

func testNode(id int, name string, mode network.GatewayMode) network.Node {
	return network.Node{
		Name: name, ID: id, Chassis: fmt.Sprintf("chassis-%d", id), EncapIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("172.30.0.%d", id))},
		Addresses: prefixes(fmt.Sprintf("172.18.0.%d/16", id), fmt.Sprintf("fc00::%d/64", id)),
		NextHops:  []netip.Addr{netip.MustParseAddr("172.18.255.254"), netip.MustParseAddr("fc00::ffff")},
		BridgeMAC: fmt.Sprintf("02:00:00:00:00:%02x", id), Bridge: "br-ex", Mode: mode,
	}
}

// testPod returns the i-th pod of a network on a node.
func testPod(n network.Network, node network.Node, nadKey, namespace, name string, i int, locked bool) PodPort {
	p := PodPort{NADKey: nadKey, Namespace: namespace, Pod: name, UID: "uid-" + namespace + "-" + name, Locked: locked}
	if n.Topology == network.Layer2 {
		p.TunnelKey = 10 + i
	}
	if len(n.Subnets) == 0 {
		p.MAC = fmt.Sprintf("0a:58:00:00:00:%02x", i)
		return p
	}
	hosts, err := n.HostSubnets(node.ID)
	if err != nil {
		panic(err)
	}
	for _, h := range hosts {
		a, _ := network.NthAddr(h, uint64(i))
		p.IPs = append(p.IPs, netip.PrefixFrom(a, h.Bits()))
	}
	return p
}

// testRemotePod is testPod for a pod of another node.
func testRemotePod(n network.Network, node network.Node, nadKey, namespace, name string, i int) RemotePod {
	p := testPod(n, node, nadKey, namespace, name, i, false)
	return RemotePod{NADKey: nadKey, Namespace: namespace, Pod: name, Node: node.Name, Chassis: node.Chassis, MAC: p.MAC, IPs: p.IPs, TunnelKey: p.TunnelKey}
}
