// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/way"
)

// What got through once, each by the attacker's program: heard without the
// guard and the root's hooks, not heard with them.
func TestRootGuardFindings(t *testing.T) {
	w := newGuardWorld(t, false)
	w.dropLSM()
	green := network.LinkLocal(w.mac["mp1"]).WithZone("mp1").String()
	const nobody = 1000
	findings := []struct {
		name   string
		who    string
		uid    int
		behind string
		ways   []way.Attempt
	}{
		{"a tenant's pod without capabilities: IP_PKTINFO names the network's port", "kubepods/podblue", nobody, "mp1", []way.Attempt{
			{Socket: "udp", To: "10.1.0.3", Port: way.Port, Device: "mp1", How: []string{"cmsg-pktinfo"}},
			{Socket: "udp", To: "fd01::3", Port: way.Port, Device: "mp1", How: []string{"cmsg-pktinfo"}}}},
		{"a tenant's pod without capabilities: TCP to a link-local address by the port's scope id", "kubepods/podblue", nobody, "mp1", []way.Attempt{
			{Socket: "tcp", To: green, Port: way.Port}, {Socket: "udp", To: green, Port: way.Port}}},
		{"a tenant's pod with NET_RAW: raw ICMP with IP_PKTINFO or a mark", "kubepods/podblue", 0, "mp1", []way.Attempt{
			{Socket: "raw-icmp", To: "10.1.0.3", Device: "mp1", How: []string{"cmsg-pktinfo"}},
			{Socket: "raw-icmp", To: "fd01::3", How: []string{"cmsg-mark=0x1001"}}}},
		{"a tenant's pod with NET_RAW: kubelet's mark to a locked address", "kubepods/podblue", 0, "mp0", []way.Attempt{
			{Socket: "raw-icmp", To: "10.0.0.3", How: []string{fmt.Sprintf("cmsg-mark=%#x", KubeletMark)}},
			{Socket: "raw-icmp", To: "fd00::3", How: []string{fmt.Sprintf("cmsg-mark=%#x", KubeletMark)}}}},
		{"a tenant's pod with NET_RAW: a packet socket on the network's port", "kubepods/podblue", 0, "mp1", []way.Attempt{
			{Socket: "packet", To: "10.1.0.3", Src: "10.1.0.2", Port: way.Port, Device: "mp1", SrcMAC: w.own["mp1"], DstMAC: w.mac["mp1"]}}},
		{"a pod outside the tenants without capabilities: SO_BINDTODEVICE and a scope id", "kubepods/podplain", nobody, "mp1", []way.Attempt{
			{Socket: "udp", To: "10.1.0.3", Port: way.Port, Device: "mp1", How: []string{"bindtodevice"}},
			{Socket: "udp", To: green, Port: way.Port}}},
		{"a pod outside the tenants without capabilities: a datagram to another node's overlay port", "kubepods/podplain", nobody, "eth0", []way.Attempt{
			{Socket: "udp", To: "192.0.2.9", Port: guardTunnelPort}, {Socket: "udp", To: "2001:db8::9", Port: guardTunnelPort}}},
	}
	play := func() [][]bool {
		var out [][]bool
		for _, f := range findings {
			out = append(out, w.try(f.who, f.uid, f.behind, f.ways...))
		}
		return out
	}
	must(t, w.l.DetachRoot())
	before := play()
	must(t, w.l.AttachRoot())
	w.dropLSM()
	w.guard()
	after := play()
	for i, f := range findings {
		t.Run(f.name, func(t *testing.T) {
			for j, a := range f.ways {
				if !before[i][j] || after[i][j] {
					t.Errorf("%s %v to %s: heard without the guard %t, with it %t", a.Socket, a.How, a.To, before[i][j], after[i][j])
				}
			}
		})
	}
}
