// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const frrNamespace = "frr-k8s-system"

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// testNetwork returns a network on which each node has a /24 or a /64.
func testNetwork(id int, name string, change func(*Network), cidrs ...string) Network {
	n := Network{
		Network: network.Network{ID: id, Name: network.CUDNName(name), Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400},
		CUDN:    name, Labels: map[string]string{"network": name}, Created: time.Unix(int64(id), 0),
	}
	for _, c := range cidrs {
		host := 24
		if strings.Contains(c, ":") {
			host = 64
		}
		n.Subnets = append(n.Subnets, network.Subnet{CIDR: prefix(c), HostLen: host})
	}
	if change != nil {
		change(&n)
	}
	return n
}

func noOverlay(n *Network) { n.Transport, n.OutboundSNAT = network.TransportNoOverlay, "disabled" }
func layer2(n *Network) {
	n.Topology = network.Layer2
	for i := range n.Subnets {
		n.Subnets[i].HostLen = 0
	}
}

func defaultNetwork() Network {
	n := testNetwork(network.DefaultID, "", nil, "10.244.0.0/16", "fd10:244::/48")
	n.Name, n.CUDN, n.Labels = network.DefaultName, "", nil
	return n
}

func testNode(id int) Node {
	return Node{
		Name: fmt.Sprint("node", id), ID: id, Labels: map[string]string{corev1.LabelHostname: fmt.Sprint("node", id)},
		InternalIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("172.18.0.", id%256)), netip.MustParseAddr(fmt.Sprint("fd00:18::", id))},
		Addresses:   []netip.Addr{netip.MustParseAddr(fmt.Sprint("172.18.0.", id%256)), netip.MustParseAddr(fmt.Sprint("fd00:18::", id)), netip.MustParseAddr(fmt.Sprint("172.18.1.", id%256))},
	}
}

// ipv6Only removes a node's IPv4 addresses.
func ipv6Only(n Node) Node {
	n.InternalIPs, n.Addresses = network.FilterFamilies(n.InternalIPs, false, true), network.FilterFamilies(n.Addresses, false, true)
	return n
}

// testBase returns a base with one router of each VRF and the neighbors.
func testBase(name string, vrfs []string, neighbors ...frrv1.Neighbor) frrv1.FRRConfiguration {
	c := frrv1.FRRConfiguration{ObjectMeta: metav1.ObjectMeta{Namespace: frrNamespace, Name: name, Labels: map[string]string{"fabric": name}}}
	for _, vrf := range vrfs {
		c.Spec.BGP.Routers = append(c.Spec.BGP.Routers, frrv1.Router{ASN: 64512, VRF: vrf, Neighbors: neighbors})
	}
	return c
}

// labelled returns a base that the RouteAdvertisements of another name selects.
func labelled(c frrv1.FRRConfiguration, fabric string) frrv1.FRRConfiguration {
	c.Labels["fabric"] = fabric
	return c
}

func local(n Node) Node {
	n.Mode = network.LocalGateway
	return n
}

func peer(asn uint32, address string) frrv1.Neighbor {
	return frrv1.Neighbor{ASN: asn, Address: address, ToReceive: frrv1.Receive{Allowed: frrv1.AllowedInPrefixes{Mode: frrv1.AllowAll}}}
}

// testRA returns a RouteAdvertisements that selects the base of the same name and the
// ClusterUserDefinedNetworks with one of the values of the label network.
func testRA(name, target string, networks ...string) udnv1.RouteAdvertisements {
	return udnv1.RouteAdvertisements{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3},
		Spec: udnv1.RouteAdvertisementsSpec{
			TargetVRF: target, Advertisements: []udnv1.AdvertisementType{udnv1.PodNetwork},
			FRRConfigurationSelector: metav1.LabelSelector{MatchLabels: map[string]string{"fabric": name}},
			NetworkSelectors: []udnv1.NetworkSelector{{
				NetworkSelectionType: udnv1.ClusterUserDefinedNetworks,
				ClusterUserDefinedNetworkSelector: &udnv1.ClusterUserDefinedNetworkSelector{NetworkSelector: metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "network", Operator: metav1.LabelSelectorOpIn, Values: networks}},
				}},
			}},
		},
	}
}

