// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/attack"
)

// Packets that a root process of another pod, with all capabilities, sends into a
// network in every possible way arrive without the guard and not with it. Those of
// the network's own pods and of the node's administrator always arrive. The LSM
// programs for packet sockets are not attached here.
func TestRootGuardPort(t *testing.T) {
	for name, noTCX := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			w := newGuardSandbox(t, noTCX)
			w.detachLSM()
			attempts := func() []attack.Attempt { return w.attemptsInto("mp1", "10.1.0.3", "fd01::3", "10.1.0.2", "fd01::2") }
			w.expectAttempts("without the guard", "kubepods/podblue", "mp1", attempts(), true, "xdp")
			w.attachGuard()
			for _, cgroup := range []string{"kubepods/podblue", "kubepods/podplain", "kubepods/podnew", "kubepods/podblue/container"} {
				w.expectAttempts("another pod", cgroup, "mp1", attempts(), false)
			}
			w.expectAttempts("its own pod", "kubepods/podred", "mp1", attempts(), true, "xdp")
			w.expectAttempts("the administrator", "system/admin", "mp1", attempts(), true)
			if c := counts(t, w.l); c[ReasonGuardForeign] == 0 || c[ReasonGuardUnknown] == 0 || c[ReasonBypass] == 0 {
				t.Errorf("counters: %v", c)
			}
		})
	}
}

// Without tcx, an interface with an ingress qdisc, as of Open vSwitch's policing, is refused: the kernel would take the filter for
// egress, and attach it to ingress.
func TestRootGuardIngressQdisc(t *testing.T) {
	w := newGuardSandbox(t, true)
	attachDoor := func() error {
		return w.ns.do(func() error { return w.l.AttachDoor(DoorRow{Ifindex: w.index["mp1"], Kind: DoorPort, NetworkID: 1}) })
	}
	guarded := func() bool {
		t.Helper()
		var all []Attachment
		must(t, w.ns.do(func() (err error) { all, err = w.l.Attachments(); return err }))
		return slices.ContainsFunc(all, func(a Attachment) bool { return a.Ifindex == w.index["mp1"] })
	}
	qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: w.index["mp1"], Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	must(t, w.ns.do(func() error { return netlink.QdiscAdd(qdisc) }))
	if err := attachDoor(); !errors.Is(err, ErrNoClsact) || !strings.Contains(err.Error(), "mp1 has the qdisc ingress") || guarded() {
		t.Errorf("with an ingress qdisc: guarded %t, %v", guarded(), err)
	}
	must(t, w.ns.do(func() error { return netlink.QdiscDel(qdisc) }))
	for range 2 { // clsact is new, and exists
		must(t, attachDoor())
		if !guarded() {
			t.Error("after the ingress qdisc was removed, the interface is not guarded")
		}
	}
}

// Into the network through the interface that the operator has added to its VRF: as by the management
// port, and pods that the administrator trusts, such as FRR's, which no management port lets pass.
func TestRootGuardLink(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	attempts := func() []attack.Attempt { return w.attemptsInto("mp1", "10.1.0.3", "fd01::3", "10.1.0.2", "fd01::2") }
	for kind, trusted := range map[DoorKind]bool{DoorLink: true, DoorVRF: true, DoorPort: false} {
		w.attachGuard()
		must(t, w.ns.do(func() error { return w.l.AttachDoor(DoorRow{Ifindex: w.index["mp1"], Kind: kind, NetworkID: 1}) }))
		for _, cgroup := range []string{"kubepods/podblue", "kubepods/podplain", "kubepods/podnew"} {
			w.expectAttempts(fmt.Sprintf("kind %d, another pod", kind), cgroup, "mp1", attempts(), false)
		}
		w.expectAttempts(fmt.Sprintf("kind %d, its own pod", kind), "kubepods/podred", "mp1", attempts(), true, "xdp")
		// The hooks for packet sockets, which other pods meet first, trust it.
		rest := slices.DeleteFunc(attempts(), func(a attack.Attempt) bool { return a.Socket == "xdp" || hasOption(a, "bypass") })
		w.expectAttempts(fmt.Sprintf("kind %d, a trusted pod", kind), "kubepods/podtrusted", "mp1", rest, trusted)
	}
}

