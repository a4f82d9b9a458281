// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	vrfTable = 4242
	vrfMark  = 0x50000
)

// vrfSandbox is a node with one tenant's VRF, a peer inside the VRF and a neighbour
// in the default VRF, each in its own network namespace.
//
//	peer 10.77.0.2 ── 10.77.0.1 [VRF t5] node 192.0.2.1 ── 192.0.2.2 outside
type vrfSandbox struct {
	*sandbox
	peer, outside *netNS
	vrf           int
}

func newVRFSandbox(t *testing.T) *vrfSandbox {
	t.Helper()
	w := &vrfSandbox{sandbox: newSandbox(t)}
	w.peer, w.outside = newNetNS(t), newNetNS(t)
	err := w.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "t5"
		vrf := &netlink.Vrf{LinkAttrs: attrs, Table: vrfTable}
		if err := h.LinkAdd(vrf); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
				return fmt.Errorf("skip: no-vrf: %w", err)
			}
			return fmt.Errorf("add VRF: %w", err)
		}
		link, err := h.LinkByName("t5")
		if err != nil {
			return err
		}
		w.vrf = link.Attrs().Index
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		for _, v := range []struct {
			name  string
			ns    *netNS
			addrs []string
			vrf   bool
		}{
			{"in", w.peer, []string{"10.77.0.1/24", "fd77::1/64"}, true},
			{"out", w.outside, []string{"192.0.2.1/24", "2001:db8::1/64"}, false},
		} {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = v.name
			if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(v.ns.f.Fd()))}); err != nil {
				return fmt.Errorf("add veth %s: %w", v.name, err)
			}
			l, err := h.LinkByName(v.name)
			if err != nil {
				return err
			}
			if v.vrf {
				if err := h.LinkSetMaster(l, link); err != nil {
					return err
				}
			}
			if err := addrsUp(h, l, v.addrs...); err != nil {
				return err
			}
		}
		for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
			_, dst, _ := net.ParseCIDR("0.0.0.0/0")
			if fam == unix.AF_INET6 {
				_, dst, _ = net.ParseCIDR("::/0")
			}
			if err := h.RouteAdd(&netlink.Route{Family: fam, Table: vrfTable, Type: unix.RTN_UNREACHABLE, Priority: 4278198272, Dst: dst}); err != nil {
				return fmt.Errorf("add unreachable default: %w", err)
			}
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Mark, rule.Table = fam, 2000, vrfMark, vrfTable
			if err := h.RuleAdd(rule); err != nil {
				return fmt.Errorf("add rule: %w", err)
			}
		}
		return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644)
	})
	if err != nil && errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip(err)
	}
	must(t, err)
	for ns, addrs := range map[*netNS][]string{w.peer: {"10.77.0.2/24", "fd77::2/64"}, w.outside: {"192.0.2.2/24", "2001:db8::2/64"}} {
		must(t, ns.do(func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			defer h.Close()
			l, err := h.LinkByName("eth0")
			if err != nil {
				return err
			}
			return addrsUp(h, l, addrs...)
		}))
	}
	return w
}

func addrsUp(h *netlink.Handle, l netlink.Link, addrs ...string) error {
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD // makes the address usable at once
		if err := h.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("add %s: %w", a, err)
		}
	}
	return h.LinkSetUp(l)
}