// Each golden file has what one scenario generates: FRRConfigurations, conditions, VRFs.
func TestGoldens(t *testing.T) {
	blue := testNetwork(1, "blue", noOverlay, "10.10.0.0/16", "fd10:10::/48")
	red := testNetwork(2, "red", nil, "10.20.0.0/16")
	stretched := testNetwork(3, "stretched", layer2, "10.30.0.0/24", "fd10:30::/64")
	appended := testNetwork(4, "appended", noOverlay, "10.40.0.0/24", "10.41.0.0/20")
	full := peer(64512, "192.0.2.1")
	full.Port, full.BFDProfile, full.EBGPMultiHop = ptr(uint16(1179)), "fast", true
	full.PasswordSecret.Name = "bgp"
	full.HoldTime, full.KeepaliveTime = &metav1.Duration{Duration: 9 * time.Second}, &metav1.Duration{Duration: 3 * time.Second}
	settings := testBase("all", []string{""}, full)
	settings.Spec.BGP.Routers[0].ID = "10.0.0.1"
	settings.Spec.BGP.BFDProfiles = []frrv1.BFDProfile{{Name: "fast", DetectMultiplier: ptr(uint32(3))}, {Name: "unused"}}
	selective := testBase("all", []string{""}, peer(64512, "192.0.2.1"))
	selective.Spec.NodeSelector.MatchLabels = map[string]string{corev1.LabelHostname: "node2"}
	unnumbered, dual := frrv1.Neighbor{ASN: 65000, Interface: "eth1"}, peer(64512, "192.0.2.2")
	dual.DualStackAddressFamily = true

	for name, in := range map[string]Inputs{
		"ibgp": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue", "red", "stretched", "appended")},
			Configurations: []frrv1.FRRConfiguration{settings, testBase("other", []string{""}, peer(64512, "192.0.2.9"))},
			Networks:       []Network{blue, red, stretched, appended}, Nodes: []Node{testNode(1), testNode(2)},
		},
		"ebgp": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
			Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(65000, "192.0.2.1"), peer(65000, "2001:db8::1"), unnumbered, dual)},
			Networks:       []Network{blue}, Nodes: []Node{testNode(1)},
		},
		"ipv6": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
			Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(64512, "2001:db8::1"))},
			Networks:       []Network{testNetwork(1, "blue", noOverlay, "fd10:10::/48")}, Nodes: []Node{ipv6Only(testNode(300))},
		},
		"overlap": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue"), testRA("late", "", "late")},
			Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(64512, "192.0.2.1")), testBase("late", []string{""}, peer(64512, "192.0.2.1"))},
			Networks:       []Network{testNetwork(9, "late", noOverlay, "10.10.64.0/20"), blue}, Nodes: []Node{testNode(1)},
		},
		// Two networks with the same subnets, each in its own VRF. One of them is not in the default VRF too.
		"vrflite": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", network.VRFAuto, "blue", "twin"), testRA("fabric", "", "blue")},
			Configurations: []frrv1.FRRConfiguration{
				testBase("all", []string{"blue"}, peer(65001, "10.99.1.1"), peer(65001, "fd10:99:1::1")), testBase("fabric", []string{""}, peer(64512, "192.0.2.1")),
				labelled(testBase("others", []string{"twin", "", "green"}, peer(64512, "10.99.2.1")), "all"),
			},
			Networks: []Network{blue, testNetwork(2, "twin", noOverlay, "10.10.0.0/16", "fd10:10::/48")}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
		},
		// A VRF of the administrator's leads to the older of two networks.
		"namedvrf": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "core", "blue", "twin")},
			Configurations: []frrv1.FRRConfiguration{testBase("all", []string{"core", ""}, peer(65001, "10.99.1.1"), peer(65001, "fd10:99:1::1"))},
			Networks:       []Network{testNetwork(2, "twin", noOverlay, "10.10.0.0/16"), blue}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
		},
		"onenode": {
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
			Configurations: []frrv1.FRRConfiguration{selective},
			Networks:       []Network{blue}, Nodes: []Node{testNode(1), testNode(2)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in.Namespace = frrNamespace
			golden(t, name, Build(in))
		})
	}
}

