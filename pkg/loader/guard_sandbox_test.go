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
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/attack"
)

// guardSandbox is a node without VRF devices, so that the tests run on every kernel:
// the programs check only interfaces, sockets and cgroups. At the other end of each
// interface of the node, a receiver records all frames.
//
//	interface                 other end
//	mp1    10.1.0.2 fd01::2   pod of network 1, 10.1.0.3 fd01::3
//	mp0    10.0.0.2 fd00::2   pod of the default network, locked, 10.0.0.3 fd00::3
//	pod    (no address)       pod of network 1, 10.1.0.4
//	locked (no address)       pod's locked default-network interface, 10.0.0.4
//	eth0   192.0.2.1          another node, 192.0.2.9
type guardSandbox struct {
	*sandbox
	t         *testing.T
	l         *Loader
	index     map[string]int
	mac       map[string]string // of the other end
	own       map[string]string // of the node's end
	receivers map[string]*receiver
	peers     map[string]*netNS
	attemptID int // id of the last attempt
}

const guardTunnelPort = 6081

func newGuardSandbox(t *testing.T, noTCX bool) *guardSandbox {
	t.Helper()
	w := &guardSandbox{sandbox: newSandbox(t), t: t, index: map[string]int{}, mac: map[string]string{}, own: map[string]string{}, receivers: map[string]*receiver{}, peers: map[string]*netNS{}}
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
		PodRootRow{w.id(pods)}, PodRow{CgroupID: w.id(red), NetworkID: 1, Mark: 0x10000}, PodRow{CgroupID: w.id(blue), NetworkID: 2, Mark: 0x20000},
		PodRow{CgroupID: w.id(plain)}, PodRow{CgroupID: w.id(trusted), Trusted: true},
		KubeletRow{CgroupID: w.id(w.cg("system/kubelet"))}, LockedRow{netip.MustParseAddr("10.0.0.3"), 1}, LockedRow{netip.MustParseAddr("fd00::3"), 1},
		DestRow{1, netip.MustParsePrefix("10.1.0.0/24")}, DestRow{1, netip.MustParsePrefix("fd01::/64")},
	} {
		must(t, w.l.Put(r))
	}
	must(t, w.l.SetConfig(Config{PodLevels: levelMask(t, red), PodRootLevels: levelMask(t, pods), KubeletLevels: levelMask(t, w.cg("system/kubelet")),
		ProbeLock: true, Guard: true, TunnelPort: guardTunnelPort, MarkFirst: 0x10000, MarkLast: 0x2711ffff}))
	must(t, w.l.AttachRoot())
	return w
}

// lockedDoor is the row of the interface locked.
func (w *guardSandbox) lockedDoor() DoorRow {
	w.t.Helper()
	mac, err := net.ParseMAC(w.own["mp0"])
	must(w.t, err)
	return DoorRow{Ifindex: w.index["locked"], Kind: DoorLocked, PeerMAC: [6]byte(mac), Peer6: netip.MustParseAddr("fd00::2")}
}

// onLink calls f with a link of a network namespace.
func onLink(t *testing.T, ns *netNS, name string, f func(h *netlink.Handle, l netlink.Link) error) {
	t.Helper()
	must(t, ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return f(h, l)
	}))
}

// addRoute adds a route in a network namespace.
func addRoute(t *testing.T, ns *netNS, dev, to, via string) {
	t.Helper()
	_, dst, err := net.ParseCIDR(to)
	must(t, err)
	onLink(t, ns, dev, func(h *netlink.Handle, l netlink.Link) error {
		return h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(via)})
	})
}

// attachGuard attaches the guard's programs to the interfaces.
func (w *guardSandbox) attachGuard() {
	w.t.Helper()
	for name, r := range map[string]DoorRow{
		"mp1": {Kind: DoorPort, NetworkID: 1}, "mp0": {Kind: DoorDefault}, "pod": {Kind: DoorPod, NetworkID: 1},
		"locked": w.lockedDoor(), "eth0": {Kind: DoorOwn}, "lo": {Kind: DoorLoopback},
	} {
		r.Ifindex = w.index[name]
		if name == "lo" {
			r.Ifindex = 1
		}
		must(w.t, w.ns.do(func() error { return w.l.AttachDoor(r) }))
	}
}

