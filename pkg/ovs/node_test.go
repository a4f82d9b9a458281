// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// Addresses keep their order in a family without a default route. Otherwise the kernel's choice counts, except for tunnels.
func TestKeepOrder(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	static, slaac, v4, other4 := "2001:db8::7/64", "2001:db8::a1/64", "192.0.2.7/24", "192.0.2.9/24"
	hop4, hop6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1")
	for _, c := range []struct {
		name            string
		now, last       []netip.Prefix
		hops            []netip.Addr
		encap           string // configured
		lastEncap       string
		want, wantEncap string
	}{
		{"no route of a family", prefixes(slaac, static, v4), prefixes(static, slaac, v4), []netip.Addr{hop4}, "", "", "[2001:db8::7/64 2001:db8::a1/64 192.0.2.7/24]", "[192.0.2.7]"},
		{"no route at all", prefixes(other4, v4, slaac, static), prefixes(v4, other4, static, slaac), nil, "", "", "[192.0.2.7/24 192.0.2.9/24 2001:db8::7/64 2001:db8::a1/64]", "[192.0.2.7]"},
		{"routes of both", prefixes(other4, v4, slaac, static), prefixes(v4, other4, static, slaac), []netip.Addr{hop4, hop6}, "", "", "[192.0.2.9/24 192.0.2.7/24 2001:db8::a1/64 2001:db8::7/64]", "[192.0.2.9]"},
		{"the first is gone", prefixes(slaac), prefixes(static, slaac), nil, "", "", "[2001:db8::a1/64]", "[2001:db8::a1]"},
		{"never read before", prefixes(slaac, static), nil, nil, "", "", "[2001:db8::a1/64 2001:db8::7/64]", "[2001:db8::a1]"},
		{"a tunnel address is configured", prefixes(other4, v4), prefixes(v4, other4), nil, "198.51.100.1", "", "[192.0.2.7/24 192.0.2.9/24]", "[198.51.100.1]"},
		{"one family with a next hop", prefixes(slaac, static), prefixes(static, slaac), []netip.Addr{hop6}, "", "2001:db8::7", "[2001:db8::a1/64 2001:db8::7/64]", "[2001:db8::7]"},
		{"the tunnel address is gone", prefixes(slaac), prefixes(static, slaac), []netip.Addr{hop6}, "", "2001:db8::7", "[2001:db8::a1/64]", "[2001:db8::a1]"},
		{"IPv4 comes late", prefixes(slaac, v4), prefixes(slaac), []netip.Addr{hop4, hop6}, "", "2001:db8::a1", "[2001:db8::a1/64 192.0.2.7/24]", "[192.0.2.7]"},
		{"a tunnel address was configured", prefixes(v4), prefixes(v4), nil, "", "198.51.100.1", "[192.0.2.7/24]", "[192.0.2.7]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var conf config.OVS
			var encap []netip.Addr
			if c.encap != "" {
				conf.Encap = []netip.Prefix{netip.MustParsePrefix(c.encap + "/32")}
				encap = []netip.Addr{netip.MustParseAddr(c.encap)}
			}
			last := network.Node{Addresses: c.last}
			if c.lastEncap != "" {
				last.EncapIPs = []netip.Addr{netip.MustParseAddr(c.lastEncap)}
			}
			n := KeepOrder(network.Node{Addresses: c.now, NextHops: c.hops, EncapIPs: encap}, last, conf)
			if fmt.Sprint(n.Addresses) != c.want || fmt.Sprint(n.EncapIPs) != c.wantEncap {
				t.Errorf("addresses %v, tunnels %v; want %s, %s", n.Addresses, n.EncapIPs, c.want, c.wantEncap)
			}
			// The next read finds no change: each would reach all nodes.
			again := KeepOrder(network.Node{Addresses: c.now, NextHops: c.hops, EncapIPs: encap}, n, conf)
			if !slices.Equal(again.Addresses, n.Addresses) || !slices.Equal(again.EncapIPs, n.EncapIPs) {
				t.Errorf("the next read changes the order to %v, tunnels to %v", again.Addresses, again.EncapIPs)
			}
		})
	}
}

