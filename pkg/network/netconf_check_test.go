// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func conf(keys string) string {
	return `{"cniVersion":"1.1.0","name":"x","type":"ovn-k8s-cni-overlay",` + keys + `}`
}

const (
	l3Primary = `"topology":"layer3","role":"primary","subnets":"10.20.0.0/16/24,fd20::/48/64"`
	l2Primary = `"topology":"layer2","role":"primary","subnets":"10.20.0.0/16,fd20::/64"`
	l2        = `"topology":"layer2","subnets":"10.20.0.0/16"`
	local     = `"topology":"localnet","subnets":"192.0.2.0/24"`
)

func TestNetConfContradictions(t *testing.T) {
	for _, tt := range []struct{ keys, want string }{
		{`"topology":"layer3","subnets":"10.20.0.0/16","joinSubnet":"100.70.0.0/16"`, "joinSubnet is only for primary networks: remove it"},
		{l2 + `,"joinSubnet":"100.70.0.0/16"`, "joinSubnet is only for primary networks: remove it"},
		{l2 + `,"reservedSubnets":"10.20.1.0/24"`, "reservedSubnets is only for primary networks of topology layer2: remove it"},
		{l3Primary + `,"reservedSubnets":"10.20.1.0/24"`, "reservedSubnets is only for primary networks of topology layer2: remove it"},
		{l2 + `,"infrastructureSubnets":"10.20.1.0/24"`, "infrastructureSubnets is only for primary networks of topology layer2: remove it"},
		{l2 + `,"defaultGatewayIPs":"10.20.0.9"`, "defaultGatewayIPs is only for primary networks of topology layer2: remove it"},
		{l3Primary + `,"defaultGatewayIPs":"10.20.0.9"`, "defaultGatewayIPs is only for primary networks of topology layer2: remove it"},
		{l2 + `,"vlanID":7`, "vlanID is only for topology localnet: remove it"},
		{l3Primary + `,"physicalNetworkName":"blue"`, "physicalNetworkName is only for topology localnet: remove it"},
		{l3Primary + `,"allowPersistentIPs":true`, "allowPersistentIPs is only for topologies layer2 and localnet: remove it"},
		{`"topology":"layer2","allowPersistentIPs":true`, "allowPersistentIPs is only for networks with subnets: remove it"},
		{`"topology":"localnet","excludeSubnets":"192.0.2.0/30"`, "excludeSubnets is only for networks with subnets: remove it"},
		{local + `,"vlanID":-1`, "vlanID -1 is outside 1..4094"},
		{local + `,"mtu":65537`, "mtu 65537 is outside 576..65536"},
		{local + `,"excludeSubnets":"192.0.3.0/30"`, "excludeSubnets: 192.0.3.0/30 is not inside one of subnets 192.0.2.0/24: choose a range inside"},
		{local + `,"excludeSubnets":"192.0.0.0/16"`, "excludeSubnets: 192.0.0.0/16 is not inside"},
		{local + `,"excludeSubnets":"fd20::/126"`, "excludeSubnets: fd20::/126 is not inside"},
		{local + `,"excludeSubnets":"192.0.2.1/30"`, "excludeSubnets: 192.0.2.1/30 has host bits set: write 192.0.2.0/30"},
		{local + `,"physicalNetworkName":"a:b"`, `physicalNetworkName: "a:b" cannot contain , or : characters: choose another name`},
		{local + `,"physicalNetworkName":"a,b"`, `physicalNetworkName: "a,b" cannot contain , or : characters: choose another name`},
		{`"topology":"localnet","subnets":"192.0.2.0/24,192.0.3.0/24"`, "keep one of them: topology localnet takes one IPv4 and one IPv6 CIDR"},
		{`"topology":"layer2","subnets":"fd20::/64,fd21::/64"`, "subnets: fd20::/64 and fd21::/64 have the same IP family: keep one of them"},
		{`"topology":"layer2","role":"primary","subnets":"10.20.0.0/31"`, "subnets: 10.20.0.0/31 has no room for a gateway, the nodes and a pod: use a shorter prefix"},
		{l3Primary + `,"joinSubnet":"100.70.0.0/16,100.71.0.0/16"`, "joinSubnet: 100.70.0.0/16 and 100.71.0.0/16 have the same IP family: keep one of them"},
		{`"topology":"layer2","role":"primary","subnets":"ff05::/64"`, "subnets: ff05::/64 contains multicast addresses (ff00::/8), which no interface can have: choose another range"},
		{`"topology":"layer3","role":"primary","subnets":"10.20.0.0/16,224.0.0.0/16"`, "subnets: 224.0.0.0/16 contains multicast addresses (224.0.0.0/4)"},
		{`"topology":"layer2","subnets":"239.255.0.0/24"`, "subnets: 239.255.0.0/24 contains multicast addresses"},
		{`"topology":"layer2","subnets":"192.0.0.0/2"`, "subnets: 192.0.0.0/2 contains multicast addresses"},
		{`"topology":"localnet","subnets":"127.1.0.0/16"`, "subnets: 127.1.0.0/16 contains loopback addresses (127.0.0.0/8)"},
		{`"topology":"layer2","subnets":"64.0.0.0/2"`, "subnets: 64.0.0.0/2 contains loopback addresses"},
		{`"topology":"layer3","role":"primary","subnets":"169.254.128.0/17"`, "subnets: 169.254.128.0/17 contains link-local addresses (169.254.0.0/16)"},
		{`"topology":"layer2","subnets":"fe80::/64"`, "subnets: fe80::/64 contains link-local addresses (fe80::/10)"},
		{`"topology":"layer2","subnets":"fc00::/6"`, "subnets: fc00::/6 contains link-local addresses (fe80::/10)"},
		{`"topology":"layer2","subnets":"0.0.0.0/8"`, "subnets: 0.0.0.0/8 contains unspecified addresses (0.0.0.0/8)"},
		{`"topology":"layer2","subnets":"::/127"`, "subnets: ::/127 contains unspecified addresses (::/128)"},
		{`"topology":"layer2","subnets":"::1/128"`, "subnets: ::1/128 contains loopback addresses (::1/128)"},
		{l2Primary + `,"joinSubnet":"100.70.0.0/16,ff05::/64"`, "joinSubnet: ff05::/64 contains multicast addresses (ff00::/8)"},
		{l3Primary + `,"joinSubnet":"127.0.0.0/16"`, "joinSubnet: 127.0.0.0/16 contains loopback addresses"},
		{l2Primary + `,"transitSubnet":"100.70.0.0/16,100.71.0.0/16"`, "transitSubnet: 100.70.0.0/16 and 100.71.0.0/16 have the same IP family"},
		{l2Primary + `,"transitSubnet":"100.70.0.0/24"`, "transitSubnet 100.70.0.0/24 is too small for 4094 nodes: use a prefix of length 19 or shorter"},
		{l2Primary + `,"transitSubnet":"100.70.0.0/20"`, "transitSubnet 100.70.0.0/20 is too small for 4094 nodes: use a prefix of length 19 or shorter"},
		{l2Primary + `,"reservedSubnets":"10.21.0.0/24"`, "reservedSubnets: 10.21.0.0/24 is not inside"},
		{l2Primary + `,"infrastructureSubnets":"10.21.0.0/24"`, "infrastructureSubnets: 10.21.0.0/24 is not inside"},
		{l2Primary + `,"infrastructureSubnets":"10.20.1.0/24","reservedSubnets":"10.20.0.0/20"`, "infrastructureSubnets: 10.20.1.0/24 overlaps 10.20.0.0/20 of reservedSubnets: choose another range"},
		{l2Primary + `,"defaultGatewayIPs":"10.21.0.1,fd20::1"`, "defaultGatewayIPs: 10.21.0.1 is not inside one of subnets 10.20.0.0/16,fd20::/64: choose an address"},
		{l2Primary + `,"defaultGatewayIPs":"10.20.0.0,fd20::1"`, "defaultGatewayIPs: 10.20.0.0 is the first or the last address of 10.20.0.0/16"},
		{l2Primary + `,"defaultGatewayIPs":"10.20.0.9"`, "defaultGatewayIPs has no address in one of subnets: add one"},
		{l2Primary + `,"defaultGatewayIPs":"10.20.0.9,10.20.0.10"`, "defaultGatewayIPs: 10.20.0.9 and 10.20.0.10 have the same IP family"},
		{l2Primary + `,"defaultGatewayIPs":"10.20.0.9,fe80::1%eth0"`, `defaultGatewayIPs: "fe80::1%eth0" is not an IP address such as`},
		{l2Primary + `,"infrastructureSubnets":"10.20.1.0/24","defaultGatewayIPs":"10.20.0.9,fd20::1"`, "defaultGatewayIPs: 10.20.0.9 is not inside one of infrastructureSubnets 10.20.1.0/24: choose an address"},
		{l3Primary + `,"transport":"vxlan"`, `transport "vxlan" is unknown: remove it for Geneve`},
		{l3Primary + `,"transport":"no-overlay","outboundSNAT":"enabled"`, "transport no-overlay is only for ClusterUserDefinedNetworks: remove it"},
		{l3Primary + `,"transport":"no-overlay","name":"cluster_udn_x"`, `outboundSNAT "" is unknown: transport no-overlay needs enabled or disabled`},
		{l3Primary + `,"transport":"no-overlay","outboundSNAT":"Enabled","name":"cluster_udn_x"`, `outboundSNAT "Enabled" is unknown`},
		{l3Primary + `,"outboundSNAT":"enabled"`, "outboundSNAT is only for transport no-overlay: remove it"},
		{l2Primary + `,"transport":"no-overlay","outboundSNAT":"enabled","name":"cluster_udn_x"`, "transport no-overlay is only for primary networks of topology layer3: remove it"},
		{`"topology":"layer3","subnets":"10.20.0.0/16","transport":"no-overlay","outboundSNAT":"enabled","name":"cluster_udn_x"`, "transport no-overlay is only for primary networks of topology layer3: remove it"},
	} {
		c, err := ParseNetConf(conf(tt.keys))
		if err == nil {
			_, err = c.Network(1, testPlan())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.keys, err, tt.want)
		}
	}
}

