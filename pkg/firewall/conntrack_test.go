// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"bulkhead/pkg/network"
)

func TestStale(t *testing.T) {
	in := Inputs{Node: nodeAddresses, Plan: plan, NodePorts: nodePorts, HostPorts: hostPorts, LocalPorts: localPorts}
	for name, c := range map[string]struct {
		protocol     uint8
		to, answered string
		want         bool
	}{
		"the network has the port":            {unix.IPPROTO_UDP, "192.0.2.10:30080", "169.254.0.13:30080", false},
		"another network has it now":          {unix.IPPROTO_UDP, "192.0.2.10:30080", "169.254.0.11:30080", true},
		"no network has it any more":          {unix.IPPROTO_UDP, "192.0.2.10:30082", "169.254.0.13:30082", true},
		"no network has it in this IP family": {unix.IPPROTO_UDP, "[2001:db8::10]:30080", "[fd69::b]:30080", true},
		"a TCP connection continues":          {unix.IPPROTO_TCP, "192.0.2.10:30082", "169.254.0.13:30082", false},
		"the node's own server":               {unix.IPPROTO_UDP, "192.0.2.10:53", "192.0.2.10:53", false},
		"translated by somebody else":         {unix.IPPROTO_UDP, "192.0.2.10:30082", "10.0.0.1:30082", false},
		"the node had the address":            {unix.IPPROTO_UDP, "192.0.2.11:30080", "169.254.0.13:30080", true},
		"a pod has the host port":             {unix.IPPROTO_UDP, "192.0.2.10:54", "169.254.0.11:54", false},
		"another network's pod had it":        {unix.IPPROTO_UDP, "192.0.2.10:54", "169.254.0.13:54", true},
		"a pod has the port at loopback":      {unix.IPPROTO_UDP, "127.0.0.1:54", "169.254.0.7:54", false},
		"no pod has the port at loopback":     {unix.IPPROTO_UDP, "127.0.0.1:55", "169.254.0.7:55", true},
		"traffic policy Local":                {unix.IPPROTO_UDP, "192.0.2.10:30090", "169.254.0.24:30090", false},
		"traffic policy Local, IPv6":          {unix.IPPROTO_UDP, "[2001:db8::10]:30090", "[fd69::18]:30090", false},
		"another service with Local has it":   {unix.IPPROTO_UDP, "192.0.2.10:30090", "169.254.0.26:30090", true},
		"it has another node port now":        {unix.IPPROTO_UDP, "192.0.2.10:30090", "169.254.0.24:30091", true},
		"external address":                    {unix.IPPROTO_UDP, "203.0.113.7:53", "169.254.0.24:30090", false},
		"another network has it, IPv6":        {unix.IPPROTO_UDP, "[2001:db8:7::7]:53", "[fd69::1a]:30090", true},
		"nobody has it any more":              {unix.IPPROTO_UDP, "203.0.113.8:53", "169.254.0.24:30090", true},
		"to a router, without translation":    {unix.IPPROTO_UDP, "169.254.0.13:30082", "169.254.0.13:30082", false},
		"older than the node port":            {unix.IPPROTO_UDP, "192.0.2.10:30080", "192.0.2.10:30080", true},
		"older than the node port, with TCP":  {unix.IPPROTO_TCP, "192.0.2.10:30080", "192.0.2.10:30080", false},
		"to another host's port":              {unix.IPPROTO_UDP, "192.0.2.99:30080", "192.0.2.99:30080", false},
		"older than the host port":            {unix.IPPROTO_UDP, "192.0.2.10:54", "192.0.2.10:54", true},
		"older than the external address":     {unix.IPPROTO_UDP, "203.0.113.7:53", "203.0.113.7:53", true},
	} {
		client := netip.MustParseAddr("192.0.2.1")
		conn := connection{protocol: c.protocol, from: client, to: netip.MustParseAddrPort(c.to), answered: netip.MustParseAddrPort(c.answered), seen: client}
		if got := in.udpTranslations().stale(conn); got != c.want {
			t.Errorf("%s: stale is %v", name, got)
		}
	}
}

// TestStaleByClient: which connections without translation the table would translate depends on where
// they come from. OVN's are in other zones.
func TestStaleByClient(t *testing.T) {
	in := Inputs{Node: nodeAddresses, Plan: plan, NodePorts: nodePorts, HostPorts: hostPorts, LocalPorts: localPorts}
	for _, c := range []struct {
		from, to string
		zone     uint16
		seen     string // ""; as from
		want     bool
	}{
		{"192.0.2.10", "192.0.2.10:30080", 0, "", true},
		{"192.0.2.10", "192.0.2.10:30080", 5, "", false},
		{"192.0.2.10", "127.0.0.1:54", 0, "", true},
		{"127.0.0.1", "127.0.0.1:54", 0, "", false},
		{"192.0.2.1", "203.0.113.7:53", 0, "", true},
		{"192.0.2.10", "203.0.113.7:53", 0, "", false},             // the node's own go to the gateway router
		{"169.254.0.24", "203.0.113.7:53", 0, "192.0.2.10", false}, // a pod's to the host with that address
		{"10.244.0.5", "203.0.113.7:53", 0, "192.0.2.10", false},
	} {
		to := netip.MustParseAddrPort(c.to)
		if got := in.udpTranslations().stale(connection{unix.IPPROTO_UDP, c.zone, netip.MustParseAddr(c.from), to, to, netip.MustParseAddr(cmp.Or(c.seen, c.from))}); got != c.want {
			t.Errorf("from %s to %s in zone %d: stale is %t", c.from, c.to, c.zone, got)
		}
	}
}

