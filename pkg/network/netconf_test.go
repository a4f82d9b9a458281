// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const redConf = `{"cniVersion":"1.1.0","name":"cluster_udn_red","type":"ovn-k8s-cni-overlay","netAttachDefName":"a/red","topology":"layer3","role":"primary","subnets":"10.20.0.0/16/24,fd20::/48"}`

func TestNetConf(t *testing.T) {
	c, err := ParseNetConf(redConf)
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(5, testPlan())
	if err != nil {
		t.Fatal(err)
	}
	want := Network{ID: 5, Name: "cluster_udn_red", Topology: Layer3, Role: RolePrimary, MTU: 1400,
		Subnets:     []Subnet{{netip.MustParsePrefix("10.20.0.0/16"), 24}, {netip.MustParsePrefix("fd20::/48"), 64}},
		JoinSubnets: pfx("100.65.0.0/16", "fd99::/64"), Transit: pfx("100.88.0.0/16", "fd97::/64")}
	if d := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", n)); d != "" {
		t.Error(d)
	}
	again, err := ParseNetConf(c.Render())
	if err != nil || again != c {
		t.Errorf("render and parse: %v, %+v", err, again)
	}
}

func TestNetConfRefused(t *testing.T) {
	base := `"cniVersion":"1.1.0","name":"x","type":"ovn-k8s-cni-overlay"`
	for _, tt := range []struct{ conf, want string }{
		{`{`, "not valid JSON"},
		{`{` + base + `,"topologi":"layer3"}`, "topologi"},
		{`{` + base + `} {}`, "not valid JSON"},
		{`{"type":"ovn-k8s-cni-overlay"}`, "no name"},
		{`{` + base + `,"topology":"ring"}`, `topology "ring" is unknown`},
		{`{` + base + `,"topology":"layer3","role":"both"}`, `role "both"`},
		{`{` + base + `,"topology":"layer3"}`, "at least one CIDR"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.0/33"}`, "is not a CIDR"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.1/16"}`, "write 10.0.0.0/16"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.0/16/31"}`, "between 16 and 30"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.0/16/8"}`, "between 16 and 30"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.0/16/x"}`, "not a number"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.0/16,10.0.1.0/24"}`, "overlaps"},
		{`{` + base + `,"topology":"layer3","subnets":"::ffff:10.0.0.0/112"}`, "IPv4-mapped"},
		{`{` + base + `,"topology":"layer2","subnets":"10.0.0.0/16/24"}`, "only for topology layer3: remove it"},
		{`{` + base + `,"topology":"layer2","role":"primary"}`, "primary network needs"},
		{`{` + base + `,"topology":"localnet","role":"primary","subnets":"10.0.0.0/16"}`, "localnet"},
		{`{` + base + `,"topology":"layer3","subnets":"10.0.0.0/16","mtu":100}`, "mtu 100"},
		{`{` + base + `,"topology":"layer3","subnets":"fd00::/48","mtu":1000}`, "1280"},
		{`{` + base + `,"topology":"layer3","role":"primary","subnets":"10.0.0.0/16","joinSubnet":"100.70.0.0/24"}`, "joinSubnet 100.70.0.0/24 is too small"},
		{`{` + base + `,"topology":"localnet","vlanID":4095}`, "vlanID"},
		{`{` + base + `,"joinSubnet":"100.70.0.0/16","joinSubnets":"100.70.0.0/16"}`, "both joinSubnet and joinSubnets"},
		{`{"cniVersion":"1.1.0","name":"default","type":"ovn-k8s-cni-overlay","topology":"layer3","subnets":"10.0.0.0/16"}`, "belongs to the cluster default network"},
	} {
		c, err := ParseNetConf(tt.conf)
		if err == nil {
			_, err = c.Network(1, testPlan())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.conf, err, tt.want)
		}
	}
	for _, config := range []string{`{"type":"macvlan","name":"x","master":"eth0"}`, `{"name":"x","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`,
		`{"name":"x","plugins":"none"}`, `{"name":"x","plugins":[1]}`, `{"type":"macvlan","name":"x","plugins":[{"type":"ovn-k8s-cni-overlay"}]}`} {
		if _, err := ParseNetConf(config); !errors.Is(err, ErrForeign) {
			t.Errorf("another plugin's NAD %s: got %v", config, err)
		}
	}
	// A list with one plugin is the plugin's configuration.
	list := `{"cniVersion":"1.0.0","name":"storage","plugins":[{"type":"ovn-k8s-cni-overlay","topology":"layer2","subnets":"10.20.0.0/16","netAttachDefName":"a/b"}]}`
	if c, err := ParseNetConf(list); err != nil || c.Name != "storage" || c.CNIVersion != "1.0.0" || c.Topology != "layer2" || c.Subnets != "10.20.0.0/16" {
		t.Errorf("a list with one plugin: %+v, %v", c, err)
	}
	for config, want := range map[string]string{
		strings.Replace(list, `"a/b"}`, `"a/b"},{"type":"tuning"}`, 1): "plugins has 2 entries",
		strings.Replace(list, `"name":"storage",`, "", 1):              "no name",
		strings.Replace(list, `"topology"`, `"topologi"`, 1):           "topologi",
	} {
		if _, err := ParseNetConf(config); err == nil || errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", config, err, want)
		}
	}
	c, _ := ParseNetConf(redConf)
	for _, id := range []int{-1, 0, MaxID + 1} {
		if _, err := c.Network(id, testPlan()); err == nil {
			t.Errorf("id %d was accepted", id)
		}
	}
}