func TestNetConfAccepted(t *testing.T) {
	for _, tt := range []struct {
		keys string
		want func(*Network) // sets the fields that differ from the keys' zero values
	}{
		{local, func(n *Network) { n.PhysicalNetworkName = "x" }},
		{local + `,"physicalNetworkName":"blue","vlanID":4094,"excludeSubnets":"192.0.2.0/30,192.0.2.128/25","allowPersistentIPs":true`, func(n *Network) {
			n.PhysicalNetworkName, n.VLAN, n.PersistentIPs, n.ExcludeSubnets = "blue", 4094, true, pfx("192.0.2.0/30", "192.0.2.128/25")
		}},
		{`"topology":"localnet"`, func(n *Network) { n.PhysicalNetworkName = "x" }},
		{l2 + `,"excludeSubnets":"10.20.0.0/30"`, func(n *Network) { n.ExcludeSubnets = pfx("10.20.0.0/30") }},
		{l2Primary + `,"infrastructureSubnets":"10.20.1.0/24,fd20::/112","reservedSubnets":"10.20.2.0/24","defaultGatewayIPs":"fd20::9,10.20.1.9"`, func(n *Network) {
			n.InfrastructureSubnets, n.ReservedSubnets = pfx("10.20.1.0/24", "fd20::/112"), pfx("10.20.2.0/24")
			n.DefaultGatewayIPs = []netip.Addr{netip.MustParseAddr("fd20::9"), netip.MustParseAddr("10.20.1.9")}
			n.JoinSubnets = pfx("100.65.0.0/16", "fd99::/64")
		}},
		{l3Primary + `,"transport":"no-overlay","outboundSNAT":"disabled","name":"cluster_udn_x"`, func(n *Network) {
			n.Name = "cluster_udn_x"
			n.Transport, n.OutboundSNAT, n.JoinSubnets = TransportNoOverlay, "disabled", pfx("100.65.0.0/16", "fd99::/64")
		}},
		{l3Primary + `,"transport":"geneve","args":{"a":1},"disableCheck":true,"disableGC":true,"cniVersions":["1.0.0"],"logFile":"x","logLevel":"5","logfile-maxsize":1`, func(n *Network) { n.JoinSubnets = pfx("100.65.0.0/16", "fd99::/64") }},
		{l3Primary + `,"transport":"noOverlay","outboundSNAT":"disabled","name":"cluster_udn_x"`, func(n *Network) {
			n.Name = "cluster_udn_x"
			n.Transport, n.OutboundSNAT, n.JoinSubnets = TransportNoOverlay, "disabled", pfx("100.65.0.0/16", "fd99::/64")
		}},
		// The cluster's default applies to the IP family that joinSubnet lacks.
		{l3Primary + `,"joinSubnet":"100.70.0.0/16"`, func(n *Network) { n.JoinSubnets = pfx("100.70.0.0/16", "fd99::/64") }},
		{l2Primary + `,"joinSubnet":"fd70::/64","transitSubnet":"fd71::/64"`, func(n *Network) {
			n.JoinSubnets, n.Transit = pfx("fd70::/64", "100.65.0.0/16"), pfx("fd71::/64", "100.88.0.0/16")
		}},
	} {
		c, err := ParseNetConf(conf(tt.keys))
		if err != nil {
			t.Errorf("%s: %v", tt.keys, err)
			continue
		}
		got, err := c.Network(1, testPlan())
		if err != nil {
			t.Errorf("%s: %v", tt.keys, err)
			continue
		}
		want := Network{ID: 1, Name: "x", Topology: got.Topology, Role: got.Role, MTU: got.MTU, Subnets: got.Subnets, Transit: got.Transit}
		tt.want(&want)
		if d := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got)); d != "" {
			t.Errorf("%s:\n%s", tt.keys, d)
		}
	}
}

