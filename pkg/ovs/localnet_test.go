// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bulkhead/pkg/network"
)

// TestLocalnetFlows: where packets end that come from Localnet networks on the external
// bridge, and which reach them.
func TestLocalnetFlows(t *testing.T) {
	nets := []network.Network{{ID: 1, Name: "plain", Topology: network.Localnet}, {ID: 2, Name: "beside", Topology: network.Localnet}, {ID: 3, Name: "tagged", Topology: network.Localnet, VLAN: 20}}
	ports := map[string]string{"router": routerPatch, "tenant": "tenant", "red": redNet.ExternalPatch("br-ex", gatewayNode.Name)}
	replace := []string{"ROUTER", routerPatch, "TENANT", "tenant"}
	for _, n := range append(slices.Clone(nets), network.Network{ID: 4, Name: "unknown"}) {
		ports[n.Name] = n.LocalnetPatch()
		replace = append(replace, strings.ToUpper(n.Name), n.LocalnetPatch())
	}
	b := newTracedBridge(t, ports)
	names := strings.NewReplacer(replace...)
	check := func(list map[string]tracedPacket) {
		t.Helper()
		for name, x := range list {
			b.check(name, names.Replace(x.packet), x.want)
		}
	}
	b.r.SetNetwork(redNet, nil, nil)
	b.settle(nets...)
	const nodeMAC, podMAC, tag, otherTag = "dl_dst=52:54:00:00:00:01", "dl_src=0a:58:0a:0a:00:05", "dl_vlan=20,dl_vlan_pcp=0", "dl_vlan=30,dl_vlan_pcp=0"
	check(map[string]tracedPacket{
		"ARP from the wire":                           {"in_port=eth1,arp,arp_tpa=192.0.2.9", "beside node plain router"},
		"a packet from the wire to a pod":             {"in_port=eth1,tcp,nw_src=192.0.2.8,nw_dst=192.0.2.50,tp_dst=80", "beside node plain"},
		"a packet from the wire to the node":          {"in_port=eth1,tcp," + nodeMAC + ",nw_src=192.0.2.8,nw_dst=192.0.2.7,tp_dst=22", "node"},
		"a tagged packet from the wire":               {"in_port=eth1,arp," + tag, "node tagged"},
		"one with another tag":                        {"in_port=eth1,arp," + otherTag, "node"},
		"a priority tag, from the wire":               {"in_port=eth1,arp,dl_vlan=0,dl_vlan_pcp=5", "beside node plain router"},
		"the node's":                                  {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=192.0.2.50,tp_dst=80", "beside plain wire"},
		"the node's, tagged":                          {"in_port=LOCAL,arp," + tag, "tagged wire"},
		"the node's, with another tag":                {"in_port=LOCAL,arp," + otherTag, "wire"},
		"a pod of another network to a pod":           {"in_port=ROUTER,tcp,nw_src=169.254.0.11,nw_dst=192.0.2.50,tp_dst=80", "beside plain wire"},
		"the router's ARP":                            {"in_port=ROUTER,arp,arp_op=1,arp_spa=192.0.2.7,arp_tpa=192.0.2.50", "beside plain wire"},
		"a pod's ARP":                                 {"in_port=PLAIN,arp," + podMAC, "beside node router wire"},
		"a pod's to the wire":                         {"in_port=PLAIN,tcp," + podMAC + ",nw_src=192.0.2.50,nw_dst=198.51.100.1,tp_dst=80", "beside node wire"},
		"a pod's to the node":                         {"in_port=PLAIN,tcp," + podMAC + "," + nodeMAC + ",nw_src=192.0.2.50,nw_dst=192.0.2.7,tp_dst=80", "node"},
		"a pod's to the node, IPv6":                   {"in_port=PLAIN,tcp6," + podMAC + "," + nodeMAC + ",ipv6_src=2001:db8::50,ipv6_dst=2001:db8::7,tp_dst=80", "node"},
		"a tagged network's":                          {"in_port=TAGGED,arp," + podMAC + "," + tag, "node wire"},
		"a tagged network's with another tag":         {"in_port=TAGGED,arp," + podMAC + "," + otherTag, ""},
		"a tagged network's without a tag":            {"in_port=TAGGED,arp," + podMAC, ""},
		"an untagged network's with a tag":            {"in_port=PLAIN,arp," + podMAC + "," + tag, ""},
		"a network's that the agent does not know":    {"in_port=UNKNOWN,arp," + podMAC, ""},
		"a tenant's gateway router's":                 {"in_port=TENANT,arp," + podMAC, ""},
		"a forged packet of the overlay":              {"in_port=PLAIN,udp," + podMAC + ",nw_src=192.0.2.50,nw_dst=192.0.2.8,udp_dst=6081", ""},
		"the same to the node":                        {"in_port=PLAIN,udp," + podMAC + "," + nodeMAC + ",nw_src=192.0.2.50,nw_dst=192.0.2.7,udp_dst=6081", ""},
		"the same with a tag, IPv6":                   {"in_port=TAGGED,udp6," + podMAC + "," + tag + ",ipv6_src=2001:db8::50,ipv6_dst=2001:db8::8,udp_dst=6081", ""},
		"a masquerade address":                        {"in_port=PLAIN,tcp," + podMAC + ",nw_src=169.254.0.13,nw_dst=10.96.0.1", ""},
		"to a masquerade address":                     {"in_port=PLAIN,tcp," + podMAC + "," + nodeMAC + ",nw_src=192.0.2.50,nw_dst=169.254.0.13", ""},
		"the same with a tag":                         {"in_port=TAGGED,tcp," + podMAC + "," + tag + ",nw_src=192.0.2.50,nw_dst=169.254.0.13", ""},
		"the node's MAC address":                      {"in_port=PLAIN,arp,dl_src=52:54:00:00:00:01,arp_spa=192.0.2.7", ""},
		"a spanning tree's packet":                    {"in_port=PLAIN," + podMAC + ",dl_dst=01:80:c2:00:00:00", ""},
		"Cisco's":                                     {"in_port=TAGGED," + podMAC + "," + tag + ",dl_dst=01:00:0c:cc:cc:cd", ""},
		"a fragment, which is reassembled and passes": {"in_port=PLAIN,udp," + podMAC + ",nw_src=192.0.2.50,nw_dst=198.51.100.1,nw_frag=first,udp_dst=7000", "beside node wire"},
	})
	// Another VLAN, and a network that is gone.
	nets[2].VLAN = 30
	b.settle(nets[1], nets[2])
	check(map[string]tracedPacket{
		"the old VLAN":        {"in_port=eth1,arp," + tag, "node"},
		"the new VLAN":        {"in_port=eth1,arp," + otherTag, "node tagged"},
		"from the new VLAN":   {"in_port=TAGGED,arp," + podMAC + "," + otherTag, "node wire"},
		"from the old VLAN":   {"in_port=TAGGED,arp," + podMAC + "," + tag, ""},
		"a network that left": {"in_port=PLAIN,arp," + podMAC, ""},
		"its neighbour":       {"in_port=BESIDE,arp," + podMAC, "node router wire"},
	})
}

// TestLocalnetHosts: no pod on a Localnet network takes the packets of a node or a router: not by
// its MAC address, not by its IP address, and not because the bridge copies them to it.
func TestLocalnetHosts(t *testing.T) {
	plain, beside, tagged := network.Network{ID: 1, Name: "plain", Topology: network.Localnet}, network.Network{ID: 2, Name: "beside", Topology: network.Localnet}, network.Network{ID: 3, Name: "tagged", Topology: network.Localnet, VLAN: 20}
	ports, names := map[string]string{"router": routerPatch, "red": redNet.ExternalPatch("br-ex", gatewayNode.Name)}, []string{"ROUTER", routerPatch}
	for _, n := range []network.Network{plain, beside, tagged} {
		ports[n.Name] = n.LocalnetPatch()
		names = append(names, strings.ToUpper(n.Name), n.LocalnetPatch())
	}
	b := newTracedBridge(t, ports)
	const mac, peerMAC, routerMAC, oldMAC = "52:54:00:00:00:aa", "52:54:00:00:00:02", "52:54:00:00:00:99", "52:54:00:00:00:98"
	b.node.NextHops = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1")}
	b.peers = []network.Node{
		{Name: "node-2", BridgeMAC: peerMAC, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.8/24"), netip.MustParsePrefix("2001:db8::8/64")}},
		{Name: "node-3", EncapIPs: []netip.Addr{netip.MustParseAddr("192.0.2.30")}, NextHops: []netip.Addr{netip.MustParseAddr("192.0.2.254")}},
	}
	neighbours := b.r.Neighbours.(*fakeNeighbours)
	neighbours.set("192.0.2.1", oldMAC)
	b.r.SetNetwork(redNet, nil, nil)
	b.settle(plain, beside, tagged)
	neighbours.set("192.0.2.1", routerMAC) // another router takes over
	b.settle(plain, beside, tagged)
	names = append(names, "MAC", mac, "NODE2", peerMAC, "GATE", routerMAC, "OWN", b.node.BridgeMAC, "TAG", "dl_vlan=20,dl_vlan_pcp=0", "OLD", oldMAC)
	replacer := strings.NewReplacer(names...)
	for name, x := range map[string]tracedPacket{
		// What the bridge copies.
		"the overlay's to another node":           {"in_port=LOCAL,udp,dl_dst=NODE2,nw_src=192.0.2.7,nw_dst=192.0.2.8,udp_dst=6081", "wire"},
		"the node's to the router":                {"in_port=LOCAL,tcp,dl_dst=GATE,nw_src=192.0.2.7,nw_dst=198.51.100.1,tp_dst=80", "wire"},
		"a tenant's to the router":                {"in_port=ROUTER,tcp,dl_dst=GATE,nw_src=169.254.0.11,nw_dst=198.51.100.1,tp_dst=80", "wire"},
		"a pod's to the router":                   {"in_port=PLAIN,tcp,dl_src=MAC,dl_dst=GATE,nw_src=192.0.2.50,nw_dst=198.51.100.1,tp_dst=80", "node wire"},
		"from the wire, flooded, to another node": {"in_port=eth1,tcp,dl_dst=NODE2,nw_src=192.0.2.50,nw_dst=192.0.2.8,tp_dst=80", "node"},
		"from the wire to the node, no IP":        {"in_port=eth1,dl_dst=OWN,dl_type=0x88cc", "node"},
		"from the wire to the node, with a tag":   {"in_port=eth1,tcp,dl_dst=OWN,TAG,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80", "node"},
		"the node's in a VLAN, to another node":   {"in_port=LOCAL,tcp,dl_dst=NODE2,TAG,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80", "wire"},
		"the router's former MAC address":         {"in_port=LOCAL,tcp,dl_dst=OLD,nw_src=192.0.2.7,nw_dst=198.51.100.1,tp_dst=80", "beside plain wire"},
		"to a pod":                                {"in_port=LOCAL,tcp,dl_dst=MAC,nw_src=192.0.2.7,nw_dst=192.0.2.50,tp_dst=80", "beside plain wire"},
		"to a pod, in a VLAN":                     {"in_port=LOCAL,tcp,dl_dst=MAC,TAG,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80", "tagged wire"},
		// MAC addresses.
		"another node's MAC address":            {"in_port=PLAIN,arp,dl_src=NODE2,arp_spa=192.0.2.50", ""},
		"another node's MAC address, no IP":     {"in_port=PLAIN,dl_src=NODE2,dl_type=0x8035", ""},
		"another node's MAC address, in a VLAN": {"in_port=TAGGED,arp,dl_src=NODE2,TAG", ""},
		"the router's MAC address":              {"in_port=PLAIN,arp,dl_src=GATE,arp_spa=192.0.2.50", ""},
		"the router's MAC address, in a VLAN":   {"in_port=TAGGED,tcp,dl_src=GATE,TAG,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80", ""},
		"a pod's own, no IP":                    {"in_port=PLAIN,dl_src=MAC,dl_type=0x8035", "beside node wire"},
		// ARP.
		"an answer in the router's name":                 {"in_port=PLAIN,arp,dl_src=MAC,arp_op=2,arp_spa=192.0.2.1,arp_tpa=192.0.2.8,arp_sha=MAC", ""},
		"an answer in another node's name":               {"in_port=PLAIN,arp,dl_src=MAC,arp_op=2,arp_spa=192.0.2.8,arp_tpa=192.0.2.7", ""},
		"an answer in this node's name":                  {"in_port=PLAIN,arp,dl_src=MAC,arp_op=2,arp_spa=192.0.2.7,arp_tpa=192.0.2.8", ""},
		"an answer in the name of an end of a tunnel":    {"in_port=PLAIN,arp,dl_src=MAC,arp_op=2,arp_spa=192.0.2.30", ""},
		"an answer in the name of another node's router": {"in_port=PLAIN,arp,dl_src=MAC,arp_op=2,arp_spa=192.0.2.254", ""},
		"a question in the router's name":                {"in_port=PLAIN,arp,dl_src=MAC,arp_op=1,arp_spa=192.0.2.1,arp_tpa=192.0.2.8", ""},
		"a probe for another node's address":             {"in_port=PLAIN,arp,dl_src=MAC,arp_op=1,arp_spa=0.0.0.0,arp_tpa=192.0.2.8", ""},
		"a probe for a pod's address":                    {"in_port=PLAIN,arp,dl_src=MAC,arp_op=1,arp_spa=0.0.0.0,arp_tpa=192.0.2.50", "beside node router wire"},
		"a question for the router":                      {"in_port=PLAIN,arp,dl_src=MAC,arp_op=1,arp_spa=192.0.2.50,arp_tpa=192.0.2.1", "beside node router wire"},
		"the router's address in another VLAN":           {"in_port=TAGGED,arp,dl_src=MAC,TAG,arp_op=2,arp_spa=192.0.2.1", "node wire"},
		// Neighbour discovery.
		"an advertisement in the router's name":      {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=fe80::50,icmpv6_type=136,icmpv6_code=0,nd_target=fe80::1", ""},
		"an advertisement in another node's name":    {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::50,icmpv6_type=136,icmpv6_code=0,nd_target=2001:db8::8", ""},
		"an advertisement that flows cannot read":    {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::50,icmpv6_type=136,icmpv6_code=0", ""},
		"an advertisement with a code":               {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::50,icmpv6_type=136,icmpv6_code=1", ""},
		"a solicitation that flows cannot read":      {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::50,icmpv6_type=135,icmpv6_code=0", ""},
		"a solicitation from another node's address": {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::8,icmpv6_type=135,icmpv6_code=0,nd_target=2001:db8::50", ""},
		"duplicate address detection of a node's":    {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=::,icmpv6_type=135,icmpv6_code=0,nd_target=2001:db8::8", ""},
		"duplicate address detection of a pod's":     {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=::,icmpv6_type=135,icmpv6_code=0,nd_target=2001:db8::50", "beside node router wire"},
		"a solicitation for another node":            {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::50,icmpv6_type=135,icmpv6_code=0,nd_target=2001:db8::8", "beside node router wire"},
		"a pod's advertisement":                      {"in_port=PLAIN,icmp6,dl_src=MAC,ipv6_src=2001:db8::50,icmpv6_type=136,icmpv6_code=0,nd_target=2001:db8::50", "beside node router wire"},
		// Packets.
		"a packet from the router's address":         {"in_port=PLAIN,icmp,dl_src=MAC,nw_src=192.0.2.1,nw_dst=192.0.2.8,icmp_type=5", ""},
		"a packet from another node's address, IPv6": {"in_port=PLAIN,tcp6,dl_src=MAC,ipv6_src=2001:db8::8,ipv6_dst=2001:db8::9,tp_dst=80", ""},
	} {
		b.check(name, replacer.Replace(x.packet), x.want)
	}
	// A node leaves. The kernel has dropped its entry for the router, which keeps its MAC address.
	neighbours.set("192.0.2.1", "")
	b.peers = b.peers[1:]
	b.settle(plain, beside, tagged)
	b.check("a former node's address", replacer.Replace("in_port=PLAIN,arp,dl_src=NODE2,arp_op=2,arp_spa=192.0.2.8"), "beside node router wire")
	b.check("the router's MAC address, still", replacer.Replace("in_port=PLAIN,arp,dl_src=GATE,arp_spa=192.0.2.50"), "")
}