func TestBuildNode(t *testing.T) {
	plan := network.Plan{Masquerade: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17"), netip.MustParsePrefix("fd69::/112")}}
	addr := func(s string) LinkAddress { return LinkAddress{Prefix: netip.MustParsePrefix(s)} }
	for _, c := range []struct {
		name      string
		addrs     []LinkAddress
		encap     string
		wantAddrs string
		wantEncap string
		// wantFloating is the address that the node has besides.
		wantFloating string
		wantErr      bool
	}{
		{name: "dual stack", addrs: []LinkAddress{addr("2001:db8::7/64"), addr("192.0.2.7/24"), addr("fe80::1/64")},
			wantAddrs: "[2001:db8::7/64 192.0.2.7/24]", wantEncap: "[192.0.2.7]"},
		{name: "IPv6 only", addrs: []LinkAddress{addr("fe80::1/64"), addr("2001:db8::7/64")}, wantAddrs: "[2001:db8::7/64]", wantEncap: "[2001:db8::7]"},
		{name: "our masquerade addresses are ignored", addrs: []LinkAddress{addr("169.254.0.2/17"), addr("fd69::2/112"), addr("192.0.2.7/24")},
			wantAddrs: "[192.0.2.7/24]", wantEncap: "[192.0.2.7]"},
		{name: "floating address", addrs: []LinkAddress{addr("192.0.2.100/32"), addr("192.0.2.7/24")}, wantAddrs: "[192.0.2.7/24]", wantEncap: "[192.0.2.7]", wantFloating: "192.0.2.100"},
		{name: "DHCPv6 and SLAAC", addrs: []LinkAddress{{Prefix: netip.MustParsePrefix("2001:db8::7/128"), Leased: true}, {Prefix: netip.MustParsePrefix("2001:db8::a1/64"), Leased: true}},
			wantAddrs: "[2001:db8::7/128 2001:db8::a1/64]", wantEncap: "[2001:db8::7]"},
		{name: "only a host address, as in clouds", addrs: []LinkAddress{addr("10.0.0.4/32")}, wantAddrs: "[10.0.0.4/32]", wantEncap: "[10.0.0.4]"},
		{name: "deprecated", addrs: []LinkAddress{{Prefix: netip.MustParsePrefix("2001:db8::9/64"), Transient: true}, addr("2001:db8::7/64")},
			wantAddrs: "[2001:db8::7/64]", wantEncap: "[2001:db8::7]", wantFloating: "2001:db8::9"},
		{name: "configured, of another interface", addrs: []LinkAddress{addr("192.0.2.7/24")}, encap: "198.51.100.0/24", wantAddrs: "[192.0.2.7/24]", wantEncap: "[198.51.100.7]"},
		{name: "configured, of the bridge", addrs: []LinkAddress{addr("192.0.2.7/24"), addr("203.0.113.7/24")}, encap: "203.0.113.0/24", wantAddrs: "[192.0.2.7/24 203.0.113.7/24]", wantEncap: "[203.0.113.7]"},
		{name: "configured, of another node", addrs: []LinkAddress{addr("192.0.2.7/24")}, encap: "198.51.100.9/32", wantAddrs: "[192.0.2.7/24]", wantEncap: "[]", wantErr: true},
		{name: "none", addrs: []LinkAddress{addr("fe80::1/64")}, wantAddrs: "[]", wantEncap: "[]", wantErr: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config.OVS{ExternalBridge: "br-ex", GatewayMode: network.SharedGateway}
			if c.encap != "" {
				conf.Encap = []netip.Prefix{netip.MustParsePrefix(c.encap)}
			}
			n, err := BuildNode("node-1", "chassis", conf, plan, BridgeLink{MAC: "02:00:00:00:00:01", Addresses: c.addrs}, []netip.Addr{netip.MustParseAddr("198.51.100.7")})
			if (err != nil) != c.wantErr {
				t.Errorf("error %v", err)
			}
			if got := fmt.Sprint(n.Addresses); got != c.wantAddrs {
				t.Errorf("addresses %s, want %s", got, c.wantAddrs)
			}
			if got := fmt.Sprint(n.EncapIPs); got != c.wantEncap {
				t.Errorf("geneve addresses %s, want %s", got, c.wantEncap)
			}
			for _, a := range floating(n, plan, BridgeLink{Addresses: c.addrs}) {
				if a.String() != c.wantFloating {
					t.Errorf("floating address %s", a)
				}
				c.wantFloating = ""
			}
			if c.wantFloating != "" {
				t.Errorf("no floating address %s", c.wantFloating)
			}
			if err == nil { // the annotations round-trip
				annotations, err := n.AgentAnnotations()
				if err != nil {
					t.Fatal(err)
				}
				back, err := network.ParseNode("node-1", annotations)
				if err != nil || !reflect.DeepEqual(back, n) {
					t.Errorf("read back %+v, %v; want %+v", back, err, n)
				}
			}
		})
	}
}

