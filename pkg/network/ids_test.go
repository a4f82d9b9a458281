// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func pfx(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, x := range s {
		out = append(out, netip.MustParsePrefix(x))
	}
	return out
}

func subnets(t *testing.T, list string) []Subnet {
	t.Helper()
	s, err := ParseSubnets(list, Layer3)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testPlan() Plan {
	return Plan{
		ClusterSubnets: []Subnet{{netip.MustParsePrefix("10.244.0.0/16"), 24}, {netip.MustParsePrefix("fd10:244::/48"), 64}},
		ServiceCIDRs:   pfx("10.96.0.0/16", "fd10:96::/112"),
		Join:           pfx("100.64.0.0/16", "fd98::/64"), UDNJoin: pfx("100.65.0.0/16", "fd99::/64"),
		Transit: pfx("100.88.0.0/16", "fd97::/64"), Masquerade: pfx("169.254.0.0/17", "fd69::/112"),
		VRFTableBase: 100000, UnderlayMTU: 1500, ClusterMTU: 1400,
	}
}

// Every identifier and address that is derived from ids.
func TestDerivedIdentifiers(t *testing.T) {
	p := testPlan()
	n := Network{ID: 7, Name: "cluster_udn_red", Topology: Layer3, Role: RolePrimary,
		Subnets: subnets(t, "10.20.0.0/16/24,fd20::/48/64"), JoinSubnets: p.UDNJoin, Transit: p.Transit}
	host, err := n.HostSubnets(3)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ got, want any }{
		"host subnets":          {host, pfx("10.20.2.0/24", "fd20:0:0:2::/64")},
		"gateway":               {Gateway(host[0]), netip.MustParsePrefix("10.20.2.1/24")},
		"management":            {Management(host[1]), netip.MustParsePrefix("fd20:0:0:2::2/64")},
		"join router":           {n.JoinRouter(), pfx("100.65.0.1/16", "fd99::1/64")},
		"join gateway, node 1":  {n.JoinGateway(1), pfx("100.65.0.2/16", "fd99::2/64")},
		"masquerade gateway":    {p.MasqueradeGateway(n), pfx("169.254.0.23/17", "fd69::17/112")},
		"masquerade management": {p.MasqueradeManagement(n), pfx("169.254.0.24/17", "fd69::18/112")},
		"masquerade, last id":   {p.MasqueradeManagement(Network{ID: MaxID}), pfx("169.254.78.42/17", "fd69::4e2a/112")},
		"next hop":              {p.MasqueradeFixed(MasqueradeNextHop), pfx("169.254.0.4/17", "fd69::4/112")},
		"conntrack mark":        {n.ConntrackMark(), uint32(10)},
		"packet mark":           {n.PacketMark(), uint32(0x70000)},
		"tunnel key":            {n.TunnelKey(), 16711690},
		"transit router key":    {n.TransitRouterKey(), 16744458},
		"management port":       {n.ManagementPort(), "ovn-k8s-mp7"},
		"longest port name":     {len(Network{ID: MaxID}.ManagementPort()), 15},
		"VRF":                   {n.VRF(), "red"},
		"VRF table":             {p.VRFTable(n), 100007},
		"MAC of IPv4":           {MAC(netip.MustParseAddr("10.244.0.3")), "0a:58:0a:f4:00:03"},
		"MAC of dual stack":     {MACOf(pfx("fd20::5/64", "10.20.0.5/24")), "0a:58:0a:14:00:05"},
		"cluster router":        {n.ClusterRouter(), "cluster_udn_red_ovn_cluster_router"},
		"default switch":        {Network{}.NodeSwitch("node1"), "node1"},
		"pod port":              {PodLSP("a/net", "a", "p"), "a.net_a_p"},
		"default pod port":      {PodLSP(DefaultName, "a", "p"), "a_p"},
	} {
		if got, want := fmt.Sprint(tt.got), fmt.Sprint(tt.want); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if id, ok := NetworkOfPacketMark(n.PacketMark()); id != 7 || !ok {
		t.Errorf("NetworkOfPacketMark: got %d, %v", id, ok)
	}
	if id, ok := NetworkOfPacketMark(n.PacketMark() | 0xc001); id != 7 || !ok {
		t.Errorf("NetworkOfPacketMark with other programs' bits: got %d, %v", id, ok)
	}
	for _, mark := range []uint32{0x4000, 0x8000, 0xffff, KubeletMark, MarkKindEgressIP | 7<<MarkShift, MarkKindService | 7<<MarkShift, (MaxID + 2) << MarkShift} {
		if id, ok := NetworkOfPacketMark(mark); ok || mark >= FirstPacketMark && mark <= LastPacketMark {
			t.Errorf("mark %#x is that of network %d", mark, id)
		}
	}
	if id, ok := NetworkOfPacketMark(NoNetworkMark); ok || NoNetworkMark < FirstPacketMark || NoNetworkMark > LastPacketMark {
		t.Errorf("NoNetworkMark is that of network %d, or outside the range that is refused", id)
	}
	if _, ok := NetworkOfPacketMark(PacketMark(0)); ok {
		t.Error("NetworkOfPacketMark accepted a mark for the default network, which has none")
	}
	if MAC(netip.MustParseAddr("fd20::5")) == MAC(netip.MustParseAddr("fd20::6")) {
		t.Error("two IPv6 addresses share a MAC")
	}
}

func TestVRFName(t *testing.T) {
	for _, tt := range []struct{ network, want string }{
		{"cluster_udn_red", "red"},
		{"cluster_udn_fifteen-chars-x", "fifteen-chars-x"},
		{"cluster_udn_sixteen-chars-xx", "mp9-udn-vrf"},
		{"cluster_udn_default", "mp9-udn-vrf"},
		{"cluster_udn_eth0", "mp9-udn-vrf"},
		{"cluster_udn_ovn-k8s-mp1", "mp9-udn-vrf"},
		{"cluster_udn_mp3-udn-vrf", "mp9-udn-vrf"},
		{"cluster_udn_lo", "mp9-udn-vrf"},
		{"blue_net", "mp9-udn-vrf"},
	} {
		if got := (Network{ID: 9, Name: tt.network}).VRF(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.network, got, tt.want)
		}
	}
}

