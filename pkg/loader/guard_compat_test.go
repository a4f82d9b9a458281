// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
	"bulkhead/test/program"
)

// 32-bit system calls do not run the programs of cgroup/setsockopt. What a pod's socket with a mark that only
// others have sends is dropped, and what one with its own network's mark, or a harmless one, sends is not.
func TestRootGuardCompat(t *testing.T) {
	arch := map[string]string{"amd64": "386", "arm64": "arm"}[runtime.GOARCH]
	binary := program.Build(t, "bulkhead/test/adversary/cmd/adversary", "GOARCH="+arch)
	if err := exec.Command(binary).Run(); errors.Is(err, unix.ENOEXEC) {
		t.Skip("skip: no-32-bit: this kernel runs no 32-bit programs")
	}
	w := newGuardSandbox(t, false)
	w.detachLSM()
	w.attachGuard()
	const network1, network2, service, harmless = 0x10000, 0x20000, 0x80010000, 0x4000
	sends := func(cgroup, to string, mark uint32) bool {
		t.Helper()
		w.attemptID++
		id := w.attemptID
		attempt, err := json.Marshal(attack.Attempt{ID: id, Socket: "udp", To: to, Port: attack.Port, How: []string{fmt.Sprintf("mark=%#x", mark)}})
		must(t, err)
		p := w.start(w.cg(cgroup), 0, fmt.Sprintf("exec %s %s", binary, attempt))
		got := p.next()
		p.stop()
		var sent adversary.SendResult
		if err := json.Unmarshal([]byte(got), &sent); err != nil || sent.ID != id || sent.Error != "" && !strings.Contains(sent.Error, "operation not permitted") {
			t.Errorf("%s, mark %#x to %s: %s", cgroup, mark, to, got)
		}
		w.attempt("system/admin", 0, "eth0", attack.Attempt{Socket: "udp", To: "192.0.2.9", Port: attack.Port}) // waits for what came before
		return w.receivers["eth0"].has(id)
	}
	for _, to := range []string{"192.0.2.9", "2001:db8::9"} {
		for cgroup, want := range map[string]map[uint32]bool{
			"kubepods/podplain": {network1: false, network2: false, service: false, harmless: true},
			"kubepods/podnew":   {network1: false, harmless: true},
			"kubepods/podred":   {network1: true, network2: false, service: false},
			"system/admin":      {network1: true, service: true},
		} {
			for mark, received := range want {
				if got := sends(cgroup, to, mark); got != received {
					t.Errorf("%s with mark %#x to %s: received %t, want %t", cgroup, mark, to, got, received)
				}
			}
		}
	}
}

// A raw socket of a pod gets no copy of the overlay's packets, which are those of all networks, nor does a server at the
// overlay's port, which is free until Open vSwitch uses it.
func TestRootGuardOverhears(t *testing.T) {
	w := newGuardSandbox(t, false)
	receives := func(kind, cgroup, to string, port uint16) bool {
		t.Helper()
		l := attack.Listener{Kind: kind, IPv6: strings.Contains(to, ":")}
		if kind == "udp" {
			l.At = netip.AddrPortFrom(netip.MustParseAddr(to), port).String()
		}
		raw, err := json.Marshal(l)
		must(t, err)
		p := w.start(w.cg(cgroup), 0, "receive "+string(raw))
		defer p.stop()
		if got := p.next(); got != "ready" {
			t.Errorf("%s cannot listen: %s", cgroup, got)
			return false
		}
		w.attemptID++
		must(t, w.peers["eth0"].do(attack.Attempt{ID: w.attemptID, Socket: "udp", To: to, Port: port}.Do))
		p.proceed()
		return p.next() != "[]"
	}
	w.attachGuard()
	for _, kind := range []string{"raw-udp", "udp"} {
		for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
			for cgroup, want := range map[string]bool{"kubepods/podblue": false, "kubepods/podplain": false, "kubepods/podnew": false, "kubepods/podtrusted": true, "system/admin": true} {
				if got := receives(kind, cgroup, to, guardTunnelPort); got != want {
					t.Errorf("%s receives the overlay's packets to %s by %s: %t, want %t", cgroup, to, kind, got, want)
				}
				if !receives(kind, cgroup, to, attack.Port) {
					t.Errorf("%s receives nothing else at %s by %s", cgroup, to, kind)
				}
			}
		}
	}
}