// Unmodified programs, as root and as a user without capabilities, use the tenant's
// VRF in both IP families, and loopback and the node's own addresses keep working.
func TestRootVRFBinding(t *testing.T) {
	w := newVRFSandbox(t)
	l := w.load()
	pod, ctr := w.cg("kubepods/podV"), w.cg("kubepods/podV/ctr")
	for _, a := range []string{"10.77.0.2:80", "[fd77::2]:80"} {
		w.peer.serve(t, a)
	}
	for _, a := range []string{"127.0.0.1:80", "[::1]:80", "192.0.2.1:80", "[2001:db8::1]:80"} {
		w.ns.serve(t, a)
	}
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	early := w.start(ctr, 0, "wait", "tcp 10.77.0.2:80")
	early.next()
	must(t, l.AttachPod(pod, "V", PodRow{NetworkID: 5, Mark: vrfMark, VRFIfindex: uint32(w.vrf)}))
	for _, p := range []string{"10.77.0.0/24", "fd77::/64"} {
		must(t, l.Put(DestRow{5, netip.MustParsePrefix(p)}))
	}
	bound := fmt.Sprintf("ok mark=%#x dev=%d", vrfMark, w.vrf)
	unbound := fmt.Sprintf("ok mark=%#x dev=0", vrfMark)
	for _, uid := range []int{0, 65534} {
		w.expect(fmt.Sprintf("uid %d in the pod", uid), ctr, uid,
			// a peer in the VRF: TCP, unconnected and connected UDP, ping
			[2]string{"tcp 10.77.0.2:80", "ok"}, [2]string{"tcp [fd77::2]:80", "ok"},
			[2]string{"udp 10.77.0.2:80", "ok"}, [2]string{"udp [fd77::2]:80", "ok"},
			[2]string{"udpc 10.77.0.2:80", "ok"}, [2]string{"udpc [fd77::2]:80", "ok"},
			[2]string{"ping 10.77.0.2", "ok"}, [2]string{"ping fd77::2", "ok"},
			// loopback
			[2]string{"tcp 127.0.0.1:80", "ok"}, [2]string{"tcp [::1]:80", "ok"}, [2]string{"udp 127.0.0.1:80", "ok"}, [2]string{"udp [::1]:80", "ok"},
			[2]string{"udpc 127.0.0.1:80", "ok"}, [2]string{"ping 127.0.0.1", "ok"}, [2]string{"ping ::1", "ok"},
			// the node's own addresses
			[2]string{"tcp 192.0.2.1:80", "ok"}, [2]string{"tcp [2001:db8::1]:80", "ok"}, [2]string{"udp 192.0.2.1:80", "ok"},
			// the device that sockets are bound to
			[2]string{"state 10.77.0.2:80", bound}, [2]string{"state [fd77::2]:80", bound}, [2]string{"state [::ffff:10.77.0.2]:80", bound},
			[2]string{"udp [::ffff:10.77.0.2]:80", "ok"}, [2]string{"state 127.0.0.1:80", unbound}, [2]string{"state [::1]:80", unbound},
			// destinations outside the VRF have no route
			[2]string{"udp 192.0.2.2:80", "EHOSTUNREACH"}, [2]string{"udp [2001:db8::2]:80", "EHOSTUNREACH"}, [2]string{"tcp 192.0.2.2:80", "EHOSTUNREACH"},
			[2]string{"set mark", "EPERM"}, [2]string{"set device", "EPERM"}, [2]string{"set ifindex", "EPERM"},
		)
	}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err == nil {
		unix.Close(fd)
		born := fmt.Sprintf("mark=%#x dev=%d", vrfMark, w.vrf)
		w.expect("SCTP", ctr, 65534, [2]string{"create sctp4", born}, [2]string{"create sctp6", born})
	} else {
		t.Logf("SCTP not tested: %v", err)
	}
	// Services lie inside every network.
	for _, p := range []string{"10.77.0.0/24", "fd77::/64"} {
		prefix := netip.MustParsePrefix(p)
		must(t, l.Delete(DestRow{5, prefix}))
		must(t, l.Put(DestRow{AllNetworks, prefix}))
	}
	w.expect("services", ctr, 65534,
		[2]string{"tcp 10.77.0.2:80", "ok"}, [2]string{"tcp [fd77::2]:80", "ok"}, [2]string{"udp 10.77.0.2:80", "ok"}, [2]string{"udp [fd77::2]:80", "ok"},
		[2]string{"state 10.77.0.2:80", bound}, [2]string{"state [fd77::2]:80", bound}, [2]string{"state 127.0.0.1:80", unbound})
	// Processes outside the pod do not reach the VRF.
	w.expect("another cgroup", w.cg("kubepods/podW"), 0, [2]string{"tcp 10.77.0.2:80", "ENETUNREACH"}, [2]string{"udp [fd77::2]:80", "ENETUNREACH"})
	early.proceed()
	if early.next(); early.next() != "ok" {
		t.Error("a process older than the attachment does not reach its network")
	}
	checkListeners(t, w, ctr)
	checkOwnPortsInVRF(t, w, l, pod, ctr)
	checkVRFGone(t, w, l, ctr)
}

