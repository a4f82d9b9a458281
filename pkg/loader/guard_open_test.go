// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"testing"

	"bulkhead/test/adversary/attack"
)

// Open ports of a locked address: all but tenants' pods reach those ports, from any kind of
// socket that they may have, and nothing else of the address.
func TestRootOpenPorts(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	const other = attack.Port + 1
	to := func(port uint16) []attack.Attempt {
		return []attack.Attempt{
			{Socket: "udp", To: "10.0.0.3", Port: port}, {Socket: "udp", To: "fd00::3", Port: port}, {Socket: "udp", To: "10.0.0.3", Port: port, How: []string{"connect"}},
			{Socket: "udp", To: "10.0.0.3", Port: port, How: []string{"mapped"}},
			{Socket: "hdrincl", To: "10.0.0.3", Src: "10.0.0.2", Port: port}, {Socket: "hdrincl", To: "10.0.0.3", Src: "10.0.0.2", Port: port, How: []string{"fragments"}},
			{Socket: "hdrincl", To: "fd00::3", Src: "fd00::2", Port: port},
		}
	}
	tcp := []attack.Attempt{{Socket: "tcp", To: "10.0.0.3", Port: attack.Port}, {Socket: "tcp", To: "fd00::3", Port: attack.Port}}
	echo := []attack.Attempt{{Socket: "raw-icmp", To: "10.0.0.3"}, {Socket: "raw-icmp", To: "fd00::3"}}
	outside := []string{"kubepods/podplain", "kubepods/podnew", "system/admin"}
	for _, cgroup := range outside {
		w.expectAttempts("to a port that is not open yet", cgroup, "mp0", to(attack.Port), false)
	}
	for _, a := range []string{"10.0.0.3", "fd00::3"} {
		for _, port := range []uint16{0, attack.Port} {
			must(t, w.l.Put(OpenRow{netip.MustParseAddr(a), "udp", port}))
		}
	}
	for _, cgroup := range outside {
		w.expectAttempts("to an open port", cgroup, "mp0", to(attack.Port), true)
		w.expectAttempts("to another port", cgroup, "mp0", withoutFragments(to(other)), false)
		w.expectAttempts("to the port of another protocol", cgroup, "mp0", tcp, false)
		w.expectAttempts("echo requests", cgroup, "mp0", echo, false)
	}
	frame := attack.Attempt{Socket: "packet", To: "10.0.0.3", Src: "10.0.0.2", Port: attack.Port, Device: "mp0", SrcMAC: w.own["mp0"], DstMAC: w.mac["mp0"]}
	w.expectAttempts("a frame to an open port", "kubepods/podplain", "mp0", []attack.Attempt{frame}, false)
	for _, cgroup := range []string{"kubepods/podred", "kubepods/podblue"} {
		w.expectAttempts("a tenant's pod, to an open port", cgroup, "mp0", to(attack.Port), false)
	}
	for _, a := range []string{"10.0.0.3", "fd00::3"} {
		must(t, w.l.Put(OpenRow{netip.MustParseAddr(a), "tcp", attack.Port}))
		must(t, w.l.Put(OpenRow{netip.MustParseAddr(a), "icmp", 0}))
	}
	for _, cgroup := range outside {
		w.expectAttempts("TCP", cgroup, "mp0", tcp, true)
		w.expectAttempts("echo requests", cgroup, "mp0", echo, true)
	}
	must(t, w.l.Delete(OpenRow{netip.MustParseAddr("10.0.0.3"), "tcp", attack.Port}))
	w.expectAttempts("TCP, closed again", "kubepods/podplain", "mp0", tcp[:1], false)
}

// The locked interface of a pod with open ports receives frames of other peers for those
// ports, and its replies pass.
func TestRootOpenPortFrames(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	const peer, allNodes = "0a:58:0a:00:00:09", "33:33:00:00:00:01"
	to := func(port uint16) attack.Attempt {
		return attack.Attempt{Socket: "packet", To: "10.0.0.4", Src: "10.0.0.9", Port: port, Device: "locked", SrcMAC: peer, DstMAC: w.mac["locked"]}
	}
	from := func(frame, src, dst, dstMAC string, how ...string) attack.Attempt {
		return attack.Attempt{Socket: "packet", Device: "eth0", Frame: frame, Src: src, To: dst, SrcMAC: w.mac["locked"], DstMAC: dstMAC, Port: attack.Port, How: how}
	}
	neighbour := attack.Attempt{Socket: "packet", Frame: "neighbour-advertisement", To: "fd00::4", Src: "fd00::9", Device: "locked", SrcMAC: peer, DstMAC: w.mac["locked"]}
	router := neighbour
	router.Frame = "router-advertisement"
	replies := func() []attack.Attempt {
		return []attack.Attempt{from("udp", "10.0.0.4", "10.0.0.9", peer), from("udp", "10.0.0.4", "10.0.0.9", peer, "ring"),
			from("neighbour-solicitation", "fe80::9", "ff02::1", allNodes, "target=fd00::77"), from("neighbour-advertisement", "fd00::4", "fd00::9", peer)}
	}
	never := func() []attack.Attempt {
		return []attack.Attempt{from("udp", "10.0.0.5", "10.0.0.9", peer), from("udp", "10.0.0.4", "224.0.0.1", "01:00:5e:00:00:01"), from("echo", "10.0.0.4", "10.0.0.9", peer),
			from("router-advertisement", "fe80::9", "ff02::1", allNodes), from("router-solicitation", "fe80::9", "ff02::2", allNodes)}
	}
	check := func(what string, attempts []attack.Attempt, want bool) {
		t.Helper()
		for i, got := range w.sendFrames("locked", attempts) {
			if a := attempts[i]; got != want {
				t.Errorf("%s: %s from %s to %s %v passes %t, want %t", what, a.Frame, a.Src, a.To, a.How, got, want)
			}
		}
	}
	w.expectAttempts("nothing is open", "system/admin", "locked", []attack.Attempt{to(attack.Port), neighbour, router}, false)
	check("nothing is open", replies(), false)
	row := w.lockedDoor()
	row.Open = true
	must(t, w.ns.do(func() error { return w.l.AttachDoor(row) }))
	must(t, w.l.Put(OpenRow{netip.MustParseAddr("10.0.0.4"), "udp", attack.Port}))
	for id := range uint16(1000) { // replies have the port of their sender, which grows with each attempt
		must(t, w.l.Put(OpenRow{netip.MustParseAddr("10.0.0.4"), "udp", attack.Attempt{ID: int(id)}.SourcePort()}))
	}
	w.expectAttempts("to an open port", "system/admin", "locked", []attack.Attempt{to(attack.Port), neighbour}, true)
	w.expectAttempts("to another port, and a router advertisement", "system/admin", "locked", []attack.Attempt{to(attack.Port + 1), router}, false)
	check("replies", replies(), true)
	check("what is no reply", never(), false)
}