func TestIsFallbackVRF(t *testing.T) {
	for _, id := range []int{1, 9, 10000} {
		if name := (Network{ID: id}).FallbackVRF(); !IsFallbackVRF(name) {
			t.Errorf("%s is not recognized", name)
		}
	}
	for _, name := range []string{"", "red", "mp-udn-vrf", "mp7", "mp7-udn-vrf2", "mpx-udn-vrf", "amp7-udn-vrf", "mp7-udn-vr", "-udn-vrf", "mp+7-udn-vrf"} {
		if IsFallbackVRF(name) {
			t.Errorf("%q is taken for the name of a network's VRF", name)
		}
	}
}

func TestHostSubnets(t *testing.T) {
	for _, tt := range []struct {
		subnets string
		node    int
		want    string // with a leading "!": part of the error
	}{
		{"10.20.0.0/16/24", 1, "[10.20.0.0/24]"},
		{"10.20.0.0/16/24", 256, "[10.20.255.0/24]"},
		{"10.20.0.0/16/24", 257, "!append a CIDR"},
		{"10.20.0.0/24/26,10.30.0.0/24/26", 5, "[10.30.0.0/26]"},
		{"10.20.0.0/24/26,10.30.0.0/24/26", 8, "[10.30.0.192/26]"},
		{"10.20.0.0/24/26,10.30.0.0/24/26", 9, "!node id 9"},
		{"fd00::/16/64", 4094, "[fd00:0:0:ffd::/64]"},
		{"10.20.0.0/16/24,fd20::/62/64", 4, "[10.20.3.0/24 fd20:0:0:3::/64]"},
		{"10.20.0.0/16/24,fd20::/62/64", 5, "!fd20::/62/64"},
		{"10.20.0.0/28", 1, "[10.20.0.0/28]"},
		{"10.20.0.0/16", 0, "!no id"},
	} {
		n := Network{ID: 9, Name: "x", Topology: Layer3, Subnets: subnets(t, tt.subnets)}
		got, err := n.HostSubnets(tt.node)
		if want, bad := strings.CutPrefix(tt.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s node %d: got %v, %v; want error with %q", tt.subnets, tt.node, got, err, want)
			}
		} else if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s node %d: got %v, %v; want %s", tt.subnets, tt.node, got, err, want)
		}
	}
}

