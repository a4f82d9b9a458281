// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/test/adversary/attack"
)

// The guard passes what pods send on their own interfaces, to another pod and to
// another node, although the packets keep their socket on the path across the host,
// through the switch and a tunnel.
func TestRootGuardForwarded(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	w.link("near", nil, []string{"10.1.0.5/24"})
	must(t, w.ns.do(func() error {
		return w.l.AttachDoor(DoorRow{Ifindex: w.index["near"], Kind: DoorPod, NetworkID: 1})
	}))
	w.redirect("near", w.index["pod"])
	w.redirect("pod", w.index["near"])
	attempts := func(dstMAC string) []attack.Attempt {
		frame := attack.Attempt{Socket: "packet", Device: "eth0", To: "10.1.0.4", Src: "10.1.0.5", Port: attack.Port, SrcMAC: w.mac["near"], DstMAC: dstMAC}
		out := []attack.Attempt{frame, {Socket: "udp", To: "10.1.0.4", Port: attack.Port}, {Socket: "raw-icmp", To: "10.1.0.4"}, {Socket: "tcp", To: "10.1.0.4", Port: attack.Port}}
		return out
	}
	expectReceived := func(what, dev string, list []attack.Attempt) {
		t.Helper()
		for _, a := range list {
			for deadline := time.Now().Add(10 * time.Second); ; {
				w.attemptID++
				a.ID, a.Patience = w.attemptID, 150
				raw, err := json.Marshal(a)
				must(t, err)
				p := w.startIn(w.peers["near"], w.cg("kubepods/podnear"), 0, "attempt "+string(raw))
				p.next()
				p.stop()
				if w.receivers[dev].has(a.ID) {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("%s: %s is not received; counters %v", what, a.Socket, counts(t, w.l))
					break
				}
			}
		}
	}
	expectReceived("to a pod on this node", "pod", attempts(w.mac["pod"]))
	t.Run("tunnel", func(t *testing.T) {
		const otherNode = "02:00:00:00:00:99"
		tunnel := 0
		err := w.ns.do(func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			defer h.Close()
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "tun0"
			if err := h.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Group: net.ParseIP("192.0.2.9"), SrcAddr: net.ParseIP("192.0.2.1"), VtepDevIndex: w.index["eth0"], Port: guardTunnelPort}); err != nil {
				return err
			}
			l, err := h.LinkByName("tun0")
			if err != nil {
				return err
			}
			tunnel = l.Attrs().Index
			return h.LinkSetUp(l)
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("skip: this kernel has no vxlan")
		}
		must(t, err)
		w.redirect("near", tunnel)
		// A permanent neighbour, so that only the packets themselves are tested.
		mac, err := net.ParseMAC(otherNode)
		must(t, err)
		onLink(t, w.peers["near"], "eth0", func(h *netlink.Handle, l netlink.Link) error {
			return h.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP("10.1.0.9"), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
		})
		list := attempts(otherNode)
		for i := range list {
			list[i].To = "10.1.0.9"
		}
		expectReceived("to another node", "eth0", list[:3])
	})
}

// What a host-network pod outside the network sends to a node port arrives at the pod's interface with
// the pod's socket. The guard passes it, but not what the pod's IP stack sends there itself.
func TestRootGuardDelivered(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	w.redirectAt("eth0", w.index["pod"], netlink.HANDLE_MIN_EGRESS)
	mac, err := net.ParseMAC(w.mac["pod"])
	must(t, err)
	for _, to := range []struct{ dev, ip string }{{"eth0", "192.0.2.9"}, {"eth0", "2001:db8::9"}, {"pod", "10.1.0.4"}} {
		onLink(t, w.ns, to.dev, func(h *netlink.Handle, l netlink.Link) error {
			return h.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(to.ip), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
		})
	}
	delivered := []attack.Attempt{{Socket: "udp", To: "192.0.2.9", Port: attack.Port}, {Socket: "udp", To: "2001:db8::9", Port: attack.Port}, {Socket: "tcp", To: "192.0.2.9", Port: attack.Port}, {Socket: "raw-icmp", To: "192.0.2.9"}}
	direct := []attack.Attempt{{Socket: "udp", To: "10.1.0.4", Port: attack.Port, Device: "pod", How: []string{"cmsg-pktinfo"}}, {Socket: "raw-icmp", To: "10.1.0.4", Device: "pod", How: []string{"cmsg-pktinfo"}}}
	frame := []attack.Attempt{{Socket: "packet", To: "192.0.2.9", Src: "192.0.2.1", Port: attack.Port, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["pod"]}}
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podrouter")), Ingress: true}))
	for _, cgroup := range []string{"kubepods/podplain", "kubepods/podblue", "kubepods/podrouter"} {
		w.expectAttempts("to a node port", cgroup, "pod", delivered, true)
		w.expectAttempts("to the pod's interface", cgroup, "pod", direct, false)
		w.expectAttempts("by a frame", cgroup, "pod", frame, false)
	}
	w.expectAttempts("the network's own pod", "kubepods/podred", "pod", direct, true)
	w.expectAttempts("the administrator", "system/admin", "pod", append(direct, frame...), true)
}