// attr is a netlink attribute, with the flag that the kernel gives to ones that contain others.
func attr(typ int, values ...[]byte) []byte {
	if len(values) == 1 && len(values[0]) > 0 {
		return nl.NewRtAttr(typ, values[0]).Serialize()
	}
	return nl.NewRtAttr(typ|unix.NLA_F_NESTED, slices.Concat(values...)).Serialize()
}

func TestConnection(t *testing.T) {
	tuple := func(typ int, src, dst string, protocol byte) []byte {
		from, to := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
		addr := 0
		if from.Addr().Is6() {
			addr = nl.CTA_IP_V6_SRC - nl.CTA_IP_V4_SRC
		}
		return attr(typ, attr(nl.CTA_TUPLE_IP, attr(nl.CTA_IP_V4_SRC+addr, from.Addr().AsSlice()), attr(nl.CTA_IP_V4_DST+addr, to.Addr().AsSlice())),
			attr(nl.CTA_TUPLE_PROTO, attr(nl.CTA_PROTO_NUM, []byte{protocol}), attr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, from.Port())),
				attr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, to.Port()))))
	}
	message := func(client, to, answered string, protocol byte) []byte {
		return slices.Concat([]byte{unix.AF_INET, 0, 0, 0}, tuple(nl.CTA_TUPLE_ORIG, client, to, protocol), attr(nl.CTA_STATUS, []byte{0, 0, 1, 0x8e}), attr(nl.CTA_ZONE, []byte{1, 2}), tuple(nl.CTA_TUPLE_REPLY, answered, client, protocol))
	}
	for _, c := range []struct{ client, to, answered string }{
		{"192.0.2.1:5000", "192.0.2.10:30080", "169.254.0.13:30080"}, {"[2001:db8::1]:5000", "[2001:db8::10]:30080", "[fd69::b]:30081"},
	} {
		m := message(c.client, c.to, c.answered, unix.IPPROTO_UDP)
		want := connection{unix.IPPROTO_UDP, 0x102, netip.MustParseAddrPort(c.client).Addr(), netip.MustParseAddrPort(c.to), netip.MustParseAddrPort(c.answered), netip.MustParseAddrPort(c.client).Addr()}
		if got := parseConnection(m); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		for n := range m { // truncated
			if got := parseConnection(m[:n]); got == want && n < len(m)-8 {
				t.Errorf("%s: of %d bytes %d have the answer", c.client, len(m), n)
			}
		}
	}
}

func FuzzConnection(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 5, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, m []byte) { parseConnection(m) })
}

// Connections are searched for stale ones when the table's former state is not known, and when a
// translation of UDP comes or goes: not at each read of the table. A failure does not undo that the table is
// applied, and the next reconcile searches again.
func TestSearchesForStale(t *testing.T) {
	target, _ := NewFake()
	searches, failure := 0, error(nil)
	target.forgetStale = func(translations) error { searches++; return failure }
	var log bytes.Buffer
	r := &Reconciler{Target: target, Log: slog.New(slog.NewTextHandler(&log, nil))}
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Plan: plan, Node: nodeAddresses, NodePorts: nodePorts, HostPorts: hostPorts, LocalPorts: localPorts, Mode: network.LocalGateway, Bridge: "br-ex"}
	fail := errors.New("no buffer space available")
	for _, step := range []struct {
		name    string
		event   func()
		recheck bool
		want    int
	}{
		{"the first run", func() {}, false, 1},
		{"nothing", func() {}, false, 0},
		{"a recheck of an unchanged table", func() {}, true, 0},
		{"a locked address more", func() { in.Locked = addrs("10.244.1.5") }, false, 0},
		{"a locked address less", func() { in.Locked = nil }, true, 0},
		{"a node port of TCP less", func() {
			in.NodePorts = slices.DeleteFunc(slices.Clone(nodePorts), func(p NodePort) bool { return p.Protocol == "tcp" })
		}, false, 0},
		{"no node port", func() { in.NodePorts = nil }, false, 1},
		{"node ports again", func() { in.NodePorts = nodePorts }, true, 1},
		{"another network's host port", func() {
			in.HostPorts = slices.Clone(hostPorts)
			in.HostPorts[0].To = netip.MustParseAddr("169.254.0.13")
		}, true, 1},
		{"no port with traffic policy Local", func() { in.LocalPorts = nil }, false, 1},
		{"another program's transaction", func() { r.Changed(0) }, false, 1},
		{"a failure", func() { in.NodePorts, failure = nil, fail }, false, 1},
		{"the failure continues", func() {}, true, 1},
		{"no failure", func() { failure = nil }, false, 1},
		{"after it", func() {}, true, 0},
		{"a failure to read the table", func() {
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			target.nft = failingReads{target.nft}
			if _, err := r.Reconcile(cancelled, in, true); err == nil {
				t.Error("no error of a failed read")
			}
			target.nft = target.nft.(failingReads).Interface
		}, false, 1},
	} {
		step.event()
		searches = 0
		if _, err := r.Reconcile(t.Context(), in, step.recheck); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if searches != step.want {
			t.Errorf("%s: connections are searched %d times, want %d", step.name, searches, step.want)
		}
	}
	if n := strings.Count(log.String(), fail.Error()); n != 2 {
		t.Errorf("the log has %d failures, want 2: %s", n, log.String())
	}
}

