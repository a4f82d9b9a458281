// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// outputRules are the texts of the rules for what local processes send.
func outputRules(t *testing.T, in Inputs) []string {
	t.Helper()
	for _, c := range Build(in).Chains {
		if c.Name == chainOutput {
			var texts []string
			for _, r := range c.Rules {
				texts = append(texts, r.Text)
			}
			return texts
		}
	}
	t.Fatal("no output chain")
	return nil
}

// By the external bridge, tenants' processes are known by their packets' mark and, if nft can match
// sockets, by their sockets', which a control message does not change.
func TestTenantsByBridge(t *testing.T) {
	for name, roots := range map[string][]Cgroup{"sockets cannot be matched": nil, "sockets can be matched": {{"kubepods.slice", 9}}} {
		rules := outputRules(t, Inputs{Bridge: "br-ex", Plan: plan, PodRoots: roots})
		for _, to := range []string{"ip daddr 10.96.0.0/16", "ip6 daddr fd10:96::/112", "ip daddr 169.254.0.0/17", "ip6 daddr fd69::/112"} {
			for match, want := range map[string]bool{"meta mark": true, "socket mark": roots != nil} {
				text := fmt.Sprintf(`oifname "br-ex" %s %s 0x10000-0x2711ffff counter name foreign_socket reject with icmpx type admin-prohibited`, to, match)
				if got := slices.Contains(rules, text); got != want {
					t.Errorf("%s: rule %q: %t, want %t", name, text, got, want)
				}
			}
		}
	}
}

// Of what pods send to gateway routers, packets of no connection are dropped, too: they have no direction.
func TestInvalidToRouters(t *testing.T) {
	for name, roots := range map[string][]Cgroup{"sockets cannot be matched": nil, "sockets can be matched": {{"kubepods.slice", 9}, {"other", 10}}} {
		rules := outputRules(t, Inputs{Bridge: "br-ex", Plan: plan, PodRoots: roots})
		for _, to := range []string{"ip daddr 169.254.0.0/17", "ip6 daddr fd69::/112"} {
			for _, state := range []string{"ct direction original ct status & dnat == 0", "ct state invalid"} {
				for _, cgroup := range []string{"kubepods.slice", "other"} {
					text := fmt.Sprintf(`oifname "br-ex" %s %s socket cgroupv2 level 1 %q counter name foreign_socket drop`, to, state, cgroup)
					if got := slices.Contains(rules, text); got != (roots != nil) {
						t.Errorf("%s: rule %q: %t", name, text, got)
					}
				}
			}
		}
	}
}

// TestKernelInvalidToRouters: a pod in the host's network sends a gateway router no packet of no
// connection: no reset, and no error that contains a packet of the router's. A process outside all pods does.
func TestKernelInvalidToRouters(t *testing.T) {
	target, _, _, _ := newNode(t)
	pods, podsID := podRoot(t)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, PodRoots: []Cgroup{{pods, podsID}}}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	reset := make([]byte, 20)
	copy(reset, []byte{0x1f, 0x91, 0x90, 0}) // ports 8081 and 36864
	reset[12], reset[13] = 5<<4, 4           // length, RST
	router4, router6 := addrs("169.254.0.11")[0], addrs("fd69::b")[0]
	embedded4 := append([]byte{3, 3, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, slices.Concat(router4.AsSlice(), nodeAddresses[0].AsSlice(), []byte{0x90, 0, 0x1f, 0x91, 0, 8, 0, 0})...)
	embedded6 := append([]byte{1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 8, unix.IPPROTO_UDP, 64}, slices.Concat(router6.AsSlice(), nodeAddresses[1].AsSlice(), []byte{0x90, 0, 0x1f, 0x91, 0, 8, 0, 0})...)
	for what, c := range map[string]struct {
		family, protocol int
		to               unix.Sockaddr
		packet           []byte
	}{
		"reset":       {unix.AF_INET, unix.IPPROTO_TCP, &unix.SockaddrInet4{Addr: router4.As4()}, reset},
		"reset, IPv6": {unix.AF_INET6, unix.IPPROTO_TCP, &unix.SockaddrInet6{Addr: router6.As16()}, reset},
		"error":       {unix.AF_INET, unix.IPPROTO_ICMP, &unix.SockaddrInet4{Addr: router4.As4()}, embedded4},
		"error, IPv6": {unix.AF_INET6, unix.IPPROTO_ICMPV6, &unix.SockaddrInet6{Addr: router6.As16()}, embedded6},
	} {
		send := func() error {
			fd, err := unix.Socket(c.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, c.protocol)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, c.packet, 0, c.to)
		}
		if err := send(); err != nil {
			t.Errorf("%s from a process outside all pods: %v", what, err)
		}
		inPod(t, pods, func() {
			if err := send(); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s from a pod: %v, want %v", what, err, unix.EPERM)
			}
		})
	}
}

