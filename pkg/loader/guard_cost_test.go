// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Logs the cost of the guard and of the root cgroup's programs, for a network's own
// pods and for others. There is no limit to check, because the machine is shared.
func TestRootGuardCost(t *testing.T) {
	w := newGuardSandbox(t, false)
	must(t, w.ns.do(func() error { // a permanent neighbour, which needs no ARP
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		mac, _ := net.ParseMAC(w.mac["mp1"])
		return h.NeighSet(&netlink.Neigh{LinkIndex: w.index["mp1"], IP: net.ParseIP("10.1.0.3"), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}))
	measurements := []struct{ what, cgroup, op string }{
		{"a datagram of a network's own pod into it", "kubepods/podred", "bench send 10.1.0.3:9"},
		{"a datagram over loopback, sent and received by a pod outside tenants", "kubepods/podplain", "bench self 127.0.0.1:9999"},
		{"a datagram over loopback, sent and received outside all pods", "system/daemon", "bench self 127.0.0.1:9999"},
		{"setting a common option, by a pod outside tenants", "kubepods/podplain", "bench option 127.0.0.1:9"},
	}
	run := func() []int {
		var out []int
		for _, m := range measurements {
			p := w.start(w.cg(m.cgroup), 0, m.op)
			got := p.next()
			p.stop()
			n, err := strconv.Atoi(got)
			if err != nil {
				t.Fatalf("%s: %s", m.what, got)
			}
			out = append(out, n)
		}
		return out
	}
	w.attachGuard()
	with := run()
	must(t, w.l.DetachRoot())
	for name := range w.index {
		must(t, w.l.DetachDoor(w.index[name]))
	}
	must(t, w.l.DetachDoor(1))
	without := run()
	for i, m := range measurements {
		t.Logf("%s: %d ns, %d ns without: %d ns", m.what, with[i], without[i], with[i]-without[i])
	}
}
