// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bulkhead/test/adversary/attack"
)

// Cluster IPs of networks 1 and 2, both routed to network 1's management port.
var clusterIPRows = []Row{
	ClusterIPRow{netip.MustParseAddr("10.96.0.7"), 1}, ClusterIPRow{netip.MustParseAddr("fd96::7"), 1},
	ClusterIPRow{netip.MustParseAddr("10.96.0.8"), 2}, ClusterIPRow{netip.MustParseAddr("fd96::8"), 2},
}

// A host-network pod of an ingress namespace reaches the network's cluster IPs and nothing else of
// it, and not by packet sockets. No other pod outside the network does.
func TestRootGuardClusterIPs(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podrouter")), Ingress: true}))
	for _, r := range clusterIPRows {
		must(t, w.l.Put(r))
	}
	addRoute(t, w.ns, "mp1", "10.96.0.0/16", "10.1.0.3")
	addRoute(t, w.ns, "mp1", "fd96::/112", "fd01::3")
	frame := func(to, src string) attack.Attempt {
		return attack.Attempt{Socket: "packet", To: to, Src: src, Port: attack.Port, Device: "mp1", SrcMAC: w.own["mp1"], DstMAC: w.mac["mp1"]}
	}
	sockets := func(v4, v6 string) []attack.Attempt {
		return []attack.Attempt{
			{Socket: "udp", To: v4, Port: attack.Port}, {Socket: "udp", To: v6, Port: attack.Port}, {Socket: "udp", To: v4, Port: attack.Port, How: []string{"connect"}},
			{Socket: "tcp", To: v4, Port: attack.Port}, {Socket: "tcp", To: v6, Port: attack.Port}, {Socket: "hdrincl", To: v4, Src: "10.1.0.2", Port: attack.Port},
		}
	}
	frames := []attack.Attempt{frame("10.96.0.7", "10.1.0.2"), frame("fd96::7", "fd01::2")}
	own, other := sockets("10.96.0.7", "fd96::7"), sockets("10.96.0.8", "fd96::8")
	w.expectAttempts("the network's cluster IP", "kubepods/podrouter", "mp1", own, true)
	w.expectAttempts("the same by frames", "kubepods/podrouter", "mp1", frames, false)
	w.expectAttempts("another network's cluster IP", "kubepods/podrouter", "mp1", other, false)
	w.expectAttempts("a pod's address", "kubepods/podrouter", "mp1", sockets("10.1.0.3", "fd01::3"), false)
	for _, pod := range []string{"kubepods/podplain", "kubepods/podblue", "kubepods/podtrusted", "kubepods/podnew"} {
		w.expectAttempts("the network's cluster IP", pod, "mp1", own, false)
	}
	w.expectAttempts("the network's own pod", "kubepods/podred", "mp1", append(own, other...), true)
	must(t, w.l.Delete(clusterIPRows[0]))
	must(t, w.l.Delete(clusterIPRows[1]))
	w.expectAttempts("a cluster IP that is gone", "kubepods/podrouter", "mp1", own, false)
}

// The pod receives what comes from the network's cluster IPs, and nothing else of the network.
func TestRootGuardClusterIPReplies(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.attachGuard()
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podrouter")), Ingress: true}))
	must(t, w.l.Put(ClusterIPRow{netip.MustParseAddr("10.96.0.7"), 1}))
	must(t, w.l.Put(ClusterIPRow{netip.MustParseAddr("10.96.0.8"), 2}))
	addRoute(t, w.ns, "mp1", "10.96.0.0/16", "10.1.0.3")
	raw, err := json.Marshal(attack.Listener{Kind: "raw-udp"})
	must(t, err)
	for _, c := range []struct {
		cgroup, src string
		want        bool
	}{
		{"kubepods/podrouter", "10.96.0.7", true}, {"kubepods/podrouter", "10.96.0.8", false}, {"kubepods/podrouter", "10.1.0.3", false},
		{"kubepods/podplain", "10.96.0.7", false}, {"kubepods/podblue", "10.96.0.7", false}, {"kubepods/podred", "10.1.0.3", true},
	} {
		p := w.start(w.cg(c.cgroup), 0, "receive "+string(raw))
		if got := p.next(); got != "ready" {
			t.Fatalf("%s: %s", c.cgroup, got)
		}
		w.attemptID++
		a := attack.Attempt{ID: w.attemptID, Socket: "hdrincl", To: "10.1.0.2", Src: c.src, Port: attack.Port}
		must(t, w.peers["mp1"].do(a.Do))
		p.proceed()
		if got := p.next(); (got != "[]") != c.want {
			t.Errorf("%s receives %s from %s, want %t", c.cgroup, got, c.src, c.want)
		}
		p.stop()
	}
}