// TestKernelMarkInMessage: a tenant's process that gives its packets another mark by a control
// message, as NET_RAW allows, reaches no service through the external bridge. One outside the tenants does.
func TestKernelMarkInMessage(t *testing.T) {
	target, host, outside, enter := newNode(t)
	pods, podsID := podRoot(t)
	runScript(t, outside, "ip addr add 10.96.0.1/32 dev lo; ip addr add fd10:96::1/128 dev lo nodad")
	runScript(t, host, "ip route add 10.96.0.0/16 via 192.0.2.1 dev br-ex; ip route add fd10:96::/112 via 2001:db8::1 dev br-ex")
	enter(outside)
	received := newReceiver()
	received.listen(t, "10.96.0.1:53", "[fd10:96::1]:53")
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, PodRoots: []Cgroup{{pods, podsID}}}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	number := 0
	send := func(socket string, family int, how ...string) (text string, err error) {
		number++
		a := attack.Attempt{ID: number, Socket: socket, Src: nodeAddresses[family].String(), To: []string{"10.96.0.1", "fd10:96::1"}[family], Port: 53, How: how}
		return string(a.Token()), a.Do()
	}
	for family := range nodeAddresses {
		for _, socket := range []string{"hdrincl", "udp"} {
			ofTenant := fmt.Sprintf("mark=%#x", network.PacketMark(7))
			var refused []string
			for _, how := range [][]string{{ofTenant}, {ofTenant, "cmsg-mark=0"}, {ofTenant, fmt.Sprintf("cmsg-mark=%#x", mark)}} {
				text, err := send(socket, family, how...)
				if !errors.Is(err, unix.EPERM) {
					t.Errorf("%s to %s, %v: %v, want %v", socket, nodeAddresses[family], how, err, unix.EPERM)
				}
				refused = append(refused, text)
			}
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				text, err := send(socket, family)
				if received.has(text) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s outside the tenants to %s is not received: %v", socket, nodeAddresses[family], err)
				}
			}
			for _, text := range refused {
				if received.has(text) {
					t.Errorf("%s of a tenant's process to %s is received: %s", socket, nodeAddresses[family], text)
				}
			}
		}
	}
}

