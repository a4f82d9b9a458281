// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/way"
)

// Every way into a network that a root process of another pod has, with all
// capabilities: none is heard while the guard stands, all without it, and the
// network's own pods and the node's administrator are heard all the while.
// Packet sockets' own wall (BPF LSM) is not attached here.
func TestRootGuardPort(t *testing.T) {
	for name, noTCX := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			w := newGuardWorld(t, noTCX)
			w.dropLSM()
			ways := func() []way.Attempt { return w.waysIn("mp1", "10.1.0.3", "fd01::3", "10.1.0.2", "fd01::2") }
			w.expectWays("without the guard", "kubepods/podblue", "mp1", ways(), true, "xdp")
			w.guard()
			for _, who := range []string{"kubepods/podblue", "kubepods/podplain", "kubepods/podnew", "kubepods/podblue/container"} {
				w.expectWays("another pod", who, "mp1", ways(), false)
			}
			w.expectWays("its own pod", "kubepods/podred", "mp1", ways(), true, "xdp")
			w.expectWays("the administrator", "system/admin", "mp1", ways(), true)
			if c := counts(t, w.l); c[ReasonGuardForeign] == 0 || c[ReasonGuardUnknown] == 0 || c[ReasonBypass] == 0 {
				t.Errorf("counters: %v", c)
			}
		})
	}
}

// The default network's port: pods outside the tenants reach its pods, but not
// locked ones; tenants' pods reach nobody there; kubelet reaches locked ones.
func TestRootGuardDefault(t *testing.T) {
	w := newGuardWorld(t, false)
	w.dropLSM()
	w.guard()
	open := func() []way.Attempt {
		return []way.Attempt{{Socket: "udp", To: "10.0.0.77", Port: way.Port}, {Socket: "raw-icmp", To: "10.0.0.77"}, {Socket: "hdrincl", To: "10.0.0.77", Src: "10.0.0.2", Port: way.Port}}
	}
	must(t, w.ns.do(func() error { // it answers no ARP
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		mac, _ := net.ParseMAC(w.mac["mp0"])
		return h.NeighSet(&netlink.Neigh{LinkIndex: w.index["mp0"], IP: net.ParseIP("10.0.0.77"), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}))
	w.expectWays("a pod outside the tenants", "kubepods/podplain", "mp0", open(), true)
	w.expectWays("a pod that is not known", "kubepods/podnew", "mp0", open(), true)
	w.expectWays("a tenant's pod", "kubepods/podred", "mp0", open(), false)
	ways := func() []way.Attempt {
		return append(w.waysIn("mp0", "10.0.0.3", "fd00::3", "10.0.0.2", "fd00::2"),
			way.Attempt{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("cmsg-mark=%#x", KubeletMark)}},
			way.Attempt{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("mark=%#x", KubeletMark)}},
			way.Attempt{Socket: "hdrincl", To: "10.0.0.3", Src: "10.0.0.2", Port: way.Port, How: []string{fmt.Sprintf("mark=%#x", KubeletMark)}})
	}
	for _, who := range []string{"kubepods/podplain", "kubepods/podnew"} {
		// Multicast is to no locked address: pods outside the tenants may send it.
		w.expectWays("to a locked address", who, "mp0", slices.DeleteFunc(ways(), toGroup), false)
		w.expectWays("to all", who, "mp0", slices.DeleteFunc(ways(), func(a way.Attempt) bool { return !toGroup(a) }), true)
	}
	w.expectWays("to a locked address", "kubepods/podred", "mp0", ways(), false)
	w.expectWays("kubelet", "system/kubelet", "mp0", []way.Attempt{{Socket: "tcp", To: "10.0.0.3", Port: way.Port}, {Socket: "raw-icmp", To: "fd00::3"}}, true)
	w.expectWays("root outside all pods", "system/admin", "mp0", []way.Attempt{{Socket: "tcp", To: "10.0.0.3", Port: way.Port}, {Socket: "raw-icmp", To: "10.0.0.3"}}, false)
}

