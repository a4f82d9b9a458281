// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/way"
)

// guardWorld is a node without VRFs, so that every kernel has it: what the
// programs judge are interfaces, sockets and cgroups. Each interface of the node
// has somebody at its other end who hears everything.
//
//	mp1   10.1.0.2 fd01::2   green, a tenant's pod 10.1.0.3 fd01::3
//	mp0   10.0.0.2 fd00::2   plain, a pod of the default network 10.0.0.3
//	pod   (no address)       the pod behind that interface
//	locked                   a locked default-network interface
//	eth0  192.0.2.1          the wire, another node at 192.0.2.9
type guardWorld struct {
	*sandbox
	t       *testing.T
	l       *Loader
	index   map[string]int
	mac     map[string]string // of the other end
	own     map[string]string // of the node's end
	victims map[string]*victim
	peers   map[string]*netNS
	id      int
}

const guardTunnelPort = 6081

func newGuardWorld(t *testing.T, noTCX bool) *guardWorld {
	t.Helper()
	w := &guardWorld{sandbox: newSandbox(t), t: t, index: map[string]int{}, mac: map[string]string{}, own: map[string]string{}, victims: map[string]*victim{}, peers: map[string]*netNS{}}
	w.noTCX = noTCX
	w.l = w.load()
	must(t, w.ns.do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	}))
	for name, addrs := range map[string][2][]string{
		"mp1": {{"10.1.0.2/24", "fd01::2/64"}, {"10.1.0.3/24", "fd01::3/64"}}, "mp0": {{"10.0.0.2/24", "fd00::2/64"}, {"10.0.0.3/24", "fd00::3/64"}},
		"pod": {nil, {"10.1.0.4/24"}}, "locked": {nil, {"10.0.0.4/24"}}, "eth0": {{"192.0.2.1/24", "2001:db8::1/64"}, {"192.0.2.9/24", "2001:db8::9/64"}},
	} {
		w.link(name, addrs[0], addrs[1])
	}
	pods := w.cg("kubepods")
	red, plain := w.cg("kubepods/podred"), w.cg("kubepods/podplain")
	blue, trusted := w.cg("kubepods/podblue"), w.cg("kubepods/podtrusted")
	for _, r := range []Row{
		PodRootRow{w.id_(pods)}, PodRow{CgroupID: w.id_(red), NetworkID: 1, Mark: 0x1001}, PodRow{CgroupID: w.id_(blue), NetworkID: 2, Mark: 0x1002},
		PodRow{CgroupID: w.id_(plain)}, PodRow{CgroupID: w.id_(trusted), Trusted: true},
		KubeletRow{CgroupID: w.id_(w.cg("system/kubelet"))}, LockedRow{netip.MustParseAddr("10.0.0.3"), 1}, LockedRow{netip.MustParseAddr("fd00::3"), 1},
		DestRow{1, netip.MustParsePrefix("10.1.0.0/24")}, DestRow{1, netip.MustParsePrefix("fd01::/64")},
	} {
		must(t, w.l.Put(r))
	}
	must(t, w.l.SetConfig(Config{PodLevels: levelMask(t, red), PodRootLevels: levelMask(t, pods), KubeletLevels: levelMask(t, w.cg("system/kubelet")),
		ProbeLock: true, Guard: true, TunnelPort: guardTunnelPort, MarkFirst: 0x1001, MarkLast: 0x3710}))
	must(t, w.l.AttachRoot())
	return w
}

func (w *guardWorld) id_(path string) uint64 { return w.sandbox.id(path) }

// guard attaches the programs to the interfaces.
func (w *guardWorld) guard() {
	w.t.Helper()
	mac, err := net.ParseMAC(w.own["mp0"])
	must(w.t, err)
	for name, r := range map[string]DoorRow{
		"mp1": {Kind: DoorPort, NetworkID: 1}, "mp0": {Kind: DoorDefault}, "pod": {Kind: DoorPod, NetworkID: 1},
		"locked": {Kind: DoorLocked, PeerMAC: [6]byte(mac), Peer6: netip.MustParseAddr("fd00::2")}, "eth0": {Kind: DoorOwn}, "lo": {Kind: DoorLoopback},
	} {
		r.Ifindex = w.index[name]
		if name == "lo" {
			r.Ifindex = 1
		}
		must(w.t, w.ns.do(func() error { return w.l.AttachDoor(r) }))
	}
}

func (w *guardWorld) link(name string, here, there []string) {
	w.t.Helper()
	other := newNetNS(w.t)
	must(w.t, w.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(other.f.Fd()))}); err != nil {
			return fmt.Errorf("add veth %s: %w", name, err)
		}
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		w.index[name], w.own[name] = l.Attrs().Index, l.Attrs().HardwareAddr.String()
		return addrsUp(h, l, here...)
	}))
	v := &victim{heard: map[int]bool{}, ready: make(chan struct{})}
	must(w.t, other.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		w.mac[name] = l.Attrs().HardwareAddr.String()
		return addrsUp(h, l, there...)
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = other.do(func() error {
			return way.Listener{Kind: "sniff"}.Listen(ctx, func() { close(v.ready) }, v.hear)
		})
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	<-v.ready
	w.victims[name], w.peers[name] = v, other
	// Until the kernel has seen the carrier, IPv6 does not speak.
	must(w.t, w.ns.do(func() error { return carrier(name) }))
	must(w.t, other.do(func() error { return carrier("eth0") }))
}

