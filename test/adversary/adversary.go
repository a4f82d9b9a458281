// SPDX-License-Identifier: Apache-2.0

// Package adversary is the table of attacks: which attacker tries which way to
// reach, or to eavesdrop on, which victim. Only what listeners on the victim's
// side receive counts, never what the kernel reports to the attacker. Every
// attack has a control: a permitted sender makes the same attempt, and the
// listeners receive it.
package adversary

import (
	"fmt"
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// SendResult is the error, if any, that the sender of an attempt got.
type SendResult struct {
	ID    int    `json:"id"`
	Error string `json:"error,omitempty"`
}

// Received lists the attempts that a listener received, or says why the kernel
// refused to open the listener.
type Received struct {
	IDs     []int  `json:"ids"`
	Refused string `json:"refused,omitempty"`
}

// Interface is a network interface of the attackers' node.
type Interface struct {
	Name, MAC string
}

// Victim is a pod that is attacked through its interface on a network.
type Victim struct {
	Name  string
	Addrs []netip.Addr
	MAC   string
	Link  Interface // the host end of its veth pair; empty if the pod is on another node
	// NextMAC is the next hop's: the victim's own, or the router's.
	NextMAC string
}

// Network is the attacked network as configured on the attackers' node.
type Network struct {
	Mark  uint32
	Port  Interface // management port
	VRF   string
	Nodes []netip.Addr // the node's own addresses
}

// LinkLocal is the IPv6 link-local address derived from the victim's MAC address.
func (v Victim) LinkLocal() netip.Addr { return network.LinkLocal(v.MAC) }

// Multicast groups that every interface joins.
var (
	allNodes4 = netip.MustParseAddr("224.0.0.1")
	allNodes6 = netip.MustParseAddr("ff02::1")
)

const (
	allNodesMAC  = "33:33:00:00:00:01"
	broadcastMAC = "ff:ff:ff:ff:ff:ff"
)

const port = attack.Port

// nobody is an address of a's family that no host has (RFC 5737, RFC 3849).
func nobody(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.MustParseAddr("192.0.2.254")
	}
	return netip.MustParseAddr("2001:db8::fe")
}