func FuzzParsePodNetworks(f *testing.F) {
	f.Add(`{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03"}}`)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePodNetworks(s)
		if err != nil || p == nil {
			return
		}
		out, err := p.Render()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePodNetworks(out); err != nil {
			t.Errorf("the rendered annotation cannot be parsed: %v", err)
		}
	})
}

func FuzzParseNode(f *testing.F) {
	f.Add("1", `["192.0.2.1"]`, `{"default":{"mode":"shared","ip-addresses":["192.0.2.1/24"]}}`)
	f.Fuzz(func(t *testing.T, id, encap, gw string) {
		n, err := ParseNode("n", map[string]string{AnnotationNodeID: id, AnnotationEncapIPs: encap, AnnotationGatewayConfig: gw})
		if err == nil && (n.ID < 0 || n.ID > MaxNodeID) {
			t.Errorf("id %d", n.ID)
		}
	})
}

// The proposal's example: both networks of a pod with a primary network.
func TestNewPodNetwork(t *testing.T) {
	plan := testPlan()
	plan.ClusterSubnets = plan.ClusterSubnets[:1]
	cdn := Network{Name: DefaultName, Topology: Layer3, Role: RolePrimary, Subnets: plan.ClusterSubnets}
	red := Network{ID: 1, Name: "cluster_udn_red", Topology: Layer3, Role: RolePrimary, Subnets: subnets(t, "10.20.0.0/16/24"), JoinSubnets: pfx("100.65.0.0/16")}
	pods := PodNetworks{
		"default": NewPodNetwork(cdn, plan, pfx("10.244.0.3/24"), true),
		"a/red":   NewPodNetwork(red, plan, pfx("10.20.2.5/24"), true),
	}
	got, err := pods.Render()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"a/red":{"ip_addresses":["10.20.2.5/24"],"mac_address":"0a:58:0a:14:02:05","gateway_ips":["10.20.2.1"],` +
		`"routes":[{"dest":"10.20.0.0/16","nextHop":"10.20.2.1"},{"dest":"10.96.0.0/16","nextHop":"10.20.2.1"},{"dest":"100.65.0.0/16","nextHop":"10.20.2.1"}],` +
		`"ip_address":"10.20.2.5/24","gateway_ip":"10.20.2.1","role":"primary"},` +
		`"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03",` +
		`"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.0.1"},{"dest":"100.64.0.0/16","nextHop":"10.244.0.1"}],` +
		`"ip_address":"10.244.0.3/24","role":"infrastructure-locked"}}`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	only := NewPodNetwork(cdn, plan, pfx("10.244.0.3/24"), false)
	if only.Role != RolePrimary || len(only.Gateways) != 1 || len(only.Routes) != 0 {
		t.Errorf("default network without a primary network: %+v", only)
	}
}

func TestNADIndexPrimary(t *testing.T) {
	c := NewNADIndex()
	primary := func(ns, name string, id int) NAD {
		return NAD{Namespace: ns, Name: name, Network: Network{ID: id, Name: name, Role: RolePrimary}}
	}
	if nad, err := c.Primary("a", false); nad != nil || err != nil {
		t.Errorf("no label: %v, %v", nad, err)
	}
	if _, err := c.Primary("a", true); !errors.Is(err, ErrNoPrimary) {
		t.Errorf("label, no network: %v", err)
	}
	c.Set(primary("a", "red", 1))
	if nad, err := c.Primary("a", true); err != nil || nad.Network.ID != 1 {
		t.Errorf("one primary: %v, %v", nad, err)
	}
	if nad, err := c.Primary("a", false); nad != nil || err != nil {
		t.Errorf("network but no label: %v, %v", nad, err)
	}
	c.Set(primary("a", "green", 2))
	if _, err := c.Primary("a", true); err == nil || !strings.Contains(err.Error(), "a/green, a/red") {
		t.Errorf("two primaries: %v", err)
	}
	c.Delete("a/green")
	c.Set(NAD{Namespace: "a", Name: "bad", Err: errors.New("broken")})
	if nad, err := c.Primary("a", true); err != nil || nad.Network.ID != 1 {
		t.Errorf("an unusable NAD hides a usable one: %v, %v", nad, err)
	}
	c.Delete("a/red")
	if _, err := c.Primary("a", true); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("only an unusable NAD: %v", err)
	}
	if got := c.Set(primary("b", "red", 1)); fmt.Sprint(got) != "[red]" {
		t.Errorf("Set affected %v", got)
	}
	c.Set(primary("c", "red", 1))
	if got := c.Namespaces("red"); fmt.Sprint(got) != "[b c]" {
		t.Errorf("namespaces %v", got)
	}
	if got := c.Delete("b/red"); fmt.Sprint(got) != "[red]" {
		t.Errorf("Delete affected %v", got)
	}
	if _, ok := c.Network("red"); !ok {
		t.Error("the network is missing after one of its NADs was deleted")
	}
}