// TestKernelRouting: a tenant's process in the host's network does not speak BGP or BFD with hosts outside,
// where its packets would have the node's address. On other ports it does, and the node's routing daemon does.
func TestKernelRouting(t *testing.T) {
	target, host, outside, enter := newNode(t)
	enter(outside)
	received := newReceiver()
	var accepted sync.Map // source ports
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		for _, port := range []uint16{3784, 3785, 4784, 3786} {
			received.listen(t, netip.AddrPortFrom(netip.MustParseAddr(a), port).String())
		}
		for _, port := range []uint16{179, 180} {
			accept(t, netip.AddrPortFrom(netip.MustParseAddr(a), port), &accepted)
		}
	}
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	id := 0
	tries := func(a attack.Attempt, arrived func() bool) (bool, error) {
		err := a.Do()
		for deadline := time.Now().Add(20 * time.Second); err == nil && !arrived(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				return false, nil
			}
		}
		return arrived(), err
	}
	for family, to := range []string{"192.0.2.1", "2001:db8::1"} {
		for name, c := range map[string]struct {
			socket  string
			port    uint16
			srcPort int
			refused bool
		}{
			"BGP": {"tcp", 179, 0, true}, "a BGP server's answer": {"tcp", 180, 179, true}, "another TCP port": {"tcp", 180, 0, false},
			"BFD": {"udp", 3784, 0, true}, "BFD echo": {"udp", 3785, 0, true}, "BFD over several hops": {"udp", 4784, 0, true}, "another UDP port": {"udp", 3786, 0, false},
		} {
			for sender, how := range map[string][]string{"tenant": {fmt.Sprintf("mark=%#x", network.PacketMark(7))}, "routing daemon": nil} {
				id++
				var arrived bool
				var err error
				if c.socket == "udp" {
					a := attack.Attempt{ID: id, Socket: "udp", Src: nodeAddresses[family].String(), To: to, Port: c.port, How: how}
					arrived, err = tries(a, func() bool { return received.has(string(a.Token())) })
				} else {
					arrived, err = connects(nodeAddresses[family], c.srcPort, netip.AddrPortFrom(netip.MustParseAddr(to), c.port), how != nil, &accepted)
				}
				if want := !(c.refused && sender == "tenant"); arrived != want {
					t.Errorf("%s of a %s to %s arrives: %t, want %t (%v)", name, sender, to, arrived, want, err)
				}
			}
		}
	}
}

// TestKernelOwnPorts: a tenant's process does not reach the agent and the controllers on its node. kubelet does, and
// the tenant's process reaches other servers there.
func TestKernelOwnPorts(t *testing.T) {
	target, host, _, enter := newNode(t)
	enter(host)
	var accepted sync.Map // source ports
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	for _, addr := range append([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, nodeAddresses...) {
		for port, own := range map[uint16]bool{network.OwnPortFirst - 1: false, network.OwnPortFirst: true, network.OwnPortLast: true, network.OwnPortLast + 1: false} {
			to := netip.AddrPortFrom(addr, port)
			accept(t, to, &accepted)
			for _, tenant := range []bool{true, false} {
				arrived, err := connects(addr, 0, to, tenant, &accepted)
				if want := !(own && tenant); arrived != want {
					t.Errorf("a connection to %s, by a tenant's process: %t, arrives: %t, want %t (%v)", to, tenant, arrived, want, err)
				}
			}
		}
	}
}

// accept listens at an address until the test ends, and stores the source ports of what connects.
func accept(t *testing.T, at netip.AddrPort, accepted *sync.Map) {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Store(c.RemoteAddr().(*net.TCPAddr).Port, true)
			c.Close()
		}
	}()
}

// connects connects from a port, 0 for any, with a network's mark or without, and reports whether the server has accepted.
func connects(from netip.Addr, srcPort int, to netip.AddrPort, marked bool, accepted *sync.Map) (bool, error) {
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: from.AsSlice(), Port: srcPort}, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if marked {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(network.PacketMark(7))))
			}
		}), err)
	}}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return false, err
	}
	defer c.Close()
	port := c.LocalAddr().(*net.TCPAddr).Port
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, ok := accepted.LoadAndDelete(port); ok {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, errors.New("connected to somebody else")
		}
	}
}