// On the default network's port, host-network pods outside the tenants reach pods
// but no locked addresses, tenants' pods reach no pod, and kubelet reaches locked
// addresses.
func TestRootGuardDefault(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	open := func() []attack.Attempt {
		return []attack.Attempt{{Socket: "udp", To: "10.0.0.77", Port: attack.Port}, {Socket: "raw-icmp", To: "10.0.0.77"}, {Socket: "hdrincl", To: "10.0.0.77", Src: "10.0.0.2", Port: attack.Port}}
	}
	must(t, w.ns.do(func() error { // nothing answers ARP for 10.0.0.77
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		mac, _ := net.ParseMAC(w.mac["mp0"])
		return h.NeighSet(&netlink.Neigh{LinkIndex: w.index["mp0"], IP: net.ParseIP("10.0.0.77"), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}))
	w.expectAttempts("a pod outside the tenants", "kubepods/podplain", "mp0", open(), true)
	w.expectAttempts("an unknown pod", "kubepods/podnew", "mp0", open(), true)
	w.expectAttempts("a tenant's pod", "kubepods/podred", "mp0", open(), false)
	attempts := func() []attack.Attempt {
		return append(w.attemptsInto("mp0", "10.0.0.3", "fd00::3", "10.0.0.2", "fd00::2"),
			attack.Attempt{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("cmsg-mark=%#x", KubeletMark)}},
			attack.Attempt{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("mark=%#x", KubeletMark)}},
			attack.Attempt{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("mark=%#x", KubeletMark|0x4000)}},
			attack.Attempt{Socket: "hdrincl", To: "10.0.0.3", Src: "10.0.0.2", Port: attack.Port, How: []string{fmt.Sprintf("mark=%#x", KubeletMark)}})
	}
	for _, cgroup := range []string{"kubepods/podplain", "kubepods/podnew"} {
		// Multicast addresses are not locked: pods outside the tenants may send to them.
		w.expectAttempts("to a locked address", cgroup, "mp0", slices.DeleteFunc(attempts(), isMulticast), false)
		w.expectAttempts("to multicast", cgroup, "mp0", slices.DeleteFunc(attempts(), func(a attack.Attempt) bool { return !isMulticast(a) }), true)
	}
	w.expectAttempts("to a locked address", "kubepods/podred", "mp0", attempts(), false)
	w.expectAttempts("kubelet", "system/kubelet", "mp0", []attack.Attempt{{Socket: "tcp", To: "10.0.0.3", Port: attack.Port}, {Socket: "raw-icmp", To: "fd00::3"}}, true)
	w.expectAttempts("root outside all pods", "system/admin", "mp0", []attack.Attempt{{Socket: "tcp", To: "10.0.0.3", Port: attack.Port}, {Socket: "raw-icmp", To: "10.0.0.3"}}, false)
}

// Other pods cannot send frames on the host end of a pod's interface, and a locked
// interface receives frames only from the node's management port.
func TestRootGuardPods(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	frames := func(dev string) []attack.Attempt {
		var out []attack.Attempt
		for _, how := range [][]string{nil, {"etype=0x88cc"}, {"ring"}} {
			out = append(out, attack.Attempt{Socket: "packet", To: "10.1.0.4", Src: "10.1.0.2", Port: attack.Port, Device: dev, SrcMAC: w.own["mp0"], DstMAC: w.mac[dev], How: how})
		}
		return append(out, attack.Attempt{Socket: "udp", To: "224.0.0.1", Port: attack.Port, Device: dev, How: []string{"multicastif"}})
	}
	w.expectAttempts("without the guard", "kubepods/podblue", "pod", frames("pod"), true)
	w.attachGuard()
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podrouter")), Ingress: true}))
	for _, cgroup := range []string{"kubepods/podblue", "kubepods/podplain", "kubepods/podnew", "kubepods/podrouter"} {
		w.expectAttempts("another pod", cgroup, "pod", frames("pod"), false)
		w.expectAttempts("another pod, locked", cgroup, "locked", frames("locked"), false)
	}
	w.expectAttempts("the administrator", "system/admin", "pod", frames("pod"), true)
	frame := attack.Attempt{Socket: "packet", To: "10.0.0.4", Src: "10.0.0.9", Port: attack.Port, Device: "locked", SrcMAC: "0a:58:0a:00:00:09", DstMAC: w.mac["locked"]}
	w.expectAttempts("a frame of another peer", "system/admin", "locked", []attack.Attempt{frame}, false)
	frame.SrcMAC = w.own["mp0"]
	w.expectAttempts("a frame of the node", "system/admin", "locked", []attack.Attempt{frame}, true)
}

