// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// quotation is an ICMP error that says that a datagram from a node to a peer was too long.
type quotation struct {
	from, to uint16 // the datagram's ports
	between  []byte // IP options or extension headers before UDP
	next     byte   // IPv6: the first header's type; 0: UDP
	protocol byte   // IPv4; 0: UDP
}

// ipv4 returns the error with the MTU 1000.
func (q quotation) ipv4(node, peer netip.Addr) []byte {
	header := make([]byte, 20, 40)
	header[0], header[8], header[9] = 0x45+byte(len(q.between)/4), 64, cmp.Or(q.protocol, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(header[2:], uint16(28+len(q.between)))
	copy(header[12:], node.AsSlice())
	copy(header[16:], peer.AsSlice())
	b := append([]byte{3, 4, 0, 0, 0, 0, 0x03, 0xe8}, header...)
	b = append(append(b, q.between...), q.udp()...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

// ipv6 returns the error with the MTU 1300, without checksum, which the kernel writes.
func (q quotation) ipv6(node, peer netip.Addr) []byte {
	header := make([]byte, 40, 80)
	header[0], header[6], header[7] = 0x60, unix.IPPROTO_UDP, 64
	if len(q.between) > 0 {
		header[6] = q.next
	}
	binary.BigEndian.PutUint16(header[4:], uint16(8+len(q.between)))
	copy(header[8:], node.AsSlice())
	copy(header[24:], peer.AsSlice())
	b := append([]byte{2, 0, 0, 0, 0, 0, 0x05, 0x14}, header...)
	return append(append(b, q.between...), q.udp()...)
}

func (q quotation) udp() []byte {
	b := binary.BigEndian.AppendUint16(nil, q.from)
	b = binary.BigEndian.AppendUint16(b, q.to)
	return append(b, 0x05, 0xdc, 0, 0)
}

// TestKernelTunnelErrors: nobody makes the kernel believe that the overlay's packets to a peer are too long. Errors that
// quote other packets that the node has sent count.
func TestKernelTunnelErrors(t *testing.T) {
	target, host, outside, enter := newNode(t)
	const socket = 40000 // the source port of what the errors quote; the kernel ignores errors of nobody's packets
	runScript(t, host, "sysctl -qw net.ipv4.ip_no_pmtu_disc=0")
	enter(host)
	var sockets []int
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		sockets = append(sockets, fd)
		var at unix.Sockaddr = &unix.SockaddrInet4{Port: socket}
		if family == unix.AF_INET6 {
			at = &unix.SockaddrInet6{Port: socket, Addr: nodeAddresses[1].As16()}
		}
		if err := unix.Bind(fd, at); err != nil {
			t.Fatal(err)
		}
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	// What other errors quote has been sent: conntrack knows it.
	for i, fd := range sockets {
		for _, port := range []int{53, network.TunnelPort} {
			var to unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr("192.0.2.99").As4()}
			if i == 1 {
				to = &unix.SockaddrInet6{Port: port, Addr: netip.MustParseAddr("2001:db8::99").As16()}
			}
			if err := unix.Sendto(fd, []byte("x"), 0, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	fragment := []byte{unix.IPPROTO_UDP, 0, 0, 1, 0, 0, 0, 7}
	for name, c := range map[string]struct {
		quotation
		family   int // 0: both
		believed bool
		counter  string // "": CounterTunnel
	}{
		"of the overlay":                                {quotation: quotation{from: socket, to: network.TunnelPort}},
		"of other datagrams":                            {quotation: quotation{from: socket, to: 53}, believed: true},
		"of datagrams that nobody has sent":             {quotation: quotation{from: socket, to: 54}, counter: CounterPathError},
		"of the overlay, with IP options":               {quotation: quotation{from: socket, to: network.TunnelPort, between: []byte{1, 1, 1, 0}}, family: 4},
		"of the overlay, with a destination options":    {quotation: quotation{from: socket, to: network.TunnelPort, next: 60, between: []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}}, family: 6},
		"of the overlay, with a hop-by-hop header":      {quotation: quotation{from: socket, to: network.TunnelPort, next: 0, between: []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}}, family: 6},
		"of the overlay, in a fragment":                 {quotation: quotation{from: socket, to: network.TunnelPort, next: 44, between: fragment}, family: 6},
		"of other datagrams, in a fragment":             {quotation: quotation{from: socket, to: 53, next: 44, between: fragment}, family: 6, believed: true},
		"of an echo reply that nobody has sent":         {quotation: quotation{protocol: unix.IPPROTO_ICMP}, family: 4, counter: CounterPathError},
		"of the overlay, in a fragment with extensions": {quotation: quotation{from: socket, to: network.TunnelPort, next: 44, between: append([]byte{60, 0, 0, 1, 0, 0, 0, 7}, unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0)}, family: 6},
	} {
		for i, peer := range []string{"192.0.2.99", "2001:db8::99"} {
			if c.family == 6-2*(1-i) || c.family == 0 {
				t.Run(name+" "+peer, func(t *testing.T) {
					runtime.LockOSThread() // newNode has locked another; this one ends with the subtest
					runScript(t, host, "ip route flush cache; ip -6 route flush cache")
					to := netip.MustParseAddr(peer)
					believed := func() bool { return strings.Contains(runScript(t, host, "ip route get "+peer), " mtu 1") }
					if believed() {
						t.Fatal("the kernel has a smaller MTU already")
					}
					enter(outside)
					defer enter(host)
					send := func() {
						family, packet, at := unix.AF_INET, c.ipv4(nodeAddresses[0], to), unix.Sockaddr(&unix.SockaddrInet4{Addr: nodeAddresses[0].As4()})
						protocol := unix.IPPROTO_ICMP
						if i == 1 {
							family, packet, at = unix.AF_INET6, c.ipv6(nodeAddresses[1], to), &unix.SockaddrInet6{Addr: nodeAddresses[1].As16()}
							protocol = unix.IPPROTO_ICMPV6
						}
						fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
						if err != nil {
							t.Fatal(err)
						}
						defer unix.Close(fd)
						if err := unix.Sendto(fd, packet, 0, at); err != nil {
							t.Fatal(err)
						}
					}
					if !c.believed {
						send()
						counter := cmp.Or(c.counter, CounterTunnel)
						before := strings.Contains(runScript(t, host, "nft list counter inet bulkhead "+counter), "packets 0 ")
						for deadline := time.Now().Add(20 * time.Second); before && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
							before = strings.Contains(runScript(t, host, "nft list counter inet bulkhead "+counter), "packets 0 ")
						}
						if before || believed() {
							t.Errorf("nothing is dropped: %t; the kernel believes the error: %t", before, believed())
						}
						runScript(t, host, "nft reset counter inet bulkhead "+counter)
						return
					}
					for deadline := time.Now().Add(20 * time.Second); !believed(); time.Sleep(10 * time.Millisecond) {
						if send(); time.Now().After(deadline) {
							t.Fatal("the kernel does not believe the error")
						}
					}
				})
			}
		}
	}
}

// container adds a container of the node, in a network namespace of its own: the host's end of its interface is in a link
// group, and the container sends with its own addresses and with those of outside.
func container(t *testing.T, host netns.NsHandle, name string, group uint32, addresses []string) netns.NsHandle {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := netns.Set(host); err != nil {
		t.Fatal(err)
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1, Group: group}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	const mac = "02:00:00:00:00:01" // the host answers no solicitation of an address of another interface
	hostSide, inside := fmt.Sprintf("ip link set %s address %s up\n", name, mac), "sysctl -qw net.ipv4.ip_nonlocal_bind=1 net.ipv6.ip_nonlocal_bind=1\nip link set lo up\nip link set eth0 up\n"
	for family, a := range addresses {
		hostSide += fmt.Sprintf("ip route add %s dev %s\n", a, name)
		inside += fmt.Sprintf("ip addr add %s dev eth0 %s\nip neigh add %s lladdr %s dev eth0 nud permanent\nip route add default via %[3]s dev eth0 onlink\n", hostBits(netip.MustParseAddr(a)), nodad(family), nodeAddresses[family], mac)
	}
	// A source of IPv4 needs an address, but no local route, by which the container would keep what it sends there.
	inside += fmt.Sprintf("ip addr add %s dev lo\nip route del local %[1]s table local\n", outsideAddresses[0])
	runScript(t, ns, inside)
	runScript(t, host, hostSide)
	return ns
}

// outsideAddresses are those of newNode's outside.
var outsideAddresses = []string{"192.0.2.1", "2001:db8::1"}

// TestKernelUnbridged: the host's IP stack takes nothing from a pod's interface that is not on the integration bridge, for
// itself or for others. It takes the packets of other containers.
func TestKernelUnbridged(t *testing.T) {
	target, host, outside, enter := newNode(t)
	received := newReceiver()
	enter(host)
	received.listen(t, "192.0.2.10:53", "[2001:db8::10]:53")
	enter(outside)
	received.listen(t, "192.0.2.1:53", "[2001:db8::1]:53")
	podAddresses, otherAddresses := []string{"198.51.100.7", "2001:db8:7::7"}, []string{"198.51.100.8", "2001:db8:7::8"}
	pod := container(t, host, "veth0000000001", network.PodLinkGroup, podAddresses)
	other := container(t, host, "docker1", 0, otherAddresses)
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	sends := func(bridged bool) {
		t.Helper()
		for family, from := range podAddresses {
			for _, to := range []string{nodeAddresses[family].String(), outsideAddresses[family]} {
				text, proof := fmt.Sprintf("from the pod to %s, %t", to, bridged), fmt.Sprintf("from the container to %s, %t", to, bridged)
				for deadline := time.Now().Add(20 * time.Second); (!received.has(proof) || !bridged && !received.has(text)) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					sender{ns: pod, from: from}.send(t, at(to, 53), text)
					sender{ns: other, from: otherAddresses[family]}.send(t, at(to, 53), proof)
				}
				if received.has(text) == bridged || !received.has(proof) {
					t.Errorf("%s: received %t; another container's: %t", text, received.has(text), received.has(proof))
				}
			}
		}
	}
	sends(false) // without the table the host takes all
	enter(host)
	reconcileAndRead(t, target, in)
	sends(true)
}

// TestKernelTunnelOfOthers: other containers of the node send nothing to the overlay's port of a node, not in another
// node's name either. Other nodes do.
func TestKernelTunnelOfOthers(t *testing.T) {
	target, host, outside, enter := newNode(t)
	runScript(t, host, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	received := newReceiver()
	ports := []int{network.TunnelPort, 6082}
	for family, node := range nodeAddresses {
		for _, port := range ports {
			enter(host)
			received.listen(t, at(node.String(), port))
			enter(outside)
			received.listen(t, at(outsideAddresses[family], port))
		}
	}
	own := []string{"198.51.100.8", "2001:db8:7::8"}
	other := container(t, host, "docker1", 0, own)
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	id := 0
	check := func(what string, s sender, to string, arrives bool) {
		t.Helper()
		id++
		text, proof := fmt.Sprintf("text %d", id), fmt.Sprintf("control %d", id)
		for deadline := time.Now().Add(20 * time.Second); (!received.has(proof) || arrives && !received.has(text)) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			s.send(t, at(to, network.TunnelPort), text)
			s.send(t, at(to, 6082), proof) // another port
		}
		if received.has(text) != arrives || !received.has(proof) {
			t.Errorf("%s: arrives %t, want %t; at another port: %t", what, received.has(text), arrives, received.has(proof))
		}
	}
	for family, node := range nodeAddresses {
		check("from another node, "+node.String(), sender{ns: outside, from: outsideAddresses[family]}, node.String(), true)
		check("from a container in another node's name, "+node.String(), sender{ns: other, from: outsideAddresses[family]}, node.String(), false)
		check("from a container to another node, "+outsideAddresses[family], sender{ns: other, from: own[family]}, outsideAddresses[family], false)
	}
}

// TestKernelMasqueradeElsewhere: what arrives on a second interface, from or to a masquerade address, is not forwarded, in both
// gateway modes. Other packets are, and a host there with such an address talks to the node.
func TestKernelMasqueradeElsewhere(t *testing.T) {
	target, host, outside, enter := newNode(t)
	runScript(t, host, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	received := newReceiver()
	masquerade := []string{"169.254.0.11", "fd69::b"}
	enter(host)
	for family, node := range nodeAddresses {
		received.listen(t, at(node.String(), 53))
		enter(outside)
		received.listen(t, at(outsideAddresses[family], 53), at(masquerade[family], 53), at(masquerade[family], 30080))
		enter(host)
	}
	own, forged := []string{"198.51.100.8", "2001:db8:7::8"}, []string{"169.254.0.24", "fd69::18"}
	other := container(t, host, "eth1", 0, own)
	for family, a := range forged {
		runScript(t, other, fmt.Sprintf("ip addr add %s dev lo %s", hostBits(netip.MustParseAddr(a)), nodad(family)))
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	for _, router := range masquerade {
		in.NodePorts = append(in.NodePorts, NodePort{"udp", 30080, netip.MustParseAddr(router)})
	}
	id := 0
	check := func(what string, from, control, to string, port int, arrives bool) {
		t.Helper()
		id++
		text, proof := fmt.Sprintf("text %d", id), fmt.Sprintf("control %d", id)
		for deadline := time.Now().Add(20 * time.Second); (!received.has(proof) || arrives && !received.has(text)) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			sender{ns: other, from: from}.send(t, at(to, port), text)
			sender{ns: other, from: own[family(to)]}.send(t, control, proof)
		}
		if received.has(text) != arrives || !received.has(proof) {
			t.Errorf("%s, %s to %s: arrives %t, want %t; the control arrives: %t", what, from, at(to, port), received.has(text), arrives, received.has(proof))
		}
	}
	all := func(what string, guarded, nodePorts bool) {
		for family, node := range nodeAddresses {
			wire := at(outsideAddresses[family], 53)
			check(what+", to a gateway router", own[family], wire, masquerade[family], 53, !guarded)
			check(what+", in a network's name", forged[family], wire, outsideAddresses[family], 53, !guarded)
			check(what+", in a network's name to the node", forged[family], wire, node.String(), 53, true)
			if nodePorts {
				check(what+", to a node port", own[family], at(node.String(), 30080), node.String(), 30080, true)
				check(what+", in a network's name to a node port", forged[family], at(node.String(), 30080), node.String(), 30080, false)
			}
		}
	}
	all("without the table", false, false)
	for _, mode := range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		enter(host)
		in.Mode = mode
		reconcileAndRead(t, target, in)
		all(string(mode), true, mode == network.LocalGateway)
	}
}

func family(address string) int {
	if netip.MustParseAddr(address).Is4() {
		return 0
	}
	return 1
}
