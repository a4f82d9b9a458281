// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"bulkhead/pkg/network"
)

func TestParseSelections(t *testing.T) {
	for _, tt := range []struct{ in, want, err string }{
		{in: "", want: ""},
		{in: "  ", want: ""},
		{in: "[]", want: ""},
		{in: "net", want: "a/net"},
		{in: "b/net@eth1, net@eth2 ,b/net", want: "b/net a/net b/net/1"},
		{in: "net.with.dots", want: "a/net.with.dots"},
		{in: `[{"name":"net"},{"name":"net","namespace":"b","ips":["10.0.0.5/24","fd00::5"],"mac":"02:00:00:00:00:AA"},{"name":"net"}]`,
			want: "a/net b/net[10.0.0.5/24 fd00::5/128 02:00:00:00:00:aa] a/net/1"},
		{in: `[{"name":"net","default-route":["10.0.0.1"],"ipam-claim-reference":"vm","interface":"x","cni-args":{"a":1}}]`, want: "a/net[gw 10.0.0.1 claim vm]"},
		{in: "a/b/c", err: "names"},
		{in: "/net", err: "no namespace before /"},
		{in: "net@", err: "no interface name after @"},
		{in: "net@a@b", err: "no interface name after @"},
		{in: "net,", err: "names"},
		{in: "Net", err: "names"},
		{in: "[null]", err: "element 1 is null"},
		{in: `{"name":"net"}`, err: "not a JSON list"},
		{in: `[{"name":"net"}]]`, err: "not a JSON list"},
		{in: `[{"name":""}]`, err: "names"},
		{in: `[{"name":"a,b"}]`, err: "names"},
		{in: `[{"name":"net","ips":["::ffff:10.0.0.1"]}]`, want: `a/net!ips: "::ffff:10.0.0.1" is an IPv4-mapped IPv6 address`},
		{in: `[{"name":"net","ips":["10.0.0.300"]}]`, want: `a/net!ips: "10.0.0.300" is not an IP address`},
		{in: `[{"name":"net","ips":["fe80::1%eth0"]}]`, want: `a/net!ips: "fe80::1%eth0" is not an IP address`},
		{in: `[{"name":"net","mac":"02:00:00:00:00:00:00:01"}]`, want: `a/net!mac: "02:00:00:00:00:00:00:01" is not an Ethernet address`},
		{in: `[{"name":"net","mac":"ff:ff:ff:ff:ff:ff"}]`, want: "a/net!mac: ff:ff:ff:ff:ff:ff is not a usable unicast address"},
		{in: `[{"name":"net","mac":"00:00:00:00:00:00"}]`, want: "a/net!mac: 00:00:00:00:00:00 is not a usable unicast address"},
		{in: `[{"name":"net","ipam-claim-reference":"a/b"}]`, want: `a/net!ipam-claim-reference: "a/b" is not the name of an IPAMClaim`},
	} {
		got, err := ParseSelections("a", tt.in)
		if (err != nil) != (tt.err != "") || err != nil && (!strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), network.AnnotationNetworks)) {
			t.Errorf("%s: error %v, want %q", tt.in, err, tt.err)
		}
		var parts []string
		for _, s := range got {
			part := s.Key
			var inner []string
			for _, ip := range s.Request.IPs {
				inner = append(inner, ip.String())
			}
			if s.Request.MAC != "" {
				inner = append(inner, s.Request.MAC)
			}
			for _, gw := range s.Request.Gateways {
				inner = append(inner, "gw", gw.String())
			}
			if s.Request.Claim != "" {
				inner = append(inner, "claim", s.Request.Claim)
			}
			if len(inner) > 0 && s.Err == nil {
				part += fmt.Sprint(inner)
			}
			if s.Err != nil {
				_, text, _ := strings.Cut(s.Err.Error(), "): ")
				part += "!" + text
			}
			parts = append(parts, part)
		}
		if text := strings.Join(parts, " "); tt.err == "" && !strings.HasPrefix(text, tt.want) || tt.want == "" && text != "" {
			t.Errorf("%s: %s, want %s", tt.in, text, tt.want)
		}
	}
}

func TestInterfaceNames(t *testing.T) {
	for in, want := range map[string]string{
		"net":                                   "net1",
		"net, b/net@disk, net":                  "net1 disk net3",
		`[{"name":"net","interface":"eth1"}]`:   "eth1",
		"net@net2, net":                         "net2 !net2 is requested twice",
		"net@eth0":                              "!eth0 is the name of another interface",
		"net@lo":                                "!lo is the name of another interface",
		"net@ovn-udn1":                          "!ovn-udn1 is the name of another interface",
		"net@sixteen-letters.":                  `!"sixteen-letters." is not an interface name`,
		`[{"name":"net","interface":"a b"}]`:    `!"a b" is not an interface name`,
		`[{"name":"net","interface":"../etc"}]`: `!"../etc" is not an interface name`,
		`[{"name":"net","interface":"eth%d"}]`:  `!"eth%d" is not an interface name`,
		`[{"name":"net","interface":"a\nb"}]`:   `!"a\nb" is not an interface name`,
	} {
		selections, err := ParseSelections("a", in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		}
		var parts []string
		for _, s := range selections {
			text := s.IfName
			if s.Err != nil {
				_, text, _ = strings.Cut(s.Err.Error(), "interface: ")
				text = "!" + text
			}
			parts = append(parts, text)
		}
		if got := strings.Join(parts, " "); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if _, err := ParseSelections("a", strings.Repeat(" ", maxSelectionsLen)+"net"); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("a longer annotation: %v", err)
	}
	if _, err := ParseSelections("a", strings.Repeat("net,", MaxSelections)+"net"); err == nil || !strings.Contains(err.Error(), "request at most 32") {
		t.Errorf("error %v", err)
	}
}