// The guard drops forbidden frames that pods send and passes the others, also from a
// ring, of which only the first 14 bytes are in the packet's linear part: a receiver
// behind a bridge that the interface is a port of gets only those.
func TestRootGuardIngress(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.attachGuard()
	frame := func(dev, frame, src, dst, dstMAC string, how ...string) attack.Attempt {
		return attack.Attempt{Socket: "packet", Device: "eth0", Frame: frame, Src: src, To: dst, SrcMAC: w.mac[dev], DstMAC: dstMAC, Port: attack.Port, How: how}
	}
	const allNodes = "33:33:00:00:00:01"
	node := w.own["mp0"]
	for dev, cases := range map[string]map[bool][]attack.Attempt{
		"pod": {
			false: {frame("pod", "router-advertisement", "fe80::9", "ff02::1", allNodes), frame("pod", "router-advertisement-hidden", "fe80::9", "ff02::1", allNodes),
				frame("pod", "redirect", "fe80::9", "fd01::3", allNodes), frame("pod", "dhcp-answer", "10.1.0.4", "255.255.255.255", "ff:ff:ff:ff:ff:ff"),
				frame("pod", "dhcp-answer", "fe80::9", "ff02::1", allNodes), fromPort(1067, frame("pod", "dhcp-answer", "10.1.0.4", "255.255.255.255", "ff:ff:ff:ff:ff:ff")),
				fromPort(1547, frame("pod", "dhcp-answer", "fe80::9", "ff02::1", allNodes)), tunnel(frame("pod", "udp", "10.1.0.4", "192.0.2.9", node)),
				// The kernel would complete the checksum in the destination port, the source, or the destination.
				frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum=36"), frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum=28"),
				frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum=32"), frame("pod", "udp", "fe80::9", "fd01::3", node, "checksum=56"),
				frame("pod", "udp", "fe80::9", "fd01::3", node, "checksum=22"), frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum=40", "tagged")},
			true: {dhcpClient(68, 67, frame("pod", "udp", "10.1.0.4", "255.255.255.255", "ff:ff:ff:ff:ff:ff")), dhcpClient(546, 547, frame("pod", "udp", "fe80::9", "ff02::1:2", "33:33:00:01:00:02")),
				frame("pod", "neighbour-solicitation", "fe80::9", "ff02::1", allNodes), frame("pod", "neighbour-advertisement", "fe80::9", "ff02::1", allNodes),
				frame("pod", "router-solicitation", "fe80::9", "ff02::2", allNodes), frame("pod", "udp", "10.1.0.4", "192.0.2.9", node),
				frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum"), frame("pod", "udp", "fe80::9", "fd01::3", node, "checksum"),
				frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum", "tagged"),
				frame("pod", "udp", "10.1.0.4", "192.0.2.9", node, "checksum=44"), // in the payload, as of a tunnel in the pod
				tunnel(frame("pod", "udp", "10.1.0.4", "10.1.0.9", node))},        // allowed inside the pod's own network
		},
		"locked": {
			false: {frame("locked", "router-advertisement", "fe80::9", "ff02::1", allNodes), frame("locked", "neighbour-advertisement", "fe80::9", "ff02::1", allNodes),
				frame("locked", "neighbour-solicitation", "fe80::9", "ff02::1", allNodes, "target=fd00::77"), frame("locked", "router-solicitation", "fe80::9", "ff02::2", allNodes),
				frame("locked", "listener-report", "fe80::9", "ff02::16", "33:33:00:00:00:16"), frame("locked", "udp", "10.0.0.4", "10.0.0.9", "0a:58:0a:00:00:09"),
				frame("locked", "udp", "fe80::9", "ff02::1", allNodes)},
			true: {frame("locked", "neighbour-solicitation", "fe80::9", "ff02::1", allNodes, "target=fd00::2"), frame("locked", "neighbour-advertisement", "fd00::4", "fd00::2", node),
				frame("locked", "udp", "10.0.0.4", "10.0.0.2", node)},
		},
	} {
		for want, attempts := range cases {
			for _, a := range attempts {
				if strings.HasPrefix(strings.Join(a.How, ""), "checksum") {
					continue
				}
				a.How = append(slices.Clone(a.How), "ring")
				attempts = append(attempts, a)
				if dev == "pod" { // a locked interface needs no tags
					a.How = append(slices.Clone(a.How), "tagged")
					attempts = append(attempts, a)
				}
			}
			for i, got := range w.sendFrames(dev, attempts) {
				if got != want {
					t.Errorf("%s on %s to %s %v port %d: passes %t, want %t", attempts[i].Frame, dev, attempts[i].To, attempts[i].How, attempts[i].Port, got, want)
				}
			}
		}
	}
}

