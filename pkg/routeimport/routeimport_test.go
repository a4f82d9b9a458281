// SPDX-License-Identifier: Apache-2.0

package routeimport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// addrs parses addresses.
func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestConvert(t *testing.T) {
	_, v4, _ := net.ParseCIDR("10.10.1.0/24")
	_, v6, _ := net.ParseCIDR("fd10::/64")
	via := func(index int, gw string) *netlink.NexthopInfo {
		return &netlink.NexthopInfo{LinkIndex: index, Gw: net.ParseIP(gw)}
	}
	for name, tt := range map[string]struct {
		route netlink.Route
		want  Route // zero: none
	}{
		"IPv4":         {netlink.Route{Dst: v4, LinkIndex: 7, Gw: net.ParseIP("172.18.0.2")}, Route{netip.MustParsePrefix("10.10.1.0/24"), addrs("172.18.0.2")}},
		"IPv6":         {netlink.Route{Dst: v6, LinkIndex: 7, Gw: net.ParseIP("fe80::2")}, Route{netip.MustParsePrefix("fd10::/64"), addrs("fe80::2")}},
		"default":      {netlink.Route{Family: unix.AF_INET, LinkIndex: 7, Gw: net.ParseIP("172.18.0.2")}, Route{netip.MustParsePrefix("0.0.0.0/0"), addrs("172.18.0.2")}},
		"IPv6 default": {netlink.Route{Family: unix.AF_INET6, LinkIndex: 7, Gw: net.ParseIP("fd00::2")}, Route{netip.MustParsePrefix("::/0"), addrs("fd00::2")}},
		"several":      {netlink.Route{Dst: v4, MultiPath: []*netlink.NexthopInfo{via(7, "172.18.0.9"), via(8, "192.0.2.1"), via(7, "172.18.0.2")}}, Route{netip.MustParsePrefix("10.10.1.0/24"), addrs("172.18.0.2", "172.18.0.9")}},
		"IPv4 by IPv6": {netlink.Route{Dst: v4, LinkIndex: 7, Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fe80::2")}},
			Route{netip.MustParsePrefix("10.10.1.0/24"), addrs("fe80::2")}},
		"several, by either": {netlink.Route{Dst: v4, MultiPath: []*netlink.NexthopInfo{via(7, "172.18.0.9"), {LinkIndex: 7, Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fe80::2")}}}},
			Route{netip.MustParsePrefix("10.10.1.0/24"), addrs("172.18.0.9", "fe80::2")}},
		"another link":    {route: netlink.Route{Dst: v4, LinkIndex: 8, Gw: net.ParseIP("192.0.2.1")}},
		"no next hop":     {route: netlink.Route{Dst: v4, LinkIndex: 7}},
		"unreachable":     {route: netlink.Route{Dst: v4, Type: unix.RTN_UNREACHABLE}},
		"another's, many": {route: netlink.Route{Dst: v4, MultiPath: []*netlink.NexthopInfo{via(8, "192.0.2.1")}}},
	} {
		got, ok := convert(&tt.route, 7)
		if ok != (tt.want.NextHops != nil) || ok && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v, %t, want %v", name, got, ok, tt.want)
		}
	}
}

// A real kernel's routes, and their changes: only BGP's, in the main table, via the bridge.
func TestKernelWatch(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: needs root for a network namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	ip := func(text string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(text)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", text, err, out)
		}
	}
	if got, err := Read("br-ex"); got != nil || err != nil {
		t.Errorf("without the bridge: %v, %v", got, err)
	}
	// The kernel applies the filter: it reports a table that does not exist. Otherwise it would send all tables' routes.
	h, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if got, err := list(h, family, 100); !errors.Is(err, unix.ENOENT) {
			t.Errorf("a table that does not exist: %v, %v", got, err)
		}
	}
	if got, err := ReadTable(100); got != nil || err != nil {
		t.Errorf("a table that does not exist: %v, %v", got, err)
	}
	for _, link := range []string{"br-ex", "other"} {
		ip("link add " + link + " type bridge")
		ip("link set " + link + " up")
	}
	ip("address add 172.18.0.1/24 dev br-ex")
	ip("address add fd00:18::1/64 dev br-ex nodad")
	ip("address add 192.0.2.1/24 dev other")

	ctx, cancel := context.WithCancel(context.Background())
	seen, ended := make(chan []Route, 100), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // see above
		if err := netns.Set(ns); err != nil {
			t.Error(err)
			return
		}
		Watch(ctx, "br-ex", time.Second, slog.New(slog.DiscardHandler), func(r []Route) { seen <- r })
	}()
	defer func() { cancel(); <-ended }()
	want := func(what string, routes ...Route) {
		t.Helper()
		var last []Route
		for deadline := time.After(10 * time.Second); ; {
			select {
			case last = <-seen:
				if reflect.DeepEqual(last, routes) {
					return
				}
			case <-deadline:
				t.Fatalf("%s: routes are %v, want %v", what, last, routes)
			}
		}
	}
	want("at first")
	one := Route{netip.MustParsePrefix("10.10.1.0/24"), addrs("172.18.0.2")}
	six := Route{netip.MustParsePrefix("fd10:10:0:1::/64"), addrs("fd00:18::2")}
	ip("route add 10.10.1.0/24 via 172.18.0.2 proto bgp")
	want("a route", one)
	ip("-6 route add fd10:10:0:1::/64 via fd00:18::2 proto bgp")
	want("an IPv6 route", one, six)
	ip("route replace 10.10.1.0/24 proto bgp nexthop via 172.18.0.2 nexthop via 172.18.0.3")
	both := Route{one.Prefix, addrs("172.18.0.2", "172.18.0.3")}
	want("two next hops", both, six)
	// Others' routes, those of other tables and other links.
	ip("route add 10.99.0.0/24 via 172.18.0.9 proto static")
	ip("route add 10.98.0.0/24 via 172.18.0.9 proto bgp table 100")
	if got, err := ReadTable(100); err != nil || !reflect.DeepEqual(got, []Route{{netip.MustParsePrefix("10.98.0.0/24"), addrs("172.18.0.9")}}) {
		t.Errorf("table 100: %v, %v", got, err)
	}
	ip("route add 10.97.0.0/24 via 192.0.2.9 proto bgp")
	ip("route add default via 172.18.0.4 proto bgp")
	want("a default route", Route{netip.MustParsePrefix("0.0.0.0/0"), addrs("172.18.0.4")}, both, six)
	ip("route del 10.10.1.0/24")
	ip("route del default")
	want("withdrawn", six)

	// More than the socket's buffer may hold.
	var batch strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&batch, "route add 100.%d.%d.0/24 via 172.18.0.2 proto bgp\n", 64+i/256, i%256)
	}
	file := t.TempDir() + "/routes"
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ip("-batch " + file)
	wait := func(number int) {
		t.Helper()
		for deadline := time.After(30 * time.Second); ; {
			select {
			case r := <-seen:
				if len(r) == number {
					return
				}
			case <-deadline:
				t.Fatalf("%d routes are not seen", number)
			}
		}
	}
	wait(10001)
	ip("link set br-ex down")
	wait(0)
}