func TestParseDefault(t *testing.T) {
	for _, tt := range []struct{ in, want, err string }{
		{in: "", want: "[]  "},
		{in: "kube-system/default", want: "[]  "},
		{in: `[]`, want: "[]  "},
		{in: `[{"name":"default","namespace":"x","ips":["10.0.0.5"],"mac":"02-00-00-00-00-01","ipam-claim-reference":"vm","default-route":["10.0.0.9"]}]`, want: "[10.0.0.5/32] 02:00:00:00:00:01 vm"},
		{in: ` {"name":"default","ips":["10.0.0.5"]}`, want: "[10.0.0.5/32]  "},
		{in: `[{"name":"a"},{"name":"b"}]`, err: "it has 2 elements"},
		{in: `[{"ips":"10.0.0.5"}]`, err: "not a JSON list"},
		{in: `[{"mac":"x"}]`, err: `mac: "x" is not`},
		{in: `[null]`, err: "element 1 is null"},
	} {
		got, err := ParseDefault(tt.in)
		if (err != nil) != (tt.err != "") || err != nil && (!strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), network.AnnotationDefaultNetwork)) {
			t.Errorf("%s: error %v, want %q", tt.in, err, tt.err)
		}
		if text := fmt.Sprintf("%v %s %s", got.IPs, got.MAC, got.Claim); tt.err == "" && strings.TrimSpace(text) != strings.TrimSpace(tt.want) || len(got.Gateways) > 0 {
			t.Errorf("%s: %q, want %q", tt.in, text, tt.want)
		}
	}
}

func TestParsePrimary(t *testing.T) {
	const own, deprecated = network.AnnotationDefaultNetwork, network.AnnotationPrimaryClaim
	for _, tt := range []struct {
		in                map[string]string
		claim, from, want string // the claim, the deprecated annotation, a part of the error
	}{
		{in: nil},
		{in: map[string]string{deprecated: "vm.net"}, claim: "vm.net", from: deprecated},
		{in: map[string]string{deprecated: "old", own: `{"name":"net","ipam-claim-reference":"new"}`}, claim: "new"},
		{in: map[string]string{deprecated: "old", own: `{"name":"net","ips":["10.0.0.5"]}`}, claim: "old", from: deprecated},
		{in: map[string]string{deprecated: "a/b"}, want: deprecated + `: "a/b" is not the name of an IPAMClaim`},
		{in: map[string]string{deprecated: "old", own: `[null]`}, want: own},
	} {
		got, err := ParsePrimary(tt.in)
		if got.Claim != tt.claim || got.ClaimSource != tt.from || (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: claim %q of %q, %v; want %q of %q, error %q", tt.in, got.Claim, got.ClaimSource, err, tt.claim, tt.from, tt.want)
		}
	}
}

// For any annotation there is no panic, keys are unique, and each key contains a
// valid NAD name.
func FuzzSelections(f *testing.F) {
	for _, seed := range []string{
		"net", "b/net@eth1,net", `[{"name":"net","ips":["10.0.0.5/24"],"mac":"02:00:00:00:00:aa"}]`, "[null]", `[{"name":"net","default-route":["10.0.0.1"]}]`,
		`{"name":"default","ips":["fd00::5"],"ipam-claim-reference":"vm"}`, "net,net,net", "net/1,net", `"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		_, _ = ParseDefault(in)
		selections, err := ParseSelections("a", in)
		if err != nil && len(selections) > 0 {
			t.Fatal("an annotation with an error was parsed in part")
		}
		seen := map[string]bool{}
		for _, s := range selections {
			if seen[s.Key] {
				t.Fatalf("duplicate key %s", s.Key)
			}
			seen[s.Key] = true
			if s.Err == nil && (s.IfName == "" || len(s.IfName) > 15 || strings.ContainsAny(s.IfName, "/ :%") || seen["@"+s.IfName]) {
				t.Fatalf("interface name %q", s.IfName)
			}
			seen["@"+s.IfName] = true
			ns, name, ok := network.SplitNADKey(s.Key)
			if !ok || ns != s.Namespace || name != s.Name || len(validation.IsDNS1123Label(ns))+len(validation.IsDNS1123Subdomain(name)) > 0 {
				t.Fatalf("key %q of %s/%s", s.Key, s.Namespace, s.Name)
			}
			for _, ip := range s.Request.IPs {
				if !ip.IsValid() || ip.Addr().Is4In6() || ip.Addr().Zone() != "" {
					t.Fatalf("address %s", ip)
				}
			}
		}
	})
}
