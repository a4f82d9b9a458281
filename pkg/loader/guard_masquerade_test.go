// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"bulkhead/test/adversary/attack"
)

// Host-network pods send no frames from or to masquerade addresses by the node's own
// interfaces, and no packets of raw sockets to them. nftables filters what else their sockets
// send, of which answers pass.
func TestRootGuardMasquerade(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	for _, p := range []string{"169.254.0.0/17", "fd69::/112"} {
		must(t, w.l.Put(DestRow{Masquerade, netip.MustParsePrefix(p)}))
	}
	for _, own := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		must(t, w.l.Put(DestRow{OwnAddress, netip.MustParsePrefix(own)}))
	}
	for to, via := range map[string]string{"169.254.0.0/16": "192.0.2.9", "fd69::/64": "2001:db8::9"} {
		addRoute(t, w.ns, "eth0", to, via)
	}
	frames := func(masquerade4, masquerade6 string) (out []attack.Attempt) {
		for _, pair := range [][2]string{{"192.0.2.9", masquerade4}, {masquerade4, "192.0.2.9"}, {"2001:db8::9", masquerade6}, {masquerade6, "2001:db8::9"}} {
			for _, how := range [][]string{nil, {"ring"}, {"tagged"}, {"ring", "tagged"}} {
				out = append(out, attack.Attempt{Socket: "packet", To: pair[0], Src: pair[1], Port: 9, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["eth0"], How: how})
			}
		}
		return out
	}
	packets := func(list ...string) (out []attack.Attempt) {
		for i, to := range list {
			for _, how := range [][]string{nil, {"fragments"}, {"cmsg-mark=0"}} {
				out = append(out, attack.Attempt{Socket: "hdrincl", To: to, Src: []string{"192.0.2.1", "2001:db8::1"}[i], Port: 9, How: how})
			}
			out = append(out, attack.Attempt{Socket: "raw-icmp", To: to}, attack.Attempt{Socket: "raw-other", To: to}, attack.Attempt{Socket: "udp", To: to, Port: 9})
		}
		return out
	}
	// As a host outside, to which a pod has sent.
	forged := func(list ...string) (out []attack.Attempt) {
		for i, to := range list {
			out = append(out, attack.Attempt{Socket: "udp", To: to, Src: []string{"198.51.100.9", "2001:db8:1::9"}[i], Port: 9, How: []string{"transparent"}})
		}
		return out
	}
	w.attachGuard()
	pods := []string{"kubepods/podred", "kubepods/podplain", "kubepods/podnew", "kubepods/podtrusted", "kubepods/podunbound"}
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podunbound")), NetworkID: 1, Unbound: true}))
	for _, cgroup := range pods {
		w.expectAttempts("masquerade addresses", cgroup, "eth0", frames("169.254.0.11", "fd69::b"), false)
		w.expectAttempts("others", cgroup, "eth0", frames("169.254.128.11", "fd69::1:b"), cgroup != "kubepods/podred")
		w.expectAttempts("to masquerade addresses", cgroup, "eth0", packets("169.254.0.11", "fd69::b"), false, "udp")
		w.expectAttempts("to others", cgroup, "eth0", packets("169.254.128.11", "fd69::1:b"), true)
		w.expectAttempts("as a host outside", cgroup, "eth0", forged("169.254.0.11", "fd69::b"), false)
		w.expectAttempts("as a host outside, to others", cgroup, "eth0", forged("169.254.128.11", "fd69::1:b"), true)
	}
	for _, cgroup := range []string{"system/admin", "system/kubelet"} {
		w.expectAttempts("a process outside all pods", cgroup, "eth0", slices.Concat(frames("169.254.0.11", "fd69::b"), packets("169.254.0.11", "fd69::b"), forged("169.254.0.11", "fd69::b")), true)
	}
	// A pod with its own network sends on its own interface, without the node's stack.
	peer := w.peers["eth0"]
	addRoute(t, peer, "eth0", "169.254.0.0/16", "192.0.2.1")
	before := counts(t, w.l)
	raw, err := json.Marshal(attack.Attempt{ID: 1, Socket: "hdrincl", To: "169.254.0.11", Src: "192.0.2.9", Port: 9})
	must(t, err)
	p := w.startIn(peer, w.cg("kubepods/podnew"), 0, "attempt "+string(raw))
	if got := p.next(); got != "ok" {
		t.Errorf("a pod in its own network: %s", got)
	}
	p.stop()
	for _, reason := range []Reason{ReasonGuardForeign, ReasonGuardUnknown} {
		if now := counts(t, w.l); before[reason] == 0 || now[reason] != before[reason] {
			t.Errorf("%s: counted %d, then %d by a pod in its own network; want some, and no more", reason, before[reason], now[reason])
		}
	}
	c, err := w.l.readConfig()
	must(t, err)
	c.TunnelPort = 0
	must(t, w.l.writeConfig(c))
	w.expectAttempts("without an overlay's port", pods[0], "eth0", packets("169.254.0.11", "fd69::b"), false, "udp")
	w.expectAttempts("to others, without an overlay's port", pods[0], "eth0", packets("169.254.128.11", "fd69::1:b"), true)
}

// A raw socket of a pod does not queue the errors of others' packets: also where there is no BPF LSM, and whatever the option.
func TestRootGuardErrors(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	w.expectErrorQueues(map[string]string{"a tenant's pod": w.cg("kubepods/podred"), "a pod outside the tenants": w.cg("kubepods/podplain"), "an unknown pod": w.cg("kubepods/podnew")},
		map[string]string{"a trusted pod": w.cg("kubepods/podtrusted"), "the administrator": w.cg("system/admin")})
}

// expectErrorQueues checks which processes may have raw sockets that queue ICMP errors. All may have other such sockets.
func (s *sandbox) expectErrorQueues(refused, allowed map[string]string) {
	s.t.Helper()
	raw := []string{"set raw-errors", "set raw-errors6", "set raw-extended-errors", "set raw-extended-errors6"}
	for list, want := range map[*map[string]string]string{&refused: "EPERM", &allowed: "ok"} {
		for what, cgroup := range *list {
			for _, command := range raw {
				s.expect(what, cgroup, 0, [2]string{command, want})
			}
			s.expect(what, cgroup, 0, [2]string{"set errors", "ok"}, [2]string{"set errors6", "ok"})
		}
	}
}