func TestPlanConflictInsideNetwork(t *testing.T) {
	for _, tt := range []struct{ keys, want string }{
		{l3Primary + `,"joinSubnet":"10.20.0.0/17"`, "overlaps its join subnet 10.20.0.0/17"},
		{l2Primary + `,"transitSubnet":"10.20.0.0/17"`, "overlaps its transit subnet 10.20.0.0/17"},
		{l2Primary + `,"joinSubnet":"100.70.0.0/16","transitSubnet":"100.70.0.0/17"`, "join subnet 100.70.0.0/16 of network x overlaps its transit subnet"},
		{l2Primary + `,"joinSubnet":"100.88.0.0/16"`, "overlaps the cluster's transit-subnets"},
	} {
		c, err := ParseNetConf(conf(tt.keys))
		if err != nil {
			t.Fatal(err)
		}
		n, err := c.Network(1, testPlan())
		if err != nil {
			t.Fatal(err)
		}
		if err := testPlan().Conflict(n); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.keys, err, tt.want)
		}
	}
}

func FuzzParseNetConf(f *testing.F) {
	f.Add(redConf)
	for _, keys := range []string{l3Primary, l2Primary, l2, local,
		local + `,"excludeSubnets":"192.0.2.0/30","vlanID":7,"physicalNetworkName":"blue","allowPersistentIPs":true`,
		l2Primary + `,"infrastructureSubnets":"10.20.1.0/24","reservedSubnets":"10.20.2.0/24","defaultGatewayIPs":"10.20.1.9,fd20::9"`,
		l3Primary + `,"transport":"no-overlay","outboundSNAT":"enabled","joinSubnet":"100.70.0.0/16","mtu":1400`} {
		f.Add(conf(keys))
	}
	f.Fuzz(func(t *testing.T, conf string) {
		c, err := ParseNetConf(conf)
		if err != nil {
			return
		}
		n, err := c.Network(3, testPlan())
		if err != nil {
			return
		}
		for _, s := range n.Subnets {
			if err := s.Validate(n.Topology); err != nil {
				t.Errorf("accepted an invalid subnet: %v", err)
			}
		}
		for _, p := range slices.Concat(n.ExcludeSubnets, n.ReservedSubnets, n.InfrastructureSubnets) {
			if !n.Contains(p.Addr()) {
				t.Errorf("accepted %s outside %v", p, n.Subnets)
			}
		}
		for _, gw := range n.DefaultGatewayIPs {
			if !n.Contains(gw) {
				t.Errorf("accepted the gateway %s outside %v", gw, n.Subnets)
			}
		}
		if v4, v6 := n.Families(); n.IsPrimary() && len(n.JoinSubnets) != count(v4, v6) {
			t.Errorf("join subnets %v for %v", n.JoinSubnets, n.Subnets)
		}
		if (n.Topology == Localnet) != (n.PhysicalNetworkName != "") || strings.ContainsAny(n.PhysicalNetworkName, ",:") {
			t.Errorf("topology %s with physical network %q", n.Topology, n.PhysicalNetworkName)
		}
		if n.MTU < 576 || n.MTU > 65536 || n.VLAN < 0 || n.VLAN > 4094 {
			t.Errorf("accepted mtu %d, vlan %d", n.MTU, n.VLAN)
		}
		if hosts, err := n.HostSubnets(1); err == nil {
			for _, h := range hosts {
				if gw := n.GatewayIn(h); gw.IsValid() && !n.Contains(gw.Addr()) {
					t.Errorf("gateway of %s is outside %v", h, n.Subnets)
				}
			}
		}
		if again, err := ParseNetConf(c.Render()); err != nil || again != c {
			t.Errorf("render and parse differ: %v", err)
		}
		_ = testPlan().Conflict(n) // must not panic
	})
}