// A pod's wildcard listener is reachable in the VRF and not in the default VRF; a
// listener on loopback is reachable on loopback.
func checkListeners(t *testing.T, w *vrfSandbox, ctr string) {
	for i, uid := range []int{0, 65534} {
		port := 8080 + 10*i
		for j, addr := range []string{"0.0.0.0", "[::]"} {
			s := w.start(ctr, uid, fmt.Sprintf("listen %s:%d", addr, port+j))
			if got := s.next(); got != "ok" {
				t.Fatalf("uid %d: listen on %s: %s", uid, addr, got)
			}
		}
		at := func(ns *netNS, host string, port int) string {
			var got string
			must(t, ns.do(func() error { got = result(tcp(net.JoinHostPort(host, fmt.Sprint(port)))); return nil }))
			return got
		}
		for _, c := range []struct {
			from *netNS
			host string
			port int
			want string
		}{
			{w.peer, "10.77.0.1", port, "ok"}, {w.peer, "10.77.0.1", port + 1, "ok"}, {w.peer, "fd77::1", port + 1, "ok"},
			{w.outside, "192.0.2.1", port, "ECONNREFUSED"}, {w.outside, "192.0.2.1", port + 1, "ECONNREFUSED"}, {w.outside, "2001:db8::1", port + 1, "ECONNREFUSED"},
			{w.outside, "192.0.2.1", 80, "ok"}, // the node's own listener still works
			{w.peer, "10.77.0.1", 80, "ECONNREFUSED"},
		} {
			if got := at(c.from, c.host, c.port); got != c.want {
				t.Errorf("uid %d: to %s port %d: %s, want %s", uid, c.host, c.port, got, c.want)
			}
		}
		s := w.start(ctr, uid, fmt.Sprintf("listen 127.0.0.1:%d", port+5))
		if got := s.next(); got != "ok" {
			t.Fatalf("listen on loopback: %s", got)
		}
		w.expect("loopback listener", ctr, uid, [2]string{fmt.Sprintf("tcp 127.0.0.1:%d", port+5), "ok"})
	}
}

// TestRootOwnPorts: a pod takes a port of the agent and the controllers at no address outside its network, whether the
// node has the address or not. It takes other ports there, and these ports in its network. Any device serves for a VRF here.
func TestRootOwnPorts(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	pod, ctr := s.cg("kubepods/podV"), s.cg("kubepods/podV/ctr")
	vrf := 0
	must(t, s.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		for name, addrs := range map[string][]string{"in": {"10.77.0.1/24", "fd77::1/64", "fe80::1/64"}, "out": {"192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"}} {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "1"}); err != nil {
				return err
			}
			link, err := h.LinkByName(name)
			if err == nil {
				err = addrsUp(h, link, addrs...)
			}
			if err != nil {
				return err
			}
			if name == "in" {
				vrf = link.Attrs().Index
			}
		}
		return nil
	}))
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod), OwnFirst: 7600, OwnLast: 7601}))
	must(t, l.AttachPod(pod, "V", PodRow{NetworkID: 5, Mark: vrfMark, VRFIfindex: uint32(vrf)}))
	for _, p := range []string{"10.77.0.0/24", "fd77::/64"} {
		must(t, l.Put(DestRow{5, netip.MustParsePrefix(p)}))
	}
	checkOwnPorts(t, s, ctr)
	if counts(t, l)[ReasonBindOwn] == 0 {
		t.Error("no refusal is counted")
	}
	// A process that has left the host's network namespace has ports of its own.
	s.expect("another namespace", s.cg("kubepods/podV/ctr"), 0, [2]string{"unshare", "ok"}, [2]string{"take 192.0.2.9:7600", "ok"})
}

