// SPDX-License-Identifier: Apache-2.0

package bgpstatus

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/pkg/network"
)

// The files are FRR 10.3's answers on a node with two VRFs, each with a router outside.
func testFile(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestParse(t *testing.T) {
	sessions, err := ParseSummary(testFile(t, "summary.json"))
	var got []string
	for _, s := range sessions {
		got = append(got, fmt.Sprintf("%s %s %s %d %d", s.VRF, s.Peer, s.State, s.Received, s.Sent))
	}
	want := []string{"lite1 10.99.0.1 Established 2 1", "lite1 fd9a::1 Established 2 1", "lite2 10.99.0.1 Established 3 1", "lite2 fd9a::1 Established 3 1"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("sessions %q, want %q: %v", got, want, err)
	}
	for family, want := range map[string]string{
		"ipv4": "[10.93.1.0/24] [{10.93.0.0/24 [10.99.0.12]} {203.0.113.1/32 [10.99.0.1]}]",
		"ipv6": "[fd93:0:0:1::/64] [{2001:db8:113::1/128 [fe80::4882:f5ff:fe25:acb8]} {fd93::/64 [fe80::4882:f5ff:fe25:acb8]}]",
	} {
		own, learned, err := ParseRoutes(testFile(t, family+".json"))
		if got := fmt.Sprintf("%v %v", own, learned); err != nil || got != want {
			t.Errorf("%s: %s, want %s: %v", family, got, want, err)
		}
	}
	for _, bad := range []string{"", "[]", `{"default":{"ipv4Unicast":[]}}`, `{"default":1}`} {
		if _, err := ParseSummary([]byte(bad)); err == nil {
			t.Errorf("summary %q is accepted", bad)
		}
	}
	for _, bad := range []string{"", "[]", `{"routes":{"x":[]}}`} {
		if _, _, err := ParseRoutes([]byte(bad)); err == nil {
			t.Errorf("routes %q are accepted", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"summary.json", "ipv4.json", "ipv6.json"} {
		f.Add(testFile(f, name))
	}
	f.Fuzz(func(_ *testing.T, raw []byte) {
		_, _ = ParseSummary(raw)
		_, _, _ = ParseRoutes(raw)
	})
}

func route(prefix string, hops ...string) Route {
	r := Route{Prefix: netip.MustParsePrefix(prefix)}
	for _, h := range hops {
		r.NextHops = append(r.NextHops, netip.MustParseAddr(h))
	}
	return r
}

// healthy is a node with a network without an overlay, one that has an overlay and is advertised, and
// one in its own VRF.
func healthy() Status {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	return Status{
		Node: "node1", Mode: network.SharedGateway,
		Networks: []Network{
			{Name: "default", Subnets: prefixes("10.244.0.0/16")},
			{Name: "sky", VRFs: []string{"default"}, Prefixes: prefixes("10.90.1.0/24"), Subnets: prefixes("10.90.0.0/16"), NoOverlay: true},
			{Name: "red", VRFs: []string{"default"}, Prefixes: prefixes("10.20.1.0/24"), Subnets: prefixes("10.20.0.0/16")},
			{Name: "lite", VRFs: []string{"lite"}, Prefixes: prefixes("10.93.1.0/24"), Subnets: prefixes("10.93.0.0/16"), NoOverlay: true},
		},
		Sessions: []Session{{VRF: "default", Peer: "192.0.2.1", Family: "ipv4", State: established, Received: 3, Sent: 2}, {VRF: "lite", Peer: "10.99.0.1", Family: "ipv4", State: established, Sent: 1}},
		VRFs: []VRF{
			{
				Name: "default", Own: prefixes("10.20.1.0/24", "10.90.1.0/24"),
				Learned: []Route{route("10.20.2.0/24", "192.0.2.12"), route("10.90.2.0/24", "192.0.2.12"), route("203.0.113.0/24", "192.0.2.1", "192.0.2.2")},
				Kernel:  []Route{route("10.20.2.0/24", "192.0.2.12"), route("10.90.2.0/24", "192.0.2.12"), route("203.0.113.0/24", "192.0.2.1", "192.0.2.2")},
			},
			{Name: "lite", Own: prefixes("10.93.1.0/24"), Learned: []Route{route("10.93.2.0/24", "10.99.0.12")}, Kernel: []Route{route("10.93.2.0/24", "10.99.0.12")}},
		},
		BridgeRoutes: []Route{route("10.20.2.0/24", "192.0.2.12"), route("10.90.2.0/24", "192.0.2.12"), route("203.0.113.0/24", "192.0.2.1", "192.0.2.2")},
		OVN:          []Route{route("10.90.2.0/24", "192.0.2.12"), route("203.0.113.0/24", "192.0.2.1", "192.0.2.2")},
	}
}

func TestCompare(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Status)
		want   string // begin of the first difference; empty: none
	}{
		"healthy":                     {func(*Status) {}, ""},
		"local mode: OVN has no part": {func(s *Status) { s.Mode, s.OVN = network.LocalGateway, nil }, ""},
		"no session":                  {func(s *Status) { s.Sessions = s.Sessions[:1] }, "network lite is advertised into VRF lite, in which FRR has no session"},
		"not announced":               {func(s *Status) { s.VRFs[0].Own = s.VRFs[0].Own[:1] }, "FRR does not announce 10.90.1.0/24 of network sky in VRF default"},
		"a session is down":           {func(s *Status) { s.Sessions[1].State = "Active" }, "the session with 10.99.0.1 in VRF lite is in state Active"},
		"nothing sent":                {func(s *Status) { s.Sessions[0].Sent = 0 }, "nothing is announced to 192.0.2.1 in VRF default: see `show bgp vrf default neighbors 192.0.2.1`"},
		"nothing to send": {func(s *Status) {
			s.Sessions = append(s.Sessions, Session{VRF: "default", Peer: "2001:db8::1", Family: "ipv6", State: established})
		}, ""},
		"a route by another link": {func(s *Status) {
			s.VRFs[0].Learned = append(s.VRFs[0].Learned, route("198.51.100.0/24", "203.0.113.9"))
			s.VRFs[0].Kernel = append(s.VRFs[0].Kernel, route("198.51.100.0/24", "203.0.113.9"))
		}, ""},
		"a default route": {func(s *Status) {
			r := route("0.0.0.0/0", "192.0.2.1")
			s.VRFs[0].Learned, s.VRFs[0].Kernel, s.BridgeRoutes = append(s.VRFs[0].Learned, r), append(s.VRFs[0].Kernel, r), append(s.BridgeRoutes, r)
		}, ""},
		"not in the kernel":            {func(s *Status) { s.VRFs[1].Kernel = nil }, "FRR has learned 10.93.2.0/24 in VRF lite, and the kernel does not"},
		"not in OVN":                   {func(s *Status) { s.OVN = s.OVN[1:] }, "the kernel has 10.90.2.0/24 via 192.0.2.12, and OVN's uplink router has not"},
		"a next hop is not in OVN":     {func(s *Status) { s.OVN[1].NextHops = s.OVN[1].NextHops[:1] }, "the kernel has 203.0.113.0/24 via 192.0.2.2, and OVN's uplink router has not"},
		"only in OVN":                  {func(s *Status) { s.OVN = append(s.OVN, route("10.90.3.0/24", "192.0.2.13")) }, "OVN's uplink router has 10.90.3.0/24 via 192.0.2.13, and the kernel has not"},
		"an overlay's route is not in": {func(s *Status) { s.Networks[2].NoOverlay = true }, "the kernel has 10.20.2.0/24 via 192.0.2.12"},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			tt.change(&s)
			s.Compare()
			var text strings.Builder
			if err := s.Write(&text); err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.want == "" && (len(s.Differences) > 0 || !strings.Contains(text.String(), "No differences.")):
				t.Errorf("differences %q\n%s", s.Differences, text.String())
			case tt.want != "" && (len(s.Differences) == 0 || !strings.HasPrefix(s.Differences[0], tt.want)):
				t.Errorf("differences %q, want %q", s.Differences, tt.want)
			case tt.want != "" && !strings.Contains(text.String(), "Difference: "+tt.want):
				t.Errorf("the text lacks the difference:\n%s", text.String())
			}
		})
	}
}

