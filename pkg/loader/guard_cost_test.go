// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What the guard and the root's hooks cost who has nothing to do with them, and
// a network's own: told, not judged, as the machine is shared.
func TestRootGuardCost(t *testing.T) {
	w := newGuardWorld(t, false)
	must(t, w.ns.do(func() error { // a neighbour that is never asked for
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		mac, _ := net.ParseMAC(w.mac["mp1"])
		return h.NeighSet(&netlink.Neigh{LinkIndex: w.index["mp1"], IP: net.ParseIP("10.1.0.3"), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}))
	measures := []struct{ what, who, op string }{
		{"a datagram of a network's own pod into it", "kubepods/podred", "loop send 10.1.0.3:9"},
		{"a datagram over loopback, sent and heard, by a pod outside", "kubepods/podplain", "loop self 127.0.0.1:9999"},
		{"the same by a process outside all pods", "system/daemon", "loop self 127.0.0.1:9999"},
		{"setting a common option, by a pod outside", "kubepods/podplain", "loop option 127.0.0.1:9"},
	}
	run := func() []int {
		var out []int
		for _, m := range measures {
			p := w.start(w.cg(m.who), 0, m.op)
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
	w.guard()
	with := run()
	must(t, w.l.DetachRoot())
	for name := range w.index {
		must(t, w.l.DetachDoor(w.index[name]))
	}
	must(t, w.l.DetachDoor(1))
	without := run()
	for i, m := range measures {
		t.Logf("%s: %d ns, %d ns without: %d ns", m.what, with[i], without[i], with[i]-without[i])
	}
}