// checkOwnPorts checks which of the ports 7600 and 7601 a pod takes at which address.
func checkOwnPorts(t *testing.T, s *sandbox, ctr string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	mptcp := err == nil
	if mptcp {
		unix.Close(fd)
	} else {
		t.Logf("MPTCP not tested: %v", err)
	}
	for _, uid := range []int{0, 65534} {
		for outside, more := range map[string]string{
			"127.0.0.1": "", "127.0.0.2": "", "[::1]": "", "[::ffff:127.0.0.1]": "",
			"192.0.2.1": "", "[2001:db8::1]": "", "[::ffff:192.0.2.1]": "", // the node's
			"198.51.100.9": "", "[2001:db8:9::9]": "", "[::ffff:198.51.100.9]": "", // nobody's
			"[fe80::1%out]": "",
			// A link-local address chooses the device that remains when the port is bound.
			"[::]": "[fe80::1%out]:0 ", "[2001:db8::2]": "[fe80::1%out]:0 ",
			// The device that a bind has given the socket does not remain.
			"[fe80::2%out]": "[::]:0 ",
		} {
			for port, want := range map[int]string{7599: "ok", 7600: "EPERM", 7601: "EPERM", 7602: "ok"} {
				s.expect(fmt.Sprintf("uid %d", uid), ctr, uid, [2]string{fmt.Sprintf("take %s%s:%d", more, outside, port), want})
			}
		}
		if mptcp {
			for addr, want := range map[string]string{"192.0.2.1:7600": "EPERM", "[2001:db8::1]:7600": "EPERM", "[fe80::1%out]:7600": "EPERM", "192.0.2.1:7602": "ok", "[fd77::1]:7600": "ok"} {
				s.expect(fmt.Sprintf("uid %d", uid), ctr, uid, [2]string{"mptake " + addr, want})
			}
		}
		for _, inside := range []string{"0.0.0.0", "[::]", "[::ffff:0.0.0.0]", "10.77.0.1", "[fd77::1]", "[::ffff:10.77.0.1]"} {
			s.expect(fmt.Sprintf("uid %d", uid), ctr, uid, [2]string{"take " + inside + ":7600", "ok"})
		}
		for _, first := range []string{"[::]:0", "[fd77::1]:0"} {
			s.expect(fmt.Sprintf("uid %d", uid), ctr, uid, [2]string{"take " + first + " [fd77::1]:7600", "ok"})
		}
	}
}

// checkOwnPortsInVRF: a pod does not take a port of the agent and the controllers outside its VRF, where they would not get it
// again. In the VRF it does.
func checkOwnPortsInVRF(t *testing.T, w *vrfSandbox, l *Loader, pod, ctr string) {
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod), OwnFirst: 7600, OwnLast: 7601}))
	for _, a := range []string{"127.0.0.1:7600", "192.0.2.1:7600", "198.51.100.9:7600", "[2001:db8::1]:7600", "[2001:db8:9::9]:7600"} {
		w.expect("outside the VRF", ctr, 65534, [2]string{"take " + a, "EPERM"})
	}
	held := w.start(ctr, 65534, "listen 0.0.0.0:7600")
	if got := held.next(); got != "ok" {
		t.Errorf("listen in the VRF: %s", got)
	}
	w.ns.serve(t, "0.0.0.0:7600") // the node's own
}

// Without the VRF device, calls that would bind a socket to it are refused.
func checkVRFGone(t *testing.T, w *vrfSandbox, l *Loader, ctr string) {
	must(t, w.ns.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName("t5")
		if err != nil {
			return err
		}
		return h.LinkDel(link)
	}))
	// Until the agent notices, sockets are bound to the index of the deleted device,
	// which the kernel does not check. The kernel does not reuse the index soon.
	w.expect("device just deleted", ctr, 65534, [2]string{"state 10.77.0.2:80", fmt.Sprintf("ENODEV mark=%#x dev=%d", vrfMark, w.vrf)})
	lost := w.start(ctr, 65534, "listen 0.0.0.0:9090")
	if got := lost.next(); got == "ok" {
		must(t, w.outside.do(func() error {
			if got := result(tcp("192.0.2.1:9090")); got != "ECONNREFUSED" {
				t.Errorf("a listener without its VRF is reachable in the default VRF: %s", got)
			}
			return nil
		}))
	}
	id, err := CgroupID(filepath.Dir(ctr))
	must(t, err)
	must(t, l.Put(PodRow{CgroupID: id, NetworkID: 5, Mark: vrfMark}))
	w.expect("without the device", ctr, 65534, [2]string{"state 10.77.0.2:80", fmt.Sprintf("EPERM mark=%#x dev=0", vrfMark)},
		[2]string{"listen 0.0.0.0:9091", "EPERM"}, [2]string{"tcp 127.0.0.1:80", "ok"})
	c := counts(t, l)
	for _, r := range []Reason{ReasonSockMarked, ReasonBindWildcard, ReasonConnectInside, ReasonSendInside, ReasonVRFMissing, ReasonSetMark, ReasonSetDevice} {
		if c[r] == 0 {
			t.Errorf("counter %s is 0: %v", r, c)
		}
	}
}