// IntoNetwork lists the ways into a network to one of its pods. The kernel
// refuses some of them to attackers without the capability; such an error proves
// nothing.
func IntoNetwork(n Network, v Victim) []attack.Attempt {
	var out []attack.Attempt
	add := func(a attack.Attempt) { out = append(out, a) }
	for _, to := range v.Addrs {
		src := sameFamily(n.Nodes, to)
		udp := func(dev string, how ...string) {
			add(attack.Attempt{Socket: "udp", To: to.String(), Port: port, Device: dev, How: how})
		}
		udp("")
		udp("", "connect")
		for _, dev := range []string{n.Port.Name, n.VRF} {
			udp(dev, "cmsg-pktinfo")
			udp(dev, "cmsg-pktinfo", "gso")
			udp(dev, "bindtodevice")
			udp(dev, "bindtoifindex", "connect")
			udp(dev, "unicastif")
			add(attack.Attempt{Socket: "udplite", To: to.String(), Port: port, Device: dev, How: []string{"cmsg-pktinfo"}})
			for _, socket := range []string{"tcp", "mptcp", "sctp", "sctp-seq", "l2tp"} {
				add(attack.Attempt{Socket: socket, To: to.String(), Port: port, Device: dev, How: []string{"bindtodevice"}})
			}
			add(attack.Attempt{Socket: "tcp", To: to.String(), Port: port, Device: dev, How: []string{"bindtoifindex", "fastopen"}})
			add(attack.Attempt{Socket: "ping", To: to.String(), Device: dev, How: []string{"cmsg-pktinfo"}})
			add(attack.Attempt{Socket: "raw-icmp", To: to.String(), Device: dev, How: []string{"cmsg-pktinfo"}})
			add(attack.Attempt{Socket: "raw-other", To: to.String(), Device: dev, How: []string{"bindtodevice"}})
			add(attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: port, Device: dev, How: []string{"cmsg-pktinfo"}})
			add(attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: port, Device: dev, How: []string{"bindtodevice", "fragments"}})
			add(frame(dev, n.Port.MAC, v.NextMAC, src, to))
		}
		if to.Is6() {
			udp(n.Port.Name, "stickypktinfo")
		} else {
			udp(n.Port.Name, "mapped", "cmsg-pktinfo")
			udp(n.Port.Name, "mapped", "bindtoifindex")
			udp(n.Port.Name, "lsrr="+to.String(), "cmsg-pktinfo")
		}
		for _, socket := range []string{"tcp", "mptcp", "sctp", "sctp-seq", "l2tp"} {
			add(attack.Attempt{Socket: socket, To: to.String(), Port: port})
		}
		add(attack.Attempt{Socket: "sctp", To: to.String(), Port: port, How: []string{"connectx=" + nobody(to).String()}})
		mark := fmt.Sprintf("=%#x", n.Mark)
		add(attack.Attempt{Socket: "udp", To: to.String(), Port: port, How: []string{"cmsg-mark" + mark}})
		add(attack.Attempt{Socket: "udp", To: to.String(), Port: port, How: []string{"mark" + mark}})
		add(attack.Attempt{Socket: "tcp", To: to.String(), Port: port, How: []string{"mark" + mark}})
		add(attack.Attempt{Socket: "raw-icmp", To: to.String(), How: []string{"cmsg-mark" + mark}})
		add(attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: port, How: []string{"mark" + mark}})
		for _, how := range []string{"bypass", "ring", "unbound", "etype=0x88cc"} {
			add(frame(n.Port.Name, n.Port.MAC, v.NextMAC, src, to, how))
		}
		dgram := frame(n.Port.Name, n.Port.MAC, v.NextMAC, src, to)
		dgram.Socket = "packet-dgram"
		add(dgram)
		if v.Link.Name != "" {
			add(frame(v.Link.Name, n.Port.MAC, v.MAC, src, to))
			add(frame(v.Link.Name, n.Port.MAC, v.MAC, src, to, "bypass"))
			x := frame(v.Link.Name, n.Port.MAC, v.MAC, src, to)
			x.Socket = "xdp"
			add(x)
		}
	}
	if v.Link.Name != "" { // link-local traffic reaches pods of this node only
		out = append(out, onLink(n, v)...)
	}
	return out
}

// ToService lists the ways to a network's cluster IPs. mark is that of the sockets of ingress
// namespaces' pods.
func ToService(n Network, clusterIPs []netip.Addr, mark uint32) []attack.Attempt {
	var out []attack.Attempt
	marked, inPacket := fmt.Sprintf("mark=%#x", mark), fmt.Sprintf("cmsg-mark=%#x", mark)
	for _, to := range clusterIPs {
		src := sameFamily(n.Nodes, to)
		add := func(socket, dev string, how ...string) {
			out = append(out, attack.Attempt{Socket: socket, To: to.String(), Port: port, Device: dev, How: how})
		}
		add("udp", "", "connect")
		add("tcp", "")
		for _, dev := range []string{n.Port.Name, n.VRF} {
			for _, socket := range []string{"udp", "tcp"} {
				add(socket, dev, "bindtodevice")
				add(socket, dev, "bindtodevice", marked)
			}
			add("udp", dev, "cmsg-pktinfo", inPacket)
			out = append(out, attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: port, Device: dev, How: []string{"bindtodevice", marked}})
		}
	}
	return out
}

// ByLoopback lists frames sent on loopback with a network's mark and a source
// address outside the cluster: an unguarded node would route them into the network.
func ByLoopback(n Network, v Victim, outside []netip.Addr) []attack.Attempt {
	var out []attack.Attempt
	for _, to := range v.Addrs {
		const none = "00:00:00:00:00:00"
		if src := sameFamily(outside, to); src.IsValid() {
			out = append(out, frame("lo", none, none, src, to, fmt.Sprintf("mark=%#x", n.Mark)))
		}
	}
	return out
}