// converge reconciles until nothing is left to do, which takes a few rounds: generated
// objects follow from the managed ones.
func converge(t interface {
	Helper()
	Fatalf(string, ...any)
}, f *Fake, fabric Fabric) State {
	t.Helper()
	for range 5 {
		ops, st := Plan(fabric, f.Inputs, f.CUDNs)
		ops = append(ops, DiffStatus(st, f.Advertisements)...)
		if len(ops) == 0 {
			return st
		}
		if err := f.Apply(context.Background(), ops); err != nil {
			t.Fatalf("apply: %v", err)
		}
	}
	ops, _ := Plan(fabric, f.Inputs, f.CUDNs)
	t.Fatalf("the objects do not converge: %v", ops)
	return State{}
}

func golden(t *testing.T, name string, st State) {
	t.Helper()
	goldenWith(t, name, "", st)
}

func goldenWith(t *testing.T, name, head string, st State) {
	t.Helper()
	b := strings.Builder{}
	b.WriteString(head)
	var list []*frrv1.FRRConfiguration
	for _, c := range st.Configurations {
		list = append(list, c)
	}
	slices.SortFunc(list, func(x, y *frrv1.FRRConfiguration) int {
		return cmp.Or(cmp.Compare(x.Annotations[AnnotationSource], y.Annotations[AnnotationSource]), cmp.Compare(x.Name, y.Name))
	})
	for _, c := range list {
		clean := c.DeepCopy()
		clean.UID = ""
		b.Write(must(yaml.Marshal(clean)))
		b.WriteString("---\n")
	}
	kept := map[string]bool{}
	for s := range st.Keep {
		kept[s.String()] = true
	}
	b.Write(must(yaml.Marshal(map[string]any{"accepted": st.Accepted, "networks": st.Networks, "kept": kept})))
	file := filepath.Join("testdata", name+".yaml")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil { //nolint:gosec // a golden file
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(string(must(os.ReadFile(file))), b.String()); diff != "" {
		t.Errorf("%s differs (-golden +built); with -update it is rewritten:\n%s", file, diff)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ptr[T any](v T) *T { return &v }

// What is refused, with its reason, and whether what was generated before stays.
func TestRefused(t *testing.T) {
	blue := testNetwork(1, "blue", noOverlay, "10.10.0.0/16")
	red := testNetwork(2, "red", nil, "10.20.0.0/16")
	base := testBase("all", []string{""}, peer(64512, "192.0.2.1"))
	for _, tt := range []struct {
		name, reason, message string
		keeps                 bool
		change                func(*Inputs, *udnv1.RouteAdvertisements)
	}{
		{"egress IP", udnv1.ReasonConfigurationError, "EgressIP is not supported", true, func(_ *Inputs, ra *udnv1.RouteAdvertisements) {
			ra.Spec.Advertisements = append(ra.Spec.Advertisements, udnv1.EgressIP)
		}},
		{"no network", udnv1.ReasonConfigurationPending, "selects no network", false, func(in *Inputs, _ *udnv1.RouteAdvertisements) { in.Networks = in.Networks[1:] }},
		{"network without NAD", udnv1.ReasonConfigurationPending, "[blue] have no NetworkAttachmentDefinition", false, func(in *Inputs, _ *udnv1.RouteAdvertisements) { in.Networks[0].ID = 0 }},
		{"secondary network", udnv1.ReasonConfigurationError, "blue is a secondary network", true, func(in *Inputs, _ *udnv1.RouteAdvertisements) {
			in.Networks[0].Role = network.RoleSecondary
		}},
		{"no base", udnv1.ReasonConfigurationPending, "selects no FRRConfiguration in namespace frr-k8s-system", false, func(in *Inputs, _ *udnv1.RouteAdvertisements) {
			in.Configurations[0].Labels = nil
		}},
		{"base without router", udnv1.ReasonConfigurationError, "node node1: no selected FRRConfiguration has a router in VRF default with a neighbor", true, func(in *Inputs, _ *udnv1.RouteAdvertisements) {
			in.Configurations[0].Spec.BGP.Routers = nil
		}},
		{"base without neighbor", udnv1.ReasonConfigurationError, "no selected FRRConfiguration has a router in VRF default with a neighbor", true, func(in *Inputs, _ *udnv1.RouteAdvertisements) {
			in.Configurations[0].Spec.BGP.Routers[0].Neighbors = nil
		}},
		{"the networks' own VRFs in shared gateway mode", udnv1.ReasonConfigurationError, "spec.targetVRF: node node1 has gateway mode shared", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Nodes[0].Mode, ra.Spec.TargetVRF = network.SharedGateway, "auto"
		}},
		{"the networks' own VRFs without a session there", udnv1.ReasonConfigurationError, "node node1: no selected FRRConfiguration has a router in VRF blue with a neighbor", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Nodes[0].Mode, ra.Spec.TargetVRF = network.LocalGateway, "auto"
		}},
		{"the cluster default network's own VRF", udnv1.ReasonConfigurationError, "spec.targetVRF: the cluster default network is advertised in the nodes' default VRF alone", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			dflt := defaultNetwork()
			dflt.Transport = network.TransportNoOverlay
			in.Networks, ra.Spec.TargetVRF = append(in.Networks, dflt), "auto"
			ra.Spec.NetworkSelectors = append(ra.Spec.NetworkSelectors, udnv1.NetworkSelector{NetworkSelectionType: udnv1.DefaultNetwork})
		}},
		{"another network's VRF", udnv1.ReasonConfigurationError, "spec.targetVRF: red is the VRF of network cluster_udn_red", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Networks, ra.Spec.TargetVRF = append(in.Networks, red), "red"
		}},
		{"the fallback name of a network's VRF", udnv1.ReasonConfigurationError, "spec.targetVRF: " + red.FallbackVRF() + " is the name of a network's VRF", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Networks, ra.Spec.TargetVRF = append(in.Networks, red), red.FallbackVRF()
		}},
		{"a name that ends a line of FRR's configuration", udnv1.ReasonConfigurationError, `spec.targetVRF: "core\nexit" is not the name of a VRF`, true, func(_ *Inputs, ra *udnv1.RouteAdvertisements) { ra.Spec.TargetVRF = "core\nexit" }},
		{"a named VRF without a session there", udnv1.ReasonConfigurationError, "node node1: no selected FRRConfiguration has a router in VRF core with a neighbor", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Nodes[0].Mode, ra.Spec.TargetVRF = network.LocalGateway, "core"
		}},
		{"a named VRF, and a router in the network's own", udnv1.ReasonConfigurationError, "spec.targetVRF: FRRConfiguration mesh has a router in VRF blue", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Nodes[0].Mode, ra.Spec.TargetVRF = network.LocalGateway, "core"
			in.Configurations = append(in.Configurations, testBase("mesh", []string{"blue"}, peer(64512, "192.0.2.1")))
		}},
		{"a named VRF in shared gateway mode", udnv1.ReasonConfigurationError, "spec.targetVRF: node node1 has gateway mode shared", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Nodes[0].Mode, ra.Spec.TargetVRF = network.SharedGateway, "core"
		}},
		{"default network with an overlay", udnv1.ReasonConfigurationError, "the cluster default network has an overlay", true, func(in *Inputs, ra *udnv1.RouteAdvertisements) {
			in.Networks = append(in.Networks, defaultNetwork())
			ra.Spec.NetworkSelectors = append(ra.Spec.NetworkSelectors, udnv1.NetworkSelector{NetworkSelectionType: udnv1.DefaultNetwork})
		}},
		{"bad selector", udnv1.ReasonConfigurationError, "spec.frrConfigurationSelector", true, func(_ *Inputs, ra *udnv1.RouteAdvertisements) {
			ra.Spec.FRRConfigurationSelector.MatchLabels = map[string]string{"/": "x"}
		}},
		{"bad selector of networks", udnv1.ReasonConfigurationError, "spec.networkSelectors: networkSelector", true, func(_ *Inputs, ra *udnv1.RouteAdvertisements) {
			ra.Spec.NetworkSelectors[0].ClusterUserDefinedNetworkSelector.NetworkSelector.MatchLabels = map[string]string{"/": "x"}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := Inputs{
				Namespace: frrNamespace, Configurations: []frrv1.FRRConfiguration{*base.DeepCopy()}, Networks: []Network{blue, red},
				Nodes: []Node{testNode(1)}, Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
			}
			f := &Fake{Inputs: in}
			if st := converge(t, f, Fabric{}); st.Accepted["all"].Status != metav1.ConditionTrue || len(st.Networks["cluster_udn_blue"]) != 1 {
				t.Fatalf("before the change: %+v", st)
			}
			tt.change(&f.Inputs, &f.Advertisements[0])
			// Another network with the same addresses, which nobody selects.
			twin := testNetwork(8, "twin", nil, "10.10.0.0/16")
			twin.Created = time.Unix(0, 0)
			f.Networks = append(f.Networks, twin)
			st := converge(t, f, Fabric{})
			if len(st.Networks[twin.Name]) > 0 {
				t.Errorf("a network that is not selected is advertised: %v", st.Networks)
			}
			// Wherever it was advertised, it still is.
			if advertised := slices.Equal(st.Networks["cluster_udn_blue"], []string{DefaultVRF}); advertised != tt.keeps {
				t.Errorf("blue is advertised: %t, want %t", advertised, tt.keeps)
			}
			if got := st.Accepted["all"]; got.Status != metav1.ConditionFalse || got.Reason != tt.reason || !strings.Contains(got.Message, tt.message) || got.ObservedGeneration != 3 {
				t.Errorf("got %+v, want reason %s and %q", got, tt.reason, tt.message)
			}
			if status := f.Advertisements[0].Status.Status; !strings.HasPrefix(status, "Not Accepted: ") || !strings.Contains(status, tt.message) {
				t.Errorf("status is %q", status)
			}
			generated := 0
			for i := range f.Configurations {
				if IsGenerated(&f.Configurations[i]) && f.Configurations[i].Spec.BGP.Routers[0].VRF == "" {
					generated++
				}
			}
			if kept := generated == 1; kept != tt.keeps {
				t.Errorf("the FRRConfiguration generated before stays: %t, want %t", kept, tt.keeps)
			}
		})
	}
}