func fromPort(port uint16, a attack.Attempt) attack.Attempt { a.SrcPort = port; return a }

func dhcpClient(own, server uint16, a attack.Attempt) attack.Attempt {
	a.SrcPort, a.Port = own, server
	return a
}

func tunnel(a attack.Attempt) attack.Attempt { a.Port = guardTunnelPort; return a }

// sendFrames sends frames from the other end of an interface and returns for each
// whether it passed the interface: the interface is a port of a bridge, and a
// receiver listens behind the bridge's other port.
func (w *guardSandbox) sendFrames(dev string, attempts []attack.Attempt) []bool {
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
		attrs.Name = fmt.Sprintf("out%d", w.attemptID)
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
	v := newReceiver()
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
			return attack.Listener{Kind: "sniff"}.Listen(ctx, func() { close(v.ready) }, v.record)
		})
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	<-v.ready
	peer := w.peers[dev]
	send := func(a attack.Attempt) {
		if err := peer.do(a.Do); err != nil {
			w.t.Errorf("frame %s: %v", a.Frame, err)
		}
	}
	// Sends a frame that always passes until it is received: the bridge's new port
	// forwards only some time after it is up. Frames arrive in order.
	sync := func() {
		w.attemptID++
		a := attack.Attempt{ID: w.attemptID, Socket: "packet", Device: "eth0", Frame: "udp", Src: "10.0.0.4", To: "10.0.0.2", SrcMAC: w.mac[dev], DstMAC: w.own["mp0"], Port: attack.Port}
		for deadline := time.Now().Add(time.Minute); !v.has(a.ID); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				w.t.Fatalf("no frame sent behind %s is received", dev)
			}
			send(a)
		}
	}
	sync()
	for i := range attempts {
		w.attemptID++
		attempts[i].ID = w.attemptID
		send(attempts[i])
	}
	sync()
	passed := make([]bool, len(attempts))
	for i, a := range attempts {
		passed[i] = v.has(a.ID)
	}
	return passed
}

