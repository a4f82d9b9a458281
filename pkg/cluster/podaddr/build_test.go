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

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "write golden files")

// testNetwork returns the network of NAD JSON without type and name.
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

// NAD JSON of networks, without type and name.
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

// One attachment, on a network in which another pod holds addresses and MACs.
func TestBuild(t *testing.T) {
	other := Holder{Namespace: "b", Name: "other", UID: "o", Key: "b/net"}
	claim := func(network string, ips ...string) *Claim {
		return &Claim{Holder: Holder{Claim: true, Namespace: "a", Name: "vm", UID: "c"}, Network: network, IPs: prefixes(ips...)}
	}
	for _, tt := range []struct {
		name, conf string
		held       []string // by other
		macs       []string // by other
		request    kube.SelectionRequest
		claim      *Claim
		want       string // ips mac tunnel
		refused    string // part of the problem's text
		wait       topic
	}{
		{name: "primary", conf: primaryL2, want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "next addresses held", conf: primaryL2, held: []string{"10.20.0.3/24", "10.20.0.4/24"}, want: "10.20.0.5/24 0a:58:0a:14:00:05 10"},
		{name: "secondary network without gateway and management port", conf: secondaryL2, want: "10.30.0.1/24 0a:58:0a:1e:00:01 10"},
		{name: "dual stack", conf: dualL2, want: "10.20.0.3/24, fd20::3/64 0a:58:0a:14:00:03 10"},
		{name: "IPv6 only", conf: ipv6L2, want: "fd20::3/64 " + network.MAC(netip.MustParseAddr("fd20::3")) + " 10"},
		{name: "reserved and infrastructure subnets", conf: plannedL2, want: "10.20.0.12/24 0a:58:0a:14:00:0c 10"},
		{name: "excluded subnets", conf: excludedLN, want: "10.40.0.4/29 0a:58:0a:28:00:04 0"},
		{name: "no addresses", conf: noIPAM, want: " 0a:58:f4:00:50:92 0"},
		{name: "no addresses, tunnel id", conf: noIPAML2, want: " 0a:58:f4:00:50:92 10"},
		{
			name: "exhausted", conf: excludedLN, held: []string{"10.40.0.4/29", "10.40.0.5/29", "10.40.0.6/29"},
			refused: "no address of 10.40.0.0/29 is free", wait: topicCapacity("net7"),
		},
		{
			name: "one IP family exhausted", conf: `"topology":"layer2","subnets":"10.30.0.0/30,fd30::/64"`, held: []string{"10.30.0.1/30", "10.30.0.2/30"},
			refused: "no address of 10.30.0.0/30 is free", wait: topicCapacity("net7"),
		},
		{name: "derived MAC taken", conf: primaryL2, macs: []string{"0a:58:0a:14:00:03"}, want: "10.20.0.4/24 0a:58:0a:14:00:04 10"},

		{name: "requests an address", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.77/32")}, want: "10.20.0.77/24 0a:58:0a:14:00:4d 10"},
		{name: "requests with prefix length", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.77/24")}, want: "10.20.0.77/24 0a:58:0a:14:00:4d 10"},
		{name: "requests with wrong prefix length", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.77/16")}, refused: "write 10.20.0.77/24"},
		{name: "requests for one IP family", conf: dualL2, request: kube.SelectionRequest{IPs: prefixes("fd20::77/128")}, want: "10.20.0.3/24, fd20::77/64 0a:58:0a:14:00:03 10"},
		{name: "requests two of one IP family", conf: dualL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.5/32", "10.20.0.6/32")}, refused: "both of 10.20.0.0/24: request one"},
		{name: "requests outside the subnets", conf: dualL2, request: kube.SelectionRequest{IPs: prefixes("10.21.0.5/32")}, refused: "outside the network's subnets 10.20.0.0/24, fd20::/64"},
		{name: "requests the gateway", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.1/32")}, refused: "10.20.0.1 belongs to the network itself"},
		{name: "requests the management port", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.2/32")}, refused: "10.20.0.2 belongs to the network itself"},
		{name: "requests from infrastructure subnet", conf: plannedL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.10/32")}, refused: "10.20.0.10 belongs to the network itself"},
		{name: "requests from reserved subnet", conf: plannedL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.4/32")}, want: "10.20.0.4/24 0a:58:0a:14:00:04 10"},
		{name: "requests from excluded subnet", conf: excludedLN, request: kube.SelectionRequest{IPs: prefixes("10.40.0.2/32")}, refused: "excludeSubnets 10.40.0.0/30 excludes"},
		{name: "requests the network address", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.0/32")}, refused: "network or broadcast address"},
		{name: "requests the broadcast address", conf: primaryL2, request: kube.SelectionRequest{IPs: prefixes("10.20.0.255/32")}, refused: "network or broadcast address"},
		{name: "requests on a network without subnets", conf: noIPAM, request: kube.SelectionRequest{IPs: prefixes("10.20.0.9/32")}, refused: "has no subnets: remove ips"},
		{
			name: "requests a taken address", conf: primaryL2, held: []string{"10.20.0.77/24"}, request: kube.SelectionRequest{IPs: prefixes("10.20.0.77/32")},
			refused: "10.20.0.77 is held by pod b/other: request another", wait: topicRelease("net7", "10.20.0.77"),
		},
		{name: "requests a MAC", conf: primaryL2, request: kube.SelectionRequest{MAC: "02:00:00:00:00:05"}, want: "10.20.0.3/24 02:00:00:00:00:05 10"},
		{name: "requests a MAC on a network without subnets", conf: noIPAM, request: kube.SelectionRequest{MAC: "02:00:00:00:00:05"}, want: " 02:00:00:00:00:05 0"},
		{
			name: "requests a taken MAC", conf: primaryL2, macs: []string{"02:00:00:00:00:05"}, request: kube.SelectionRequest{MAC: "02:00:00:00:00:05"},
			refused: "02:00:00:00:00:05 is held by pod b/other", wait: topicRelease("net7", "02:00:00:00:00:05"),
		},
		{name: "requests the MAC of the gateway", conf: primaryL2, request: kube.SelectionRequest{MAC: "0a:58:0a:14:00:01"}, refused: "that of 10.20.0.1, an address of the network itself"},
		{name: "requests the MAC of the management port", conf: primaryL2, request: kube.SelectionRequest{MAC: "0a:58:0a:14:00:02"}, refused: "that of 10.20.0.2, an address of the network itself"},
		{
			name: "derived MAC of requested address taken", conf: primaryL2, macs: []string{"0a:58:0a:14:00:4d"}, request: kube.SelectionRequest{IPs: prefixes("10.20.0.77/32")},
			refused: "0a:58:0a:14:00:4d is held by pod b/other", wait: topicRelease("net7", "0a:58:0a:14:00:4d"),
		},
		{name: "default route outside", conf: secondaryL2, request: kube.SelectionRequest{Gateways: []netip.Addr{netip.MustParseAddr("10.31.0.1")}}, refused: "default-route 10.31.0.1 is outside"},
		{name: "default route without subnets", conf: noIPAM, request: kube.SelectionRequest{Gateways: []netip.Addr{netip.MustParseAddr("10.31.0.1")}}, refused: "the network has no subnets"},

		{name: "claim", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net7"), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "claim with addresses", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net7", "10.20.0.99/24"), want: "10.20.0.99/24 0a:58:0a:14:00:63 10"},
		{name: "new claim, pod requests address", conf: claimL2, request: kube.SelectionRequest{Claim: "vm", IPs: prefixes("10.20.0.9/32")}, claim: claim("net7"), want: "10.20.0.9/24 0a:58:0a:14:00:09 10"},
		{
			name: "claim with another address than requested", conf: claimL2, request: kube.SelectionRequest{Claim: "vm", IPs: prefixes("10.20.0.9/32")}, claim: claim("net7", "10.20.0.99/24"),
			refused: "requests 10.20.0.9, but IPAMClaim vm holds 10.20.0.99/24", wait: topicClaim("a/vm"),
		},
		{name: "no claim", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"}, refused: "does not exist in namespace a: create it with spec.network net7", wait: topicClaim("a/vm")},
		{name: "claim of another network", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net8"), refused: "IPAMClaim vm is for network net8", wait: topicClaim("a/vm")},
		{name: "claim on a network without persistent addresses", conf: primaryL2, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net7"), refused: "the network has no persistent addresses"},
		{name: "claim with one IP family", conf: dualL2 + `,"allowPersistentIPs":true`, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net7", "10.20.0.9/24"), refused: "no address in the subnet fd20::/64"},
		{name: "claim with address outside the subnets", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net7", "10.20.0.9/24", "fd20::9/64"), refused: "fd20::9, which is outside"},
		{name: "claim with the gateway address", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"}, claim: claim("net7", "10.20.0.1/24"), refused: "10.20.0.1 belongs to the network itself"},
		{
			name: "claim with a taken address", conf: claimL2, request: kube.SelectionRequest{Claim: "vm"},
			claim:   &Claim{Holder: claim("").Holder, Network: "net7", Refused: "10.20.0.9 is held by pod b/other", TakenAddress: "10.20.0.9"},
			refused: "IPAMClaim a/vm: 10.20.0.9 is held by pod b/other", wait: topicRelease("net7", "10.20.0.9"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := testNetwork(t, 7, tt.conf)
			alloc := NewAllocator(n.Name, time.Hour)
			if err := alloc.Reserve(other, prefixes(tt.held...)); err != nil {
				t.Fatal(err)
			}
			for _, mac := range tt.macs {
				if err := alloc.ReserveMAC(other, mac); err != nil {
					t.Fatal(err)
				}
			}
			if tt.claim != nil {
				_ = alloc.Reserve(tt.claim.Holder, tt.claim.IPs)
			}
			before := len(alloc.held) + len(alloc.macs) + alloc.tunnels.Len()
			want, allocated, problems := Build(Inputs{
				Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u"},
				Attachments: []Attachment{{Key: "a/net", NAD: "a/net", Source: "A", Network: n, Request: tt.request, Claim: tt.claim, Alloc: alloc}},
			})
			if tt.refused != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Text, tt.refused) || len(allocated) > 0 || len(want.Entries) > 0 {
					t.Fatalf("got %+v, problems %+v", want.Entries, problems)
				}
				if !slices.Contains(problems[0].Wait, topicNAD("a/net")) || tt.wait != (topic{}) && !slices.Contains(problems[0].Wait, tt.wait) {
					t.Errorf("waits for %v", problems[0].Wait)
				}
				if after := len(alloc.held) + len(alloc.macs) + alloc.tunnels.Len(); after != before {
					t.Errorf("allocations of a refused pod: %d before, %d after", before, after)
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

// Annotations of all kinds of networks.
func TestBuildGolden(t *testing.T) {
	a := func(key string, id int, conf string, r kube.SelectionRequest) Attachment {
		n := testNetwork(t, id, conf)
		return Attachment{Key: key, NAD: key, Source: "A", Network: n, Request: r, Alloc: NewAllocator(n.Name, time.Hour)}
	}
	gw := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	first := a("a/net", 7, secondaryL2, kube.SelectionRequest{})
	second := first
	second.Key = "a/net/1"
	for name, attachments := range map[string][]Attachment{
		"primary":                    {a("a/net", 7, dualL2, kube.SelectionRequest{})},
		"primary-planned":            {a("a/net", 7, plannedL2, kube.SelectionRequest{IPs: prefixes("10.20.0.5/32"), MAC: "02:00:00:00:00:05"})},
		"secondary":                  {first, second},
		"localnet":                   {a("a/phys", 7, excludedLN, kube.SelectionRequest{}), a("a/free", 8, noIPAM, kube.SelectionRequest{})},
		"default-route-on-secondary": {a("a/net", 7, dualL2, kube.SelectionRequest{}), a("a/out", 8, secondaryL2, kube.SelectionRequest{Gateways: gw("10.30.0.254")})},
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

// A pod's previous entries are restored if they are valid and still free.
func TestRestorePrevious(t *testing.T) {
	previous := network.PodNetwork{IPs: prefixes("10.20.0.50/24"), MAC: "0a:58:0a:14:00:32", TunnelID: 40, Role: network.RolePrimary}
	with := func(change func(*network.PodNetwork)) network.PodNetwork {
		n := previous
		change(&n)
		return n
	}
	other := Holder{Namespace: "b", Name: "other", UID: "o", Key: "b/net"}
	for _, tt := range []struct {
		name     string
		previous network.PodNetwork
		started  bool
		taken    bool // by another pod
		want     string
		refused  string
	}{
		{name: "running", previous: previous, started: true, want: "10.20.0.50/24 0a:58:0a:14:00:32 40"},
		{name: "pending", previous: previous, want: "10.20.0.50/24 0a:58:0a:14:00:32 40"},
		{name: "running, taken", previous: previous, started: true, taken: true, refused: "10.20.0.50 is held by pod b/other: recreate the pod"},
		{name: "pending, taken", previous: previous, taken: true, want: "10.20.0.51/24 0a:58:0a:14:00:33 10"},
		{name: "no tunnel id", previous: with(func(n *network.PodNetwork) { n.TunnelID = 0 }), started: true, want: "10.20.0.50/24 0a:58:0a:14:00:32 10"},
		{name: "reserved tunnel id", previous: with(func(n *network.PodNetwork) { n.TunnelID = 3 }), started: true, want: "10.20.0.50/24 0a:58:0a:14:00:32 10"},
		{name: "gateway's address", previous: with(func(n *network.PodNetwork) { n.IPs = prefixes("10.20.0.1/24") }), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "another subnet", previous: with(func(n *network.PodNetwork) { n.IPs = prefixes("10.9.0.1/24") }), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
		{name: "no MAC", previous: with(func(n *network.PodNetwork) { n.MAC = "x" }), want: "10.20.0.3/24 0a:58:0a:14:00:03 10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := testNetwork(t, 7, primaryL2)
			alloc := NewAllocator(n.Name, time.Hour)
			if tt.taken {
				if err := alloc.Reserve(other, tt.previous.IPs); err != nil {
					t.Fatal(err)
				}
			}
			want, _, problems := Build(Inputs{
				Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u", Started: tt.started}, Previous: network.PodNetworks{"a/net": tt.previous},
				Attachments: []Attachment{{Key: "a/net", NAD: "a/net", Source: "A", Network: n, Alloc: alloc}},
			})
			e := want.Entries["a/net"]
			if tt.refused != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Text, tt.refused) {
					t.Errorf("problems %+v", problems)
				}
				if !sameEntry(e, tt.previous) {
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

// Two attachments of a pod never share an address or a claim.
func TestTwoAttachments(t *testing.T) {
	n := testNetwork(t, 7, claimL2)
	alloc := NewAllocator(n.Name, time.Hour)
	c := &Claim{Holder: Holder{Claim: true, Namespace: "a", Name: "vm", UID: "c"}, Network: "net7"}
	one := Attachment{Key: "a/net", NAD: "a/net", Source: "A", Network: n, Request: kube.SelectionRequest{Claim: "vm"}, Claim: c, Alloc: alloc}
	two := one
	two.Key = "a/net/1"
	want, _, problems := Build(Inputs{Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "p", UID: "u"}, Attachments: []Attachment{one, two}})
	if len(problems) != 1 || !strings.Contains(problems[0].Text, "used by the pod's attachment a/net: name another claim") || len(want.Entries) != 1 {
		t.Errorf("entries %v, problems %+v", want.Entries, problems)
	}
	two.Request, two.Claim = kube.SelectionRequest{}, nil
	want, _, problems = Build(Inputs{Plan: testPlan(t), Pod: Pod{Namespace: "a", Name: "q", UID: types.UID("v")}, Attachments: []Attachment{two}})
	if len(problems) > 0 || join(want.Entries["a/net/1"].IPs) != "10.20.0.4/24" || want.Entries["a/net/1"].TunnelID != 11 {
		t.Errorf("entries %v, problems %+v", want.Entries, problems)
	}
}

// The cost per pod does not depend on the number of pods.
func BenchmarkBuild(b *testing.B) {
	n := testNetwork(b, 7, `"topology":"layer2","role":"primary","subnets":"10.0.0.0/8,fd20::/64"`)
	plan := testPlan(b)
	for _, pods := range []int{100, 10000, 30000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			tr := newTracker(time.Hour, time.Now)
			in := func(i int) Inputs {
				return Inputs{
					Plan: plan, Pod: Pod{Namespace: "a", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))},
					Attachments: []Attachment{{Key: "a/net", NAD: "a/net", Source: "A", Network: n}},
				}
			}
			for i := range pods {
				tr.build(in(i))
			}
			for b.Loop() {
				if want := tr.build(in(pods)); len(want.Entries) != 1 {
					b.Fatalf("%+v", want)
				}
				tr.releasePod(fmt.Sprint("a/p", pods))
			}
		})
	}
}