// The kernel uses the default routes of the lowest metric, and of routers one at a time; next hops on other links do not count.
func TestNextHops(t *testing.T) {
	route := func(metric uint32, link int, gateways ...string) defaultRoute {
		r := defaultRoute{metric: metric}
		for _, g := range gateways {
			r.hops = append(r.hops, hop{link, netip.MustParseAddr(g)})
		}
		return r
	}
	router := func(preference int8, gateways ...string) defaultRoute {
		r := route(1024, 3, gateways...)
		r.advertised, r.preference = true, preference
		return r
	}
	backup := route(1024, 3, "fe80::1")
	backup.preference = -1
	for name, c := range map[string]struct {
		routes []defaultRoute
		failed string
		want   string
	}{
		"a backup":                       {[]defaultRoute{route(200, 3, "192.0.2.2"), route(100, 3, "192.0.2.1")}, "", "[192.0.2.1]"},
		"two of one metric":              {[]defaultRoute{route(1024, 3, "fe80::1"), route(1024, 3, "fe80::2"), route(2048, 3, "fe80::3")}, "", "[fe80::1 fe80::2]"},
		"one of them with less priority": {[]defaultRoute{backup, route(1024, 3, "fe80::2")}, "", "[fe80::2]"},
		"several next hops":              {[]defaultRoute{route(20, 3, "192.0.2.1", "192.0.2.2"), route(100, 3, "192.0.2.3")}, "", "[192.0.2.1 192.0.2.2]"},
		"the best is on another link":    {[]defaultRoute{route(0, 4, "198.51.100.1"), route(100, 3, "192.0.2.1"), route(200, 3, "192.0.2.2")}, "", "[192.0.2.1]"},
		"no gateway":                     {[]defaultRoute{route(0, 3)}, "", "[]"},
		"routers by preference":          {[]defaultRoute{router(-1, "fe80::1"), router(0, "fe80::2"), router(1, "fe80::3")}, "", "[fe80::3]"},
		"equal routers":                  {[]defaultRoute{router(0, "fe80::1"), router(0, "fe80::2")}, "", "[fe80::1]"},
		"a router and a static route":    {[]defaultRoute{route(1024, 3, "fe80::1"), router(0, "fe80::2")}, "", "[fe80::1]"},
		"routers that a program adds":    {[]defaultRoute{router(0, "fe80::1", "fe80::2"), router(0, "fe80::3")}, "", "[fe80::1 fe80::2]"},
		"a router does not answer":       {[]defaultRoute{router(1, "fe80::1"), router(-1, "fe80::2")}, "fe80::1", "[fe80::2]"},
		"an equal one does not answer":   {[]defaultRoute{router(0, "fe80::1"), router(0, "fe80::2")}, "fe80::1", "[fe80::2]"},
		"the only one does not answer":   {[]defaultRoute{router(0, "fe80::1"), route(2048, 3, "fe80::2")}, "fe80::1", "[fe80::1]"},
	} {
		var failed []netip.Addr
		if c.failed != "" {
			failed = append(failed, netip.MustParseAddr(c.failed))
		}
		if got, _ := nextHops(c.routes, 3, failed); fmt.Sprint(got) != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// ownNamespace moves the test to a network namespace of its own, and returns a function that runs a script there.
func ownNamespace(t *testing.T) (run func(script string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP: needs root for a network namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	old, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := netns.New(); errors.Is(err, unix.EPERM) {
		t.Skipf("SKIP: no network namespace: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Set(old) })
	return func(script string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v: %s", script, err, out)
		}
	}
}

// Pods leave the node with its first address: the one that the kernel chooses, in whatever order
// the addresses came.
func TestKernelFirstAddress(t *testing.T) {
	run := ownNamespace(t)
	first := func(what, v4, v6 string) {
		t.Helper()
		link, err := readBridgeLink("br-ex")
		if err != nil {
			t.Fatal(err)
		}
		n, err := BuildNode("node1", "c", config.OVS{ExternalBridge: "br-ex"}, network.Plan{}, link, nil)
		got := func(is4 bool) string {
			for _, a := range n.Addresses {
				if a.Addr().Is4() == is4 {
					return a.Addr().String()
				}
			}
			return "none"
		}
		if err != nil || got(true) != v4 || got(false) != v6 {
			t.Errorf("%s: %s and %s, want %s and %s: %v, %v", what, got(true), got(false), v4, v6, n.Addresses, err)
		}
	}
	run(`
ip link set lo up
ip link add br-ex type veth peer name peer
ip link set peer up
ip link set br-ex up
ip addr add 10.0.0.5/24 dev br-ex
ip addr add 203.0.113.5/24 dev br-ex
ip addr add 2001:db8:1::5/64 dev br-ex nodad
ip addr add fd00:1::5/64 dev br-ex nodad`)
	first("without default routes", "10.0.0.5", "fd00:1::5")
	run("ip route add default via 203.0.113.1; ip -6 route add default via fe80::1 dev br-ex")
	first("by the next hop's subnet, and no unique local address", "203.0.113.5", "2001:db8:1::5")
	run("ip route replace default via 203.0.113.1 src 10.0.0.5; ip -6 route replace default via fe80::1 dev br-ex src fd00:1::5")
	first("as the routes say", "10.0.0.5", "fd00:1::5")
}

// The routes of other tables are not read: hundreds of networks have tens of thousands.
func TestKernelMainTableOnly(t *testing.T) {
	run := ownNamespace(t)
	run(`
ip link set lo up
ip link add br-ex type veth peer name peer
ip link set peer up
ip link set br-ex up
ip addr add 192.0.2.5/24 dev br-ex
ip addr add 2001:db8:1::5/64 dev br-ex nodad
ip route add default via 192.0.2.1
ip -6 route add default via fe80::1 dev br-ex
for i in $(seq 250); do
	echo route add unreachable 10.$i.0.0/16 table 100
	echo route add unreachable 2001:db8:$i::/48 table 100
done | ip -batch -`)
	for family, hop := range map[int]string{netlink.FAMILY_V4: "192.0.2.1", netlink.FAMILY_V6: "fe80::1"} {
		read := 0
		if err := dumpMainTable(family, func() { read = 0 }, func([]byte) { read++ }); err != nil || read == 0 || read > 20 {
			t.Errorf("%d routes read: %v", read, err)
		}
		if routes, err := readDefaultRoutes(family); err != nil || len(routes) != 1 || routes[0].hops[0].gateway.String() != hop {
			t.Errorf("default routes are %v, want one by %s: %v", routes, hop, err)
		}
	}
}

// sendRA sends a router advertisement with a preference, in the two bits of RFC 4191, from a router on the link.
func sendRA(t *testing.T, link string, router netip.Addr, preference byte) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	all := netip.MustParseAddr("ff02::1")
	ra := []byte{134, 0, 0, 0, 64, preference << 3, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0} // for 1800 seconds
	sum := uint32(len(ra)) + unix.IPPROTO_ICMPV6
	for b := slices.Concat(router.AsSlice(), all.AsSlice(), ra); len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	binary.BigEndian.PutUint16(ra[2:], ^uint16(sum+sum>>16))
	packet := slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(ra)), unix.IPPROTO_ICMPV6, 255}, router.AsSlice(), all.AsSlice(), ra)
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	to := &unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: l.Attrs().Index, Halen: 6, Addr: [8]byte{0x33, 0x33, 0, 0, 0, 1}}
	if err := unix.Sendto(s, packet, 0, to); err != nil {
		t.Fatal(err)
	}
}