// Frames on the host ends of pods' interfaces, and what pods may not say.
func TestRootGuardPods(t *testing.T) {
	w := newGuardWorld(t, false)
	w.dropLSM()
	frames := func(dev string) []way.Attempt {
		var out []way.Attempt
		for _, how := range [][]string{nil, {"etype=0x88cc"}, {"ring"}} {
			out = append(out, way.Attempt{Socket: "packet", To: "10.1.0.4", Src: "10.1.0.2", Port: way.Port, Device: dev, SrcMAC: w.own["mp0"], DstMAC: w.mac[dev], How: how})
		}
		return append(out, way.Attempt{Socket: "udp", To: "224.0.0.1", Port: way.Port, Device: dev, How: []string{"multicastif"}})
	}
	w.expectWays("without the guard", "kubepods/podblue", "pod", frames("pod"), true)
	w.guard()
	for _, who := range []string{"kubepods/podblue", "kubepods/podplain", "kubepods/podnew"} {
		w.expectWays("another pod", who, "pod", frames("pod"), false)
		w.expectWays("another pod, locked", who, "locked", frames("locked"), false)
	}
	w.expectWays("the administrator", "system/admin", "pod", frames("pod"), true)
	// A locked interface hears only the node's management port.
	stranger := way.Attempt{Socket: "packet", To: "10.0.0.4", Src: "10.0.0.9", Port: way.Port, Device: "locked", SrcMAC: "0a:58:0a:00:00:09", DstMAC: w.mac["locked"]}
	w.expectWays("a frame of somebody else", "system/admin", "locked", []way.Attempt{stranger}, false)
	stranger.SrcMAC = w.own["mp0"]
	w.expectWays("a frame of the node", "system/admin", "locked", []way.Attempt{stranger}, true)
}

// What pods send: heard by a packet socket of the node behind the interface,
// which the program comes before.
func TestRootGuardFrom(t *testing.T) {
	w := newGuardWorld(t, false)
	w.guard()
	say := func(dev, frame, src, dst, dstMAC string, how ...string) way.Attempt {
		return way.Attempt{Socket: "packet", Device: "eth0", Frame: frame, Src: src, To: dst, SrcMAC: w.mac[dev], DstMAC: dstMAC, Port: way.Port, How: how}
	}
	const all6 = "33:33:00:00:00:01"
	node := w.own["mp0"]
	for dev, cases := range map[string]map[bool][]way.Attempt{
		"pod": {
			false: {say("pod", "router-advertisement", "fe80::9", "ff02::1", all6), say("pod", "router-advertisement-hidden", "fe80::9", "ff02::1", all6),
				say("pod", "redirect", "fe80::9", "fd01::3", all6), say("pod", "dhcp-answer", "10.1.0.4", "255.255.255.255", "ff:ff:ff:ff:ff:ff"),
				say("pod", "dhcp-answer", "fe80::9", "ff02::1", all6), tunnel(say("pod", "udp", "10.1.0.4", "192.0.2.9", node))},
			true: {say("pod", "neighbour-solicitation", "fe80::9", "ff02::1", all6), say("pod", "neighbour-advertisement", "fe80::9", "ff02::1", all6),
				say("pod", "router-solicitation", "fe80::9", "ff02::2", all6), say("pod", "udp", "10.1.0.4", "192.0.2.9", node),
				tunnel(say("pod", "udp", "10.1.0.4", "10.1.0.9", node))}, // to its own network: none of the overlay's
		},
		"locked": {
			false: {say("locked", "router-advertisement", "fe80::9", "ff02::1", all6), say("locked", "neighbour-advertisement", "fe80::9", "ff02::1", all6),
				say("locked", "neighbour-solicitation", "fe80::9", "ff02::1", all6, "target=fd00::77"), say("locked", "router-solicitation", "fe80::9", "ff02::2", all6),
				say("locked", "listener-report", "fe80::9", "ff02::16", "33:33:00:00:00:16"), say("locked", "udp", "10.0.0.4", "10.0.0.9", "0a:58:0a:00:00:09"),
				say("locked", "udp", "fe80::9", "ff02::1", all6)},
			true: {say("locked", "neighbour-solicitation", "fe80::9", "ff02::1", all6, "target=fd00::2"), say("locked", "neighbour-advertisement", "fd00::4", "fd00::2", node),
				say("locked", "udp", "10.0.0.4", "10.0.0.2", node)},
		},
	} {
		for want, attempts := range cases {
			for i, got := range w.say(dev, attempts) {
				if got != want {
					t.Errorf("%s by %s to %s %v port %d: passes %t, want %t", attempts[i].Frame, dev, attempts[i].To, attempts[i].How, attempts[i].Port, got, want)
				}
			}
		}
	}
}