// Two networks with overlapping subnets: the older one is advertised whatever the order of
// the objects and their names, and the younger takes its place when it is gone.
func TestOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := testNetwork(1, "a", noOverlay, "10.10.0.0/16")
		b := testNetwork(2, "b", noOverlay, rapid.SampledFrom([]string{"10.10.0.0/16", "10.10.128.0/17", "10.0.0.0/8"}).Draw(t, "b's subnet"))
		if rapid.Bool().Draw(t, "b is older") {
			a.Created, b.Created = b.Created, a.Created
		}
		older, younger := a, b
		if b.Created.Before(a.Created) {
			older, younger = b, a
		}
		in := Inputs{Namespace: frrNamespace, Networks: rapid.Permutation([]Network{a, b, testNetwork(3, "c", nil, "172.20.0.0/16")}).Draw(t, "order"), Nodes: []Node{testNode(1)}}
		in.Configurations = []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(64512, "192.0.2.1"))}
		in.Advertisements = []udnv1.RouteAdvertisements{testRA("x", "", "a", "c"), testRA("y", "", "b")}
		for i := range in.Advertisements {
			in.Advertisements[i].Spec.FRRConfigurationSelector.MatchLabels["fabric"] = "all"
		}
		st := Build(in)
		if len(st.Networks[older.Name]) != 1 || len(st.Networks[younger.Name]) != 0 || len(st.Networks["cluster_udn_c"]) != 1 {
			t.Fatalf("advertised: %v, want %s and not %s", st.Networks, older.Name, younger.Name)
		}
		for _, c := range st.Configurations {
			for _, r := range c.Spec.BGP.Routers {
				for i, p := range r.Prefixes {
					for _, q := range r.Prefixes[i+1:] {
						if prefix(p).Overlaps(prefix(q)) {
							t.Fatalf("router advertises %s and %s", p, q)
						}
					}
				}
			}
		}
		if got := st.Accepted[map[string]string{"a": "x", "b": "y"}[younger.CUDN]]; got.Status != metav1.ConditionFalse || !strings.Contains(got.Message, "overlaps network "+older.Name) {
			t.Fatalf("condition of the younger: %+v", got)
		}
		mistakeKeepsOwner(t, in, older, younger)
		in.Networks = slices.DeleteFunc(in.Networks, func(n Network) bool { return n.Name == older.Name })
		if st := Build(in); len(st.Networks[younger.Name]) != 1 {
			t.Fatalf("after the older network's end: %v", st.Networks)
		}
	})
}