// Of two routers the networks use the one that the kernel uses.
func TestKernelRouters(t *testing.T) {
	run := ownNamespace(t)
	run(`
ip link set lo up
ip link add br-ex type veth peer name peer
sysctl -qw net.ipv6.conf.br-ex.forwarding=0 net.ipv6.conf.br-ex.accept_ra=2
ip link set peer up
ip link set br-ex up
ip addr add 2001:db8:1::5/64 dev br-ex nodad`)
	want := func(what, router string, advertise func()) {
		t.Helper()
		last := ""
		for deadline := time.Now().Add(20 * time.Second); ; {
			advertise()
			link, err := readBridgeLink("br-ex")
			if err != nil {
				t.Fatal(err)
			}
			routes, err := netlink.RouteGet(net.ParseIP("2000::1"))
			kernel := fmt.Sprint(err)
			if err == nil {
				kernel = routes[0].Gw.String()
			}
			if last = fmt.Sprintf("%v, the kernel's is %s", link.NextHops, kernel); last == "["+router+"], the kernel's is "+router {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: next hops are %s, want %s", what, last, router)
			}
			runtime.Gosched()
		}
	}
	low, high := netip.MustParseAddr("fe80::a"), netip.MustParseAddr("fe80::b")
	want("one router", "fe80::a", func() { sendRA(t, "peer", low, 3) })
	want("a better one", "fe80::b", func() { sendRA(t, "peer", high, 1) })
	run("ip -6 neigh replace fe80::b dev br-ex nud failed; ip -6 neigh replace fe80::a lladdr 02:00:00:00:00:0a dev br-ex nud reachable")
	want("it does not answer", "fe80::a", func() {})
	run("ip -6 neigh del fe80::b dev br-ex; ip -6 neigh replace fe80::b lladdr 02:00:00:00:00:0b dev br-ex nud reachable")
	want("equal routers", "fe80::a", func() { sendRA(t, "peer", low, 1) })
}
