// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "rewrite goldens")

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

var dual = Inputs{MAC: "52:54:00:00:00:01", Addresses: prefixes("192.0.2.7/24", "2001:db8::7/64"), Links: prefixes("192.0.2.0/24", "2001:db8::/64"), Mode: network.SharedGateway,
	Masquerade: prefixes("169.254.0.0/17", "fd69::/112"), Services: prefixes("10.96.0.0/16", "fd10:96::/112"), Pods: prefixes("10.244.0.0/16", "fd10:244::/48")}

// compare compares flows with a golden file.
func compare(t *testing.T, name string, s State) {
	t.Helper()
	var b strings.Builder
	for _, f := range s {
		b.WriteString(f.String() + "\n")
	}
	golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "_")+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestBuild(t *testing.T) {
	v4 := Inputs{MAC: dual.MAC, Addresses: dual.Addresses[:1], Links: dual.Links[:1], Masquerade: dual.Masquerade[:1], Services: dual.Services[:1], Pods: dual.Pods[:1]}
	local, floating := dual, dual
	local.Mode = network.LocalGateway
	floating.Floating = []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")}
	others := Hosts{MACs: []string{"52:54:00:00:00:02", "52:54:00:00:00:99"},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("2001:db8::8"), netip.MustParseAddr("fe80::1")}}
	for name, c := range map[string]struct {
		bridge Bridge
		in     Inputs
	}{
		"no router yet":  {Bridge{Name: "br-ex", Uplinks: []int{1}}, dual},
		"router":         {Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}, dual},
		"floating":       {Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}, floating},
		"router local":   {Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}, local},
		"router IPv4":    {Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}, v4},
		"bond":           {Bridge{Name: "br-ex", Uplinks: []int{5, 2}, Router: 3}, dual},
		"localnets":      {Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3, Localnets: []Localnet{{4, 0}, {6, 20}, {7, 0}, {8, 20}}}, floating},
		"bond localnets": {Bridge{Name: "br-ex", Uplinks: []int{5, 2}, Localnets: []Localnet{{4, 0}, {6, 20}}}, v4},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Build(c.bridge, c.in, others)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name, s)
		})
	}
	for _, uplinks := range [][]int{nil, {-1}, {0, -1}} { // with interfaces that Open vSwitch does not have
		st, err := Build(Bridge{Name: "br-ex", Uplinks: uplinks, Router: 3}, dual, Hosts{})
		if !errors.Is(err, ErrNoUplink) || strings.Contains(err.Error(), "has no OpenFlow port") != (len(uplinks) > 0) {
			t.Errorf("uplinks %v: %v", uplinks, err)
		}
		drops := func(f Flow) bool { return f.Table == tableInput && f.Match == "" && f.Actions == "drop" }
		if !slices.ContainsFunc(st, drops) || slices.ContainsFunc(st, func(f Flow) bool {
			return f.Table == tableInput && strings.Contains(f.Match, "in_port=LOCAL") && f.Priority == priorityPass
		}) {
			t.Errorf("uplinks %v: flows are\n%v", uplinks, st)
		}
	}
}

func TestBuildNetwork(t *testing.T) {
	bridge := Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}
	addr := netip.MustParseAddr
	red := Gateway{Network: 7, Port: 9, Mark: 10, Addresses: []netip.Addr{addr("169.254.0.23"), addr("fd69::17")}, Ports: []ServicePort{
		{Protocol: "tcp", Port: 30080},
		{Protocol: "udp", Port: 53, Addr: addr("203.0.113.7")},
		{Protocol: "sctp", Port: 9000, Addr: addr("2001:db8:7::7"), Claimed: true},
	}}
	advertised := red
	advertised.Ports = nil
	advertised.Advertised, advertised.Pods = prefixes("10.20.0.0/16", "fd20::/48"), prefixes("10.20.1.0/24", "fd20:0:0:1::/64")
	loose := dual
	loose.Loose = true
	plain := Gateway{Port: 4, Mark: 3, Addresses: []netip.Addr{addr("169.254.0.9"), addr("fd69::9")}}
	local := dual
	local.Mode = network.LocalGateway
	for name, c := range map[string]struct {
		g  Gateway
		in Inputs
	}{
		"network": {red, dual}, "network local": {red, local}, "network default": {plain, dual},
		"network advertised": {advertised, dual}, "network advertised loose": {advertised, loose}, "network advertised local": {advertised, local},
		"network IPv4": {Gateway{Network: 7, Port: 9, Mark: 10, Addresses: red.Addresses[:1], Ports: red.Ports[:1]}, dual},
	} {
		t.Run(name, func(t *testing.T) { compare(t, name, BuildNetwork(bridge, c.in, c.g)) })
	}
	for name, s := range map[string]State{
		"no patch port":   BuildNetwork(bridge, dual, Gateway{Network: 7, Addresses: red.Addresses}),
		"no router":       BuildNetwork(Bridge{Name: "br-ex", Uplinks: []int{1}}, dual, red),
		"no uplink":       BuildNetwork(Bridge{Name: "br-ex", Router: 3}, dual, red),
		"no MAC address":  BuildNetwork(bridge, Inputs{}, red),
		"no node address": BuildNetwork(bridge, Inputs{MAC: dual.MAC, Masquerade: dual.Masquerade}, Gateway{Network: 7, Port: 9}),
	} {
		if len(s) > 0 {
			t.Errorf("%s: %v", name, s)
		}
	}
}