// victim is who hears at the other end of an interface.
type victim struct {
	mu    sync.Mutex
	heard map[int]bool
	ready chan struct{}
}

func (v *victim) hear(id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard[id] = true
}

func (v *victim) has(id int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.heard[id]
}

// try makes attempts from a cgroup and tells which of them were heard behind
// the interface. Each try ends with an attempt that everybody may make, to a
// sentinel that is heard after them all, so that silence is no matter of time.
func (w *guardWorld) try(cgroup string, uid int, behind string, attempts ...way.Attempt) []bool {
	w.t.Helper()
	var ops []string
	for i := range attempts {
		w.id++
		attempts[i].ID, attempts[i].Patience = w.id, 150
		raw, err := json.Marshal(attempts[i])
		must(w.t, err)
		ops = append(ops, "way "+string(raw))
	}
	p := w.start(w.cg(cgroup), uid, ops...)
	for _, a := range attempts {
		w.t.Logf("%s uid %d: %s %v to %s by %s: %s", cgroup, uid, a.Socket, a.How, a.To, a.Device, p.next())
	}
	p.stop()
	w.id++
	end := way.Attempt{ID: w.id, Socket: "packet", Device: behind, To: "10.1.0.3", Src: "10.1.0.2", Port: way.Port, SrcMAC: w.own[behind], DstMAC: w.mac[behind]}
	if behind == "locked" {
		end.SrcMAC = w.own["mp0"]
	}
	raw, err := json.Marshal(end)
	must(w.t, err)
	for deadline := time.Now().Add(time.Minute); !w.victims[behind].has(end.ID); {
		if time.Now().After(deadline) {
			w.t.Fatalf("the administrator's own frame is not heard behind %s", behind)
		}
		p := w.start(w.cg("system/admin"), 0, "way "+string(raw))
		p.next()
		p.stop()
	}
	out := make([]bool, len(attempts))
	for i, a := range attempts {
		out[i] = w.victims[behind].has(a.ID)
	}
	return out
}

// waysIn are the ways into a network by its interface.
func (w *guardWorld) waysIn(dev, v4, v6, src4, src6 string) []way.Attempt {
	frame := func(socket, to, src string, how ...string) way.Attempt {
		return way.Attempt{Socket: socket, To: to, Src: src, Port: way.Port, Device: dev, SrcMAC: w.own[dev], DstMAC: w.mac[dev], How: how}
	}
	return []way.Attempt{
		{Socket: "udp", To: v4, Port: way.Port, Device: dev, How: []string{"cmsg-pktinfo"}},
		{Socket: "udp", To: v6, Port: way.Port, Device: dev, How: []string{"cmsg-pktinfo"}},
		{Socket: "udp", To: v4, Port: way.Port, How: []string{"connect"}},
		{Socket: "tcp", To: v4, Port: way.Port}, {Socket: "tcp", To: v6, Port: way.Port}, {Socket: "mptcp", To: v4, Port: way.Port},
		{Socket: "udp", To: "ff02::1%" + dev, Port: way.Port}, {Socket: "udp", To: "224.0.0.1", Port: way.Port, Device: dev, How: []string{"multicastif"}},
		{Socket: "raw-icmp", To: v4, Device: dev, How: []string{"cmsg-pktinfo"}}, {Socket: "raw-icmp", To: v6, Device: dev, How: []string{"cmsg-pktinfo", "cmsg-mark=0x1001"}},
		{Socket: "hdrincl", To: v4, Src: src4, Port: way.Port}, {Socket: "hdrincl", To: v4, Src: src4, Port: way.Port, How: []string{"fragments"}},
		{Socket: "hdrincl", To: v6, Src: src6, Port: way.Port},
		frame("packet", v4, src4), frame("packet", v6, src6), frame("packet", v4, src4, "etype=0x1234"), frame("packet-dgram", v4, src4),
		frame("packet", v4, src4, "bypass"), frame("packet", v4, src4, "ring"), frame("packet", v4, src4, "unbound"), frame("sock-packet", v4, src4), frame("xdp", v4, src4),
	}
}

// dropLSM detaches the programs of packet sockets, where there are any: another
// wall, which has its own test.
func (w *guardWorld) dropLSM() {
	for _, name := range []string{"bh_lsm_create", "bh_lsm_bind"} {
		must(w.t, unpinLink(w.l.pin("links", rootDir, name)))
	}
}

// expectWays tries ways and judges them; those with one of the words in except
// are expected the other way round.
func (w *guardWorld) expectWays(what, who, behind string, ways []way.Attempt, want bool, except ...string) {
	w.t.Helper()
	got := w.try(who, 0, behind, ways...)
	for i, a := range ways {
		expected := want
		for _, e := range except {
			if _, has := optionOf(a, e); has || a.Socket == e {
				expected = !want
			}
		}
		if got[i] != expected {
			w.t.Errorf("%s (%s): %s %v to %s by %q: heard %t, want %t", what, who, a.Socket, a.How, a.To, a.Device, got[i], expected)
		}
	}
}

func optionOf(a way.Attempt, name string) (string, bool) {
	for _, h := range a.How {
		if h == name {
			return h, true
		}
	}
	return "", false
}

func toGroup(a way.Attempt) bool { return netip.MustParseAddr(a.To).IsMulticast() }

func carrier(name string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has no carrier", name)
		}
	}
}
