// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
	"bulkhead/pkg/trace"
)

// A trace ends where a packet would, whatever stops it, and says what it was.
func TestNativeTrace(t *testing.T) {
	t.Parallel()
	_, zones := nativeZones(t)
	z, peer := zones[0], zones[1].node
	red := testNetwork(1, "t1_net", network.Layer3, network.RolePrimary, "dual")
	violet := testNetwork(2, "t2_net", network.Layer2, network.RolePrimary, "dual")
	plain := testNetwork(network.DefaultID, network.DefaultName, network.Layer3, network.RolePrimary, "dual")
	pod := func(n network.Network, key, namespace, name string, i int) PodPort {
		return testPod(n, z.node, key, namespace, name, i, namespace != "plain" && n.ID == network.DefaultID)
	}
	service := Service{Namespace: "t1", Name: "web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.7.7")}}
	p, q, v := pod(red, "t1/net", "t1", "p", 3), pod(red, "t1/net", "t1", "q", 4), pod(violet, "t2/net", "t2", "v", 5)
	service.Ports = []ServicePort{{Protocol: nbdb.LoadBalancerProtocolTCP, Port: 80, Endpoints: []Endpoint{{Addr: netip.AddrPortFrom(q.IPs[0].Addr(), 8080), Node: z.node.Name}}}}
	base := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", Peers: []network.Node{peer}}
	with := func(f func(in *Inputs)) Inputs { in := base; f(&in); return in }
	remote := testPod(violet, peer, "t2/net", "t2", "far", 9, false)
	converge(t, z.nb, plain, z.node, with(func(in *Inputs) {
		in.Pods = []PodPort{pod(plain, network.DefaultName, "t1", "p", 3), pod(plain, network.DefaultName, "plain", "x", 4)}
	}))
	converge(t, z.nb, red, z.node, with(func(in *Inputs) { in.Pods, in.Services = []PodPort{p, q}, []Service{service} }))
	converge(t, z.nb, violet, z.node, with(func(in *Inputs) {
		in.Pods = []PodPort{v}
		in.RemotePods = []RemotePod{{NADKey: "t2/net", Namespace: "t2", Pod: "far", Node: peer.Name, Chassis: peer.Chassis, IPs: remote.IPs, TunnelKey: remote.TunnelKey}}
	}))
	for link, port := range map[string]PodPort{"eth-p": p, "eth-q": q} {
		z.plug(network.PodLSP(port.NADKey, port.Namespace, port.Pod), port.UID, namespace(t, z.Name+link), link, network.MACOf(port.IPs), port.IPs)
	}
	z.sync()
	z.waitRemotePorts()

	n := trace.Node{SB: z.Sock("sb"), OVS: z.Sock("ovs"), Target: z.Path("vswitchd.ctl"),
		Run: func(_ context.Context, program string, args ...string) (string, error) {
			return z.Run(program, args...)
		}}
	remoteHosts, err := red.HostSubnets(peer.ID)
	if err != nil {
		t.Fatal(err)
	}
	onPeer := func(i int) string { a, _ := network.NthAddr(remoteHosts[i], 9); return a.String() }
	unused, _ := network.NthAddr(p.IPs[0].Masked(), 77)
	for _, c := range []struct{ pod, network, to, want, failure string }{
		{pod: "t1/p", to: q.IPs[0].Addr().String(), want: "=> pod t1/q"},
		{pod: "t1/p", to: q.IPs[1].Addr().String(), want: "=> pod t1/q"},
		{pod: "t1/p", to: onPeer(0), want: "=> node " + peer.Name + ", through the tunnel"},
		{pod: "t1/p", to: onPeer(1), want: "=> node " + peer.Name + ", through the tunnel"},
		{pod: "t1/p", to: "10.96.7.7:80", want: "=> pod t1/q"},
		{pod: "t1/p", to: "10.96.7.7:80", want: "load balancer of "},
		{pod: "t1/p", to: "10.96.0.1:443", want: "=> dropped: lr_in_policy, priority "},
		{pod: "t1/p", to: "203.0.113.9", want: "=> the bridge of the network outside"},
		{pod: "t1/p", to: "203.0.113.9", want: "source becomes "},
		{pod: "t1/p", to: "[2001:db8::9]:80", want: "=> the bridge of the network outside"},
		{pod: "t1/p", to: unused.String(), failure: "nothing answers the pod's neighbour request"},
		{pod: "t1/p", network: network.DefaultName, to: pod(plain, network.DefaultName, "plain", "x", 4).IPs[0].Addr().String(), want: "=> dropped: ls_in_acl_eval, priority "},
		{pod: "plain/x", to: pod(plain, network.DefaultName, "t1", "p", 3).IPs[0].Addr().String(), want: "=> dropped: ls_out_acl_eval, priority "},
		{pod: "t2/v", to: remote.IPs[1].Addr().String(), want: "=> pod t2/far on another node, through the tunnel"},
		{pod: "t2/v", to: remote.IPs[0].Addr().String(), want: "the pod has no interface on this node"},
		{pod: "t1/p", to: q.IPs[0].Addr().String(), want: "=> sent by eth-q"},
		{pod: "t1/p", to: q.IPs[1].Addr().String(), want: "=> sent by eth-q"},
		{pod: "t1/p", to: onPeer(0), want: "=> sent by tunnel"},
		{pod: "t1/p", to: "10.96.0.1:443", want: "=> not sent; the last flow is "},
		{pod: "t1/gone", to: "203.0.113.9", failure: "pod t1/gone has no port on this node"},
	} {
		packet, err := trace.ParsePacket(c.to, "")
		if err != nil {
			t.Fatal(err)
		}
		// Open vSwitch follows OVN a moment later.
		eventually(t, c.pod+" to "+c.to, func() error {
			got, err := n.Pod(t.Context(), c.pod, c.network, packet)
			if c.failure != "" {
				if err == nil || !strings.Contains(err.Error(), c.failure) {
					return fmt.Errorf("got %w, want an error with %q", err, c.failure)
				}
				return nil
			}
			if err != nil {
				return err
			}
			var text strings.Builder
			if err := got.Write(&text); err != nil {
				return err
			}
			if !strings.Contains(text.String(), c.want) {
				return fmt.Errorf("no %q in\n%s\n%s", c.want, text.String(), got.Raw)
			}
			return nil
		})
	}
}