// The node forwards between the cluster default network and a network only to the network's cluster
// IPs, and what comes from them.
func TestRootGuardForwardedClusterIPs(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	must(t, w.ns.do(func() error { return w.l.AttachDoor(DoorRow{Ifindex: w.index["eth0"], Kind: DoorDefault}) }))
	must(t, w.l.Put(ClusterIPRow{netip.MustParseAddr("10.96.0.7"), 1}))
	must(t, w.l.Put(ClusterIPRow{netip.MustParseAddr("10.96.0.8"), 2}))
	addRoute(t, w.ns, "mp1", "10.96.0.0/16", "10.1.0.3")
	for _, to := range []string{"10.96.0.0/16", "10.1.0.0/24"} {
		addRoute(t, w.peers["eth0"], "eth0", to, "192.0.2.1")
	}
	addRoute(t, w.peers["mp1"], "eth0", "192.0.2.0/24", "10.1.0.2")
	must(t, w.l.Put(LockedRow{netip.MustParseAddr("192.0.2.10"), 1}))
	onLink(t, w.peers["eth0"], "eth0", func(h *netlink.Handle, l netlink.Link) error { return addrsUp(h, l, "192.0.2.10/24") })
	for _, c := range []struct {
		what, from, src, to, behind string
		want                        bool
	}{
		{"to a cluster IP", "eth0", "192.0.2.9", "10.96.0.7", "mp1", true},
		{"to another network's cluster IP", "eth0", "192.0.2.9", "10.96.0.8", "mp1", false},
		{"to a pod", "eth0", "192.0.2.9", "10.1.0.3", "mp1", false},
		{"from a cluster IP", "mp1", "10.96.0.7", "192.0.2.9", "eth0", true},
		{"from another network's cluster IP", "mp1", "10.96.0.8", "192.0.2.9", "eth0", false},
		{"from a pod", "mp1", "10.1.0.3", "192.0.2.9", "eth0", false},
		{"from a cluster IP to a locked address", "mp1", "10.96.0.7", "192.0.2.10", "eth0", false},
	} {
		// Each is sent until it is received or the guard has refused it.
		refused := counts(t, w.l)[ReasonGuardForwarded]
		for deadline := time.Now().Add(20 * time.Second); ; {
			w.attemptID++
			raw, err := json.Marshal(attack.Attempt{ID: w.attemptID, Patience: 150, Socket: "hdrincl", To: c.to, Src: c.src, Port: attack.Port})
			must(t, err)
			p := w.startIn(w.peers[c.from], w.cg("system/admin"), 0, "attempt "+string(raw))
			p.next()
			p.stop()
			if w.receivers[c.behind].has(w.attemptID) {
				if !c.want {
					t.Errorf("%s: forwarded", c.what)
				}
				break
			}
			if now := counts(t, w.l)[ReasonGuardForwarded]; now > refused {
				if c.want {
					t.Errorf("%s: refused", c.what)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: neither forwarded nor refused; counters %v", c.what, counts(t, w.l))
				break
			}
		}
	}
}

// Sockets of an ingress namespace's host-network pod are bound to the VRF of the network whose
// cluster IP they use, and to none for other destinations.
func TestRootVRFIngress(t *testing.T) {
	w := newVRFSandbox(t)
	l := w.load()
	pod, ctr := w.cg("kubepods/podR"), w.cg("kubepods/podR/ctr")
	for _, a := range []string{"10.77.0.2:80", "[fd77::2]:80"} { // stand for cluster IPs
		w.peer.serve(t, a)
	}
	for _, a := range []string{"192.0.2.2:80", "[2001:db8::2]:80"} {
		w.outside.serve(t, a)
	}
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	must(t, l.AttachPod(pod, "R", PodRow{Ingress: true}))
	rows := []Row{NetRow{NetworkID: 5, VRFIfindex: uint32(w.vrf), Mark: vrfMark}}
	for _, a := range []string{"10.77.0.2", "fd77::2"} {
		rows = append(rows, ClusterIPRow{netip.MustParseAddr(a), 5})
	}
	for _, r := range append(rows, ClusterIPRow{netip.MustParseAddr("10.96.0.9"), 6}) { // of a network without a VRF
		must(t, l.Put(r))
	}
	bound, unbound := fmt.Sprintf("ok mark=%#x dev=%d", 0x80000000|vrfMark, w.vrf), "ok mark=0x0 dev=0"
	for _, uid := range []int{0, 65534} {
		w.expect(fmt.Sprintf("uid %d in the pod", uid), ctr, uid,
			[2]string{"tcp 10.77.0.2:80", "ok"}, [2]string{"tcp [fd77::2]:80", "ok"},
			// The kernel chooses the first unconnected datagram's route before the program binds the socket.
			[2]string{"udp 10.77.0.2:80", "ENETUNREACH"}, [2]string{"udp [fd77::2]:80", "ENETUNREACH"},
			[2]string{"udpc 10.77.0.2:80", "ok"}, [2]string{"udpc [fd77::2]:80", "ok"},
			[2]string{"state 10.77.0.2:80", bound}, [2]string{"state [fd77::2]:80", bound}, [2]string{"state [::ffff:10.77.0.2]:80", bound},
			[2]string{"tcp 192.0.2.2:80", "ok"}, [2]string{"udp [2001:db8::2]:80", "ok"}, [2]string{"state 192.0.2.2:80", unbound}, [2]string{"state [2001:db8::2]:80", unbound},
			[2]string{"tcp 10.96.0.9:80", "EPERM"}, [2]string{"udp 10.96.0.9:80", "EPERM"})
	}
	for _, r := range rows[1:] {
		must(t, l.Delete(r))
	}
	w.expect("without cluster IPs", ctr, 0, [2]string{"tcp 10.77.0.2:80", "ENETUNREACH"}, [2]string{"udp [fd77::2]:80", "ENETUNREACH"})
}
