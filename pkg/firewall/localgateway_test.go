// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bulkhead/pkg/network"
)

// TestKernelLocalGateway: what a node forwards in local gateway mode, and with which address.
func TestKernelLocalGateway(t *testing.T) {
	w := newForwarder(t)
	w.in.Mode = network.LocalGateway
	w.in.Node = nodeAddresses
	for _, router := range addrs("169.254.0.11", "fd69::b") {
		w.in.NodePorts = append(w.in.NodePorts, NodePort{"udp", 30080, router}, NodePort{"udp", 30090, router})
		w.listen(w.outside, w.atOutside, at(router.String(), 30090))
	}
	w.in.LocalPorts = localPorts
	w.reconcile()
	w.script(w.outside, "ip route add 203.0.113.7 via 192.0.2.10; ip route add 2001:db8:7::7 via 2001:db8::10")
	for i, router := range []string{"169.254.0.11", "fd69::b"} {
		f := forwardAddresses[i]
		fromNetwork := sender{ns: w.tenant, from: f.masquerade}
		service, wire := at(f.service, 53), at(f.outside, 53)
		receivedFrom := func(what, to string, want string) {
			t.Helper()
			w.answered(f.masquerade, to)
			if got := w.atOutside.sender("question"); got.Addr().Unmap() != netip.MustParseAddr(want) {
				t.Errorf("%s: the client is %s, want %s", what, got, want)
			}
		}
		denied := func(what string, s sender, to string, victim *receiver) {
			t.Helper()
			w.expect(what, s, to, victim, false, fromNetwork, wire, w.atOutside)
		}
		receivedFrom("a network to the wire", wire, f.node)
		if port := w.atOutside.sender("question").Port(); port < 32768 || port > 60999 {
			t.Errorf("a network to the wire: source port %d", port)
		}
		receivedFrom("a network to a service", service, f.masquerade)
		receivedFrom("a network to another's node port", at(f.node, 30080), f.node)
		denied("to another port of the service", fromNetwork, at(f.service, 54), w.atOutside)
		denied("to another network's gateway router", fromNetwork, at(router, 30080), w.atOutside)
		denied("to the overlay's port", fromNetwork, at(f.outside, network.TunnelPort), w.atOutside)
		denied("past OVN's router, with the pod's address", sender{ns: w.tenant, from: f.pod}, wire, w.atOutside)
		denied("with another network's masquerade address", sender{ns: w.tenant, from: f.other}, wire, w.atOutside)
		denied("the same to a node port", sender{ns: w.tenant, from: f.pod}, at(f.node, 30080), w.atOutside)
		denied("a tenant's process to another network's gateway router", sender{ns: w.host, from: f.node, mark: int(network.PacketMark(7))}, at(router, 30080), w.atOutside)
		w.expect("the node's own process", sender{ns: w.host, from: f.node}, at(router, 30080), w.atOutside, true, fromNetwork, wire, w.atOutside)
		// The tenant's side stands for OVN's load balancer.
		client := sender{ns: w.outside, from: f.outside}
		w.expect("external traffic policy Local", client, at(f.node, 30090), w.atTenant, true, fromNetwork, wire, w.atOutside)
		if got := w.atTenant.sender(fmt.Sprintf("text %d", w.number)).Addr().Unmap(); got != netip.MustParseAddr(f.outside) {
			t.Errorf("external traffic policy Local: the client is %s, want %s", got, f.outside)
		}
		// Gateway routers' packets may be for the host that really has an address that a Service claims.
		claimed, gatewayRouter := at([]string{"203.0.113.7", "2001:db8:7::7"}[i], 53), sender{ns: w.outside, from: router}
		w.expect("external address that a Service claims", gatewayRouter, claimed, w.atTenant, false, client, claimed, w.atTenant)
		w.expect("external traffic policy Local, from a gateway router", gatewayRouter, at(f.node, 30090), w.atOutside, true, fromNetwork, wire, w.atOutside)
		if got := w.atOutside.sender(fmt.Sprintf("text %d", w.number)).Addr().Unmap(); got != netip.MustParseAddr(f.node) {
			t.Errorf("external traffic policy Local, from a gateway router: the client is %s, want %s", got, f.node)
		}
		denied("the same past the node's translation", client, at(f.masquerade, 30090), w.atTenant)
		denied("from outside to the network's masquerade address", sender{ns: w.outside, from: f.outside}, at(f.masquerade, 55), w.atTenant)
	}
	// What a gateway router answers to a client outside has a Service's external address. A tenant may have claimed the
	// client's address. Above, the same packet from a host outside reaches the tenant.
	w.script(w.outside, "ip link set eth0 address "+network.GatewayMAC)
	w.script(w.host, "ip neigh flush dev br-ex")
	for i, f := range forwardAddresses {
		claimed := at([]string{"203.0.113.7", "2001:db8:7::7"}[i], 53)
		w.expect("a gateway router's answer to a client whose address a Service claims", sender{ns: w.outside, from: f.outside}, claimed, w.atTenant, false,
			sender{ns: w.tenant, from: f.masquerade}, at(f.outside, 53), w.atOutside)
	}
}

