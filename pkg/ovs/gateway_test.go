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
}

// newTracedBridge has a patch port for each place.
func newTracedBridge(t *testing.T, patchPorts map[string]string) *tracedBridge {
	t.Helper()
	b := &tracedBridge{t: t, root: rootfs(t), dir: t.TempDir(), places: map[string]string{"node": "LOCAL"}}
	address := startServer(t, b.root, b.dir)
	c := connect(t, address)
	addUplink(t, c, "eth1")
	for place, port := range patchPorts {
		addPatchPort(t, c, port, "br-"+place)
		b.places[place] = fmt.Sprintf("bridge(%q)", "br-"+place)
	}
	vswitchd(t, b.root, b.dir, address)
	b.r = runReconciler(t, &FlowReconciler{Client: c, Switch: ovsOfctl(b.root, b.dir), RunDir: b.dir})
	return b
}

// settle sets the Localnet networks and waits until the bridge has the flows.
func (b *tracedBridge) settle(localnets ...network.Network) {
	b.t.Helper()
	b.r.SetNode(gatewayNode, localnets)
	eventually(b.t, "the flows", func(ctx context.Context) error {
		want, err := b.r.desired(ctx)
		if err != nil {
			return err
		}
		have, err := b.r.Switch.Read(ctx, "br-ex")
		if err != nil || len(flows.Diff(want, have)) > 0 || len(want) < 20 {
			return fmt.Errorf("%d of %d flows: %v, %v", len(have), len(want), flows.Diff(want, have), err)
		}
		bridge, err := b.r.Client.ExternalBridge(ctx, "br-ex", gatewayPatch, nil)
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

// tracedPacket is a packet and the places that it reaches.
type tracedPacket struct{ packet, want string }

// TestGatewayFlows: where packets end that come from the node, the wire, the cluster
// default network's gateway router and a tenant's.
func TestGatewayFlows(t *testing.T) {
	b := newTracedBridge(t, map[string]string{"gateway": gatewayPatch, "tenant": "tenant"})
	b.settle()
	names := strings.NewReplacer("GATEWAY", gatewayPatch, "TENANT", "tenant")
	for name, x := range map[string]tracedPacket{
		"a tenant's pod to a service":                   {"in_port=LOCAL,tcp,nw_src=169.254.0.13,nw_dst=10.96.0.1,tp_dst=443", "gateway"},
		"a tenant's pod to a service, IPv6":             {"in_port=LOCAL,tcp6,ipv6_src=fd69::d,ipv6_dst=fd10:96::1,tp_dst=443", "gateway"},
		"the service's reply":                           {"in_port=GATEWAY,tcp,nw_src=10.96.0.1,nw_dst=169.254.0.13", "node"},
		"the same reply, IPv6":                          {"in_port=GATEWAY,tcp6,ipv6_src=fd10:96::1,ipv6_dst=fd69::d", "node"},
		"somebody else to a tenant's pod":               {"in_port=GATEWAY,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.13", ""},
		"a service's address from the wire":             {"in_port=eth1,tcp,nw_src=10.96.0.1,nw_dst=169.254.0.13", ""},
		"a masquerade address from the wire":            {"in_port=eth1,tcp,nw_src=169.254.0.13,nw_dst=192.0.2.7", ""},
		"the same, IPv6, to a service":                  {"in_port=eth1,tcp6,ipv6_src=fd69::d,ipv6_dst=fd10:96::1", ""},
		"a masquerade address to the wire":              {"in_port=LOCAL,udp,nw_src=169.254.0.13,nw_dst=198.51.100.1", ""},
		"a service without load balancer, to the wire":  {"in_port=GATEWAY,tcp,nw_src=192.0.2.7,nw_dst=10.96.0.9", ""},
		"a pod of the default network":                  {"in_port=GATEWAY,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1", "wire"},
		"a pod of the default network, IPv6":            {"in_port=GATEWAY,tcp6,ipv6_src=2001:db8::7,ipv6_dst=2001:db8:1::1", "wire"},
		"a pod's own address":                           {"in_port=GATEWAY,tcp,nw_src=10.244.0.3,nw_dst=198.51.100.1", ""},
		"a forged packet of the overlay":                {"in_port=GATEWAY,udp,nw_src=192.0.2.7,nw_dst=192.0.2.8,udp_dst=6081", ""},
		"the same, IPv6":                                {"in_port=GATEWAY,udp6,ipv6_src=2001:db8::7,ipv6_dst=2001:db8::8,udp_dst=6081", ""},
		"another port of that node":                     {"in_port=GATEWAY,udp,nw_src=192.0.2.7,nw_dst=192.0.2.8,udp_dst=6082", "wire"},
		"to an endpoint on this node":                   {"in_port=GATEWAY,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.2,tp_dst=6443", "node"},
		"to an endpoint on this node, IPv6":             {"in_port=GATEWAY,tcp6,ipv6_src=2001:db8::7,ipv6_dst=fd69::2,tp_dst=6443", "node"},
		"a forged packet to this node":                  {"in_port=GATEWAY,udp,nw_src=192.0.2.7,nw_dst=169.254.0.2,udp_dst=6081", ""},
		"from a pod's own address to this node":         {"in_port=GATEWAY,tcp,nw_src=10.244.0.3,nw_dst=169.254.0.2,tp_dst=6443", ""},
		"to another of the node's masquerade addresses": {"in_port=GATEWAY,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.3,tp_dst=6443", ""},
		"a connection that the node opens to OVN":       {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.1", ""},
		"to the node's masquerade address from outside": {"in_port=eth1,tcp,nw_src=192.0.2.8,nw_dst=169.254.0.2,tp_dst=6443", ""},
		"a tenant's to the node's masquerade address":   {"in_port=TENANT,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.2,tp_dst=6443", ""},
		"the gateway's ARP":                             {"in_port=GATEWAY,arp,arp_spa=192.0.2.7,arp_tpa=192.0.2.1", "wire"},
		"an ARP reply, to the gateway":                  {"in_port=eth1,arp,arp_spa=192.0.2.1,arp_tpa=192.0.2.7,arp_op=2", "gateway node"},
		"an ARP reply, to the node":                     {"in_port=eth1,arp,arp_spa=192.0.2.1,arp_tpa=192.0.2.7,arp_op=2", "gateway node"},
		"a neighbour advertisement, to the gateway":     {"in_port=eth1,icmp6,icmpv6_type=136,ipv6_dst=2001:db8::7", "gateway node"},
		"the node to the wire":                          {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1", "wire"},
		"a tunnel's packet":                             {"in_port=eth1,udp,nw_src=192.0.2.8,nw_dst=192.0.2.7,udp_dst=6081", "node"},
		"to the node, a new connection":                 {"in_port=eth1,tcp,nw_src=192.0.2.8,nw_dst=192.0.2.7,tp_dst=22", "node"},
		"a tenant's gateway router":                     {"in_port=TENANT,tcp,nw_src=192.0.2.7,nw_dst=198.51.100.1", ""},
		"a tenant's gateway router to a service":        {"in_port=TENANT,tcp,nw_src=169.254.0.13,nw_dst=10.96.0.1", ""},
		"a tenant's ARP":                                {"in_port=TENANT,arp,arp_spa=192.0.2.7,arp_tpa=192.0.2.1", ""},
	} {
		b.check(name, names.Replace(x.packet), x.want)
	}
	for name, x := range map[string]tracedPacket{
		"the reply of an endpoint on this node":       {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.1,tp_src=6443", "gateway"},
		"the same reply, IPv6":                        {"in_port=LOCAL,tcp6,ipv6_src=2001:db8::7,ipv6_dst=fd69::1,tp_src=6443", "gateway"},
		"a reply to another masquerade address":       {"in_port=LOCAL,tcp,nw_src=192.0.2.7,nw_dst=169.254.0.9", ""},
		"a masquerade address's from outside, as one": {"in_port=eth1,tcp,nw_src=192.0.2.8,nw_dst=169.254.0.1", ""},
	} {
		b.checkState("trk,est", name, names.Replace(x.packet), x.want)
	}
}