// TestKernelAnswersOfOthers: a pod in the host's network that has the address of a host outside, to which another
// pod has sent, is not taken for it; nor does it take the other pod's place towards that host. A process outside all pods is.
func TestKernelAnswersOfOthers(t *testing.T) {
	target, host, outside, enter := newNode(t)
	pods, podsID := podRoot(t)
	runScript(t, outside, `sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
nft 'table inet count { counter questions { }; chain c { type filter hook prerouting priority 0; udp dport 53 counter name questions; }; }'`)
	runScript(t, host, "ip route add default via 192.0.2.1 dev br-ex; ip route add default via 2001:db8::1 dev br-ex")
	// In place of Open vSwitch, which translates the addresses of what leaves gateway routers in the host's conntrack zone.
	runScript(t, host, `nft 'table inet routers { chain c { type nat hook postrouting priority 90; ip saddr 169.254.0.11 udp sport 5000 snat ip to 192.0.2.10:40000; ip6 saddr fd69::b udp sport 5000 snat ip6 to [2001:db8::10]:40000; }; }'`)
	router, server := []string{"169.254.0.11", "fd69::b"}, []string{"198.51.100.9", "2001:db8:1::9"}
	enter(outside)
	received := newReceiver()
	for i := range router {
		received.listen(t, netip.AddrPortFrom(netip.MustParseAddr(router[i]), 5000).String())
	}
	enter(host)
	id := 0
	send := func(a attack.Attempt) string {
		id++
		a.ID, a.Socket, a.How = id, "udp", []string{"transparent"}
		if err := a.Do(); err != nil {
			t.Log(a, err)
		}
		return string(a.Token())
	}
	// waitFor repeats what has no effect while the neighbours are not known yet.
	waitFor := func(what string, happened func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !happened(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not arrive", what)
			}
		}
	}
	questions := func() bool {
		defer enter(host)
		return !strings.Contains(runScript(t, outside, "nft reset counter inet count questions"), "packets 0 ")
	}
	question := func(family int) attack.Attempt {
		return attack.Attempt{Src: router[family], SrcPort: 5000, To: server[family], Port: 53}
	}
	answer := func(family int) attack.Attempt {
		return attack.Attempt{Src: server[family], SrcPort: 53, To: nodeAddresses[family].String(), Port: 40000}
	}
	for family := range router {
		waitFor("a question", func() bool { send(question(family)); return questions() })
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, PodRoots: []Cgroup{{pods, podsID}}}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	for family := range router {
		questions()
		var forged []string
		inPod(t, pods, func() {
			for range 3 {
				forged = append(forged, send(answer(family)))
				send(question(family))
			}
		})
		waitFor("an answer in another's name from outside all pods", func() bool { return received.has(send(answer(family))) })
		for _, text := range forged {
			if received.has(text) {
				t.Errorf("a pod's answer in the name of %s arrives at %s", server[family], router[family])
			}
		}
		if questions() {
			t.Errorf("a pod's question in the name of %s arrives", router[family])
		}
	}
}

// TestKernelSources: a tenant's process in the host's network sends with the node's addresses and with the node's
// address on its network, and with no others. The node's own processes send with any.
func TestKernelSources(t *testing.T) {
	target, host, outside, enter := newNode(t)
	to := []string{"192.0.2.1", "2001:db8::1"}
	enter(outside)
	runScript(t, outside, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
	received := newReceiver()
	for _, a := range to {
		received.listen(t, netip.AddrPortFrom(netip.MustParseAddr(a), 53).String())
	}
	enter(host)
	subnets := func(v4, v6 string) []network.Subnet {
		return []network.Subnet{{CIDR: netip.MustParsePrefix(v4), HostLen: 24}, {CIDR: netip.MustParsePrefix(v6), HostLen: 64}}
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, NodeID: 2, Networks: []network.Network{
		{ID: 7, Name: "red", Topology: network.Layer3, Subnets: subnets("10.20.0.0/16", "fd20::/48")},
		{ID: 8, Name: "blue", Topology: network.Layer3, Subnets: subnets("10.21.0.0/16", "fd21::/48")}}}
	reconcileAndRead(t, target, in)
	id := 0
	for family, sources := range [][]struct {
		from    string
		refused bool
	}{
		{{"192.0.2.10", false}, {"10.20.1.2", false}, {"198.51.100.9", true}, {"10.20.1.3", true}, {"10.21.1.2", true}},
		{{"2001:db8::10", false}, {"fd20:0:0:1::2", false}, {"2001:db8:1::9", true}, {"fd20:0:0:1::3", true}, {"fd21:0:0:1::2", true}},
	} {
		for _, s := range sources {
			for _, tenant := range []bool{true, false} {
				id++
				a := attack.Attempt{ID: id, Socket: "udp", Src: s.from, To: to[family], Port: 53, How: []string{"transparent"}}
				if tenant {
					a.How = append(a.How, fmt.Sprintf("mark=%#x", network.PacketMark(7)))
				}
				control := attack.Attempt{ID: 1000 + id, Socket: "udp", Src: nodeAddresses[family].String(), To: to[family], Port: 53}
				var err error
				for deadline := time.Now().Add(20 * time.Second); !received.has(string(control.Token())) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					err = a.Do()
					if err := control.Do(); err != nil {
						t.Fatal(err)
					}
				}
				if got, want := received.has(string(a.Token())), !(tenant && s.refused); got != want || !received.has(string(control.Token())) {
					t.Errorf("from %s, by a tenant's process: %t, arrives: %t, want %t (%v); a control arrives: %t", s.from, tenant, got, want, err, received.has(string(control.Token())))
				}
			}
		}
	}
}