// A node may have several addresses of an IP family. No two flows have one match: the switch would have
// either, and each reconcile would replace it.
func TestSeveralAddresses(t *testing.T) {
	bridge := Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}
	g := Gateway{Network: 7, Port: 9, Mark: 10, Addresses: []netip.Addr{netip.MustParseAddr("169.254.0.23"), netip.MustParseAddr("fd69::17")}, Ports: []ServicePort{{Protocol: "tcp", Port: 30080}}}
	in := dual
	in.Addresses = prefixes("192.0.2.7/24", "198.51.100.7/24", "2001:db8::7/64", "fd00::7/64")
	in.Floating = []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("fd00::100")}
	for _, in.Mode = range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		base, err := Build(bridge, in, Hosts{})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]Flow{}
		for _, f := range append(base, BuildNetwork(bridge, in, g)...) {
			match := fmt.Sprintf("table=%d, priority=%d, %s", f.Table, f.Priority, f.Match)
			if other, ok := seen[match]; ok {
				t.Errorf("%s mode: %s and %s have one match", in.Mode, other, f)
			}
			seen[match] = f
		}
	}
}

// An advertised network's flows do not match the addresses of the node and its routers, though its subnets have them.
func TestReserved(t *testing.T) {
	bridge := Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}
	g := Gateway{Network: 7, Port: 9, Advertised: prefixes("192.0.0.0/16", "2001:db8::/48"), Pods: prefixes("192.0.2.0/24", "2001:db8::/64")}
	in := dual
	in.Reserved = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("192.0.2.1")}
	for _, in.Mode = range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		flows := BuildNetwork(bridge, in, g)
		matching := func(a string) (found State) {
			for _, f := range flows {
				for _, field := range strings.Split(f.Match, ",") {
					key, value, _ := strings.Cut(field, "=")
					if !strings.HasSuffix(key, "_src") && !strings.HasSuffix(key, "_dst") {
						continue
					}
					if !strings.Contains(value, "/") {
						value = single(netip.MustParseAddr(value)).String()
					}
					if netip.MustParsePrefix(value).Contains(netip.MustParseAddr(a)) {
						found = append(found, f)
					}
				}
			}
			return found
		}
		for _, a := range in.Reserved {
			if got := matching(a.String()); len(got) > 0 {
				t.Errorf("%s mode: for %s there are\n%v", in.Mode, a, got)
			}
		}
		pods, others := map[bool]int{true: 5, false: 9}[in.Mode == network.LocalGateway], map[bool]int{true: 3, false: 4}[in.Mode == network.LocalGateway]
		for a, want := range map[string]int{"192.0.2.6": pods, "2001:db8::6": pods, "192.0.3.6": others, "2001:db8:0:1::7": others} {
			if got := matching(a); len(got) != want {
				t.Errorf("%s mode: for %s there are %d flows, want %d:\n%v", in.Mode, a, len(got), want, got)
			}
		}
	}
}