// redirect forwards the packets that arrive on an interface to another, after the
// guard's programs, as Open vSwitch does.
func (w *guardSandbox) redirect(from string, to int) {
	w.t.Helper()
	w.redirectAt(from, to, netlink.HANDLE_MIN_INGRESS)
}

// redirectAt is redirect for what arrives on the interface, or is sent there.
func (w *guardSandbox) redirectAt(from string, to int, parent uint32) {
	w.t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
	}})
	must(w.t, err)
	defer prog.Close()
	must(w.t, w.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: w.index[from], Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		if err := h.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return h.FilterReplace(&netlink.BpfFilter{Fd: prog.FD(), Name: "redirect", DirectAction: true, FilterAttrs: netlink.FilterAttrs{
			LinkIndex: w.index[from], Parent: parent, Handle: 1, Priority: 99, Protocol: unix.ETH_P_ALL}})
	}))
}

// The node forwards packets into a network only from the interface that the network's row
// names, or from all of its own, and to the cluster default network's locked addresses from none.
func TestRootGuardForwardFrom(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	onLink(t, w.peers["mp0"], "eth0", func(h *netlink.Handle, l netlink.Link) error { return addrsUp(h, l, "10.0.0.5/24") })
	for _, to := range []string{"10.0.0.0/24", "10.1.0.0/24"} {
		addRoute(t, w.peers["eth0"], "eth0", to, "192.0.2.1")
	}
	set := func(from int) {
		t.Helper()
		must(t, w.ns.do(func() error {
			if err := w.l.AttachDoor(DoorRow{Ifindex: w.index["mp1"], Kind: DoorPort, NetworkID: 1, ForwardFrom: from}); err != nil {
				return err
			}
			return w.l.AttachDoor(DoorRow{Ifindex: w.index["mp0"], Kind: DoorDefault, ForwardFrom: from})
		}))
	}
	send := func(to string) int {
		t.Helper()
		w.attemptID++
		raw, err := json.Marshal(attack.Attempt{ID: w.attemptID, Patience: 150, Socket: "udp", To: to, Port: attack.Port})
		must(t, err)
		p := w.startIn(w.peers["eth0"], w.cg("system/admin"), 0, "attempt "+string(raw))
		p.next()
		p.stop()
		return w.attemptID
	}
	// expect sends to all addresses until those that should receive have done so.
	expect := func(what string, want map[string]bool) {
		t.Helper()
		behind := map[string]string{"10.0.0.5": "mp0", "10.0.0.3": "mp0", "10.1.0.3": "mp1"}
		for deadline := time.Now().Add(20 * time.Second); ; {
			missing := ""
			for to, received := range want {
				switch got := w.receivers[behind[to]].has(send(to)); {
				case got && !received:
					t.Errorf("%s: %s receives", what, to)
				case received && !got:
					missing = to
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %s receives nothing; counters %v", what, missing, counts(t, w.l))
				return
			}
		}
	}
	set(w.index["eth0"])
	expect("from the external bridge", map[string]bool{"10.0.0.5": true, "10.1.0.3": true, "10.0.0.3": false})
	before := counts(t, w.l)[ReasonGuardForwarded]
	if before == 0 {
		t.Error("no packet to a locked address was refused")
	}
	set(w.index["pod"])
	expect("from another interface", map[string]bool{"10.0.0.5": false, "10.1.0.3": false, "10.0.0.3": false})
	if now := counts(t, w.l)[ReasonGuardForwarded]; now < before+3 {
		t.Errorf("%d packets refused, want 3", now-before)
	}
	set(ForwardFromOwn)
	expect("from one of the node's interfaces", map[string]bool{"10.0.0.5": true, "10.1.0.3": true, "10.0.0.3": false})
	must(t, w.ns.do(func() error { return w.l.AttachDoor(DoorRow{Ifindex: w.index["eth0"], Kind: DoorPod, NetworkID: 2}) }))
	expect("from a pod's interface", map[string]bool{"10.0.0.5": false, "10.1.0.3": false, "10.0.0.3": false})
	set(0)
	// The kernel takes a VRF device for the interface on which its ports' packets arrive.
	for id, own := range map[uint32]bool{1: true, 2: false, 0: false} {
		must(t, w.ns.do(func() error { return w.l.AttachDoor(DoorRow{Ifindex: w.index["eth0"], Kind: DoorVRF, NetworkID: id}) }))
		expect(fmt.Sprintf("from the VRF of network %d", id), map[string]bool{"10.0.0.5": false, "10.1.0.3": own, "10.0.0.3": false})
	}
}