// TestKernelFragments: a pod in the host's network sends no fragments of its own. What the kernel divides arrives.
func TestKernelFragments(t *testing.T) {
	target, host, outside, enter := newNode(t)
	pods, podsID := podRoot(t)
	runScript(t, outside, `nft 'table inet count { counter fragments { }; chain c { type filter hook prerouting priority -450; ip frag-off & 0x3fff != 0 counter name fragments; exthdr frag exists counter name fragments; }; }'`)
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, PodRoots: []Cgroup{{pods, podsID}}}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	counted := func() string { return runScript(t, host, "nft list counter inet bulkhead "+CounterForeign) }
	for family, to := range []string{"192.0.2.1", "2001:db8::1"} {
		fragments := attack.Attempt{ID: 1, Socket: "hdrincl", Src: nodeAddresses[family].String(), To: to, Port: 9, How: []string{"fragments"}}
		if err := fragments.Do(); err != nil {
			t.Errorf("fragments to %s from a process outside all pods: %v", to, err)
		}
		before := counted()
		inPod(t, pods, func() {
			if err := fragments.Do(); !errors.Is(err, unix.EPERM) {
				t.Errorf("fragments to %s from a pod: %v, want %v", to, err, unix.EPERM)
			}
		})
		if now := counted(); now == before {
			t.Errorf("no fragment to %s is counted: %s", to, now)
		}
		inPod(t, pods, func() {
			c, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), 9).String())
			if err == nil {
				_, err = c.Write(make([]byte, 4000))
				c.Close()
			}
			if err != nil {
				t.Errorf("a long datagram to %s from a pod: %v", to, err)
			}
		})
	}
	for deadline := time.Now().Add(20 * time.Second); strings.Contains(runScript(t, outside, "nft list counter inet count fragments"), "packets 0 "); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no fragment of a long datagram arrives")
		}
	}
}

// TestKernelUnmarkBridge: a network's mark routes its processes' packets, and does not leave through the external bridge.
func TestKernelUnmarkBridge(t *testing.T) {
	target, host, outside, enter := newNode(t)
	enter(outside)
	received := newReceiver()
	received.listen(t, "192.0.2.1:53", "[2001:db8::1]:53")
	runScript(t, host, fmt.Sprintf(`nft 'table netdev leaving { counter marked { }; chain c { type filter hook egress device "br-ex" priority 0; udp dport 53 meta mark & %#x != 0 counter name marked; }; }'`, network.MarkMask))
	enter(host)
	sent := 0
	marked := func() bool {
		t.Helper()
		for family, to := range []string{"192.0.2.1", "2001:db8::1"} {
			sent++
			a := attack.Attempt{ID: sent, Socket: "udp", Src: nodeAddresses[family].String(), To: to, Port: 53, How: []string{fmt.Sprintf("mark=%#x", network.PacketMark(7))}}
			for deadline := time.Now().Add(20 * time.Second); !received.has(string(a.Token())); time.Sleep(10 * time.Millisecond) {
				if err := a.Do(); time.Now().After(deadline) {
					t.Fatalf("a datagram with a mark to %s is not received: %v", to, err)
				}
			}
		}
		return !strings.Contains(runScript(t, host, "nft reset counter netdev leaving marked"), "packets 0 ")
	}
	if !marked() {
		t.Fatal("without the table no packet has the mark: the test shows nothing")
	}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses}
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	if marked() {
		t.Error("packets leave with the mark")
	}
}