func tunnel(a way.Attempt) way.Attempt { a.Port = guardTunnelPort; return a }

// say sends frames from behind an interface and tells which come out of it: the
// interface is a port of a bridge whose other port is heard.
func (w *guardWorld) say(dev string, attempts []way.Attempt) []bool {
	w.t.Helper()
	out := newNetNS(w.t)
	must(w.t, w.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br-" + dev
		snoop := false
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snoop}); err != nil && !os.IsExist(err) {
			return err
		}
		br, err := h.LinkByName(attrs.Name)
		if err != nil {
			return err
		}
		attrs = netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("out%d", w.id)
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(out.f.Fd()))}); err != nil {
			return err
		}
		for _, name := range []string{dev, attrs.Name} {
			l, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			if err := h.LinkSetMaster(l, br); err != nil {
				return err
			}
			if err := h.LinkSetUp(l); err != nil {
				return err
			}
		}
		return h.LinkSetUp(br)
	}))
	v := &victim{heard: map[int]bool{}, ready: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = out.do(func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			defer h.Close()
			l, err := h.LinkByName("eth0")
			if err == nil {
				err = h.LinkSetUp(l)
			}
			if err != nil {
				return err
			}
			return way.Listener{Kind: "sniff"}.Listen(ctx, func() { close(v.ready) }, v.hear)
		})
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	<-v.ready
	peer := w.peers[dev]
	send := func(a way.Attempt) {
		if err := peer.do(a.Do); err != nil {
			w.t.Errorf("frame %s: %v", a.Frame, err)
		}
	}
	// A frame that always passes: the bridge's new port begins to forward some
	// time after it is up, and frames are heard in their order.
	passes := func() {
		w.id++
		a := way.Attempt{ID: w.id, Socket: "packet", Device: "eth0", Frame: "udp", Src: "10.0.0.4", To: "10.0.0.2", SrcMAC: w.mac[dev], DstMAC: w.own["mp0"], Port: way.Port}
		for deadline := time.Now().Add(time.Minute); !v.has(a.ID); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				w.t.Fatalf("nothing that is said behind %s comes out", dev)
			}
			send(a)
		}
	}
	passes()
	for i := range attempts {
		w.id++
		attempts[i].ID = w.id
		send(attempts[i])
	}
	passes()
	heard := make([]bool, len(attempts))
	for i, a := range attempts {
		heard[i] = v.has(a.ID)
	}
	return heard
}

// A datagram to the overlay's port, made by a pod: by any socket, on the wire or
// not, whole or in fragments, tagged or not. The kernel's own passes.
func TestRootGuardTunnel(t *testing.T) {
	w := newGuardWorld(t, false)
	w.dropLSM()
	ways := func(port uint16) []way.Attempt {
		frame := func(to, src string, how ...string) way.Attempt {
			return way.Attempt{Socket: "packet", To: to, Src: src, Port: port, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["eth0"], How: how}
		}
		return []way.Attempt{
			{Socket: "udp", To: "192.0.2.9", Port: port}, {Socket: "udp", To: "2001:db8::9", Port: port}, {Socket: "udp", To: "192.0.2.9", Port: port, How: []string{"mapped"}},
			{Socket: "udp", To: "192.0.2.9", Port: port, How: []string{"connect"}}, {Socket: "udp", To: "192.0.2.9", Port: port, How: []string{"gso"}},
			{Socket: "udp", To: "192.0.2.255", Port: port, How: []string{"broadcast"}},
			{Socket: "hdrincl", To: "192.0.2.9", Src: "192.0.2.1", Port: port}, {Socket: "hdrincl", To: "192.0.2.9", Src: "192.0.2.1", Port: port, How: []string{"fragments"}},
			{Socket: "hdrincl", To: "2001:db8::9", Src: "2001:db8::1", Port: port}, {Socket: "hdrincl", To: "2001:db8::9", Src: "2001:db8::1", Port: port, How: []string{"fragments"}},
			frame("192.0.2.9", "192.0.2.1"), frame("2001:db8::9", "2001:db8::1"), frame("192.0.2.9", "192.0.2.1", "tagged"), frame("192.0.2.9", "192.0.2.1", "etype=0x88cc"),
		}
	}
	w.guard()
	for _, who := range []string{"kubepods/podred", "kubepods/podplain", "kubepods/podnew"} {
		// In fragments only the second half carries the token, and is nothing by
		// itself: what counts is what is put together.
		w.expectWays("to the overlay's port", who, "eth0", withoutFragments(ways(guardTunnelPort)), false)
		w.expectWays("to another port", who, "eth0", withoutFragments(ways(9)), true)
		for _, a := range onlyFragments(ways(guardTunnelPort)) {
			if got := w.reassembled(who, a); got {
				t.Errorf("%s: fragments to the overlay's port of %s arrive", who, a.To)
			}
			a.Port = 9
			if got := w.reassembled(who, a); !got {
				t.Errorf("%s: fragments to another port of %s do not arrive", who, a.To)
			}
		}
	}
	w.expectWays("the administrator", "system/admin", "eth0", withoutFragments(ways(guardTunnelPort)), true)
}