// Whatever is selected, changed and interrupted: the objects converge, and those of others
// stay as they are.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := managedFake(rapid.IntRange(1, 5).Draw(t, "nodes"))
		f.Configurations = []frrv1.FRRConfiguration{
			testBase("all", []string{"", "blue", "red"}, peer(64512, "192.0.2.1")), testBase("other", []string{""}, peer(65000, "2001:db8::1")),
		}
		foreign := f.Configurations[0].DeepCopy()
		f.Advertisements = []udnv1.RouteAdvertisements{testRA("all", "", "blue", "red"), testRA("other", rapid.SampledFrom([]string{"", "auto", "x"}).Draw(t, "target"), "red")}
		for i := range rapid.IntRange(1, 6).Draw(t, "changes") {
			fabric := Fabric{ASN: 64512, Namespace: frrNamespace, Default: rapid.Bool().Draw(t, "default"), Topology: rapid.SampledFrom([]string{"", config.FullMesh, config.RouteReflectors}).Draw(t, "topology")}
			switch rapid.IntRange(0, 5).Draw(t, fmt.Sprint("change ", i)) {
			case 0:
				f.Nodes = f.Nodes[:rapid.IntRange(0, len(f.Nodes)).Draw(t, "nodes left")]
			case 1:
				f.Nodes = append(slices.Clone(f.Nodes), local(testNode(len(f.Nodes)+1)))
			case 2:
				f.Advertisements = slices.DeleteFunc(slices.Clone(f.Advertisements), func(ra udnv1.RouteAdvertisements) bool { return ra.Name == "all" })
			case 3:
				f.Networks = slices.Clone(f.Networks)
				f.Networks[1].Labels = map[string]string{"network": rapid.SampledFrom([]string{"blue", "green"}).Draw(t, "label")}
				f.CUDNs[0].Labels = f.Networks[1].Labels
			case 4: // somebody edits an object of ours, and maybe its marks
				marks := rapid.Bool().Draw(t, "marks")
				f.Configurations = slices.Clone(f.Configurations)
				for i := range f.Configurations {
					if c := &f.Configurations[i]; strings.HasPrefix(c.Name, "ovnk-") {
						if c.Spec.BGP.Routers = nil; marks {
							c.Labels, c.Annotations = nil, nil
						}
					}
				}
			case 5:
				left := rapid.IntRange(0, 3).Draw(t, "operations before a crash")
				f.Fail = func(Op) error {
					if left--; left < 0 {
						return fmt.Errorf("killed")
					}
					return nil
				}
				ops, _ := Plan(fabric, f.Inputs, f.CUDNs)
				_ = f.Apply(context.Background(), ops)
				f.Fail = nil
			}
			st := converge(t, f, fabric)
			for _, ra := range f.Advertisements {
				if c := ra.Status.Conditions; len(c) != 1 || c[0].Status != st.Accepted[ra.Name].Status {
					t.Fatalf("status of %s: %+v, want %+v", ra.Name, c, st.Accepted[ra.Name])
				}
			}
			at := slices.IndexFunc(f.Configurations, func(c frrv1.FRRConfiguration) bool { return c.Name == "all" })
			if at < 0 || gocmp.Diff(*foreign, f.Configurations[at]) != "" {
				t.Fatalf("the user's FRRConfiguration changed")
			}
		}
	})
}