// onLink lists the ways to link-local, multicast and broadcast addresses, whose
// meaning depends on the interface.
func onLink(n Network, v Victim) []attack.Attempt {
	var out []attack.Attempt
	to := v.LinkLocal().WithZone(n.Port.Name).String()
	for _, socket := range []string{"udp", "tcp", "mptcp", "ping", "raw-icmp"} {
		out = append(out, attack.Attempt{Socket: socket, To: to, Port: port})
	}
	bare := v.LinkLocal().String()
	own := network.LinkLocal(n.Port.MAC).WithZone(n.Port.Name).String()
	out = append(out,
		attack.Attempt{Socket: "udp", To: to, Port: port, How: []string{"connect"}},
		attack.Attempt{Socket: "udp", To: bare, Port: port, Device: n.Port.Name, How: []string{"cmsg-pktinfo"}},
		attack.Attempt{Socket: "udp", To: bare, Port: port, Device: n.Port.Name, How: []string{"bindtodevice"}},
		attack.Attempt{Socket: "udp", To: to, Port: port, How: []string{"bindscope=" + own}},
		attack.Attempt{Socket: "udp", To: allNodes6.WithZone(n.Port.Name).String(), Port: port},
		attack.Attempt{Socket: "udp", To: allNodes6.String(), Port: port, Device: n.Port.Name, How: []string{"multicastif"}},
		attack.Attempt{Socket: "udp", To: allNodes6.String(), Port: port, Device: n.Port.Name, How: []string{"cmsg-pktinfo"}},
		attack.Attempt{Socket: "raw-icmp", To: allNodes6.WithZone(n.Port.Name).String()},
		attack.Attempt{Socket: "udp", To: allNodes4.String(), Port: port, Device: v.Link.Name, How: []string{"multicastif"}},
		attack.Attempt{Socket: "udp", To: allNodes4.String(), Port: port, Device: n.Port.Name, How: []string{"multicastif"}},
		attack.Attempt{Socket: "udp", To: allNodes4.String(), Port: port, Device: n.Port.Name, How: []string{"cmsg-pktinfo"}},
		attack.Attempt{Socket: "udp", To: "255.255.255.255", Port: port, Device: n.Port.Name, How: []string{"broadcast", "cmsg-pktinfo"}},
		attack.Attempt{Socket: "udp", To: "255.255.255.255", Port: port, Device: v.Link.Name, How: []string{"broadcast", "cmsg-pktinfo"}},
	)
	if a := sameFamily(n.Nodes, allNodes4); a.IsValid() {
		out = append(out, attack.Attempt{Socket: "udp", To: allNodes4.String(), Port: port, How: []string{"multicastifaddr=" + a.String()}})
	}
	return out
}

