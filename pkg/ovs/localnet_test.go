// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// TestLocalnetFlows: where packets end that come from Localnet networks on the external
// bridge, and which reach them.
func TestLocalnetFlows(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	address := startServer(t, root, dir)
	c := connect(t, address)
	addUplink(t, c, "eth1")
	addPatchPort(t, c, gatewayPatch, "br-default")
	addPatchPort(t, c, "tenant", "br-tenant")
	nets := []network.Network{{ID: 1, Name: "plain", Topology: network.Localnet}, {ID: 2, Name: "beside", Topology: network.Localnet}, {ID: 3, Name: "tagged", Topology: network.Localnet, VLAN: 20}}
	for _, n := range append(nets, network.Network{ID: 4, Name: "unknown"}) {
		addPatchPort(t, c, n.LocalnetPatch(), "br-"+n.Name)
	}
	vswitchd(t, root, dir, address)
	r := runReconciler(t, &FlowReconciler{Client: c, Switch: ovsOfctl(root, dir), RunDir: dir})
	set := func(localnets ...network.Network) flows.Bridge {
		t.Helper()
		r.SetNode(gatewayNode, localnets)
		var bridge flows.Bridge
		eventually(t, "the flows", func(ctx context.Context) error {
			want, err := r.desired(ctx)
			if err != nil {
				return err
			}
			have, err := r.Switch.Read(ctx, "br-ex")
			if err != nil || len(flows.Diff(want, have)) > 0 || len(want) < 20 {
				return fmt.Errorf("%d of %d flows: %v, %v", len(have), len(want), flows.Diff(want, have), err)
			}
			if bridge, err = c.ExternalBridge(ctx, "br-ex", gatewayPatch, nil); err != nil || len(bridge.Uplinks) == 0 {
				return fmt.Errorf("bridge %v: %v", bridge, err)
			}
			return nil
		})
		return bridge
	}
	bridge := set(nets...)
	places := map[string]string{"node": "LOCAL", "wire": fmt.Sprintf("output:%d", bridge.Uplinks[0]), "gateway": `bridge("br-default")`, "tenant": `bridge("br-tenant")`,
		"plain": `bridge("br-plain")`, "beside": `bridge("br-beside")`, "tagged": `bridge("br-tagged")`, "unknown": `bridge("br-unknown")`}
	names := []string{"GATEWAY", gatewayPatch, "TENANT", "tenant", "UNKNOWN", network.Network{ID: 4, Name: "unknown"}.LocalnetPatch()}
	for _, n := range nets {
		names = append(names, strings.ToUpper(n.Name), n.LocalnetPatch())
	}
	type packets map[string]struct {
		packet string
		want   string // the places that it reaches
	}
	check := func(list packets) {
		t.Helper()
		for name, x := range list {
			cmd := fromRootfs(root, "ovs-appctl", "-t", filepath.Join(dir, "vswitchd.ctl"), "ofproto/trace", "br-ex", strings.NewReplacer(names...).Replace(x.packet), "--ct-next", "trk,new")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
				continue
			}
			var got []string
			for place, sign := range places {
				for line := range strings.Lines(string(out)) {
					if strings.TrimSpace(line) == sign && !slices.Contains(got, place) {
						got = append(got, place)
					}
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != x.want {
				t.Errorf("%s: reaches %q, want %q:\n%s", name, got, x.want, out)
			}
		}
	}
	const nodeMAC, podMAC, tag, otherTag = "dl_dst=52:54:00:00:00:01", "dl_src=0a:58:0a:0a:00:05", "dl_vlan=20,dl_vlan_pcp=0", "dl_vlan=30,dl_vlan_pcp=0"
	check(packets{
		"ARP from the wire":                           {"in_port=eth1,arp,arp_tpa=192.0.2.9", "beside gateway node plain"},
		"a packet from the wire to a pod":             {"in_port=eth1,tcp,nw_src=192.0.2.8,nw_dst=192.0.2.50,tp_dst=80", "beside node plain"},
		"a packet from the wire to the node":          {"in_port=eth1,tcp," + nodeMAC + ",nw_src=192.0.2.8,nw_dst=192.0.2.7,tp_dst=22", "node"},
		"a tagged packet from the wire":               {"in_port=eth1,arp," + tag, "node tagged"},
		"one with another tag":                        {"in_port=eth1,arp," + otherTag, "node"},
		"a priority tag, from the wire":               {"in_port=eth1,arp,dl_vlan=0,dl_vlan_pcp=5", "beside gateway node plain"},
		"the node's":                                  {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=192.0.2.50,tp_dst=80", "beside plain wire"},
		"the node's, tagged":                          {"in_port=LOCAL,arp," + tag, "tagged wire"},
		"the node's, with another tag":                {"in_port=LOCAL,arp," + otherTag, "wire"},
		"a pod of the default network to a pod":       {"in_port=GATEWAY,tcp,nw_src=192.0.2.7,nw_dst=192.0.2.50,tp_dst=80", "beside plain wire"},
		"the gateway's ARP":                           {"in_port=GATEWAY,arp,arp_spa=192.0.2.7,arp_tpa=192.0.2.50", "beside plain wire"},
		"a pod's ARP":                                 {"in_port=PLAIN,arp," + podMAC, "beside gateway node wire"},
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
	set(nets[1], nets[2])
	check(packets{
		"the old VLAN":        {"in_port=eth1,arp," + tag, "node"},
		"the new VLAN":        {"in_port=eth1,arp," + otherTag, "node tagged"},
		"from the new VLAN":   {"in_port=TAGGED,arp," + podMAC + "," + otherTag, "node wire"},
		"from the old VLAN":   {"in_port=TAGGED,arp," + podMAC + "," + tag, ""},
		"a network that left": {"in_port=PLAIN,arp," + podMAC, ""},
		"its neighbour":       {"in_port=BESIDE,arp," + podMAC, "gateway node wire"},
	})
}