// TestKernelAdvertised: in local gateway mode pods of an advertised network leave the node with their
// own addresses, by the main table's routes, and are reached there from outside.
func TestKernelAdvertised(t *testing.T) {
	w := newForwarder(t)
	w.in.Mode, w.in.NodeID, w.in.Default = network.LocalGateway, 2, defaultNetwork
	blue := advertised[0]
	hosts, err := blue.HostSubnets(w.in.NodeID)
	if err != nil {
		t.Fatal(err)
	}
	var gateways []netip.Prefix
	for _, h := range hosts {
		gateways = append(gateways, blue.GatewayIn(h))
	}
	setMAC := func(mac string) {
		t.Helper()
		w.script(w.tenant, "ip link set eth0 address "+mac)
		w.script(w.host, "ip neigh flush dev ovn-k8s-mp7")
	}
	setMAC(network.MACOf(gateways))
	w.in.Networks = []network.Network{blue, advertised[1]}
	w.in.Links = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	w.reconcile()
	w.script(w.host, "sysctl -qw net.ipv4.conf.br-ex.rp_filter=2 net.ipv4.conf.br-ex.src_valid_mark=1 net.ipv4.conf.ovn-k8s-mp7.rp_filter=2 net.ipv4.conf.ovn-k8s-mp7.accept_local=1")
	w.script(w.tenant, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0")
	for i, f := range forwardAddresses {
		ip, pod, gateway := "ip", hosts[i].Addr().Next().Next().Next(), gateways[i].Addr()
		learned, other := "198.51.100.7", "10.77.0.7" // the latter a pod's of another advertised network
		if i == 1 {
			ip, learned, other = "ip -6", "2001:db8:1::7", ""
		}
		w.script(w.tenant, fmt.Sprintf("ip addr add %s dev eth0 %s; ip addr add %s dev eth0 %s", hostBits(pod), nodad(i), hostBits(gateway), nodad(i)))
		// As the package vrf and FRR do: the VRF itself has no route to what FRR has learned.
		w.script(w.host, fmt.Sprintf(`
%[1]s route add %[2]s via %[3]s dev ovn-k8s-mp7 onlink table 99998
%[1]s route add %[2]s via %[3]s dev ovn-k8s-mp7 onlink table 100007
%[1]s route add %[4]s via %[5]s dev br-ex
%[1]s route add default via %[5]s dev br-ex
%[1]s rule add iif lo goto 902 priority 900
%[1]s rule add fwmark %[6]d/%[7]d lookup main suppress_prefixlength 0 priority 901
%[1]s rule add nop priority 902
%[1]s rule add iif br-ex lookup 99998 priority 903`, ip, hosts[i].Masked(), gateway, learned, f.outside, network.OutMark, network.MarkMask))
		w.script(w.outside, fmt.Sprintf("%s route add %s via %s; ip addr add %s dev lo", ip, hosts[i].Masked(), f.node, hostBits(netip.MustParseAddr(learned))))
		own := blue.ManagementIn(hosts[i]).Addr()
		w.script(w.host, fmt.Sprintf(`
%s route add %s via %s dev ovn-k8s-mp7 onlink table 100007
ip addr add %s dev ovn-k8s-mp7 %s`, ip, blue.CIDRs()[i], gateway, hostBits(own), nodad(i)))
		remote := podOn(t, blue, 3, i) // on another node, which FRR has learned too
		w.script(w.host, fmt.Sprintf("%s route add %s via %s dev br-ex", ip, hostBits(remote), f.outside))
		w.script(w.outside, fmt.Sprintf("ip addr add %s dev lo", hostBits(remote)))
		w.listen(w.tenant, w.atTenant, at(pod.String(), 55))
		w.listen(w.outside, w.atOutside, at(learned, 53))
		fromPod, control := sender{ns: w.tenant, from: pod.String()}, sender{ns: w.tenant, from: f.masquerade}
		wire := at(f.outside, 53)
		for _, to := range []string{wire, at(learned, 53)} {
			w.answered(pod.String(), to)
			if got := w.atOutside.sender("question").Addr().Unmap(); got != pod {
				t.Errorf("a pod to %s: the client is %s, want %s", to, got, pod)
			}
		}
		check := func(what string, s sender, to string, victim *receiver, want bool) {
			t.Helper()
			w.expect(what, s, to, victim, want, control, wire, w.atOutside)
		}
		w.listen(w.outside, w.atOutside, at(f.outside, network.BFDMultiPort))
		check("BFD with the node's address", control, at(f.outside, network.BFDMultiPort), w.atOutside, false)
		check("BFD with the pod's own address", fromPod, at(f.outside, network.BFDMultiPort), w.atOutside, true)
		check("from outside to a pod", sender{ns: w.outside, from: f.outside}, at(pod.String(), 55), w.atTenant, true)
		if got := w.atTenant.sender(fmt.Sprintf("text %d", w.number)).Addr().Unmap().String(); got != f.outside {
			t.Errorf("from outside: the client is %s, want %s", got, f.outside)
		}
		// OVN's router returns what a process of the network sends there.
		process := sender{ns: w.host, from: own.String(), device: "red"}
		w.listen(w.outside, w.atOutside, at(remote.String(), 53))
		check("a process of the network to a pod on another node", process, at(remote.String(), 53), w.atOutside, true)
		if got := w.atOutside.sender(fmt.Sprintf("text %d", w.number)).Addr().Unmap(); got != own {
			t.Errorf("a process of the network to a pod on another node: the client is %s, want %s", got, own)
		}
		for _, s := range []sender{process, fromPod} {
			s.unreachable(t, at(podOn(t, blue, 4, i).String(), 53))
		}
		check("from a pod on another node", sender{ns: w.outside, from: remote.String()}, at(pod.String(), 55), w.atTenant, true)
		check("the node to a pod", sender{ns: w.host, from: f.node}, at(pod.String(), 55), w.atTenant, false)
		check("to a service that not all networks reach", fromPod, at(f.service, 54), w.atOutside, false)
		check("to the overlay's port", fromPod, at(f.outside, network.TunnelPort), w.atOutside, false)
		if other != "" {
			w.script(w.outside, "ip addr add "+other+" dev lo")
			w.script(w.host, "ip route add 10.77.0.0/24 via 192.0.2.1 dev br-ex")
			w.listen(w.outside, w.atOutside, at(other, 53))
			check("to another advertised network", fromPod, at(other, 53), w.atOutside, false)
			check("the node to another advertised network", sender{ns: w.host, from: f.node}, at(other, 53), w.atOutside, false)
			w.in.Loose = true
			w.reconcile()
			check("to another advertised network, isolation is loose", fromPod, at(other, 53), w.atOutside, true)
			check("the node to it, isolation is loose", sender{ns: w.host, from: f.node}, at(other, 53), w.atOutside, true)
			w.in.Loose = false
			w.reconcile()
		}
		w.checkBGPPort(pod, netip.MustParseAddr(f.outside))
		setMAC("0a:58:0a:42:02:09") // a pod's own, past the router
		check("past OVN's router", fromPod, wire, w.atOutside, false)
		setMAC(network.MACOf(gateways))
		check("by OVN's router again", fromPod, wire, w.atOutside, true)
	}
	// No longer advertised.
	w.in.Networks = []network.Network{{ID: 7}}
	w.reconcile()
	for i, f := range forwardAddresses {
		pod := hosts[i].Addr().Next().Next().Next().String()
		control := sender{ns: w.tenant, from: f.masquerade}
		w.expect("a pod that is not advertised", sender{ns: w.tenant, from: pod}, at(f.outside, 53), w.atOutside, false, control, at(f.outside, 53), w.atOutside)
		w.expect("from outside to it", sender{ns: w.outside, from: f.outside}, at(pod, 55), w.atTenant, false, control, at(f.outside, 53), w.atOutside)
	}
}

// podOn returns an address of a pod of the network on a node, of its i-th IP family.
func podOn(t *testing.T, n network.Network, node, i int) netip.Addr {
	t.Helper()
	hosts, err := n.HostSubnets(node)
	if err != nil {
		t.Fatal(err)
	}
	return hosts[i].Addr().Next().Next().Next()
}

// TestKernelOwnVRF: a network that is advertised into its own VRF, whose pods leave and enter through an interface
// in the VRF with their own addresses, and through the external bridge only to services; what is outside in
// the VRF reaches nothing through that bridge. Networks in the nodes' default VRF with the addresses of the network, and of
// its fabric, change nothing.
func TestKernelOwnVRF(t *testing.T) {
	w := newForwarder(t)
	w.in.Mode, w.in.NodeID, w.in.Default = network.LocalGateway, 2, defaultNetwork
	red := advertised[0]
	red.Name, red.AdvertisedVRFs = network.CUDNName("red"), network.VRFAuto
	twin, other := advertised[0], advertised[1] // the same subnets, and some of the fabric's
	twin.ID, other.Subnets = 11, subnets("10.99.0.0/16/24", "fd9a::/48/64")
	w.in.Networks = []network.Network{red, twin, other}
	w.reconcile()
	hosts, err := red.HostSubnets(w.in.NodeID)
	if err != nil {
		t.Fatal(err)
	}
	var gateways []netip.Prefix
	for _, h := range hosts {
		gateways = append(gateways, red.GatewayIn(h))
	}
	fabric, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(w.host); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "red-up", TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(fabric))}); err != nil {
		t.Fatal(err)
	}
	w.script(fabric, "ip link set lo up; ip link set eth0 up")
	w.script(w.host, "ip link set red-up master red up")
	w.script(w.tenant, "ip link set eth0 address "+network.MACOf(gateways))
	atFabric := newReceiver()
	for i, f := range forwardAddresses {
		ip, own, router := "ip", "10.99.0.11", "10.99.0.1"
		if i == 1 {
			ip, own, router = "ip -6", "fd9a::b", "fd9a::1"
		}
		pod, bits := hosts[i].Addr().Next().Next().Next(), []int{24, 64}[i]
		w.script(fabric, fmt.Sprintf("ip addr add %s/%d dev eth0 %s; %s route add default via %s", router, bits, nodad(i), ip, own))
		w.script(w.host, fmt.Sprintf(`
ip addr add %[1]s/%[2]d dev red-up %[3]s
%[4]s route add default via %[5]s dev red-up table 100007
%[4]s route add %[6]s via %[7]s dev ovn-k8s-mp7 onlink table 100007`, own, bits, nodad(i), ip, router, hosts[i].Masked(), gateways[i].Addr()))
		w.script(w.tenant, fmt.Sprintf("ip addr add %s dev eth0 %s; ip addr add %s dev eth0 %s", hostBits(pod), nodad(i), hostBits(gateways[i].Addr()), nodad(i)))
		w.listen(fabric, atFabric, at(router, 53))
		w.listen(w.tenant, w.atTenant, at(pod.String(), 56))
		w.answered(pod.String(), at(router, 53))
		if got := atFabric.sender("question").Addr().Unmap(); got != pod {
			t.Errorf("a pod to its fabric: the client is %s, want %s", got, pod)
		}
		control := sender{ns: w.tenant, from: pod.String()}
		check := func(what string, s sender, to string, victim *receiver, want bool) {
			t.Helper()
			w.expect(what, s, to, victim, want, control, at(router, 53), atFabric)
		}
		remote := podOn(t, red, 3, i) // on another node, which FRR has learned in the VRF
		w.script(w.host, fmt.Sprintf("%s route add %s via %s dev red-up table 100007", ip, hostBits(remote), router))
		w.script(fabric, fmt.Sprintf("ip addr add %s dev lo", hostBits(remote)))
		w.listen(fabric, atFabric, at(remote.String(), 53))
		check("a pod to a pod on another node", control, at(remote.String(), 53), atFabric, true)
		// With the network's masquerade address packets pass the external bridge, but not to networks there.
		foreign := []string{"10.99.7.7", "fd9a:0:0:7::7"}[i]
		w.script(w.host, fmt.Sprintf("%s route add %s via %s dev br-ex table 100007", ip, hostBits(netip.MustParseAddr(foreign)), f.outside))
		w.script(w.outside, fmt.Sprintf("ip addr add %s dev lo", hostBits(netip.MustParseAddr(foreign))))
		w.listen(w.outside, w.atOutside, at(foreign, 53))
		check("a pod to a network in the default VRF", sender{ns: w.tenant, from: f.masquerade}, at(foreign, 53), w.atOutside, false)
		w.in.Networks = []network.Network{red, twin}
		w.reconcile()
		check("the same without that network", sender{ns: w.tenant, from: f.masquerade}, at(foreign, 53), w.atOutside, true)
		w.in.Networks = []network.Network{red, twin, other}
		w.reconcile()
		outside := sender{ns: fabric, from: router}
		check("the fabric to a pod", outside, at(pod.String(), 56), w.atTenant, true)
		check("a pod to a service, with the network's masquerade address", sender{ns: w.tenant, from: f.masquerade}, at(f.service, 53), w.atOutside, true)
		check("a pod to a host on the node's link", control, at(f.outside, 53), w.atOutside, false)
		check("the fabric to a host on the node's link", outside, at(f.outside, 53), w.atOutside, false)
		check("the fabric to a service", outside, at(f.service, 53), w.atOutside, false)
		check("the fabric to a gateway router", outside, at([]string{"169.254.0.11", "fd69::b"}[i], 30080), w.atOutside, false)
	}
}