// Locked lists the ways to a locked address, which only kubelet may probe. n is
// the cluster default network, v the pod's locked interface. MPTCP is left out:
// kubelet does not use it, so there would be no control.
func Locked(n Network, v Victim, kubeletMark uint32) []attack.Attempt {
	var out []attack.Attempt
	mark := fmt.Sprintf("=%#x", kubeletMark)
	for _, to := range v.Addrs {
		src := sameFamily(n.Nodes, to)
		for _, how := range [][]string{nil, {"cmsg-pktinfo"}, {"bindtodevice"}, {"cmsg-mark" + mark}, {"mark" + mark}, {"cmsg-pktinfo", "cmsg-mark" + mark}} {
			out = append(out, attack.Attempt{Socket: "udp", To: to.String(), Port: port, Device: n.Port.Name, How: how},
				attack.Attempt{Socket: "raw-icmp", To: to.String(), Device: n.Port.Name, How: how},
				attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: port, Device: n.Port.Name, How: how})
		}
		for _, how := range [][]string{nil, {"bindtodevice"}, {"mark" + mark}, {"fastopen"}} {
			out = append(out, attack.Attempt{Socket: "tcp", To: to.String(), Port: port, Device: n.Port.Name, How: how})
		}
		for _, socket := range []string{"sctp", "sctp-seq", "l2tp"} {
			out = append(out, attack.Attempt{Socket: socket, To: to.String(), Port: port})
		}
		out = append(out, attack.Attempt{Socket: "ping", To: to.String()}, attack.Attempt{Socket: "raw-other", To: to.String()},
			attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: port, How: []string{"fragments"}})
		for _, how := range [][]string{nil, {"bypass"}, {"ring"}, {"mark" + mark}} {
			out = append(out, frame(n.Port.Name, n.Port.MAC, v.MAC, src, to, how...))
			if v.Link.Name != "" {
				out = append(out, frame(v.Link.Name, n.Port.MAC, v.MAC, src, to, how...))
			}
		}
	}
	return out
}

// Tunnel lists the ways to inject a forged Geneve packet into the overlay: the
// other node would deliver it to the victim.
func Tunnel(node, peer []netip.Addr, links []Interface, peerMAC string, g attack.Geneve, tunnelPort uint16) []attack.Attempt {
	var out []attack.Attempt
	for _, to := range peer {
		src := sameFamily(node, to)
		if !src.IsValid() {
			continue
		}
		out = append(out, attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: tunnelPort, Geneve: &g},
			attack.Attempt{Socket: "hdrincl", To: to.String(), Src: src.String(), Port: tunnelPort, Geneve: &g, How: []string{"fragments"}},
			attack.Attempt{Socket: "geneve", To: to.String(), Port: tunnelPort, Geneve: &g},
			attack.Attempt{Socket: "geneve", To: to.String(), Port: tunnelPort, Geneve: &g, How: []string{"connect"}})
		if to.Is4() {
			out = append(out, attack.Attempt{Socket: "geneve", To: to.String(), Port: tunnelPort, Geneve: &g, How: []string{"mapped"}})
		}
		for _, l := range links {
			for _, how := range [][]string{nil, {"tagged"}, {"etype=0x88cc"}, {"ring"}, {"ring", "tagged"}, {"bypass"}} {
				f := frame(l.Name, l.MAC, peerMAC, src, to, how...)
				f.Port, f.Geneve = tunnelPort, &g
				out = append(out, f)
			}
			x := frame(l.Name, l.MAC, peerMAC, src, to)
			x.Socket, x.Port, x.Geneve = "xdp", tunnelPort, &g
			out = append(out, x)
		}
	}
	return out
}

// ForgedReplies lists the ways to forge an answer to what a pod of a network sends from a port to a server outside the
// cluster: datagrams in the server's name to the address that the pod has outside, and frames on the external
// bridge to the masquerade address of the network's gateway router. What raw sockets send there did not arrive in
// the lab, not even root's.
func ForgedReplies(router, server netip.Addr, podPort, serverPort uint16, outside netip.AddrPort, bridge Interface) []attack.Attempt {
	var out []attack.Attempt
	for _, how := range [][]string{{"transparent"}, {"transparent", "cmsg-mark=0"}} {
		out = append(out, attack.Attempt{Socket: "udp", Src: server.String(), SrcPort: serverPort, To: outside.Addr().String(), Port: outside.Port(), How: how})
	}
	for _, how := range [][]string{nil, {"bypass"}, {"ring"}, {"unbound"}} {
		f := frame(bridge.Name, bridge.MAC, network.GatewayMAC, server, router, how...)
		f.Port, f.SrcPort = podPort, serverPort
		out = append(out, f)
	}
	return out
}

