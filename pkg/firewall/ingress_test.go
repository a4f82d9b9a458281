// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bulkhead/pkg/network"
)

// ingressNetworks are a network of each topology with services of ingress.
var ingressNetworks = []network.Network{
	{ID: 7, Name: "seven", Topology: network.Layer3, Role: network.RolePrimary, Subnets: subnets("10.66.0.0/16/24", "fd66::/48/64")},
	{ID: 8, Name: "eight", Topology: network.Layer2, Role: network.RolePrimary, Subnets: subnets("10.66.0.0/16", "fd66::/64")},
}

var ingress = Ingress{Pods: addrs("10.244.2.9", "fd10:244::9"), ClusterIPs: []ClusterIP{
	{netip.MustParseAddr("10.96.5.5"), ingressNetworks[0]}, {netip.MustParseAddr("fd10:96::55"), ingressNetworks[0]},
	{netip.MustParseAddr("10.96.5.8"), ingressNetworks[1]}, {netip.MustParseAddr("fd10:96::58"), ingressNetworks[1]},
}}

// Without ingress namespaces the table has nothing of them; nft lists the elements as Build writes them.
func TestKernelIngressElements(t *testing.T) {
	newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, NodeID: 2, Default: defaultNetwork, Networks: ingressNetworks,
		PodRoots: []Cgroup{{"", 0}}}
	without := dump(Build(in))
	r := &Reconciler{Target: target}
	for _, in.Ingress = range []*Ingress{nil, &ingress, {Pods: ingress.Pods[:1], ClusterIPs: []ClusterIP{{ingress.ClusterIPs[0].Addr, ingressNetworks[1]}}}, nil} {
		for _, in.Mode = range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
			if _, err := r.Reconcile(t.Context(), in, false); err != nil {
				t.Fatal(err)
			}
			have, err := target.Read(t.Context())
			if err != nil || dump(have) != dump(Build(in)) {
				t.Errorf("read back: %v\n%swant\n%s", err, dump(have), dump(Build(in)))
			}
		}
	}
	if in.Mode = network.GatewayMode(""); dump(Build(in)) != without {
		t.Error("something of ingress namespaces is left")
	}
	in.Ingress = &ingress
	st := Build(in)
	for name, want := range map[string]string{
		SetIngressOwn: "ovn-k8s-mp7 . 0x80070000, ovn-k8s-mp8 . 0x80080000", SetIngressTo4: "ovn-k8s-mp7 . 10.96.5.5, ovn-k8s-mp8 . 10.96.5.8",
		MapIngressMarks6:   "fd10:96::55 : 0x80070000, fd10:96::58 : 0x80080000",
		MapIngressSources4: "ovn-k8s-mp7 : 10.66.1.2, ovn-k8s-mp8 : 169.254.0.6", MapIngressSources6: "ovn-k8s-mp7 : fd66:0:0:1::2, ovn-k8s-mp8 : fd69::6",
	} {
		if got := strings.Join(st.Sets[name], ", "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Pods of ingress namespaces reach the cluster IPs of a network, and are answered; nobody else does, and
// they reach nothing else of it.
func TestKernelIngress(t *testing.T) {
	w := newForwarder(t)
	if err := netns.Set(w.host); err != nil {
		t.Fatal(err)
	}
	pods, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(w.host); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ovn-k8s-mp0", TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pods))}); err != nil {
		t.Fatal(err)
	}
	w.script(w.host, `
ip link set ovn-k8s-mp0 up
ip addr add 10.244.2.2/24 dev ovn-k8s-mp0
ip addr add fd10:244::2/64 dev ovn-k8s-mp0 nodad
ip addr add 10.66.1.2/24 dev ovn-k8s-mp7
ip addr add fd66:0:0:1::2/64 dev ovn-k8s-mp7 nodad
sysctl -qw net.ipv4.conf.ovn-k8s-mp0.rp_filter=2 net.ipv4.conf.ovn-k8s-mp0.src_valid_mark=1 net.ipv4.conf.ovn-k8s-mp7.rp_filter=2 net.ipv4.conf.red.rp_filter=2
ip route add 10.96.5.0/24 via 10.66.1.3 dev ovn-k8s-mp7 table 100007
ip route add fd10:96::/120 via fd66:0:0:1::3 dev ovn-k8s-mp7 table 100007
ip route add unreachable default metric 4278198272 table 100007
ip -6 route add unreachable default metric 4278198272 table 100007
for ip in "ip 10.96.0.0/16" "ip.-6 fd10:96::/112"; do
  set -- $ip
  command=$(echo $1 | tr . ' ')
  $command rule add pref 900 iif ovn-k8s-mp0 to $2 goto 902
  $command rule add pref 901 to $2 lookup main
  $command rule add pref 901 fwmark 0x80000000/0xc0000000 lookup main suppress_prefixlength 0
  $command rule add pref 902 nop
  $command rule add pref 2500 fwmark 0x70000/0x7fff0000 lookup 100007
done
`)
	w.script(w.tenant, `
ip link set lo up
ip addr add 10.66.1.3/24 dev eth0
ip addr add fd66:0:0:1::3/64 dev eth0 nodad
for a in 10.96.5.5 10.96.5.6 fd10:96::55 fd10:96::56; do ip addr add $a dev lo; done
ip route add 10.244.2.0/24 via 10.66.1.2
ip route add fd10:244::/64 via fd66:0:0:1::2
`)
	w.script(pods, `
ip link set eth0 up
for a in 10.244.2.8/24 10.244.2.9/24; do ip addr add $a dev eth0; done
for a in fd10:244::8/64 fd10:244::9/64; do ip addr add $a dev eth0 nodad; done
ip route add default via 10.244.2.2
ip route add default via fd10:244::2
`)
	w.listen(w.tenant, w.atTenant, "10.96.5.5:55", "10.96.5.6:55", "[fd10:96::55]:55", "[fd10:96::56]:55", "10.66.1.3:55", "[fd66:0:0:1::3]:55")
	atPods := newReceiver()
	w.listen(pods, atPods, "10.244.2.9:56", "[fd10:244::9]:56")
	w.in.Networks, w.in.NodeID, w.in.Default = ingressNetworks[:1], 2, defaultNetwork
	for _, w.in.Mode = range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		w.in.Ingress = &ingress
		w.reconcile()
		for _, f := range []struct{ router, other, clusterIP, unknown, pod, node string }{
			{"10.244.2.9", "10.244.2.8", "10.96.5.5", "10.96.5.6", "10.66.1.3", "10.66.1.2"},
			{"fd10:244::9", "fd10:244::8", "fd10:96::55", "fd10:96::56", "fd66:0:0:1::3", "fd66:0:0:1::2"},
		} {
			router, to := sender{ns: pods, from: f.router}, at(f.clusterIP, 55)
			w.expect("an ingress pod to a cluster IP", router, to, w.atTenant, true, router, to, w.atTenant)
			if from := w.atTenant.sender(fmt.Sprintf("text %d", w.number)); from.Addr() != netip.MustParseAddr(f.node) {
				t.Errorf("%s: the service sees %s, want %s", w.in.Mode, from, f.node)
			}
			w.askFrom(pods, f.router, to)
			denied := func(what string, s sender, target string, victim *receiver) {
				t.Helper()
				w.expect(string(w.in.Mode)+": "+what, s, target, victim, false, router, to, w.atTenant)
			}
			denied("another pod to the cluster IP", sender{ns: pods, from: f.other}, to, w.atTenant)
			denied("an ingress pod to a cluster IP that no service has", router, at(f.unknown, 55), w.atTenant)
			denied("an ingress pod to a pod", router, at(f.pod, 55), w.atTenant)
			denied("a pod of the network to an ingress pod", sender{ns: w.tenant, from: f.pod}, at(f.router, 56), atPods)
			denied("the same with a cluster IP", sender{ns: w.tenant, from: f.clusterIP}, at(f.router, 56), atPods)
		}
		w.in.Ingress = &Ingress{Pods: ingress.Pods[1:], ClusterIPs: ingress.ClusterIPs}
		w.reconcile()
		w.expect("a pod that no longer is one", sender{ns: pods, from: "10.244.2.9"}, "10.96.5.5:55", w.atTenant, false, sender{ns: pods, from: "fd10:244::9"}, "[fd10:96::55]:55", w.atTenant)
	}
}