// checkBGPPort has a pod connect to two ports of a host on the node's link, of which one is BGP's.
func (f *forwarder) checkBGPPort(pod, host netip.Addr) {
	f.t.Helper()
	accepted := make(chan uint16, 10)
	if err := netns.Set(f.outside); err != nil {
		f.t.Fatal(err)
	}
	for _, port := range []uint16{179, 180} {
		l, err := net.Listen("tcp", netip.AddrPortFrom(host, port).String())
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- port
				c.Close()
			}
		}()
	}
	if err := netns.Set(f.tenant); err != nil {
		f.t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(pod, 0)), Timeout: 3 * time.Second}
	if c, err := d.Dial("tcp", netip.AddrPortFrom(host, 179).String()); err == nil {
		c.Close()
		f.t.Errorf("a pod connects to port 179 of %s", host)
	}
	d.Timeout = 20 * time.Second
	c, err := d.Dial("tcp", netip.AddrPortFrom(host, 180).String())
	if err != nil {
		f.t.Errorf("a pod to port 180 of %s: %v", host, err)
		return
	}
	c.Close()
	if port := <-accepted; port != 180 || len(accepted) > 0 {
		f.t.Errorf("%s accepted a connection to port %d and %d more, want one to 180", host, port, len(accepted))
	}
}