// link creates an interface of the node, with the addresses nodeAddrs, and a network
// namespace with a receiver at its other end.
func (w *guardSandbox) link(name string, nodeAddrs, peerAddrs []string) {
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
		return addrsUp(h, l, nodeAddrs...)
	}))
	v := newReceiver()
	onLink(w.t, other, "eth0", func(h *netlink.Handle, l netlink.Link) error {
		w.mac[name] = l.Attrs().HardwareAddr.String()
		return addrsUp(h, l, peerAddrs...)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = other.do(func() error {
			return attack.Listener{Kind: "sniff"}.Listen(ctx, func() { close(v.ready) }, v.record)
		})
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	<-v.ready
	w.receivers[name], w.peers[name] = v, other
	// The kernel sends no IPv6 packets before it has seen the carrier.
	must(w.t, w.ns.do(func() error { return waitForCarrier(name) }))
	must(w.t, other.do(func() error { return waitForCarrier("eth0") }))
}

// receiver records the ids of the attempts received at the other end of an interface.
type receiver struct {
	mu       sync.Mutex
	received map[int]bool
	ready    chan struct{} // closed once the receiver's socket is open
}

func newReceiver() *receiver {
	return &receiver{received: map[int]bool{}, ready: make(chan struct{})}
}

func (v *receiver) record(id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.received[id] = true
}

func (v *receiver) has(id int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.received[id]
}

// attempt makes attempts from a cgroup and returns for each whether the receiver
// at the other end of the interface received it. It then sends a sentinel frame
// that the guard passes and waits for it: an attempt that has not arrived by then
// is lost, so the result does not depend on a timeout.
func (w *guardSandbox) attempt(cgroup string, uid int, dev string, attempts ...attack.Attempt) []bool {
	w.t.Helper()
	var ops []string
	for i := range attempts {
		w.attemptID++
		attempts[i].ID, attempts[i].Patience = w.attemptID, 150
		raw, err := json.Marshal(attempts[i])
		must(w.t, err)
		ops = append(ops, "attempt "+string(raw))
	}
	p := w.start(w.cg(cgroup), uid, ops...)
	for _, a := range attempts {
		w.t.Logf("%s uid %d: %s %v to %s by %s: %s", cgroup, uid, a.Socket, a.How, a.To, a.Device, p.next())
	}
	p.stop()
	w.attemptID++
	end := attack.Attempt{ID: w.attemptID, Socket: "packet", Device: dev, To: "10.1.0.3", Src: "10.1.0.2", Port: attack.Port, SrcMAC: w.own[dev], DstMAC: w.mac[dev]}
	if dev == "locked" {
		end.SrcMAC = w.own["mp0"]
	}
	raw, err := json.Marshal(end)
	must(w.t, err)
	for deadline := time.Now().Add(time.Minute); !w.receivers[dev].has(end.ID); {
		if time.Now().After(deadline) {
			w.t.Fatalf("the administrator's sentinel frame is not received behind %s", dev)
		}
		p := w.start(w.cg("system/admin"), 0, "attempt "+string(raw))
		p.next()
		p.stop()
	}
	out := make([]bool, len(attempts))
	for i, a := range attempts {
		out[i] = w.receivers[dev].has(a.ID)
	}
	return out
}

// attemptsInto lists attempts of every kind to send into a network through its
// interface.
func (w *guardSandbox) attemptsInto(dev, v4, v6, src4, src6 string) []attack.Attempt {
	frame := func(socket, to, src string, how ...string) attack.Attempt {
		return attack.Attempt{Socket: socket, To: to, Src: src, Port: attack.Port, Device: dev, SrcMAC: w.own[dev], DstMAC: w.mac[dev], How: how}
	}
	return []attack.Attempt{
		{Socket: "udp", To: v4, Port: attack.Port, Device: dev, How: []string{"cmsg-pktinfo"}},
		{Socket: "udp", To: v6, Port: attack.Port, Device: dev, How: []string{"cmsg-pktinfo"}},
		{Socket: "udp", To: v4, Port: attack.Port, How: []string{"connect"}},
		{Socket: "tcp", To: v4, Port: attack.Port}, {Socket: "tcp", To: v6, Port: attack.Port}, {Socket: "mptcp", To: v4, Port: attack.Port},
		{Socket: "udp", To: "ff02::1%" + dev, Port: attack.Port}, {Socket: "udp", To: "224.0.0.1", Port: attack.Port, Device: dev, How: []string{"multicastif"}},
		{Socket: "raw-icmp", To: v4, Device: dev, How: []string{"cmsg-pktinfo"}}, {Socket: "raw-icmp", To: v6, Device: dev, How: []string{"cmsg-pktinfo", "cmsg-mark=0x10000"}},
		{Socket: "hdrincl", To: v4, Src: src4, Port: attack.Port}, {Socket: "hdrincl", To: v4, Src: src4, Port: attack.Port, How: []string{"fragments"}},
		{Socket: "hdrincl", To: v6, Src: src6, Port: attack.Port},
		frame("packet", v4, src4), frame("packet", v6, src6), frame("packet", v4, src4, "etype=0x1234"), frame("packet-dgram", v4, src4),
		frame("packet", v4, src4, "bypass"), frame("packet", v4, src4, "ring"), frame("packet", v4, src4, "unbound"), frame("sock-packet", v4, src4), frame("xdp", v4, src4),
	}
}

// detachLSM detaches the LSM programs for packet sockets, if there are any, so that
// the guard alone is tested. TestRootLSM tests them.
func (w *guardSandbox) detachLSM() {
	for _, name := range []string{"bh_lsm_create", "bh_lsm_bind", "bh_lsm_setopt"} {
		must(w.t, unpinLink(w.l.pin("links", rootDir, name)))
	}
}

// expectAttempts makes attempts as root and checks that each is received if and only
// if want is true. For attempts with a socket or option in except, it checks the
// opposite.
func (w *guardSandbox) expectAttempts(what, cgroup, dev string, attempts []attack.Attempt, want bool, except ...string) {
	w.t.Helper()
	got := w.attempt(cgroup, 0, dev, attempts...)
	for i, a := range attempts {
		expected := want
		for _, e := range except {
			if hasOption(a, e) || a.Socket == e {
				expected = !want
			}
		}
		if got[i] != expected {
			w.t.Errorf("%s (%s): %s %v to %s by %q: received %t, want %t", what, cgroup, a.Socket, a.How, a.To, a.Device, got[i], expected)
		}
	}
}

func hasOption(a attack.Attempt, name string) bool { return slices.Contains(a.How, name) }

func isMulticast(a attack.Attempt) bool { return netip.MustParseAddr(a.To).IsMulticast() }

func waitForCarrier(name string) error {
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