// The guard drops a pod's datagrams to the overlay's port: from any kind of socket,
// whole or in fragments, with or without VLAN tag, also to a service's address. The
// administrator's datagrams pass.
func TestRootGuardTunnel(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	for _, p := range []string{"192.0.2.0/24", "2001:db8::/64"} {
		must(t, w.l.Put(DestRow{AllNetworks, netip.MustParsePrefix(p)}))
	}
	attempts := func(port uint16) []attack.Attempt {
		frame := func(to, src string, how ...string) attack.Attempt {
			return attack.Attempt{Socket: "packet", To: to, Src: src, Port: port, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["eth0"], How: how}
		}
		return []attack.Attempt{
			{Socket: "udp", To: "192.0.2.9", Port: port}, {Socket: "udp", To: "2001:db8::9", Port: port}, {Socket: "udp", To: "192.0.2.9", Port: port, How: []string{"mapped"}},
			{Socket: "udp", To: "192.0.2.9", Port: port, How: []string{"connect"}}, {Socket: "udp", To: "192.0.2.9", Port: port, How: []string{"gso"}},
			{Socket: "udp", To: "192.0.2.255", Port: port, How: []string{"broadcast"}},
			{Socket: "hdrincl", To: "192.0.2.9", Src: "192.0.2.1", Port: port}, {Socket: "hdrincl", To: "192.0.2.9", Src: "192.0.2.1", Port: port, How: []string{"fragments"}},
			{Socket: "hdrincl", To: "2001:db8::9", Src: "2001:db8::1", Port: port}, {Socket: "hdrincl", To: "2001:db8::9", Src: "2001:db8::1", Port: port, How: []string{"fragments"}},
			frame("192.0.2.9", "192.0.2.1"), frame("2001:db8::9", "2001:db8::1"), frame("192.0.2.9", "192.0.2.1", "tagged"), frame("192.0.2.9", "192.0.2.1", "etype=0x88cc"),
			// Of a frame from a ring, only the first 14 bytes are in the packet's linear part.
			frame("192.0.2.9", "192.0.2.1", "ring"), frame("192.0.2.9", "192.0.2.1", "ring", "tagged"), frame("2001:db8::9", "2001:db8::1", "ring", "tagged"),
			frame("192.0.2.9", "192.0.2.1", "checksum"),
		}
	}
	w.attachGuard()
	for _, cgroup := range []string{"kubepods/podred", "kubepods/podplain", "kubepods/podnew"} {
		// Of a fragmented datagram only the second fragment carries the token, but it
		// is harmless alone: check the reassembled datagram.
		w.expectAttempts("to the overlay's port", cgroup, "eth0", withoutFragments(attempts(guardTunnelPort)), false)
		var never []string
		if cgroup == "kubepods/podred" { // a tenant's
			never = append(never, "packet")
		}
		w.expectAttempts("to another port", cgroup, "eth0", withoutFragments(attempts(9)), true, never...)
		for _, a := range onlyFragments(attempts(guardTunnelPort)) {
			if got := w.reassembled(cgroup, a); got {
				t.Errorf("%s: fragments to the overlay's port of %s arrive", cgroup, a.To)
			}
			a.Port = 9
			if got := w.reassembled(cgroup, a); !got {
				t.Errorf("%s: fragments to another port of %s do not arrive", cgroup, a.To)
			}
		}
	}
	w.expectAttempts("the administrator", "system/admin", "eth0", withoutFragments(attempts(guardTunnelPort)), true)
	// The kernel would complete the checksum in the destination port.
	forged := []attack.Attempt{{Socket: "packet", To: "192.0.2.9", Src: "192.0.2.1", Port: 9, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["eth0"], How: []string{"checksum=36"}}}
	w.expectAttempts("with a checksum elsewhere", "kubepods/podplain", "eth0", forged, false)
	w.expectAttempts("the administrator, with a checksum elsewhere", "system/admin", "eth0", forged, true)
}

// Before the agent knows any pod, the packet checks alone keep pods from the overlay's port, and let through all else
// that they send. AttachRoot completes them.
func TestRootPacketChecks(t *testing.T) {
	w := newGuardSandbox(t, false)
	must(t, w.l.DetachRoot())
	attempts := func(port uint16) (out []attack.Attempt) {
		for _, to := range []string{"192.0.2.9", "2001:db8::9"} {
			out = append(out, attack.Attempt{Socket: "udp", To: to, Port: port}, attack.Attempt{Socket: "udp", To: to, Port: port, How: []string{"connect"}})
		}
		return append(out, attack.Attempt{Socket: "hdrincl", To: "192.0.2.9", Src: "192.0.2.1", Port: port})
	}
	w.expectAttempts("without programs", "kubepods/podnew", "eth0", attempts(guardTunnelPort), true)
	must(t, w.l.AttachPacketChecks())
	w.expectAttempts("to the overlay's port", "kubepods/podnew", "eth0", attempts(guardTunnelPort), false)
	w.expectAttempts("to another port", "kubepods/podnew", "eth0", attempts(9), true)
	w.expectAttempts("a packet socket", "kubepods/podnew", "eth0", []attack.Attempt{{Socket: "packet", To: "192.0.2.9", Src: "192.0.2.1", Port: 9, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["eth0"]}}, true)
	w.expectAttempts("the administrator", "system/admin", "eth0", attempts(guardTunnelPort), true)
	root := func() Attachment {
		t.Helper()
		all, err := w.l.Attachments()
		must(t, err)
		i := slices.IndexFunc(all, Attachment.Root)
		if i < 0 {
			t.Fatalf("there is no attachment of the root cgroup: %+v", all)
		}
		return all[i]
	}
	if a := root(); len(a.Missing) == 0 {
		t.Errorf("the packet checks alone count as complete: %+v", a)
	}
	must(t, w.l.AttachRoot())
	if a := root(); len(a.Missing) != 0 {
		t.Errorf("after AttachRoot programs are missing: %+v", a)
	}
}

