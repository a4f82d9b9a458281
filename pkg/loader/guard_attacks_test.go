// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// Known attacks: their packets arrive without the guard and the root cgroup's
// programs, and not with them.
func TestRootGuardAttacks(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	green := network.LinkLocal(w.mac["mp1"]).WithZone("mp1").String()
	const nonRoot = 1000
	attacks := []struct {
		name     string
		cgroup   string
		uid      int
		dev      string
		attempts []attack.Attempt
	}{
		{"a tenant's pod without capabilities: IP_PKTINFO with the network's port", "kubepods/podblue", nonRoot, "mp1", []attack.Attempt{
			{Socket: "udp", To: "10.1.0.3", Port: attack.Port, Device: "mp1", How: []string{"cmsg-pktinfo"}},
			{Socket: "udp", To: "fd01::3", Port: attack.Port, Device: "mp1", How: []string{"cmsg-pktinfo"}}}},
		{"a tenant's pod without capabilities: link-local address with the port's scope id", "kubepods/podblue", nonRoot, "mp1", []attack.Attempt{
			{Socket: "tcp", To: green, Port: attack.Port}, {Socket: "udp", To: green, Port: attack.Port}}},
		{"a tenant's pod with NET_RAW: raw ICMP with IP_PKTINFO or a mark", "kubepods/podblue", 0, "mp1", []attack.Attempt{
			{Socket: "raw-icmp", To: "10.1.0.3", Device: "mp1", How: []string{"cmsg-pktinfo"}},
			{Socket: "raw-icmp", To: "fd01::3", How: []string{"cmsg-mark=0x10000"}}, {Socket: "raw-icmp", To: "fd01::3", How: []string{"cmsg-mark=0x14000"}}}},
		{"a tenant's pod with NET_RAW: kubelet's mark to a locked address", "kubepods/podblue", 0, "mp0", []attack.Attempt{
			{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("cmsg-mark=%#x", KubeletMark)}},
			{Socket: "raw-icmp", To: "fd00::3", How: []string{fmt.Sprintf("cmsg-mark=%#x", KubeletMark)}}}},
		{"a tenant's pod with NET_RAW: a packet socket on the network's port", "kubepods/podblue", 0, "mp1", []attack.Attempt{
			{Socket: "packet", To: "10.1.0.3", Src: "10.1.0.2", Port: attack.Port, Device: "mp1", SrcMAC: w.own["mp1"], DstMAC: w.mac["mp1"]}}},
		{"a pod outside the tenants without capabilities: SO_BINDTODEVICE and a scope id", "kubepods/podplain", nonRoot, "mp1", []attack.Attempt{
			{Socket: "udp", To: "10.1.0.3", Port: attack.Port, Device: "mp1", How: []string{"bindtodevice"}},
			{Socket: "udp", To: green, Port: attack.Port}}},
		{"a pod outside the tenants without capabilities: a datagram to another node's overlay port", "kubepods/podplain", nonRoot, "eth0", []attack.Attempt{
			{Socket: "udp", To: "192.0.2.9", Port: guardTunnelPort}, {Socket: "udp", To: "2001:db8::9", Port: guardTunnelPort}}},
		{"a tenant whose subnet has the nodes' addresses: a datagram to another node's overlay port", "kubepods/podblue", nonRoot, "eth0", []attack.Attempt{
			{Socket: "udp", To: "192.0.2.9", Port: guardTunnelPort}, {Socket: "udp", To: "2001:db8::9", Port: guardTunnelPort}}},
	}
	for _, p := range []string{"192.0.2.0/24", "2001:db8::/64"} {
		must(t, w.l.Put(DestRow{2, netip.MustParsePrefix(p)}))
	}
	run := func() [][]bool {
		var out [][]bool
		for _, a := range attacks {
			out = append(out, w.attempt(a.cgroup, a.uid, a.dev, a.attempts...))
		}
		return out
	}
	must(t, w.l.DetachRoot())
	without := run()
	must(t, w.l.AttachRoot())
	w.detachLSM()
	w.attachGuard()
	with := run()
	for i, c := range attacks {
		t.Run(c.name, func(t *testing.T) {
			for j, a := range c.attempts {
				if !without[i][j] || with[i][j] {
					t.Errorf("%s %v to %s: received without the guard %t, with it %t", a.Socket, a.How, a.To, without[i][j], with[i][j])
				}
			}
		})
	}
}

// The kernel reads an option's value that is longer than a page again after the program: it is
// refused whatever the program sees, to pods alone.
func TestRootLongOptions(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.expect("a pod outside the tenants", w.cg("kubepods/podplain"), 0, [2]string{"set mark", "ok"}, [2]string{"set long-mark", "EPERM"},
		[2]string{"set long-unicast", "EPERM"}, [2]string{"set long-multicast", "EPERM"}, [2]string{"set long-pktinfo6", "EPERM"})
	w.expect("the administrator", w.cg("system/admin"), 0, [2]string{"set long-mark", "ok"}, [2]string{"set long-unicast", "EINVAL"},
		[2]string{"set long-multicast", "ok"}, [2]string{"set long-pktinfo6", "ok"})
}
