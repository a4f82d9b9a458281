// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/test/native"
)

// tracedBridge is an external bridge on a real ovs-vswitchd, with the uplink eth1 and patch
// ports to bridges that stand for networks.
type tracedBridge struct {
	t      *testing.T
	r      *FlowReconciler
	root   native.Tree
	dir    string
	places map[string]string // the line of a trace that says that a packet arrived, by place
	node   network.Node
	peers  []network.Node
}

// newTracedBridge has a patch port for each place.
func newTracedBridge(t *testing.T, patchPorts map[string]string) *tracedBridge {
	t.Helper()
	b := &tracedBridge{t: t, root: rootfs(t), dir: t.TempDir(), node: gatewayNode, places: map[string]string{"node": "LOCAL"}}
	address := startServer(t, b.root, b.dir)
	c := connect(t, address)
	addUplink(t, c, "eth1")
	for place, port := range patchPorts {
		addPatchPort(t, c, port, "br-"+place)
		b.places[place] = fmt.Sprintf("bridge(%q)", "br-"+place)
	}
	vswitchd(t, b.root, b.dir, address)
	b.r = runReconciler(t, newReconciler(c, ovsOfctl(b.root, b.dir), b.dir))
	return b
}

// settle sets the Localnet networks and waits until the bridge has the flows.
func (b *tracedBridge) settle(localnets ...network.Network) {
	b.t.Helper()
	b.r.SetNode(Facts{Node: b.node}, localnets, b.peers)
	eventually(b.t, "the flows", func(ctx context.Context) error {
		want, err := b.r.desired(ctx)
		if err != nil {
			return err
		}
		have, err := b.r.Switch.Read(ctx, "br-ex")
		if err != nil || len(flows.Diff(want, have)) > 0 || len(want) < 20 {
			return fmt.Errorf("%d of %d flows: %v, %v", len(have), len(want), flows.Diff(want, have), err)
		}
		reader := bridgeReader{client: b.r.Client, name: "br-ex"}
		bridge, _, err := reader.read(ctx, routerPatch, nil)
		if err != nil || len(bridge.Uplinks) == 0 {
			return fmt.Errorf("bridge %v: %v", bridge, err)
		}
		b.places["wire"] = fmt.Sprintf("output:%d", bridge.Uplinks[0])
		return nil
	})
}

// check traces a packet of a new connection and compares the places that it reaches.
func (b *tracedBridge) check(name, packet, want string) {
	b.t.Helper()
	b.checkState("trk,new", name, packet, want)
}

// checkState is check for a packet that each conntrack zone finds in a state, such as trk,est.
func (b *tracedBridge) checkState(state, name, packet, want string) {
	b.t.Helper()
	out, err := fromRootfs(b.root, "ovs-appctl", "-t", filepath.Join(b.dir, "vswitchd.ctl"), "ofproto/trace", "br-ex", packet, "--ct-next", state, "--ct-next", state).CombinedOutput()
	if err != nil {
		b.t.Errorf("%s: %v: %s", name, err, out)
		return
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		for place, sign := range b.places {
			if strings.TrimSpace(line) == sign && !slices.Contains(got, place) {
				got = append(got, place)
			}
		}
	}
	slices.Sort(got)
	if strings.Join(got, " ") != want {
		b.t.Errorf("%s: reaches %q, want %q:\n%s", name, got, want, out)
	}
}

// checkText traces a packet and looks for text in its way.
func (b *tracedBridge) checkText(name, packet, want string) {
	b.t.Helper()
	out, err := fromRootfs(b.root, "ovs-appctl", "-t", filepath.Join(b.dir, "vswitchd.ctl"), "ofproto/trace", "br-ex", packet).CombinedOutput()
	if err != nil || !strings.Contains(string(out), want) {
		b.t.Errorf("%s: %v, no %q in\n%s", name, err, want, out)
	}
}

// tracedPacket is a packet and the places that it reaches.
type tracedPacket struct{ packet, want string }

// Networks of the tests with their masquerade addresses: of the cluster default network
// 169.254.0.9 and fd69::9, of red .11 and ::b, of blue .13 and ::d.
var (
	plainNet = network.Network{Name: network.DefaultName, Topology: network.Layer3, Subnets: dualSubnets}
	redNet   = network.Network{ID: 1, Name: "red_net", Topology: network.Layer3, Role: network.RolePrimary, Subnets: dualSubnets}
	blueNet  = network.Network{ID: 2, Name: "blue_net", Topology: network.Layer2, Role: network.RolePrimary, Subnets: dualSubnets}

	dualSubnets = []network.Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd20::/48"), HostLen: 64}}
	redPorts    = []flows.ServicePort{
		{Protocol: "tcp", Port: 30080}, {Protocol: "udp", Port: 53, Addr: netip.MustParseAddr("203.0.113.7")},
		{Protocol: "tcp", Port: 80, Addr: netip.MustParseAddr("203.0.113.8"), Claimed: true}, {Protocol: "tcp", Port: 80, Addr: netip.MustParseAddr("2001:db8:7::7")},
	}
)

