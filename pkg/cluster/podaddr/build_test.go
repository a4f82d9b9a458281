// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "write golden files")

// testNetwork is a network out of its NAD's JSON.
func testNetwork(t testing.TB, id int, conf string) network.Network {
	t.Helper()
	c, err := network.ParseNetConf(fmt.Sprintf(`{"type":"ovn-k8s-cni-overlay","name":"net%d",%s}`, id, conf))
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(id, testPlan(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func prefixes(raw ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range raw {
		out = append(out, netip.MustParsePrefix(r))
	}
	return out
}

// Networks that the tests have.
const (
	secondaryL2 = `"topology":"layer2","role":"secondary","subnets":"10.30.0.0/24"`
	dualL2      = `"topology":"layer2","role":"primary","subnets":"10.20.0.0/24,fd20::/64"`
	ipv6L2      = `"topology":"layer2","role":"primary","subnets":"fd20::/64"`
	plannedL2   = `"topology":"layer2","role":"primary","subnets":"10.20.0.0/24","reservedSubnets":"10.20.0.4/30",` +
		`"infrastructureSubnets":"10.20.0.0/30,10.20.0.8/30","defaultGatewayIPs":"10.20.0.9","allowPersistentIPs":true`
	claimL2    = `"topology":"layer2","role":"primary","subnets":"10.20.0.0/24","allowPersistentIPs":true`
	excludedLN = `"topology":"localnet","physicalNetworkName":"phys","subnets":"10.40.0.0/29","excludeSubnets":"10.40.0.0/30"`
	noIPAM     = `"topology":"localnet","physicalNetworkName":"phys"`
	noIPAML2   = `"topology":"layer2"`
)

// A pod's first network, with others already in it.
func TestBuild(t *testing.T) {
	other := Holder{Namespace: "b", Name: "other", UID: "o", Key: "b/net"}
	claim := func(network string, ips ...string) *Claim {
		return &Claim{Holder: Holder{Claim: true, Namespace: "a", Name: "vm", UID: "c"}, Network: network, IPs: prefixes(ips...)}
	}
	for _, tt := range []struct {
		name, conf string
		held       []string // by other
		macs       []string // by other
		request    Request
		claim      *Claim
		want       string // ips mac tunnel
		refused    string // in the problem
		wait       topic
	}{
		{name: "primary", conf: primaryL2, want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "next", conf: primaryL2, held: []string{"10.20.0.3/24", "10.20.0.4/24"}, want: "10.20.0.5/24 0a:58:0a:14:00:05 10"},
		{name: "secondary has neither gateway nor node", conf: secondaryL2, want: "10.30.0.1/24 0a:58:0a:1e:00:01 10"},
		{name: "dual stack", conf: dualL2, want: "10.20.0.3/24, fd20::3/64 0a:58:0a:14:00:03 10"},
		{name: "IPv6 alone", conf: ipv6L2, want: "fd20::3/64 " + network.MAC(netip.MustParseAddr("fd20::3")) + " 10"},
		{name: "reserved and infrastructure", conf: plannedL2, want: "10.20.0.12/24 0a:58:0a:14:00:0c 10"},
		{name: "excluded", conf: excludedLN, want: "10.40.0.4/29 0a:58:0a:28:00:04 0"},
		{name: "no addresses", conf: noIPAM, want: " 0a:58:f4:00:50:92 0"},
		{name: "no addresses, a port key", conf: noIPAML2, want: " 0a:58:f4:00:50:92 10"},
		{
			name: "used up", conf: excludedLN, held: []string{"10.40.0.4/29", "10.40.0.5/29", "10.40.0.6/29"},
			refused: "no address of 10.40.0.0/29 is free", wait: onRoom("net7"),
		},
		{
			name: "one family used up", conf: `"topology":"layer2","subnets":"10.30.0.0/30,fd30::/64"`, held: []string{"10.30.0.1/30", "10.30.0.2/30"},
			refused: "no address of 10.30.0.0/30 is free", wait: onRoom("net7"),
		},
		{name: "another has its MAC", conf: primaryL2, macs: []string{"0a:58:0a:14:00:03"}, want: "10.20.0.4/24 0a:58:0a:14:00:04 10"},

		{name: "asks", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.77/32")}, want: "10.20.0.77/24 0a:58:0a:14:00:4d 10"},
		{name: "asks with length", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.77/24")}, want: "10.20.0.77/24 0a:58:0a:14:00:4d 10"},
		{name: "asks with another length", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.77/16")}, refused: "write 10.20.0.77/24"},
		{name: "asks of one family", conf: dualL2, request: Request{IPs: prefixes("fd20::77/128")}, want: "10.20.0.3/24, fd20::77/64 0a:58:0a:14:00:03 10"},
		{name: "asks two of one", conf: dualL2, request: Request{IPs: prefixes("10.20.0.5/32", "10.20.0.6/32")}, refused: "both of 10.20.0.0/24: ask for one"},
		{name: "asks outside", conf: dualL2, request: Request{IPs: prefixes("10.21.0.5/32")}, refused: "outside the network's subnets 10.20.0.0/24, fd20::/64"},
		{name: "asks for the gateway's", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.1/32")}, refused: "10.20.0.1 belongs to the network itself"},
		{name: "asks for the node's", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.2/32")}, refused: "10.20.0.2 belongs to the network itself"},
		{name: "asks for infrastructure", conf: plannedL2, request: Request{IPs: prefixes("10.20.0.10/32")}, refused: "10.20.0.10 belongs to the network itself"},
		{name: "asks for reserved", conf: plannedL2, request: Request{IPs: prefixes("10.20.0.4/32")}, want: "10.20.0.4/24 0a:58:0a:14:00:04 10"},
		{name: "asks for excluded", conf: excludedLN, request: Request{IPs: prefixes("10.40.0.2/32")}, refused: "excludeSubnets 10.40.0.0/30 keeps from pods"},
		{name: "asks for the subnet's own", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.0/32")}, refused: "network or broadcast address"},
		{name: "asks for everybody's", conf: primaryL2, request: Request{IPs: prefixes("10.20.0.255/32")}, refused: "network or broadcast address"},
		{name: "asks where there are none", conf: noIPAM, request: Request{IPs: prefixes("10.20.0.9/32")}, refused: "has no subnets: remove ips"},
		{
			name: "asks for another's", conf: primaryL2, held: []string{"10.20.0.77/24"}, request: Request{IPs: prefixes("10.20.0.77/32")},
			refused: "10.20.0.77 is held by pod b/other: ask for another", wait: onRelease("net7", "10.20.0.77"),
		},
		{name: "asks for a MAC", conf: primaryL2, request: Request{MAC: "02:00:00:00:00:05"}, want: "10.20.0.3/24 02:00:00:00:00:05 10"},
		{name: "asks for a MAC alone", conf: noIPAM, request: Request{MAC: "02:00:00:00:00:05"}, want: " 02:00:00:00:00:05 0"},
		{
			name: "asks for another's MAC", conf: primaryL2, macs: []string{"02:00:00:00:00:05"}, request: Request{MAC: "02:00:00:00:00:05"},
			refused: "02:00:00:00:00:05 is held by pod b/other", wait: onRelease("net7", "02:00:00:00:00:05"),
		},
		{name: "asks for the gateway's MAC", conf: primaryL2, request: Request{MAC: "0a:58:0a:14:00:01"}, refused: "that of 10.20.0.1, an address of the network itself"},
		{name: "asks for the node's MAC", conf: primaryL2, request: Request{MAC: "0a:58:0a:14:00:02"}, refused: "that of 10.20.0.2, an address of the network itself"},
		{
			name: "another has the MAC of what it asks for", conf: primaryL2, macs: []string{"0a:58:0a:14:00:4d"}, request: Request{IPs: prefixes("10.20.0.77/32")},
			refused: "0a:58:0a:14:00:4d is held by pod b/other", wait: onRelease("net7", "0a:58:0a:14:00:4d"),
		},
		{name: "default route outside", conf: secondaryL2, request: Request{Gateways: []netip.Addr{netip.MustParseAddr("10.31.0.1")}}, refused: "default-route 10.31.0.1 is outside"},

		{name: "claim", conf: claimL2, request: Request{Claim: "vm"}, claim: claim("net7"), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "claim that has", conf: claimL2, request: Request{Claim: "vm"}, claim: claim("net7", "10.20.0.99/24"), want: "10.20.0.99/24 0a:58:0a:14:00:63 10"},
		{name: "claim that asks", conf: claimL2, request: Request{Claim: "vm", IPs: prefixes("10.20.0.9/32")}, claim: claim("net7"), want: "10.20.0.9/24 0a:58:0a:14:00:09 10"},
		{
			name: "claim that has another", conf: claimL2, request: Request{Claim: "vm", IPs: prefixes("10.20.0.9/32")}, claim: claim("net7", "10.20.0.99/24"),
			refused: "asks for 10.20.0.9, but IPAMClaim vm holds 10.20.0.99/24", wait: onClaim("a/vm"),
		},
		{name: "no claim", conf: claimL2, request: Request{Claim: "vm"}, refused: "does not exist in namespace a: create it with spec.network net7", wait: onClaim("a/vm")},
		{name: "claim of another network", conf: claimL2, request: Request{Claim: "vm"}, claim: claim("net8"), refused: "IPAMClaim vm is for network net8", wait: onClaim("a/vm")},
		{name: "claim, but nothing is kept", conf: primaryL2, request: Request{Claim: "vm"}, claim: claim("net7"), refused: "the network keeps no addresses"},
		{name: "claim of one family", conf: dualL2 + `,"allowPersistentIPs":true`, request: Request{Claim: "vm"}, claim: claim("net7", "10.20.0.9/24"), refused: "no address of the subnet fd20::/64"},
		{name: "claim outside", conf: claimL2, request: Request{Claim: "vm"}, claim: claim("net7", "10.20.0.9/24", "fd20::9/64"), refused: "fd20::9, which is outside"},
		{name: "claim of the gateway", conf: claimL2, request: Request{Claim: "vm"}, claim: claim("net7", "10.20.0.1/24"), refused: "10.20.0.1 belongs to the network itself"},
		{
			name: "claim that another was before", conf: claimL2, request: Request{Claim: "vm"},
			claim:   &Claim{Holder: claim("").Holder, Network: "net7", Refused: "10.20.0.9 is held by pod b/other", Wanted: "10.20.0.9"},
			refused: "IPAMClaim a/vm: 10.20.0.9 is held by pod b/other", wait: onRelease("net7", "10.20.0.9"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := testNetwork(t, 7, tt.conf)
			alloc := NewAllocator(n.Name, time.Hour)
			if err := alloc.Hold(other, prefixes(tt.held...)); err != nil {
				t.Fatal(err)
			}
			for _, mac := range tt.macs {
				if err := alloc.TakeMAC(other, mac); err != nil {
					t.Fatal(err)
				}
			}
			if tt.claim != nil {
				_ = alloc.Hold(tt.claim.Holder, tt.claim.IPs)
			}
			before := len(alloc.held) + len(alloc.macs) + alloc.tunnels.Len()
			want, given, problems := Build(Inputs{
				Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u"},
				Attachments: []Attachment{{Key: "a/net", NAD: "a/net", Source: "A", Network: n, Request: tt.request, Claim: tt.claim, Alloc: alloc}},
			})
			if tt.refused != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Text, tt.refused) || len(given) > 0 || len(want.Entries) > 0 {
					t.Fatalf("got %+v, problems %+v", want.Entries, problems)
				}
				if !slices.Contains(problems[0].Wait, onNAD("a/net")) || tt.wait != (topic{}) && !slices.Contains(problems[0].Wait, tt.wait) {
					t.Errorf("waits for %v", problems[0].Wait)
				}
				if after := len(alloc.held) + len(alloc.macs) + alloc.tunnels.Len(); after != before {
					t.Errorf("a refused pod holds something: %d before, %d after", before, after)
				}
				return
			}
			e := want.Entries["a/net"]
			if got := fmt.Sprintf("%s %s %d", join(e.IPs), e.MAC, e.TunnelID); got != tt.want || len(problems) > 0 {
				t.Errorf("got %q, want %q; problems %+v", got, tt.want, problems)
			}
			if _, ok := want.Claims["vm"]; ok != (tt.claim != nil) {
				t.Errorf("claims %+v", want.Claims)
			}
		})
	}
}

// What annotations say, of all kinds of networks at once.
func TestBuildGolden(t *testing.T) {
	a := func(key string, id int, conf string, r Request) Attachment {
		n := testNetwork(t, id, conf)
		return Attachment{Key: key, NAD: key, Source: "A", Network: n, Request: r, Alloc: NewAllocator(n.Name, time.Hour)}
	}
	gw := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	twice := a("a/net", 7, secondaryL2, Request{})
	again := twice
	again.Key = "a/net/1"
	for name, attachments := range map[string][]Attachment{
		"primary":            {a("a/net", 7, dualL2, Request{})},
		"primary-planned":    {a("a/net", 7, plannedL2, Request{IPs: prefixes("10.20.0.5/32"), MAC: "02:00:00:00:00:05"})},
		"secondary":          {twice, again},
		"localnet":           {a("a/phys", 7, excludedLN, Request{}), a("a/free", 8, noIPAM, Request{})},
		"default-route-away": {a("a/net", 7, dualL2, Request{}), a("a/out", 8, secondaryL2, Request{Gateways: gw("10.30.0.254")})},
	} {
		t.Run(name, func(t *testing.T) {
			want, _, problems := Build(Inputs{Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u"}, Attachments: attachments})
			if len(problems) > 0 {
				t.Fatalf("problems %+v", problems)
			}
			ops := Diff(want, State{})
			merged, err := merge("", ops[0])
			if err != nil {
				t.Fatal(err)
			}
			var pretty any
			if err := json.Unmarshal([]byte(merged), &pretty); err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(pretty, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, append(got, '\n'), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(golden) != string(got)+"\n" {
				t.Errorf("got\n%s\nwant\n%s", got, golden)
			}
		})
	}
}

// What a former leader gave, a pod gets back; what only its creator wrote, not.
func TestResume(t *testing.T) {
	had := network.PodNetwork{IPs: prefixes("10.20.0.50/24"), MAC: "0a:58:0a:14:00:32", TunnelID: 40, Role: network.RolePrimary}
	with := func(change func(*network.PodNetwork)) network.PodNetwork {
		n := had
		change(&n)
		return n
	}
	other := Holder{Namespace: "b", Name: "other", UID: "o", Key: "b/net"}
	for _, tt := range []struct {
		name    string
		had     network.PodNetwork
		started bool
		taken   bool // by another
		want    string
		refused string
	}{
		{name: "running", had: had, started: true, want: "10.20.0.50/24 0a:58:0a:14:00:32 40"},
		{name: "pending", had: had, want: "10.20.0.50/24 0a:58:0a:14:00:32 40"},
		{name: "running, taken", had: had, started: true, taken: true, refused: "10.20.0.50 is held by pod b/other: recreate the pod"},
		{name: "pending, taken", had: had, taken: true, want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "no tunnel id", had: with(func(n *network.PodNetwork) { n.TunnelID = 0 }), started: true, want: "10.20.0.50/24 0a:58:0a:14:00:32 10"},
		{name: "a platform port's tunnel id", had: with(func(n *network.PodNetwork) { n.TunnelID = 3 }), started: true, want: "10.20.0.50/24 0a:58:0a:14:00:32 10"},
		{name: "gateway's address", had: with(func(n *network.PodNetwork) { n.IPs = prefixes("10.20.0.1/24") }), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "other subnet", had: with(func(n *network.PodNetwork) { n.IPs = prefixes("10.9.0.1/24") }), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "no MAC", had: with(func(n *network.PodNetwork) { n.MAC = "x" }), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := testNetwork(t, 7, primaryL2)
			alloc := NewAllocator(n.Name, time.Hour)
			if tt.taken {
				if err := alloc.Hold(other, tt.had.IPs); err != nil {
					t.Fatal(err)
				}
			}
			want, _, problems := Build(Inputs{
				Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u", Started: tt.started}, Had: network.PodNetworks{"a/net": tt.had},
				Attachments: []Attachment{{Key: "a/net", NAD: "a/net", Source: "A", Network: n, Alloc: alloc}},
			})
			e := want.Entries["a/net"]
			if tt.refused != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Text, tt.refused) {
					t.Errorf("problems %+v", problems)
				}
				if !sameEntry(e, tt.had) {
					t.Errorf("the running pod's entry became %+v", e)
				}
				return
			}
			if got := fmt.Sprintf("%s %s %d", join(e.IPs), e.MAC, e.TunnelID); got != tt.want || len(problems) > 0 {
				t.Errorf("got %q, want %q; problems %+v", got, tt.want, problems)
			}
		})
	}
}

// Two attachments of a pod never share an address, and a claim serves one.
func TestTwoAttachments(t *testing.T) {
	n := testNetwork(t, 7, claimL2)
	alloc := NewAllocator(n.Name, time.Hour)
	c := &Claim{Holder: Holder{Claim: true, Namespace: "a", Name: "vm", UID: "c"}, Network: "net7"}
	one := Attachment{Key: "a/net", NAD: "a/net", Source: "A", Network: n, Request: Request{Claim: "vm"}, Claim: c, Alloc: alloc}
	two := one
	two.Key = "a/net/1"
	want, _, problems := Build(Inputs{Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u"}, Attachments: []Attachment{one, two}})
	if len(problems) != 1 || !strings.Contains(problems[0].Text, "used by the pod's attachment a/net: name another one") || len(want.Entries) != 1 {
		t.Errorf("entries %v, problems %+v", want.Entries, problems)
	}
	two.Request, two.Claim = Request{}, nil
	want, _, problems = Build(Inputs{Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "q", UID: types.UID("v")}, Attachments: []Attachment{two}})
	if len(problems) > 0 || join(want.Entries["a/net/1"].IPs) != "10.20.0.4/24" || want.Entries["a/net/1"].TunnelID != 11 {
		t.Errorf("entries %v, problems %+v", want.Entries, problems)
	}
}

// What a pod costs does not depend on how many there are.
func BenchmarkBuild(b *testing.B) {
	n := testNetwork(b, 7, `"topology":"layer2","role":"primary","subnets":"10.0.0.0/8,fd20::/64"`)
	plan := testPlan(b)
	for _, pods := range []int{100, 10000, 30000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			book := newBook(time.Hour, time.Now)
			in := func(i int) Inputs {
				return Inputs{
					Plan: plan, Pod: Pod{Namespace: "a", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))},
					Attachments: []Attachment{{Key: "a/net", NAD: "a/net", Source: "A", Network: n}},
				}
			}
			for i := range pods {
				book.build(in(i))
			}
			for b.Loop() {
				if want := book.build(in(pods)); len(want.Entries) != 1 {
					b.Fatalf("%+v", want)
				}
				book.release(fmt.Sprint("a/p", pods))
			}
		})
	}
}