func withoutFragments(list []way.Attempt) (out []way.Attempt) {
	for _, a := range list {
		if _, is := optionOf(a, "fragments"); !is {
			out = append(out, a)
		}
	}
	return out
}

func onlyFragments(list []way.Attempt) (out []way.Attempt) {
	for _, a := range list {
		if _, is := optionOf(a, "fragments"); is {
			out = append(out, a)
		}
	}
	return out
}

// reassembled tells whether a server at the other end of eth0 gets the datagram.
func (w *guardWorld) reassembled(who string, a way.Attempt) bool {
	w.t.Helper()
	v := &victim{heard: map[int]bool{}, ready: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e := way.Listener{Kind: "udp", IPv6: netip.MustParseAddr(a.To).Is6(), At: netip.AddrPortFrom(netip.MustParseAddr(a.To), a.Port).String()}
		if err := w.peers["eth0"].do(func() error { return e.Listen(ctx, func() { close(v.ready) }, v.hear) }); err != nil {
			w.t.Errorf("serve %s: %v", e.At, err)
			close(v.ready)
		}
	}()
	defer func() { cancel(); <-done }()
	<-v.ready
	w.try(who, 0, "eth0", a)
	// The sentinel is the same socket's, by the administrator: heard after it.
	w.id++
	end := a
	end.ID, end.How = w.id, nil
	raw, _ := json.Marshal(end)
	for deadline := time.Now().Add(time.Minute); !v.has(end.ID); {
		if time.Now().After(deadline) {
			w.t.Fatalf("the server at %s hears nobody", a.To)
		}
		p := w.start(w.cg("system/admin"), 0, "way "+string(raw))
		p.next()
		p.stop()
	}
	return v.has(w.id - 2)
}