// Loopback lists the ways to the servers of another tenant's host-network pod:
// at loopback and at the node's own addresses.
func Loopback(addrs []netip.Addr, port uint16) []attack.Attempt {
	var out []attack.Attempt
	for _, to := range addrs {
		for _, socket := range []string{"udp", "tcp", "mptcp"} {
			out = append(out, attack.Attempt{Socket: socket, To: to.String(), Port: port})
		}
		out = append(out, attack.Attempt{Socket: "udp", To: to.String(), Port: port, How: []string{"cmsg-mark=0"}},
			attack.Attempt{Socket: "udp", To: to.String(), Port: port, How: []string{"connect"}},
			attack.Attempt{Socket: "udp", To: to.String(), Port: port, Device: "lo", How: []string{"bindtodevice"}},
			attack.Attempt{Socket: "udp", To: to.String(), Port: port, Device: "lo", How: []string{"cmsg-pktinfo"}})
	}
	return out
}

// Abstract lists the ways to another tenant's servers at the abstract unix sockets NAME-unix-stream
// and NAME-unix-dgram of the host's network namespace.
func Abstract(name string) []attack.Attempt {
	return []attack.Attempt{{Socket: "unix-stream", To: name + "-unix-stream"}, {Socket: "unix-dgram", To: name + "-unix-dgram"},
		{Socket: "unix-dgram", To: name + "-unix-dgram", How: []string{"connect"}}}
}

// FromPod lists frames that a pod with NET_RAW sends on its own interface to
// another pod on the same switch. A locked interface must receive none of them;
// other interfaces must receive no router advertisement, redirect or DHCP reply.
func FromPod(device, mac string, own []netip.Addr, v Victim, locked bool) []attack.Attempt {
	var out []attack.Attempt
	add := func(kind string, src, to netip.Addr, dst string) {
		a := attack.Attempt{Socket: "packet", Frame: kind, Device: device, SrcMAC: mac, DstMAC: dst, Src: src.String(), To: to.String(), Port: port}
		if kind == "neighbour-advertisement" {
			a.How = []string{"target=" + src.String()} // OVN's port security drops any other target
		}
		out = append(out, a)
	}
	ll := network.LinkLocal(mac)
	add("router-advertisement", ll, allNodes6, allNodesMAC)
	add("router-advertisement-hidden", ll, allNodes6, allNodesMAC)
	add("dhcp-answer", ll, allNodes6, allNodesMAC)
	for _, to := range append(slices.Clone(v.Addrs), v.LinkLocal()) {
		src := sameFamily(append(slices.Clone(own), ll), to)
		if !src.IsValid() {
			continue
		}
		if to.Is4() {
			add("dhcp-answer", src, to, v.MAC)
			continue
		}
		add("router-advertisement", ll, to, v.MAC)
		add("redirect", ll, to, v.MAC)
		if locked {
			add("neighbour-solicitation", src, to, v.MAC)
			add("neighbour-advertisement", src, to, v.MAC)
			add("router-solicitation", src, to, v.MAC)
			add("udp", src, to, v.MAC)
			add("echo", src, to, v.MAC)
		}
	}
	if locked {
		add("neighbour-solicitation", ll, allNodes6, allNodesMAC)
		add("neighbour-advertisement", ll, allNodes6, allNodesMAC)
		add("router-solicitation", ll, allNodes6, allNodesMAC)
		add("listener-report", ll, allNodes6, allNodesMAC)
		add("udp", ll, allNodes6, allNodesMAC)
	}
	return out
}

