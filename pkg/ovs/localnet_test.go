// SPDX-License-Identifier: Apache-2.0

package ovs

import (
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