func withoutFragments(list []attack.Attempt) (out []attack.Attempt) {
	for _, a := range list {
		if !hasOption(a, "fragments") {
			out = append(out, a)
		}
	}
	return out
}

func onlyFragments(list []attack.Attempt) (out []attack.Attempt) {
	for _, a := range list {
		if hasOption(a, "fragments") {
			out = append(out, a)
		}
	}
	return out
}

// reassembled reports whether a server at the other end of eth0 receives the datagram.
func (w *guardSandbox) reassembled(cgroup string, a attack.Attempt) bool {
	w.t.Helper()
	v := newReceiver()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e := attack.Listener{Kind: "udp", IPv6: netip.MustParseAddr(a.To).Is6(), At: netip.AddrPortFrom(netip.MustParseAddr(a.To), a.Port).String()}
		if err := w.peers["eth0"].do(func() error { return e.Listen(ctx, func() { close(v.ready) }, v.record) }); err != nil {
			w.t.Errorf("serve %s: %v", e.At, err)
			close(v.ready)
		}
	}()
	defer func() { cancel(); <-done }()
	<-v.ready
	w.attempt(cgroup, 0, "eth0", a)
	// The administrator's datagram from the same kind of socket arrives after it.
	w.attemptID++
	end := a
	end.ID, end.How = w.attemptID, nil
	raw, _ := json.Marshal(end)
	for deadline := time.Now().Add(time.Minute); !v.has(end.ID); {
		if time.Now().After(deadline) {
			w.t.Fatalf("the server at %s receives no datagram", a.To)
		}
		p := w.start(w.cg("system/admin"), 0, "attempt "+string(raw))
		p.next()
		p.stop()
	}
	return v.has(w.attemptID - 2)
}

// The guard drops pods' frames on loopback, because the kernel would route them by
// a mark that the sender chose; and a tenant's process does not reach another
// tenant's server on loopback.
func TestRootGuardLoopback(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	frame := func() []attack.Attempt {
		return []attack.Attempt{{Socket: "packet", To: "10.1.0.3", Src: "192.0.2.9", Port: attack.Port, Device: "lo", SrcMAC: "00:00:00:00:00:00", DstMAC: "00:00:00:00:00:00", How: []string{"mark=5"}}}
	}
	must(t, w.ns.do(func() error {
		for _, f := range []string{"all/rp_filter", "lo/rp_filter", "default/rp_filter"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+f, []byte("0"), 0o644); err != nil {
				return err
			}
		}
		return nil
	}))
	w.expectAttempts("without the guard", "kubepods/podplain", "mp1", frame(), true)
	w.attachGuard()
	w.expectAttempts("by a pod", "kubepods/podplain", "mp1", frame(), false)
	w.expectAttempts("by the administrator, forwarded", "system/admin", "mp1", frame(), false)

	// Connections over loopback to servers of network 1 and of a pod outside the tenants.
	for _, c := range []struct {
		server, client string
		how            []string
		want           bool
	}{
		{"kubepods/podred", "kubepods/podred", nil, true}, {"kubepods/podred", "kubepods/podblue", nil, false},
		{"kubepods/podred", "kubepods/podblue", []string{"cmsg-mark=0"}, false}, {"kubepods/podred", "kubepods/podblue", []string{"cmsg-mark=0x10000"}, false},
		{"kubepods/podred", "kubepods/podplain", nil, true}, {"kubepods/podplain", "kubepods/podblue", nil, true}, {"kubepods/podred", "system/admin", nil, true},
	} {
		for _, cg := range []string{"red", "blue"} {
			must(t, w.l.AttachPod(w.cg("kubepods/pod"+cg), cg, PodRow{NetworkID: map[string]uint32{"red": 1, "blue": 2}[cg], Mark: map[string]uint32{"red": 0x10000, "blue": 0x20000}[cg]}))
		}
		server := w.start(w.cg(c.server), 0, `receive {"kind":"udp","at":"127.0.0.1:7000"}`)
		if got := server.next(); got != "ready" {
			t.Fatalf("server of %s: %s", c.server, got)
		}
		w.attemptID += 2
		a, _ := json.Marshal(attack.Attempt{ID: w.attemptID - 1, Socket: "udp", To: "127.0.0.1", Port: 7000, How: c.how})
		end, _ := json.Marshal(attack.Attempt{ID: w.attemptID, Socket: "udp", To: "127.0.0.1", Port: 7000})
		client := w.start(w.cg(c.client), 0, "attempt "+string(a))
		result := client.next()
		client.stop()
		admin := w.start(w.cg("system/admin"), 0, "attempt "+string(end))
		admin.next()
		admin.stop()
		server.proceed()
		got := server.next()
		server.stop()
		want := fmt.Sprintf("[%d]", w.attemptID)
		if c.want {
			want = fmt.Sprintf("[%d %d]", w.attemptID-1, w.attemptID)
		}
		if got != want {
			t.Errorf("%s to a server of %s on loopback %v: received %s, want %s (the client got %s)", c.client, c.server, c.how, got, want, result)
		}
	}
}