// A network's server that listens on all addresses is bound to the VRF. The network's
// own pods still reach it by loopback and by the node's addresses, and kubelet does
// on the ports that it probes; other processes do not. Connections to a server
// outside the network are not redirected.
func TestRootVRFRedirection(t *testing.T) {
	w := newVRFSandbox(t)
	l := w.load()
	pod, own, kubelet := w.cg("kubepods/podV"), w.cg("kubepods/podV/ctr"), w.cg("system/kubelet")
	other := w.cg("kubepods/podW")
	must(t, l.AttachRoot())
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod), PodRootLevels: levelMask(t, w.cg("kubepods")), KubeletLevels: levelMask(t, kubelet), ProbeLock: true, Guard: true, MarkFirst: 0x10000, MarkLast: 0x2711ffff}))
	must(t, l.Put(PodRootRow{w.id(w.cg("kubepods"))}))
	must(t, l.Put(KubeletRow{CgroupID: w.id(kubelet)}))
	must(t, l.Put(NetRow{NetworkID: 5, VRFIfindex: uint32(w.vrf), Mark: vrfMark, Host4: netip.MustParseAddr("10.77.0.1"), Host6: netip.MustParseAddr("fd77::1")}))
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		must(t, l.Put(LocalRow{netip.MustParseAddr(a)}))
	}
	must(t, l.Put(ProbeRow{Port: 8080, NetworkID: 5}))
	must(t, l.AttachPod(pod, "V", PodRow{NetworkID: 5, Mark: vrfMark, VRFIfindex: uint32(w.vrf)}))
	must(t, l.AttachPod(other, "W", PodRow{NetworkID: 6, Mark: 0x60000}))

	server := w.start(own, 65534, "listen [::]:8080")
	if got := server.next(); got != "ok" {
		t.Fatalf("server: %s", got)
	}
	echo := w.start(own, 65534, "echo [::]:8081")
	if got := echo.next(); got != "ok" {
		t.Fatalf("echo: %s", got)
	}
	for _, uid := range []int{0, 65534} {
		w.expect("its own pod", w.cg("kubepods/podV/other"), uid,
			[2]string{"tcp 127.0.0.1:8080", "ok"}, [2]string{"tcp [::1]:8080", "ok"}, [2]string{"tcp 192.0.2.1:8080", "ok"}, [2]string{"tcp [2001:db8::1]:8080", "ok"},
			[2]string{"tcp [::ffff:127.0.0.1]:8080", "ok"},
			[2]string{"udp 127.0.0.1:8081", "ok"}, [2]string{"udp [::1]:8081", "ok"}, [2]string{"udpc 127.0.0.1:8081", "ok"}, [2]string{"udpc [2001:db8::1]:8081", "ok"},
			[2]string{"peer tcp4 127.0.0.1:8080", "127.0.0.1:8080"}, [2]string{"peer tcp6 [::1]:8080", "[::1]:8080"},
			[2]string{"replyfrom 127.0.0.1:8081", "127.0.0.1:8081"}, [2]string{"replyfrom [::1]:8081", "[::1]:8081"},
			[2]string{"tcp 127.0.0.1:8089", "ECONNREFUSED"}) // nothing listens there
	}
	probes := [][2]string{{"tcp 192.0.2.1:8080", "ok"}, {"tcp [2001:db8::1]:8080", "ok"}, {"tcp 127.0.0.1:8080", "ok"}, {"tcp [::1]:8080", "ok"}}
	w.expect("kubelet", kubelet, 0, probes...)
	refused := func(pairs [][2]string) [][2]string {
		var out [][2]string
		for _, p := range pairs {
			out = append(out, [2]string{p[0], "ECONNREFUSED"})
		}
		return out
	}
	w.expect("another tenant's pod", other, 0, refused(probes)...)
	w.expect("a pod outside the tenants", w.cg("kubepods/podX"), 0, refused(probes)...)
	w.expect("root", w.cg("system/admin"), 0, refused(probes)...)
	w.expect("kubelet on a port of no probe", kubelet, 0, [2]string{"tcp 127.0.0.1:8085", "ECONNREFUSED"}, [2]string{"udpc 127.0.0.1:8081", "ECONNREFUSED"})

	// Another tenant's listener at the node's addresses gets no connection of the network and no
	// probe, and holds none.
	takeover := w.start(other, 0, "takeover 192.0.2.1:8080,[2001:db8::1]:8080,[::1]:8080,127.0.0.1:8080")
	if got := takeover.next(); got != "ok" {
		t.Fatalf("another tenant's server: %s", got)
	}
	w.expect("root, to another tenant's listener", w.cg("system/admin"), 0, [2]string{"tcp 192.0.2.1:8080", `unexpected greeting "taken over\n"`}, [2]string{"tcp [2001:db8::1]:8080", `unexpected greeting "taken over\n"`})
	w.expect("its own pod, with another tenant's listener", own, 0, probes...)
	w.expect("kubelet, with another tenant's listener", kubelet, 0, probes...)
	if ports, err := l.HeldProbes(); err != nil || len(ports) != 0 {
		t.Errorf("held by another tenant's listener: %v %v", ports, err)
	}
	takeover.stop()

	// A process outside the network listens on the port at one address: connections
	// to it are not redirected, and kubelet's are not redirected from then on.
	w.ns.serve(t, "192.0.2.1:8080")
	outside := w.start(w.cg("system/daemon"), 0, "listen 127.0.0.1:8081")
	if got := outside.next(); got != "ok" {
		t.Fatalf("daemon: %s", got)
	}
	w.expect("its own pod, to a listener outside", own, 0, [2]string{"tcp 192.0.2.1:8080", "ok"}, [2]string{"tcp 127.0.0.1:8081", "ok"})
	if ports, err := l.HeldProbes(); err != nil || len(ports) != 0 {
		t.Errorf("held before kubelet connected: %v %v", ports, err)
	}
	before := counts(t, l)[ReasonProbeRedirected]
	w.expect("kubelet, to a listener outside", kubelet, 0, [2]string{"tcp 192.0.2.1:8080", "ok"}, [2]string{"tcp [2001:db8::1]:8080", "ECONNREFUSED"})
	if c := counts(t, l); c[ReasonProbeRedirected] != before || c[ReasonProbePortHeld] != 2 {
		t.Errorf("counters: %v, %d probes redirected before", c, before)
	}
	if ports, err := l.HeldProbes(); err != nil || len(ports) != 1 || ports[0] != 8080 {
		t.Errorf("held: %v %v", ports, err)
	}
	// Servers that listen on loopback.
	local := w.start(own, 0, "listen 127.0.0.1:8090")
	if got := local.next(); got != "ok" {
		t.Fatalf("server on loopback: %s", got)
	}
	w.expect("its own pod", own, 0, [2]string{"tcp 127.0.0.1:8090", "ok"})
	w.expect("another tenant's pod", other, 0, [2]string{"tcp 127.0.0.1:8090", "EPERM"})
	w.expect("a daemon of the node", w.cg("system/admin"), 0, [2]string{"tcp 127.0.0.1:8090", "ok"})
	localUDP := w.start(own, 0, "echo 127.0.0.1:8091")
	if got := localUDP.next(); got != "ok" {
		t.Fatalf("UDP server on loopback: %s", got)
	}
	w.expect("another tenant's pod", other, 0, [2]string{"udp 127.0.0.1:8091", "EPERM"}, [2]string{"udpc 127.0.0.1:8091", "EPERM"})
}