// A node without pods of an advertised network has no patch port of it, and isolates it nevertheless.
func TestIsolationWithoutPort(t *testing.T) {
	bridge := Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}
	g := Gateway{Network: 7, Addresses: []netip.Addr{netip.MustParseAddr("169.254.0.23")}, Advertised: prefixes("10.20.0.0/16")}
	for _, c := range []struct {
		mode  network.GatewayMode
		loose bool
		want  int // from networks, services and, in shared mode, the host
	}{{network.SharedGateway, false, 3}, {network.LocalGateway, false, 2}, {network.SharedGateway, true, 0}} {
		in := dual
		in.Mode, in.Loose = c.mode, c.loose
		got := BuildNetwork(bridge, in, g)
		for _, f := range got {
			if f.Table != tableDestinations || f.Actions != "drop" || !strings.Contains(f.Match, "nw_dst=10.20.0.0/16") {
				t.Errorf("%+v: a flow that does not isolate: %s", c, f)
			}
		}
		if len(got) != c.want {
			t.Errorf("%+v: %d flows, want %d", c, len(got), c.want)
		}
	}
}

// TestClaimOfPodAddress: a service whose external address is that of another network's advertised
// pod does not get what arrives for the pod.
func TestClaimOfPodAddress(t *testing.T) {
	bridge := Bridge{Name: "br-ex", Uplinks: []int{1}, Router: 3}
	pod := netip.MustParseAddr("10.20.1.5")
	for _, mode := range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		for _, claim := range []ServicePort{{Protocol: "tcp", Port: 80, Addr: pod, Claimed: true}, {Protocol: "tcp", Port: 80, Addr: pod, Claimed: true, Local: true, NodePort: 30080}} {
			in := dual
			in.Mode = mode
			victim := BuildNetwork(bridge, in, Gateway{Network: 7, Port: 9, Addresses: []netip.Addr{netip.MustParseAddr("169.254.0.23")}, Advertised: prefixes("10.20.0.0/16"), Pods: prefixes("10.20.1.0/24")})
			claimer := BuildNetwork(bridge, in, Gateway{Network: 8, Port: 10, Addresses: []netip.Addr{netip.MustParseAddr("169.254.0.25")}, Ports: []ServicePort{claim}})
			priority := func(flows State, match string) int {
				highest := 0
				for _, f := range flows {
					if f.Table == tableDestinations && strings.Contains(f.Match, origin(fromWire)) && strings.Contains(f.Match, match) {
						highest = max(highest, f.Priority)
					}
				}
				if highest == 0 {
					t.Fatalf("%s, local %t: no flow for %s", mode, claim.Local, match)
				}
				return highest
			}
			if pods, service := priority(victim, "nw_dst=10.20.1.0/24"), priority(claimer, "nw_dst=10.20.1.5"); pods <= service {
				t.Errorf("%s, local %t: the pods' flow has priority %d, the service's %d", mode, claim.Local, pods, service)
			}
		}
	}
}

func randomState(t *rapid.T, label string) State {
	seen := map[string]bool{}
	var s State
	for range rapid.IntRange(0, 8).Draw(t, label) {
		f := Flow{Cookie: CookieMark | uint64(rapid.IntRange(0, 3).Draw(t, "network")), Table: rapid.IntRange(0, 1).Draw(t, "table"),
			Priority: rapid.IntRange(1, 3).Draw(t, "priority"), Match: rapid.SampledFrom([]string{"", "in_port=1", "in_port=LOCAL"}).Draw(t, "match"),
			Actions: rapid.SampledFrom([]string{"drop", "LOCAL", "output:1"}).Draw(t, "actions")}
		if !seen[f.key()] {
			seen[f.key()] = true
			s = append(s, f)
		}
	}
	sortFlows(s)
	return s
}

func TestConverges(t *testing.T) {
	foreign := State{{Cookie: 0, Priority: 0, Actions: "NORMAL"}, {Cookie: 0xdeff105, Priority: 50, Match: "tcp", Actions: "drop"}}
	rapid.Check(t, func(t *rapid.T) {
		want, have := randomState(t, "want"), randomState(t, "have")
		f := &Fake{}
		f.Set(append(append(State{}, have...), foreign...))
		if _, err := Sync(t.Context(), f, "br-ex", want); err != nil {
			t.Fatal(err)
		}
		got, err := f.Read(t.Context(), "br-ex")
		if err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("have %v\nwant %v (%v)", got, want, err)
		}
		if ops, err := Sync(t.Context(), f, "br-ex", want); len(ops) > 0 || err != nil {
			t.Fatalf("a second run applies %v (%v)", ops, err)
		}
		if all := f.All(); len(all) != len(want)+len(foreign) {
			t.Fatalf("flows of others were changed: %v", all)
		}
	})
}

