// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bulkhead/pkg/network"
)

// What isolation matches: the subnets of networks that BGP announces in the nodes' default VRF, but neither the addresses of
// the node and its routers, nor networks to which no route leads: these may have the other nodes' addresses.
func TestAdvertisedElements(t *testing.T) {
	plain := network.Network{ID: 11, Topology: network.Layer3, Role: network.RolePrimary, Transport: network.TransportNoOverlay, Subnets: subnets("192.168.0.0/16/24")}
	announced := plain
	announced.ID, announced.AdvertisedVRFs, announced.Subnets = 12, network.VRFDefault, subnets("10.88.0.0/16/24")
	in := Inputs{Mode: network.LocalGateway, Bridge: "br-ex", NodeID: 2, Default: defaultNetwork, Networks: []network.Network{plain, announced, advertised[3]}}
	for _, c := range []struct {
		name             string
		reserved         []netip.Addr
		advertised, pods []string
	}{
		{"elsewhere", addrs("192.0.2.1", "2001:db8::1"), []string{"10.88.0.0/16"}, []string{"10.88.1.0/24"}},
		{"the first and the last", addrs("10.88.0.0", "10.88.255.255"), []string{
			"10.88.0.1", "10.88.0.128/25", "10.88.0.16/28", "10.88.0.2/31", "10.88.0.32/27", "10.88.0.4/30", "10.88.0.64/26", "10.88.0.8/29", "10.88.1.0/24",
			"10.88.128.0/18", "10.88.16.0/20", "10.88.192.0/19", "10.88.2.0/23", "10.88.224.0/20", "10.88.240.0/21", "10.88.248.0/22", "10.88.252.0/23", "10.88.254.0/24",
			"10.88.255.0/25", "10.88.255.128/26", "10.88.255.192/27", "10.88.255.224/28", "10.88.255.240/29", "10.88.255.248/30", "10.88.255.252/31", "10.88.255.254",
			"10.88.32.0/19", "10.88.4.0/22", "10.88.64.0/18", "10.88.8.0/21",
		}, []string{"10.88.1.0/24"}},
	} {
		in.Reserved = c.reserved
		sets := Build(in).Sets
		if got := sets[SetAdvertised4]; !slices.Equal(got, c.advertised) {
			t.Errorf("%s: isolation matches %q, want %q", c.name, got, c.advertised)
		}
		if got := sets[SetPods4]; !slices.Equal(got, c.pods) {
			t.Errorf("%s: pods are %q, want %q", c.name, got, c.pods)
		}
	}
	in.Reserved = addrs("10.88.1.255")
	if got := Build(in).Sets[SetPods4]; len(got) != 8 || slices.Contains(got, "10.88.1.255") {
		t.Errorf("with an address of the node's among them, pods are %q", got)
	}
}

// A network in its own VRF reaches other hosts at the addresses of networks that BGP announces in the nodes' default VRF, but
// not those networks. TestKernelOwnVRF sends such packets, where the kernel has VRFs.
func TestBetweenAdvertised(t *testing.T) {
	in := Inputs{Mode: network.LocalGateway, Bridge: "br-ex", NodeID: 2, Default: defaultNetwork, Networks: advertised, Plan: plan}
	var got []string
	for _, c := range Build(in).Chains {
		for _, r := range c.Rules {
			if strings.HasPrefix(r.Comment, "other advertised networks, ip,") || strings.HasPrefix(r.Comment, "other advertised networks, ip ") {
				got = append(got, r.Text)
			}
		}
	}
	const to, drop = "ip daddr @advertised4 ", " . ip daddr != @routed4 counter name cross_network drop"
	want := []string{
		`iifname "ovn-k8s-mp*" ` + to + "iifname" + drop,
		`meta sdifname "ovn-k8s-mp*" meta sdifname != @ownvrf ` + to + "meta sdifname" + drop,
		`meta sdifname @ownvrf oifname "br-ex" ` + to + "meta sdifname" + drop,
	}
	if !slices.Equal(got, want) {
		t.Errorf("rules:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