// Raw sockets, and sockets bound to a network's device, receive packets of the
// network only if they belong to the network's pods or to the administrator.
func TestRootGuardReceive(t *testing.T) {
	w := newGuardSandbox(t, false)
	listeners := []attack.Listener{
		{Kind: "raw-icmp"}, {Kind: "raw-icmp", IPv6: true}, {Kind: "raw-udp"}, {Kind: "raw-udp", IPv6: true},
		{Kind: "udp", At: fmt.Sprintf("0.0.0.0:%d", attack.Port), Device: "mp1", How: []string{"bindtodevice"}}, {Kind: "udp", IPv6: true, At: fmt.Sprintf("[::]:%d", attack.Port), Device: "mp1", How: []string{"bindtoifindex"}},
	}
	packets := []attack.Attempt{{Socket: "udp", To: "10.1.0.2", Port: attack.Port}, {Socket: "udp", To: "fd01::2", Port: attack.Port}, {Socket: "raw-icmp", To: "10.1.0.2"}, {Socket: "raw-icmp", To: "fd01::2"}}
	receives := func(cgroup string, l attack.Listener) bool {
		t.Helper()
		raw, _ := json.Marshal(l)
		p := w.start(w.cg(cgroup), 0, "receive "+string(raw))
		defer p.stop()
		if got := p.next(); got != "ready" {
			t.Logf("%s %+v: %s", cgroup, l, got)
			return false
		}
		for _, a := range packets {
			w.attemptID++
			a.ID = w.attemptID
			must(t, w.peers["mp1"].do(a.Do))
		}
		p.proceed()
		return p.next() != "[]"
	}
	for _, l := range listeners {
		if !receives("kubepods/podblue", l) {
			t.Errorf("without the guard %+v receives nothing: the test would prove nothing", l)
		}
	}
	w.attachGuard()
	for kind, trusted := range map[DoorKind]bool{DoorPort: false, DoorLink: true} {
		must(t, w.ns.do(func() error { return w.l.AttachDoor(DoorRow{Ifindex: w.index["mp1"], Kind: kind, NetworkID: 1}) }))
		for _, l := range listeners {
			for cgroup, want := range map[string]bool{"kubepods/podred": true, "kubepods/podblue": false, "kubepods/podplain": false, "kubepods/podnew": false, "kubepods/podtrusted": trusted, "system/admin": true} {
				if got := receives(cgroup, l); got != want {
					t.Errorf("kind %d: %s with %+v: receives %t, want %t", kind, cgroup, l, got, want)
				}
			}
		}
	}
}