func hostBits(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

func nodad(family int) string { return []string{"", "nodad"}[family] }

// TestKernelVRFNames: names of ClusterUserDefinedNetworks that nft would read as numbers or keywords are VRFs' names
// in the table like others.
func TestKernelVRFNames(t *testing.T) {
	newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	r, in := &Reconciler{Target: target}, Inputs{Kubelet: Kubelet{Mark: mark}, Plan: plan, Mode: network.LocalGateway, NodeID: 2, Default: defaultNetwork}
	names := []string{"5g-core", "3scale", "0x10", "1-2", "log", "set", "map", "vlan", "limit", "meta", "a.b", "red"}
	for i, name := range names {
		n := advertised[0]
		n.ID, n.Name, n.AdvertisedVRFs = 100+i, network.CUDNName(name), network.VRFAuto
		if n.VRF() != name {
			t.Fatalf("the VRF of %s is %s", name, n.VRF())
		}
		in.Networks = append(in.Networks, n)
	}
	for _, want := range []int{len(names), len(names) / 2} {
		in.Networks = in.Networks[:want]
		if _, err := r.Reconcile(t.Context(), in, false); err != nil {
			t.Fatal(err)
		}
		if ops, err := r.Reconcile(t.Context(), in, true); err != nil || len(ops) > 0 {
			t.Errorf("second run with %d networks: %v %v", want, ops, err)
		}
		have, err := target.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			if got := slices.Contains(have.Sets[SetVRFs], name); got != (i < want) {
				t.Errorf("with %d networks, VRF %s is in the table: %t", want, name, got)
			}
		}
	}
}