func newGatewayBridge(t *testing.T, mode network.GatewayMode) (*tracedBridge, *strings.Replacer) {
	t.Helper()
	patches := map[string]string{"router": routerPatch, "unknown": "unknown"}
	replace := []string{"ROUTER", routerPatch, "UNKNOWN", "unknown", "NODEMAC", gatewayNode.BridgeMAC}
	for name, n := range map[string]network.Network{"plain": plainNet, "red": redNet, "blue": blueNet} {
		patches[name] = n.ExternalPatch("br-ex", gatewayNode.Name)
		replace = append(replace, strings.ToUpper(name), patches[name])
	}
	b := newTracedBridge(t, patches)
	b.node.Mode = mode
	b.r.SetNode(Facts{Node: b.node}, nil, nil)
	b.r.SetNetwork(plainNet, nil, []flows.ServicePort{{Protocol: "tcp", Port: 30001}})
	b.r.SetNetwork(redNet, nil, redPorts)
	b.r.SetNetwork(blueNet, nil, nil)
	b.settle()
	return b, strings.NewReplacer(replace...)
}

// TestGatewayFlows: where packets end that come from the node, the wire, the uplink
// router and networks' gateway routers.
func TestGatewayFlows(t *testing.T) {
	b, names := newGatewayBridge(t, network.SharedGateway)
	for name, x := range map[string]tracedPacket{
		// From a tenant's gateway router.
		"red to the outside":                         {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=198.51.100.1,tp_dst=80", "router"},
		"red to the outside, IPv6":                   {"in_port=RED,tcp6,ipv6_src=fd69::b,ipv6_dst=2001:db8:1::1,tp_dst=80", "router"},
		"red with another network's address":         {"in_port=RED,tcp,nw_src=169.254.0.13,nw_dst=198.51.100.1", ""},
		"red with a pod's own address":               {"in_port=RED,tcp,nw_src=10.20.0.3,nw_dst=198.51.100.1", ""},
		"red with the node's address":                {"in_port=RED,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1", ""},
		"red to the node":                            {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=192.0.2.7,tp_dst=22", "node"},
		"red to the node, IPv6":                      {"in_port=RED,tcp6,ipv6_src=fd69::b,ipv6_dst=2001:db8::7,tp_dst=22", "node"},
		"red to another node":                        {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=192.0.2.8,tp_dst=22", "router"},
		"red to a service of the default network":    {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=10.96.0.1,tp_dst=443", ""},
		"red to a pod of the default network":        {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=10.244.0.3,tp_dst=80", ""},
		"red to a pod of the default network, IPv6":  {"in_port=RED,tcp6,ipv6_src=fd69::b,ipv6_dst=fd10:244::3,tp_dst=80", ""},
		"red to blue's gateway router":               {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=169.254.0.13,tp_dst=80", ""},
		"red to the host's masquerade address":       {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=169.254.0.2,tp_dst=80", ""},
		"red to another tenant's management address": {"in_port=RED,tcp6,ipv6_src=fd69::b,ipv6_dst=fd69::e,tp_dst=80", ""},
		"a forged packet of the overlay":             {"in_port=RED,udp,nw_src=169.254.0.11,nw_dst=192.0.2.8,udp_dst=6081", ""},
		"the same to this node":                      {"in_port=RED,udp,nw_src=169.254.0.11,nw_dst=192.0.2.7,udp_dst=6081", ""},
		"the same, IPv6, from the default network":   {"in_port=PLAIN,udp6,ipv6_src=fd69::9,ipv6_dst=2001:db8::8,udp_dst=6081", ""},
		"another port of that node":                  {"in_port=RED,udp,nw_src=169.254.0.11,nw_dst=192.0.2.8,udp_dst=6082", "router"},
		"red's ARP":                                  {"in_port=RED,arp,arp_spa=192.0.2.7,arp_tpa=192.0.2.1", ""},
		"red's neighbour solicitation":               {"in_port=RED,icmp6,icmpv6_type=135,ipv6_src=fd69::b,ipv6_dst=ff02::1:ff00:1,nd_target=2001:db8::1", ""},
		"a network that the agent does not know":     {"in_port=UNKNOWN,tcp,nw_src=169.254.0.11,nw_dst=198.51.100.1", ""},
		"red's node port, from blue":                 {"in_port=BLUE,tcp,nw_src=169.254.0.13,nw_dst=192.0.2.7,tp_dst=30080", "red"},
		"red's load balancer, from blue":             {"in_port=BLUE,udp,nw_src=169.254.0.13,nw_dst=203.0.113.7,udp_dst=53", "red"},
		"an address that red claimed, from blue":     {"in_port=BLUE,tcp,nw_src=169.254.0.13,nw_dst=203.0.113.8,tp_dst=80", "router"},
		"red's load balancer answers":                {"in_port=RED,udp,nw_src=203.0.113.7,nw_dst=198.51.100.1,udp_src=53", "router"},
		"red as its load balancer from another port": {"in_port=RED,udp,nw_src=203.0.113.7,nw_dst=198.51.100.1,udp_src=54", ""},
		"blue as red's load balancer":                {"in_port=BLUE,udp,nw_src=203.0.113.7,nw_dst=198.51.100.1,udp_src=53", ""},
		"red's node port answers blue":               {"in_port=RED,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.13,tp_src=30080", "blue"},
		"red as the node to blue":                    {"in_port=RED,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.13,tp_src=22", ""},
		"blue as red's node port":                    {"in_port=BLUE,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.9,tp_src=30080", ""},
		"red answers the node":                       {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=192.0.2.7,tp_src=30080", "node"},
		// From the uplink router.
		"red on its way to the wire":           {"in_port=ROUTER,tcp,nw_src=169.254.0.11,nw_dst=198.51.100.1", "wire"},
		"the same, IPv6":                       {"in_port=ROUTER,tcp6,ipv6_src=fd69::b,ipv6_dst=2001:db8:1::1", "wire"},
		"an address that no network has":       {"in_port=ROUTER,tcp,nw_src=169.254.0.99,nw_dst=198.51.100.1", ""},
		"the load balancer on its way":         {"in_port=ROUTER,udp,nw_src=203.0.113.7,nw_dst=198.51.100.1,udp_src=53", "wire"},
		"an ICMP error of the router":          {"in_port=ROUTER,icmp,nw_src=192.0.2.7,nw_dst=169.254.0.11,icmp_type=11", "red"},
		"the router's ARP":                     {"in_port=ROUTER,arp,arp_spa=192.0.2.7,arp_tpa=192.0.2.1,arp_op=1", "wire"},
		"the router's answer to ARP":           {"in_port=ROUTER,arp,arp_spa=192.0.2.7,arp_tpa=192.0.2.1,arp_op=2", ""},
		"the router's neighbour advertisement": {"in_port=ROUTER,icmp6,icmpv6_type=136,ipv6_src=2001:db8::7,ipv6_dst=2001:db8::1", ""},
		// From the wire.
		"ARP for the node":                     {"in_port=eth1,arp,arp_spa=192.0.2.1,arp_tpa=192.0.2.7,arp_op=1", "node router"},
		"an ARP reply":                         {"in_port=eth1,arp,arp_spa=192.0.2.1,arp_tpa=192.0.2.7,arp_op=2", "node router"},
		"a neighbour advertisement":            {"in_port=eth1,icmp6,icmpv6_type=136,ipv6_dst=2001:db8::7", "node router"},
		"a tunnel's packet":                    {"in_port=eth1,udp,dl_dst=NODEMAC,nw_src=192.0.2.8,nw_dst=192.0.2.7,udp_dst=6081", "node"},
		"to the node, a new connection":        {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=192.0.2.8,nw_dst=192.0.2.7,tp_dst=22", "node"},
		"to the node, IPv6":                    {"in_port=eth1,tcp6,dl_dst=NODEMAC,ipv6_src=2001:db8::8,ipv6_dst=2001:db8::7,tp_dst=22", "node"},
		"to red's load balancer":               {"in_port=eth1,udp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=203.0.113.7,udp_dst=53", "red"},
		"to red's load balancer, another port": {"in_port=eth1,udp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=203.0.113.7,udp_dst=54", "node"},
		"to an address that red claimed":       {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=203.0.113.8,tp_dst=80", "red"},
		"to red's load balancer, IPv6":         {"in_port=eth1,tcp6,dl_dst=NODEMAC,ipv6_src=2001:db8:1::1,ipv6_dst=2001:db8:7::7,tp_dst=80", "red"},
		"to a pod's address":                   {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=10.20.0.3,tp_dst=80", "node"},
		"to a gateway router's address":        {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=169.254.0.11,tp_dst=30080", ""},
		"a masquerade address from the wire":   {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=169.254.0.13,nw_dst=192.0.2.7", ""},
		"the same, IPv6, to a service":         {"in_port=eth1,tcp6,dl_dst=NODEMAC,ipv6_src=fd69::d,ipv6_dst=fd10:96::1", ""},
		// From the node.
		"the node to the wire":                              {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1", "wire"},
		"the node to red's node port, translated":           {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.11,tp_dst=30080", "red"},
		"the node to a gateway router that is none":         {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.99,tp_dst=30080", ""},
		"the node to red's load balancer":                   {"in_port=LOCAL,udp,nw_src=192.0.2.7,nw_dst=203.0.113.7,udp_dst=53", "red"},
		"the node to an address that red claimed":           {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=203.0.113.8,tp_dst=80", "wire"},
		"the node answers red":                              {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.11,tp_src=22", "red"},
		"the node answers red, IPv6":                        {"in_port=LOCAL,tcp6,ipv6_src=2001:db8::7,ipv6_dst=fd69::b,tp_src=22", "red"},
		"the node to a service":                             {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=10.96.0.1,tp_dst=443", "plain"},
		"a tenant's pod to a service":                       {"in_port=LOCAL,tcp,nw_src=169.254.0.12,nw_dst=10.96.0.1,tp_dst=443", "plain"},
		"a tenant's pod to a service, IPv6":                 {"in_port=LOCAL,tcp6,ipv6_src=fd69::c,ipv6_dst=fd10:96::1,tp_dst=443", "plain"},
		"a tenant's management address to another's router": {"in_port=LOCAL,tcp,nw_src=169.254.0.12,nw_dst=169.254.0.13", ""},
		"a masquerade address to the wire":                  {"in_port=LOCAL,udp,nw_src=169.254.0.12,nw_dst=198.51.100.1", ""},
		// From the cluster default network's gateway router.
		"the default network to the outside":             {"in_port=PLAIN,tcp,nw_src=169.254.0.9,nw_dst=198.51.100.1", "router"},
		"a service answers a tenant's pod":               {"in_port=PLAIN,tcp,nw_src=10.96.0.1,nw_dst=169.254.0.12", "node"},
		"the same, IPv6 (2)":                             {"in_port=PLAIN,tcp6,ipv6_src=fd10:96::1,ipv6_dst=fd69::c", "node"},
		"a service answers the node":                     {"in_port=PLAIN,tcp,nw_src=10.96.0.1,nw_dst=192.0.2.7", "node"},
		"a tenant as a service":                          {"in_port=RED,tcp,nw_src=10.96.0.1,nw_dst=192.0.2.7", ""},
		"a pod to a service that no load balancer has":   {"in_port=PLAIN,tcp,nw_src=169.254.0.9,nw_dst=10.96.0.9", ""},
		"somebody else to a tenant's management address": {"in_port=PLAIN,tcp,nw_src=192.0.2.9,nw_dst=169.254.0.12", ""},
	} {
		b.check(name, names.Replace(x.packet), x.want)
	}
	b.checkText("red to the outside", names.Replace("in_port=ROUTER,tcp,nw_src=169.254.0.11,nw_dst=198.51.100.1"), "nat(src=192.0.2.7:32768-60999)")
	b.checkText("red's node port answers", names.Replace("in_port=RED,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1,tp_src=30080"), "169.254.0.11->ip_src")
	b.checkText("the same to the node", names.Replace("in_port=RED,tcp6,ipv6_src=2001:db8::7,ipv6_dst=2001:db8::7,tp_src=30080"), "set(ipv6(src=fd69::b))")
	b.checkText("the same on its way", names.Replace("in_port=ROUTER,tcp,nw_src=169.254.0.11,nw_dst=198.51.100.1,tp_src=30080"), "192.0.2.7->ip_src")
	b.checkText("the node to red's node port", names.Replace("in_port=LOCAL,tcp6,ipv6_src=2001:db8::7,ipv6_dst=fd69::b,tp_dst=30080"), "set(ipv6(dst=2001:db8::7))")

	for name, x := range map[string]tracedPacket{ // in each zone
		"a reply that is not translated back":  {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=192.0.2.7,tp_src=80", "node"},
		"blue to red, as a reply":              {"in_port=BLUE,tcp,nw_src=169.254.0.13,nw_dst=169.254.0.11,tp_src=30081", ""},
		"a masquerade address's from the wire": {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=192.0.2.8,nw_dst=169.254.0.11", ""},
	} {
		b.checkState("trk,est", name, names.Replace(x.packet), x.want)
	}
}

// TestLocalGatewayFlows: in local gateway mode the host has what leaves gateway routers.
func TestLocalGatewayFlows(t *testing.T) {
	b, names := newGatewayBridge(t, network.LocalGateway)
	b.r.SetNetwork(blueNet, nil, []flows.ServicePort{
		{Protocol: "tcp", Port: 80, Addr: netip.MustParseAddr("203.0.113.9"), Local: true, NodePort: 30090},
		{Protocol: "tcp", Port: 81, Addr: netip.MustParseAddr("203.0.113.9"), Local: true},
	})
	b.settle()
	for name, x := range map[string]tracedPacket{
		"red to the outside":                  {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=198.51.100.1,tp_dst=80", "node"},
		"red to the node":                     {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=192.0.2.7,tp_dst=22", "node"},
		"red to a pod of the default network": {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=10.244.0.3,tp_dst=80", ""},
		"red to blue's gateway router":        {"in_port=RED,tcp,nw_src=169.254.0.11,nw_dst=169.254.0.13,tp_dst=80", ""},
		"red's node port, from the wire":      {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=192.0.2.7,tp_dst=30080", "node"},
		"the same, translated by the host":    {"in_port=LOCAL,tcp,nw_src=198.51.100.1,nw_dst=169.254.0.11,tp_dst=30080", "red"},
		"red's node port answers":             {"in_port=RED,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1,tp_src=30080", "node"},
		"red's load balancer, from the wire":  {"in_port=eth1,udp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=203.0.113.7,udp_dst=53", "red"},
		// External traffic policy Local.
		"blue's load balancer, from the wire": {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=203.0.113.9,tp_dst=80", "node"},
		"the same, from the node":             {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=203.0.113.9,tp_dst=80", "blue"},
		"without a node port, from the wire":  {"in_port=eth1,tcp,dl_dst=NODEMAC,nw_src=198.51.100.1,nw_dst=203.0.113.9,tp_dst=81", ""},
		"without a node port, from the node":  {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=203.0.113.9,tp_dst=81", "blue"},
	} {
		b.check(name, names.Replace(x.packet), x.want)
	}
}

// TestAnswersToAdvertisedPods: pods that keep their addresses outside OVN get the answers of other networks'
// services on their own node, and nothing else of these networks.
func TestAnswersToAdvertisedPods(t *testing.T) {
	for mode, answered := range map[network.GatewayMode]string{network.SharedGateway: "blue", network.LocalGateway: "node"} {
		t.Run(string(mode), func(t *testing.T) {
			b, names := newGatewayBridge(t, mode)
			blue := blueNet
			blue.Transport, blue.AdvertisedVRFs = network.TransportNoOverlay, "default"
			blue.Subnets = []network.Subnet{{CIDR: netip.MustParsePrefix("10.21.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd21::/48"), HostLen: 64}}
			b.r.SetNetwork(blue, []netip.Prefix{netip.MustParsePrefix("10.21.1.0/24"), netip.MustParsePrefix("fd21:0:0:1::/64")}, nil)
			b.settle()
			for name, x := range map[string]tracedPacket{
				"a question":                    {"in_port=LOCAL,udp,nw_src=10.21.1.5,nw_dst=203.0.113.7,udp_dst=53", "red"},
				"an answer":                     {"in_port=RED,udp,nw_src=203.0.113.7,nw_dst=10.21.1.5,udp_src=53", answered},
				"an answer, IPv6":               {"in_port=RED,tcp6,ipv6_src=2001:db8:7::7,ipv6_dst=fd21:0:0:1::5,tp_src=80", answered},
				"to a pod on another node":      {"in_port=RED,udp,nw_src=203.0.113.7,nw_dst=10.21.2.5,udp_src=53", ""},
				"from a port of no service":     {"in_port=RED,udp,nw_src=203.0.113.7,nw_dst=10.21.1.5,udp_src=54", ""},
				"from the network's masquerade": {"in_port=RED,udp,nw_src=169.254.0.11,nw_dst=10.21.1.5,udp_src=53", ""},
				"from another network's port":   {"in_port=PLAIN,udp,nw_src=203.0.113.7,nw_dst=10.21.1.5,udp_src=53", ""},
			} {
				b.check(name, names.Replace(x.packet), x.want)
			}
		})
	}
}