// The LSM programs limit host-network pods' packet sockets and abstract unix sockets.
func TestRootLSM(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	for _, f := range l.Features() {
		if !f.OK {
			t.Skipf("skip: no-bpf-lsm: %s: %s", f.Name, f.Reason)
		}
	}
	must(t, l.AttachRoot())
	tenant, plain, trusted := s.cg("kubepods/podT"), s.cg("kubepods/podP"), s.cg("kubepods/podA")
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, tenant), PodRootLevels: levelMask(t, s.cg("kubepods")), Guard: true, MarkFirst: 0x10000, MarkLast: 0x2711ffff}))
	for _, r := range []Row{PodRootRow{s.id(s.cg("kubepods"))}, PodRow{CgroupID: s.id(tenant), NetworkID: 5}, PodRow{CgroupID: s.id(plain)}, PodRow{CgroupID: s.id(trusted), Trusted: true}} {
		must(t, l.Put(r))
	}
	index := map[string]int{}
	must(t, s.ns.do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644); err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		for _, name := range []string{"eth0", "mp5", "new"} {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}); err != nil {
				return err
			}
			link, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			index[name] = link.Attrs().Index
		}
		return nil
	}))
	must(t, l.Put(DoorRow{Ifindex: index["eth0"], Kind: DoorOwn}))
	must(t, l.Put(DoorRow{Ifindex: index["mp5"], Kind: DoorPort, NetworkID: 5}))
	must(t, l.Put(DoorRow{Ifindex: 1, Kind: DoorLoopback}))
	all := [][2]string{{"packet 0", "ok"}, {"packet 768", "ok"}, {"packet 0 eth0", "ok"}, {"packet 0 mp5", "ok"}, {"packet 0 new", "ok"}, {"packet 0 lo", "ok"}, {"packet 0 all", "ok"}}
	s.expect("the administrator", s.cg("system/admin"), 0, all...)
	s.expect("a trusted pod", trusted, 0, all...)
	for what, cg := range map[string]string{"a tenant's pod": tenant, "an unknown pod": s.cg("kubepods/podU")} {
		s.expect(what, cg, 0, [2]string{"packet 0", "EPERM"}, [2]string{"packet 768", "EPERM"}, [2]string{"packet 0 eth0", "EPERM"}, [2]string{"tcp 127.0.0.1:9", "ECONNREFUSED"}, [2]string{"ping 127.0.0.1", "ok"})
	}
	s.expect("a pod outside the tenants", plain, 0, [2]string{"packet 0", "ok"}, [2]string{"packet 0 eth0", "ok"}, [2]string{"packet 768", "EPERM"},
		[2]string{"packet 0 mp5", "EPERM"}, [2]string{"packet 0 new", "EPERM"}, [2]string{"packet 0 lo", "EPERM"}, [2]string{"packet 0 all", "EPERM"})
	// The program sees no value, and is not that of cgroup/setsockopt, which this tenant's pod does not have here.
	s.expect("a tenant's pod", tenant, 0, [2]string{"set mark", "EPERM"}, [2]string{"set device", "EPERM"}, [2]string{"set ifindex6", "EPERM"}, [2]string{"set unicast", "EPERM"}, [2]string{"set unicast6", "EPERM"}, [2]string{"set harmless", "ok"})
	s.expect("a pod outside the tenants", plain, 0, [2]string{"set mark", "ok"}, [2]string{"set device", "ok"}, [2]string{"bypass", "EPERM"})
	s.expect("a trusted pod", trusted, 0, [2]string{"set mark", "ok"}, [2]string{"bypass", "ok"})
	s.expectErrorQueues(map[string]string{"a tenant's pod": tenant, "a pod outside the tenants": plain, "an unknown pod": s.cg("kubepods/podU")}, map[string]string{"a trusted pod": trusted, "the administrator": s.cg("system/admin")})
	s.expect("the administrator", s.cg("system/admin"), 0, [2]string{"set mark", "ok"}, [2]string{"bypass", "ok"})
	// Families that bypass the programs: RDS, L2TP's PPPoX, TIPC, RxRPC, vsock, QRTR and SMC. The kernel may lack
	// one: then the administrator's attempt fails with another error.
	for _, family := range []string{"socket 21", "socket 24", "socket 30", "socket 33", "socket 40", "socket 42", "socket 43", "socket 2 256", "socket 10 256"} {
		s.expect("a tenant's pod", tenant, 0, [2]string{family, "EPERM"})
		s.expect("an unknown pod", s.cg("kubepods/podU"), 0, [2]string{family, "EPERM"})
		if got := s.outcome(s.cg("system/admin"), 0, family); got == "EPERM" {
			t.Errorf("%s is refused to the administrator", family)
		}
	}
	s.expect("a pod outside the tenants", plain, 0, [2]string{"socket 24", "EPERM"})
	if got := s.outcome(plain, 0, "socket 42"); got == "EPERM" {
		t.Error("socket 42 is refused to a pod outside the tenants")
	}
	s.expect("a tenant's pod in its own network namespace", tenant, 0, [2]string{"unshare", "ok"}, [2]string{"packet 0", "ok"}, [2]string{"packet 768", "ok"}, [2]string{"packet 0 lo", "ok"}, [2]string{"socket 40", "EPERM"})
	// A port of a network's device, on which its own servers listen.
	for _, address := range []string{"0.0.0.0:8080", "[::]:8080"} {
		bind := func(device string) string { return "bind " + device + " " + address }
		s.expect("a pod outside the tenants", plain, 0, [2]string{bind("eth0"), "ok"}, [2]string{bind("mp5"), "EPERM"})
		s.expect("an unknown pod", s.cg("kubepods/podU"), 0, [2]string{bind("eth0"), "ok"}, [2]string{bind("mp5"), "EPERM"})
		s.expect("the administrator", s.cg("system/admin"), 0, [2]string{bind("mp5"), "ok"})
	}
	// Abstract unix sockets: no process of another tenant reaches them, and it reaches those with a path,
	// which it can only if it has the directory.
	other := s.cg("kubepods/podO")
	must(t, l.Put(PodRow{CgroupID: s.id(other), NetworkID: 6}))
	path := t.TempDir() + "/socket"
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"@bulkhead-test", path} {
		server := s.start(tenant, 0, "unix-listen "+name)
		if got := server.next(); got != "ok" {
			t.Fatalf("server at %s: %s", name, got)
		}
		reaches := func(want string) [][2]string {
			return [][2]string{{"unix " + name, want}, {"unixgram " + name, want}, {"unixgram " + name + " connected", want}}
		}
		foreign, received := "EPERM", "3 streams, 6 datagrams"
		if name == path {
			foreign, received = "ok", "5 streams, 10 datagrams"
		}
		s.expect("another tenant's pod", other, 0, reaches(foreign)...)
		s.expect("an unknown pod", s.cg("kubepods/podU"), 0, reaches(foreign)...)
		s.expect("its own pod", tenant, 0, reaches("ok")...)
		s.expect("a pod outside the tenants", plain, 0, reaches("ok")...)
		s.expect("the administrator", s.cg("system/admin"), 0, reaches("ok")...)
		server.proceed()
		if got := server.next(); got != received {
			t.Errorf("the server at %s has received %s, want %s", name, got, received)
		}
		server.stop()
	}
	node := s.start(s.cg("system/admin"), 0, "unix-listen @bulkhead-test")
	if got := node.next(); got != "ok" {
		t.Fatalf("the node's server: %s", got)
	}
	s.expect("a tenant's pod, to the node's server", tenant, 0, [2]string{"unix @bulkhead-test", "ok"})
	if c := counts(t, l); c[ReasonUnixForeign] != 6 {
		t.Errorf("counters: %v", c)
	}
	before, err := l.ProgramIDs()
	must(t, err)
	l.Close()
	l = s.load()
	if after, _ := l.ProgramIDs(); before["bh_lsm_create"] != after["bh_lsm_create"] || before["bh_lsm_create"] == 0 {
		t.Errorf("program ids after a restart: %v, then %v", before, after)
	}
	s.expect("after a restart", tenant, 0, [2]string{"packet 0", "EPERM"})
}
