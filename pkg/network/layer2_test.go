// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestLayer2OwnAddresses(t *testing.T) {
	for _, tt := range []struct {
		name, host, infra, gateways string
		gateway, management         string
	}{
		{"defaults", "10.20.0.0/16", "", "", "10.20.0.1", "10.20.0.2"},
		{"IPv6", "fd20::/64", "", "", "fd20::1", "fd20::2"},
		{"another gateway", "10.20.0.0/16", "", "10.20.0.254", "10.20.0.254", "10.20.0.2"},
		{"gateway at .2", "10.20.0.0/16", "", "10.20.0.2", "10.20.0.2", "10.20.0.1"},
		{"gateway of the other IP family", "10.20.0.0/16", "", "fd20::9", "10.20.0.1", "10.20.0.2"},
		{"infrastructure subnet at the start", "192.168.100.0/24", "192.168.100.0/30", "192.168.100.2", "192.168.100.2", "192.168.100.1"},
		{"infrastructure subnet in the middle", "10.20.0.0/16", "10.20.5.0/28", "", "10.20.5.1", "10.20.5.2"},
		{"gateway in the infrastructure subnet", "10.20.0.0/16", "10.20.5.0/28", "10.20.5.9", "10.20.5.9", "10.20.5.2"},
		{"two infrastructure subnets of one address", "10.20.0.0/16", "10.20.5.7/32,10.20.6.7/32", "", "10.20.5.7", "10.20.6.7"},
		{"infrastructure subnet too small", "10.20.0.0/16", "10.20.5.7/32", "", "10.20.5.7", "10.20.0.2"},
		{"infrastructure subnet of the other IP family", "fd20::/64", "10.20.5.0/28", "", "fd20::1", "fd20::2"},
		{"infrastructure subnet at the end", "10.20.0.0/24", "10.20.0.252/30", "", "10.20.0.253", "10.20.0.254"},
	} {
		n := Network{ID: 1, Topology: Layer2, Role: RolePrimary}
		n.InfrastructureSubnets, _ = ParseCIDRs(tt.infra)
		for _, g := range splitList(tt.gateways) {
			n.DefaultGatewayIPs = append(n.DefaultGatewayIPs, netip.MustParseAddr(g))
		}
		host := netip.MustParsePrefix(tt.host)
		gw, mgmt := n.GatewayIn(host), n.ManagementIn(host)
		if gw.Addr().String() != tt.gateway || mgmt.Addr().String() != tt.management || gw.Bits() != host.Bits() || mgmt.Bits() != host.Bits() {
			t.Errorf("%s: gateway %s, management %s; want %s, %s", tt.name, gw, mgmt, tt.gateway, tt.management)
		}
		for _, a := range []netip.Addr{gw.Addr(), mgmt.Addr()} {
			if !slices.ContainsFunc(n.Unallocatable(host), func(p netip.Prefix) bool { return p.Contains(a) }) {
				t.Errorf("%s: %s is allocatable to pods", tt.name, a)
			}
		}
	}
	l3 := Network{ID: 1, Topology: Layer3, Role: RolePrimary}
	host := netip.MustParsePrefix("10.20.3.0/24")
	if l3.GatewayIn(host) != Gateway(host) || l3.ManagementIn(host) != Management(host) {
		t.Error("on Layer 3 the gateway is not .1 or the management port is not .2")
	}
	secondary := Network{ID: 1, Topology: Layer2, Role: RoleSecondary}
	if got := secondary.Unallocatable(host); len(got) > 0 {
		t.Errorf("unallocatable on a secondary network: %v, want none", got)
	}
}

// Pod networks of topologies with one subnet for the whole cluster.
func TestPodNetworkLayer2(t *testing.T) {
	plan := Plan{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112")}}
	dual := []netip.Prefix{netip.MustParsePrefix("10.20.0.9/16"), netip.MustParsePrefix("fd20::9/64")}
	n := Network{ID: 1, Topology: Layer2, Role: RolePrimary, Subnets: []Subnet{{CIDR: dual[0].Masked()}, {CIDR: dual[1].Masked()}},
		JoinSubnets: []netip.Prefix{netip.MustParsePrefix("100.65.0.0/16"), netip.MustParsePrefix("fd99::/64")}}
	for _, tt := range []struct {
		name string
		got  PodNetwork
		want string
	}{
		{"primary", NewPodNetwork(n, plan, dual, false), `{"ip_addresses":["10.20.0.9/16","fd20::9/64"],"mac_address":"0a:58:0a:14:00:09",` +
			`"gateway_ips":["10.20.0.1","fd20::1"],"role":"primary"}`},
		{"IPv4 default route on another network", NewPodNetwork(n, plan, dual, false).WithoutDefault(n, plan, true), `{"ip_addresses":["10.20.0.9/16","fd20::9/64"],` +
			`"mac_address":"0a:58:0a:14:00:09","gateway_ips":["fd20::1"],"routes":[{"dest":"10.96.0.0/16","nextHop":"10.20.0.1"},` +
			`{"dest":"100.65.0.0/16","nextHop":"10.20.0.1"}],"role":"primary"}`},
		{"secondary", NewPodNetwork(Network{ID: 1, Topology: Layer2, Role: RoleSecondary}, plan, dual[1:], false).WithLegacyFields(),
			`{"ip_addresses":["fd20::9/64"],"mac_address":"` + MAC(dual[1].Addr()) + `","ip_address":"fd20::9/64","role":"secondary"}`},
		{"localnet", NewPodNetwork(Network{ID: 1, Topology: Localnet, Role: RoleSecondary}, plan, dual[:1], false).WithLegacyFields(),
			`{"ip_addresses":["10.20.0.9/16"],"mac_address":"0a:58:0a:14:00:09","ip_address":"10.20.0.9/16","role":"secondary"}`},
	} {
		got, err := json.Marshal(tt.got)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v\nwant %s", tt.name, got, err, tt.want)
		}
	}
}

func TestTransitRouterPort(t *testing.T) {
	n := Network{ID: 1, Topology: Layer2, Role: RolePrimary, Transit: []netip.Prefix{netip.MustParsePrefix("100.88.0.0/19"), netip.MustParsePrefix("fd97::/64")}}
	for node, want := range map[int]string{1: "100.88.0.2/31 fd97::2/127", 2: "100.88.0.4/31 fd97::4/127", MaxNodeID: "100.88.31.252/31 fd97::1ffc/127"} {
		got := n.TransitRouterPort(node)
		if text := strings.ReplaceAll(JoinCIDRs(got), ",", " "); text != want {
			t.Errorf("node %d: %s, want %s", node, text, want)
		}
		for i, p := range got {
			if !n.Transit[i].Contains(p.Addr()) {
				t.Errorf("node %d: %s is outside %s", node, p, n.Transit[i])
			}
		}
	}
}