// Sharing lists frames that a pod sends which has the addresses of another pod, as the
// pods of a virtual machine do during a live migration: packets to v, and announcements
// that would lead traffic for the addresses to the sender.
func Sharing(device, mac string, own []netip.Addr, v Victim) []attack.Attempt {
	var out []attack.Attempt
	add := func(kind string, src, to netip.Addr, dst string, how ...string) {
		f := frame(device, mac, dst, src, to, how...)
		f.Frame = kind
		out = append(out, f)
	}
	for _, src := range own {
		for _, to := range v.Addrs {
			if to.Is4() == src.Is4() {
				add("udp", src, to, v.MAC)
				add("echo", src, to, v.MAC)
				add("udp", src, to, v.MAC, "bypass")
			}
		}
		if src.Is4() {
			add("arp-announcement", src, src, broadcastMAC)
			continue
		}
		add("neighbour-advertisement", src, allNodes6, allNodesMAC, "target="+src.String())
		add("neighbour-advertisement", src, allNodes6, allNodesMAC, "target="+network.LinkLocal(mac).String())
	}
	return out
}

// ThroughNode lists packets for hosts outside the cluster that a pod with
// NET_RAW sends to the management port's MAC address: in shared gateway mode the
// node must not forward them.
func ThroughNode(device, mac string, own []netip.Addr, port Interface, outside []netip.Addr, ports ...uint16) []attack.Attempt {
	var out []attack.Attempt
	for _, to := range outside {
		src := sameFamily(own, to)
		if !src.IsValid() {
			continue
		}
		for _, p := range ports {
			f := frame(device, mac, port.MAC, src, to)
			f.Port = p
			out = append(out, f)
		}
		e := frame(device, mac, port.MAC, src, to)
		e.Frame = "echo"
		out = append(out, e)
	}
	return out
}

// Listeners lists the ways to eavesdrop on a network from the host's network.
func Listeners(n Network, servers []netip.Addr, serverPort uint16, links ...string) []attack.Listener {
	var out []attack.Listener
	for _, v6 := range []bool{false, true} {
		for _, kind := range []string{"raw-icmp", "raw-udp", "raw-tcp"} {
			out = append(out, attack.Listener{Kind: kind, IPv6: v6})
			for _, dev := range []string{n.Port.Name, n.VRF} {
				out = append(out, attack.Listener{Kind: kind, IPv6: v6, Device: dev, How: []string{"bindtodevice"}})
			}
		}
		out = append(out, attack.Listener{Kind: "raw-udp-errors", IPv6: v6})
		any := netip.IPv4Unspecified()
		if v6 {
			any = netip.IPv6Unspecified()
		}
		for _, dev := range []string{n.Port.Name, n.VRF} {
			for _, kind := range []string{"udp", "tcp"} {
				out = append(out, attack.Listener{Kind: kind, IPv6: v6, At: netip.AddrPortFrom(any, serverPort).String(), Device: dev, How: []string{"bindtodevice"}})
				out = append(out, attack.Listener{Kind: kind, IPv6: v6, At: netip.AddrPortFrom(any, serverPort).String(), Device: dev, How: []string{"bindtoifindex"}})
			}
		}
	}
	for _, a := range servers {
		for _, kind := range []string{"udp", "tcp"} {
			out = append(out, attack.Listener{Kind: kind, IPv6: a.Is6(), At: netip.AddrPortFrom(a, serverPort).String()})
		}
	}
	out = append(out, attack.Listener{Kind: "udp", IPv6: true, At: netip.AddrPortFrom(network.LinkLocal(n.Port.MAC).WithZone(n.Port.Name), serverPort).String()})
	out = append(out, attack.Listener{Kind: "sniff"})
	for _, dev := range append([]string{n.Port.Name, n.VRF}, links...) {
		out = append(out, attack.Listener{Kind: "sniff-device", Device: dev})
	}
	return out
}

func frame(dev, from, next string, src, to netip.Addr, how ...string) attack.Attempt {
	return attack.Attempt{Socket: "packet", To: to.String(), Src: src.String(), Port: port, Device: dev, SrcMAC: from, DstMAC: next, How: how}
}

// sameFamily returns the first address of list that has the IP family of like,
// the zero address if there is none.
func sameFamily(list []netip.Addr, like netip.Addr) netip.Addr {
	a, _ := network.FirstOfFamily(list, like)
	return a
}