// TestSearchesAreLimited: changes that follow closely share a search, and the last of them has one.
func TestSearchesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, _ := NewFake()
		searches := 0
		target.forgetStale = func(translations) error { searches++; return nil }
		r := &Reconciler{Target: target, SearchInterval: time.Second}
		in := Inputs{Kubelet: Kubelet{Mark: mark}, Plan: plan, Node: nodeAddresses}
		reconcile := func() (time.Duration, bool) {
			t.Helper()
			if _, err := r.Reconcile(t.Context(), in, false); err != nil {
				t.Fatal(err)
			}
			return r.SearchDue()
		}
		if _, due := reconcile(); due || searches != 1 {
			t.Errorf("the first run: %d searches, another is due: %t", searches, due)
		}
		for range 5 {
			in.NodePorts = nodePorts
			reconcile()
			in.NodePorts = nil
			if after, due := reconcile(); !due || after <= 0 || after > time.Second {
				t.Errorf("a search is due %t, in %s", due, after)
			}
		}
		if searches != 1 {
			t.Errorf("%d searches within a second", searches)
		}
		after, _ := r.SearchDue()
		time.Sleep(after)
		if _, due := reconcile(); due || searches != 2 {
			t.Errorf("a second later: %d searches, another is due: %t", searches, due)
		}
		// The longer a search takes, the longer it is to the next one.
		time.Sleep(time.Second)
		target.forgetStale = func(translations) error { time.Sleep(2 * time.Second); return nil }
		in.NodePorts = nodePorts
		reconcile()
		in.NodePorts = nil
		if after, due := reconcile(); !due || after != 18*time.Second {
			t.Errorf("after a search of two seconds, one is due %t, in %s", due, after)
		}
	})
}

// failingReads is a table that cannot be read.
type failingReads struct{ knftables.Interface }

func (failingReads) ListAll(context.Context) (map[string][]string, error) {
	return nil, errors.New("no memory")
}

// TestKernelStaleUDP: a UDP client that continues to send from its port reaches the network
// that has the node port now.
func TestKernelStaleUDP(t *testing.T) {
	newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	for family, routers := range [][]netip.Addr{addrs("169.254.0.11", "169.254.0.13"), addrs("fd69::b", "fd69::d")} {
		addLoopbackAddresses(t, append(routers, nodeAddresses[family])...)
		answers := func(a netip.Addr) string { return netip.AddrPortFrom(a, 30080).String() }
		for _, a := range append(routers, nodeAddresses[family]) {
			server, err := net.ListenPacket("udp", answers(a))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { server.Close() })
			go func() {
				buf := make([]byte, 16)
				for {
					_, client, err := server.ReadFrom(buf)
					if err != nil {
						return
					}
					server.WriteTo([]byte(answers(a)), client)
				}
			}()
		}
		client, err := net.Dial("udp", answers(nodeAddresses[family]))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		r := &Reconciler{Target: target}
		for _, c := range []struct {
			ports []NodePort
			want  netip.Addr
		}{
			{[]NodePort{{"udp", 30080, routers[0]}}, routers[0]},
			{[]NodePort{{"udp", 30080, routers[1]}}, routers[1]},
			{nil, nodeAddresses[family]},
			{[]NodePort{{"udp", 30080, routers[1]}}, routers[1]},
		} {
			in := Inputs{Kubelet: Kubelet{Mark: mark}, Plan: plan, Node: nodeAddresses, NodePorts: c.ports}
			if _, err := r.Reconcile(t.Context(), in, false); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
			buf := make([]byte, 100)
			n, err := client.Read(buf)
			if got := string(buf[:max(n, 0)]); got != answers(c.want) {
				t.Errorf("with node ports %v %q answers, want %s: %v", c.ports, got, answers(c.want), err)
			}
		}
	}
}