// No two nodes share a host subnet, each is inside the network, and NodeOf is
// the inverse of HostSubnets.
func TestHostSubnetsDisjoint(t *testing.T) {
	n := Network{Name: "x", Topology: Layer3, Subnets: subnets(t, "10.0.0.0/20/27,10.8.0.0/22/27,fd00::/56/64")}
	var all []netip.Prefix
	for id := 1; ; id++ {
		host, err := n.HostSubnets(id)
		if err != nil {
			break
		}
		for _, h := range host {
			for _, o := range all {
				if h.Overlaps(o) {
					t.Fatalf("node %d: %s overlaps %s", id, h, o)
				}
			}
			if !n.Contains(h.Addr()) {
				t.Fatalf("node %d: %s is outside the network", id, h)
			}
			last, _ := NthAddr(h, 1<<(min(h.Addr().BitLen()-h.Bits(), 60))-1)
			for _, a := range []netip.Addr{h.Addr(), last} {
				if got := n.NodeOf(a); got != id {
					t.Fatalf("NodeOf(%s): %d, want %d", a, got, id)
				}
			}
		}
		all = append(all, host...)
	}
	for _, outside := range []string{"10.0.16.0", "9.255.255.255", "fd00:0:0:100::", "fc00::"} {
		if got := n.NodeOf(netip.MustParseAddr(outside)); got != 0 {
			t.Errorf("NodeOf(%s): %d, want 0", outside, got)
		}
	}
	wide := Network{Name: "x", Topology: Layer3, Subnets: subnets(t, "fd00::/16/64")}
	for a, want := range map[string]int{"fd00:0:0:ffd::1": MaxNodeID, "fd00:0:0:ffe::1": 0, "fd00:ffff::1": 0} {
		if got := wide.NodeOf(netip.MustParseAddr(a)); got != want {
			t.Errorf("NodeOf(%s): %d, want %d", a, got, want)
		}
	}
	if got := uint64(len(all) / 2); got != n.HostCapacity() || got != 160 {
		t.Errorf("%d nodes, HostCapacity %d, want 160", got, n.HostCapacity())
	}
}

func TestPlan(t *testing.T) {
	if err := testPlan().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*Plan)
		want   string
	}{
		"overlap":          {func(p *Plan) { p.Join = pfx("10.244.128.0/17") }, "overlaps"},
		"small masquerade": {func(p *Plan) { p.Masquerade = pfx("169.254.0.0/18") }, "masquerade-subnets"},
		"small join":       {func(p *Plan) { p.Join = pfx("100.64.0.0/24") }, "join-subnets"},
		"host bits":        {func(p *Plan) { p.ServiceCIDRs = pfx("10.96.0.1/16") }, "write 10.96.0.0/16"},
		"kernel tables":    {func(p *Plan) { p.VRFTableBase = 200 }, "vrf-table-base"},
		"no IPv6 join":     {func(p *Plan) { p.Join = pfx("100.64.0.0/16") }, "join-subnets has no CIDR of the IP family of cluster-subnets fd10:244::/48"},
		"no subnets":       {func(p *Plan) { p.ClusterSubnets = nil }, "cluster-subnets"},
		"mtu":              {func(p *Plan) { p.ClusterMTU = 100 }, "mtu 100 is outside 576..65536"},
		"underlay MTU":     {func(p *Plan) { p.UnderlayMTU = 675 }, "underlay-mtu 675 is outside 676..65536"},
		"no room":          {func(p *Plan) { p.ClusterMTU = 1401 }, "mtu 1401 with the 100 bytes that Geneve adds is more than underlay-mtu 1500"},
	} {
		p := testPlan()
		tt.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tt.want)
		}
	}
	for subnet, want := range map[string]string{
		"10.20.0.0/16": "", "10.244.3.0/24": "cluster-subnets", "10.96.0.0/12": "service-cidrs",
		"100.64.9.0/24": "join-subnets", "100.88.0.0/16": "transit", "169.254.1.0/24": "masquerade", "100.65.0.0/20": "its join subnet",
	} {
		n := Network{Name: "x", Topology: Layer3, Subnets: subnets(t, subnet), JoinSubnets: testPlan().UDNJoin}
		err := testPlan().Conflict(n)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", subnet, err, want)
		}
	}
}

func TestTransitAddr(t *testing.T) {
	for want, transit := range map[string][]netip.Prefix{
		"fd97::fff/64":     pfx("100.88.0.0/16", "fd97::/64"),
		"100.88.15.255/16": pfx("100.88.0.0/16"),
	} {
		got, ok := Network{Transit: transit}.TransitAddr(4094)
		if !ok || got.String() != want {
			t.Errorf("%v: %v, want %s", transit, got, want)
		}
	}
	if _, ok := (Network{}).TransitAddr(1); ok {
		t.Error("an address without a transit subnet")
	}
}