// A reader runs vtysh with a command each, and says what to do without it.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "vtysh")
	text := fmt.Sprintf("#!/bin/sh\ncase \"$3\" in *summary*) f=summary;; *ipv4*) f=ipv4;; *ipv6*) f=ipv6;; esac\n[ \"$1\" = exec ] && exec cat %s/$f.json\n", must(filepath.Abs("testdata")))
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := Status{Node: "node1", Mode: network.LocalGateway}
	r := Reader{Vtysh: []string{script, "exec"}}
	if err := r.Read(context.Background(), &s); err != nil {
		t.Fatal(err)
	}
	// Both VRFs are in the files; the kernel here has neither.
	if len(s.Sessions) != 4 || len(s.VRFs) != 2 || len(s.VRFs[0].Own) != 2 || len(s.Differences) == 0 || !strings.Contains(s.Differences[0], "the kernel does not have the route") {
		t.Errorf("status %+v", s)
	}
	r.Vtysh = []string{"vtysh-that-does-not-exist"}
	if err := r.Read(context.Background(), &s); err == nil || !strings.Contains(err.Error(), "set -vtysh") {
		t.Errorf("without vtysh: %v", err)
	}
	r.Vtysh = []string{"false"}
	if err := r.Read(context.Background(), &s); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("a failing vtysh: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