// Loopback: a frame put there would be routed on, with a mark of its maker's
// choice; one tenant's process does not reach another's.
func TestRootGuardLoopback(t *testing.T) {
	w := newGuardWorld(t, false)
	w.dropLSM()
	frame := func() []way.Attempt {
		return []way.Attempt{{Socket: "packet", To: "10.1.0.3", Src: "192.0.2.9", Port: way.Port, Device: "lo", SrcMAC: "00:00:00:00:00:00", DstMAC: "00:00:00:00:00:00", How: []string{"mark=5"}}}
	}
	must(t, w.ns.do(func() error {
		for _, f := range []string{"all/rp_filter", "lo/rp_filter", "default/rp_filter"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+f, []byte("0"), 0o644); err != nil {
				return err
			}
		}
		return nil
	}))
	w.expectWays("without the guard", "kubepods/podplain", "mp1", frame(), true)
	w.guard()
	w.expectWays("by a pod", "kubepods/podplain", "mp1", frame(), false)
	w.expectWays("by the administrator, forwarded", "system/admin", "mp1", frame(), false)

	// Servers of red and of a pod outside the tenants on loopback.
	for _, c := range []struct {
		server, client string
		how            []string
		want           bool
	}{
		{"kubepods/podred", "kubepods/podred", nil, true}, {"kubepods/podred", "kubepods/podblue", nil, false},
		{"kubepods/podred", "kubepods/podblue", []string{"cmsg-mark=0"}, false}, {"kubepods/podred", "kubepods/podblue", []string{"cmsg-mark=0x1001"}, false},
		{"kubepods/podred", "kubepods/podplain", nil, true}, {"kubepods/podplain", "kubepods/podblue", nil, true}, {"kubepods/podred", "system/admin", nil, true},
	} {
		for _, cg := range []string{"red", "blue"} {
			must(t, w.l.AttachPod(w.cg("kubepods/pod"+cg), cg, PodRow{NetworkID: map[string]uint32{"red": 1, "blue": 2}[cg], Mark: map[string]uint32{"red": 0x1001, "blue": 0x1002}[cg]}))
		}
		server := w.start(w.cg(c.server), 0, `hear {"kind":"udp","at":"127.0.0.1:7000"}`)
		if got := server.next(); got != "ready" {
			t.Fatalf("server of %s: %s", c.server, got)
		}
		w.id += 2
		a, _ := json.Marshal(way.Attempt{ID: w.id - 1, Socket: "udp", To: "127.0.0.1", Port: 7000, How: c.how})
		end, _ := json.Marshal(way.Attempt{ID: w.id, Socket: "udp", To: "127.0.0.1", Port: 7000})
		client := w.start(w.cg(c.client), 0, "way "+string(a))
		said := client.next()
		client.stop()
		admin := w.start(w.cg("system/admin"), 0, "way "+string(end))
		admin.next()
		admin.stop()
		server.proceed()
		got := server.next()
		server.stop()
		want := fmt.Sprintf("[%d]", w.id)
		if c.want {
			want = fmt.Sprintf("[%d %d]", w.id-1, w.id)
		}
		if got != want {
			t.Errorf("%s to a server of %s on loopback %v: heard %s, want %s (the client was told %s)", c.client, c.server, c.how, got, want, said)
		}
	}
}

// What a pod's socket hears of a network that is not its own: raw sockets, and
// those bound to the network's device.
func TestRootGuardHeard(t *testing.T) {
	w := newGuardWorld(t, false)
	ears := []way.Listener{
		{Kind: "raw-icmp"}, {Kind: "raw-icmp", IPv6: true}, {Kind: "raw-udp"}, {Kind: "raw-udp", IPv6: true},
		{Kind: "udp", At: fmt.Sprintf("0.0.0.0:%d", way.Port), Device: "mp1", How: []string{"bindtodevice"}}, {Kind: "udp", IPv6: true, At: fmt.Sprintf("[::]:%d", way.Port), Device: "mp1", How: []string{"bindtoifindex"}},
	}
	said := []way.Attempt{{Socket: "udp", To: "10.1.0.2", Port: way.Port}, {Socket: "udp", To: "fd01::2", Port: way.Port}, {Socket: "raw-icmp", To: "10.1.0.2"}, {Socket: "raw-icmp", To: "fd01::2"}}
	hears := func(who string, e way.Listener) bool {
		t.Helper()
		raw, _ := json.Marshal(e)
		p := w.start(w.cg(who), 0, "hear "+string(raw))
		defer p.stop()
		if got := p.next(); got != "ready" {
			t.Logf("%s %+v: %s", who, e, got)
			return false
		}
		for _, a := range said {
			w.id++
			a.ID = w.id
			must(t, w.peers["mp1"].do(a.Do))
		}
		p.proceed()
		return p.next() != "[]"
	}
	for _, e := range ears {
		if !hears("kubepods/podblue", e) {
			t.Errorf("without the guard %+v hears nothing: the check would prove nothing", e)
		}
	}
	w.guard()
	for _, e := range ears {
		for who, want := range map[string]bool{"kubepods/podred": true, "kubepods/podblue": false, "kubepods/podplain": false, "kubepods/podnew": false, "system/admin": true} {
			if got := hears(who, e); got != want {
				t.Errorf("%s with %+v: hears %t, want %t", who, e, got, want)
			}
		}
	}
}