// BenchmarkDiff: one changed flow among 10,000.
func BenchmarkDiff(b *testing.B) {
	var want State
	for i := range 10000 {
		want = append(want, Flow{Cookie: CookieBase, Priority: 100, Match: fmt.Sprintf("in_port=%d", i), Actions: "LOCAL"})
	}
	have := slices.Clone(want)
	have[5000].Actions = "drop"
	for b.Loop() {
		if ops := Diff(want, have); len(ops) != 1 {
			b.Fatal(ops)
		}
	}
}

// Many operations are divided: none is lost, those of no network come first, and a network with many is last and
// by itself.
func TestBundles(t *testing.T) {
	var ops []Op
	count := map[uint64]int{Cookie(1): 20000, Cookie(2): 3000, Cookie(3): 10, CookieBase: 500, Cookie(4): 3000}
	for _, cookie := range []uint64{Cookie(1), Cookie(2), Cookie(3), CookieBase, Cookie(4)} {
		for i := range count[cookie] {
			ops = append(ops, Op{Flow: Flow{Cookie: cookie, Priority: i}})
		}
	}
	if got := Bundles(ops[20000:23000]); len(got) != 1 || len(got[0]) != 3000 {
		t.Errorf("%d bundles of 3000 operations", len(got))
	}
	var order []uint64
	seen := map[uint64]int{}
	for _, bundle := range Bundles(ops) {
		if len(bundle) > maxBundle && len(ByNetwork(bundle)) > 1 {
			t.Errorf("a bundle of %d operations", len(bundle))
		}
		for _, own := range ByNetwork(bundle) {
			order = append(order, own[0].Flow.Cookie)
			for _, op := range own {
				if op.Flow.Priority != seen[op.Flow.Cookie] {
					t.Fatalf("operation %d of cookie %#x comes after %d others", op.Flow.Priority, op.Flow.Cookie, seen[op.Flow.Cookie])
				}
				seen[op.Flow.Cookie]++
			}
		}
	}
	if want := []uint64{CookieBase, Cookie(3), Cookie(2), Cookie(4), Cookie(1)}; !slices.Equal(order, want) || !maps.Equal(seen, count) {
		t.Errorf("order %#x, want %#x; %v", order, want, seen)
	}
}

func TestApplyNamesOperations(t *testing.T) {
	f := &Fake{Fail: func([]Op) error { return errors.New("no") }}
	want, err := Build(Bridge{Name: "br-ex", Uplinks: []int{1}}, Inputs{}, Hosts{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Sync(t.Context(), f, "br-ex", want); err == nil || !strings.Contains(err.Error(), "add flow cookie=0xb01c000100000000, table=0, priority=10 actions=drop") {
		t.Errorf("error is %v", err)
	}
}

// An unresponsive switch must not block callers forever, nor must a child that
// outlives ovs-ofctl.
func TestCommandTimeout(t *testing.T) {
	for _, script := range []string{"exec sleep 20", "sleep 20 & sleep 20"} {
		o := OFCtl{timeout: 50 * time.Millisecond, Command: func(ctx context.Context, _ ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "sh", "-c", script)
		}}
		done := make(chan error, 2)
		go func() {
			_, err := o.Read(context.Background(), "br-ex")
			done <- err
			done <- o.Apply(context.Background(), "br-ex", []Op{{Flow: Flow{Cookie: CookieBase, Actions: "drop"}}})
		}()
		for range 2 {
			select {
			case err := <-done:
				if !errors.Is(err, ErrUnresponsive) {
					t.Errorf("%q: %v", script, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%q: no timeout", script)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(" cookie=0xb01c000100000000, priority=100,in_port=1 actions=LOCAL\n cookie=0x0, priority=0 actions=NORMAL\n")
	f.Add("NXST_FLOW reply (xid=0x4):\n cookie=0x0, table=2, tcp,nw_dst=1.2.3.4 actions=ct(commit,zone=1),resubmit(,1)")
	f.Fuzz(func(t *testing.T, dump string) {
		s, err := Parse(dump)
		if err != nil {
			return
		}
		var b strings.Builder
		for _, x := range s {
			b.WriteString(x.String() + "\n")
		}
		again, err := Parse(b.String())
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%q parses as %v; rendered and parsed again as %v (%v)", dump, s, again, err)
		}
	})
}