func count(bs ...bool) (n int) {
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}

// Accepted lists are equal after rendering and parsing.
func FuzzParseCIDRs(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8, fd00::/8", "10.0.0.1/8", "::ffff:10.0.0.0/104", ",,", "0.0.0.0/0,::/0", "10.0.0.0/08"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		ps, err := ParseCIDRs(list)
		if err != nil {
			return
		}
		if again, err := ParseCIDRs(JoinCIDRs(ps)); err != nil || !slices.Equal(again, ps) {
			t.Errorf("%q: %v, then %v, %v", list, ps, again, err)
		}
		for _, p := range ps {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				t.Errorf("%q: accepted %v", list, p)
			}
		}
	})
}

func FuzzParseSubnets(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8/24,fd00::/8/64", "10.0.0.0/30", "10.0.0.0/8/+24", "10.0.0.0/8/31", "fd00::/126", "10.0.0.0/8/24/1"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, list string, layer3 bool) {
		topology := Layer2
		if layer3 {
			topology = Layer3
		}
		ss, err := ParseSubnets(list, topology)
		if err != nil {
			return
		}
		if again, err := ParseSubnets(JoinSubnetList(ss), topology); err != nil || !slices.Equal(again, ss) {
			t.Errorf("%q: %v, then %v, %v", list, ss, again, err)
		}
		for i, s := range ss {
			if err := s.Validate(topology); err != nil {
				t.Errorf("%q: accepted %v: %v", list, s, err)
			}
			for _, o := range ss[:i] {
				if o.CIDR.Overlaps(s.CIDR) {
					t.Errorf("%q: accepted %v and %v", list, o, s)
				}
			}
		}
	})
}

// TestMTU: a network's MTU by default, and the largest that the nodes' network carries.
func TestMTU(t *testing.T) {
	plan := testPlan()
	for _, tt := range []struct {
		name          string
		conf          NetConf
		normal, limit int
	}{
		{"overlay", NetConf{Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24"}, 1400, 1400},
		{"Layer 2", NetConf{Topology: "layer2", Role: "secondary", Subnets: "10.10.0.0/16"}, 1400, 1400},
		{"no overlay", NetConf{Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24", Transport: TransportNoOverlay, OutboundSNAT: "enabled"}, 1500, 1500},
		{"Localnet", NetConf{Topology: "localnet", Role: "secondary", Subnets: "10.10.0.0/16"}, 1500, 65536},
	} {
		c := tt.conf
		c.CNIVersion, c.Type, c.Name, c.NetAttachDefName = CNIVersion, CNIType, "cluster_udn_x", "ns/x"
		for mtu, want := range map[int]int{0: tt.normal, 1300: 1300, tt.limit: tt.limit} {
			c.MTU = mtu
			n, err := c.Network(1, plan)
			if err != nil || n.MTU != want || plan.CheckMTU(n) != nil {
				t.Errorf("%s, mtu %d: MTU %d, %v, %v; want %d", tt.name, mtu, n.MTU, err, plan.CheckMTU(n), want)
			}
		}
		c.MTU = tt.limit + 1
		n, err := c.Network(1, plan)
		if err == nil {
			err = plan.CheckMTU(n)
		}
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("mtu %d is", c.MTU)) {
			t.Errorf("%s, mtu %d: %v, want an error", tt.name, c.MTU, err)
		}
	}
}
