// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// ofNode returns the generated FRRConfigurations of a node.
func ofNode(f *Fake, node string) (out []*frrv1.FRRConfiguration) {
	for i := range f.Configurations {
		if source, ok := SourceOf(&f.Configurations[i]); ok && source.Node == node {
			out = append(out, &f.Configurations[i])
		}
	}
	return out
}

// announced returns the prefixes that a node announces, and those that it accepts, each with its VRF.
func announced(f *Fake, node string) (own, accepted map[string]bool) {
	own, accepted = map[string]bool{}, map[string]bool{}
	for _, c := range ofNode(f, node) {
		for _, r := range c.Spec.BGP.Routers {
			for _, p := range r.Prefixes {
				own[r.VRF+" "+p] = true
			}
			for _, n := range r.Neighbors {
				for _, s := range n.ToReceive.Allowed.Prefixes {
					accepted[r.VRF+" "+s.Prefix] = true
				}
			}
		}
	}
	return own, accepted
}

func expect(t *testing.T, what string, got map[string]bool, want ...string) {
	t.Helper()
	slices.Sort(want)
	if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
		t.Errorf("%s: %q, want %q", what, have, want)
	}
}

// A node whose sessions are gone keeps what it announces, but not the networks that are no longer selected:
// other nodes translate their pods' addresses then, and a younger network may have the same.
func TestDeselectedWithoutSession(t *testing.T) {
	for _, target := range []string{"", network.VRFAuto, "core"} {
		blue, red := testNetwork(1, "blue", noOverlay, "10.10.0.0/16"), testNetwork(2, "red", noOverlay, "10.20.0.0/16")
		networks := map[string][]string{"": {"blue", "red"}, network.VRFAuto: {"blue", "red"}, "core": {"red"}}[target]
		vrfs := map[string][]string{"": {""}, network.VRFAuto: {"blue", "red"}, "core": {"core"}}[target]
		f := &Fake{Inputs: Inputs{
			Namespace: frrNamespace, Networks: []Network{blue, red}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
			Configurations: []frrv1.FRRConfiguration{testBase("all", vrfs, peer(65001, "192.0.2.1"))},
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", target, networks...)},
		}}
		converge(t, f, Fabric{})
		base := slices.IndexFunc(f.Configurations, func(c frrv1.FRRConfiguration) bool { return c.Name == "all" })
		f.Configurations[base].Spec.NodeSelector.MatchLabels = map[string]string{corev1.LabelHostname: "node1"}
		before, _ := announced(f, "node2")
		converge(t, f, Fabric{})
		if after, _ := announced(f, "node2"); len(before) == 0 || !maps.Equal(before, after) {
			t.Fatalf("target %q: node2 announces %v without a session, want %v", target, after, before)
		}
		f.Advertisements = []udnv1.RouteAdvertisements{testRA("all", target, "blue")}
		if target == "core" {
			f.Advertisements = []udnv1.RouteAdvertisements{testRA("all", target, "blue", "red")}
			f.Networks = []Network{blue}
		}
		converge(t, f, Fabric{})
		own, accepted := announced(f, "node2")
		switch target {
		case "":
			expect(t, "node2 announces in the default VRF", own, " 10.10.1.0/24")
			expect(t, "node2 accepts in the default VRF", accepted, " 10.10.0.0/16")
		case network.VRFAuto:
			expect(t, "node2 announces in networks' VRFs", own, "blue 10.10.1.0/24")
			expect(t, "node2 accepts in networks' VRFs", accepted, "blue 10.10.0.0/16")
			for _, c := range ofNode(f, "node2") {
				if strings.Contains(c.Spec.Raw.Config, "vrf red") {
					t.Errorf("the lines of red's router remain:\n%s", c.Spec.Raw.Config)
				}
			}
		case "core":
			expect(t, "node2 announces in VRF core", own)
		}
	}
}

// frr-k8s applies a node's FRRConfigurations on each node with the same label: of such nodes nothing changes, except for one
// with that name, the others go on, and the status names both.
func TestSameHostname(t *testing.T) {
	clone := testNode(3)
	f := &Fake{Inputs: Inputs{
		Namespace: frrNamespace, Networks: []Network{testNetwork(1, "blue", nil, "10.10.0.0/16")}, Nodes: []Node{testNode(1), testNode(2)},
		Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(64512, "192.0.2.1"))},
		Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
	}}
	converge(t, f, Fabric{})
	clone.Labels[corev1.LabelHostname] = "node2"
	f.Nodes = append(f.Nodes, clone, testNode(4))
	st := converge(t, f, Fabric{})
	if got := st.Accepted["all"]; got.Reason != udnv1.ReasonConfigurationError || !strings.Contains(got.Message, "nodes node2 and node3 have the same value of the label "+corev1.LabelHostname) {
		t.Errorf("status %+v", got)
	}
	for node, want := range map[string]int{"node1": 1, "node2": 1, "node3": 0, "node4": 1} {
		if got := len(ofNode(f, node)); got != want {
			t.Errorf("%s has %d FRRConfigurations, want %d", node, got, want)
		}
	}
	// Neither name is the label's value.
	f.Nodes[1].Labels[corev1.LabelHostname], clone.Labels[corev1.LabelHostname] = "template", "template"
	before := len(f.Configurations)
	if st := converge(t, f, Fabric{}); !strings.Contains(st.Accepted["all"].Message, "nodes node2 and node3 have the same value") || len(f.Configurations) != before {
		t.Errorf("%d FRRConfigurations, want %d; %+v", len(f.Configurations), before, st.Accepted["all"])
	}
	f.Nodes[1], f.Nodes[2] = testNode(2), testNode(3)
	if st := converge(t, f, Fabric{}); st.Accepted["all"].Reason != udnv1.ReasonAccepted || len(ofNode(f, "node3")) != 1 {
		t.Errorf("after the label is corrected: %+v", st.Accepted["all"])
	}
}

// A node that says it has shared gateway mode, as its own agent writes, keeps no other node from advertising in a VRF.
func TestOneSharedNode(t *testing.T) {
	shared := testNode(2)
	shared.Mode = network.SharedGateway
	f := &Fake{Inputs: Inputs{
		Namespace: frrNamespace, Networks: []Network{testNetwork(1, "blue", nil, "10.10.0.0/16")}, Nodes: []Node{local(testNode(1)), shared},
		Configurations: []frrv1.FRRConfiguration{testBase("all", []string{"blue"}, peer(65001, "192.0.2.1"))},
		Advertisements: []udnv1.RouteAdvertisements{testRA("all", network.VRFAuto, "blue")},
	}}
	st := converge(t, f, Fabric{})
	if got := st.Accepted["all"]; got.Reason != udnv1.ReasonConfigurationError || !strings.Contains(got.Message, "node node2 has gateway mode shared") {
		t.Errorf("status %+v", got)
	}
	if len(ofNode(f, "node1")) != 1 || len(ofNode(f, "node2")) != 0 {
		t.Errorf("FRRConfigurations: node1 has %d, node2 %d, want 1 and 0", len(ofNode(f, "node1")), len(ofNode(f, "node2")))
	}
	f.Configurations = nil
	if got := converge(t, f, Fabric{}).Accepted["all"]; !strings.Contains(got.Message, "node node2 has gateway mode shared") {
		t.Errorf("without a base: %+v", got)
	}
}

// A route reflector passes on the routes of a network for which it has no host subnet itself.
func TestReflectorWithoutSubnet(t *testing.T) {
	f, fabric := managedFake(4), Fabric{Topology: config.RouteReflectors, ASN: 64512, Namespace: frrNamespace}
	small := f.Networks[slices.IndexFunc(f.Networks, func(n Network) bool { return n.CUDN != "" && n.Transport == network.TransportNoOverlay })]
	for i := range f.Networks {
		if f.Networks[i].Name == small.Name {
			f.Networks[i].Subnets = []network.Subnet{{CIDR: prefix("10.90.0.0/23"), HostLen: 24}} // of nodes 1 and 2
		}
	}
	for _, at := range []int{2, 3} {
		f.Nodes[at].Labels[LabelReflector] = ""
	}
	converge(t, f, fabric)
	own, accepted := announced(f, "node4")
	if own[" 10.90.0.0/24"] || !accepted[" 10.90.0.0/23"] {
		t.Errorf("the reflector announces %v and accepts %v", own, accepted)
	}
	passes := func(c *frrv1.FRRConfiguration) bool {
		return strings.Contains(c.Spec.Raw.Config, "permit 10.90.0.0/23 ge 24 le 24")
	}
	if !slices.ContainsFunc(ofNode(f, "node4"), passes) {
		t.Error("the reflector does not pass on the network's routes")
	}
}

// In a full mesh a node accepts from each neighbor the neighbor's own subnets alone, and has one session per
// IP family with it, in the families of its own.
func TestMeshNeighbors(t *testing.T) {
	f, fabric := managedFake(3), Fabric{Topology: config.FullMesh, ASN: 64512, Namespace: frrNamespace, Default: true}
	f.Nodes[1].InternalIPs = append(f.Nodes[1].InternalIPs, netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00:99::2"))
	f.Nodes[2].InternalIPs = network.FilterFamilies(f.Nodes[2].InternalIPs, true, false)
	converge(t, f, fabric)
	got := map[string]bool{}
	for _, c := range ofNode(f, "node1") {
		for _, r := range c.Spec.BGP.Routers {
			for _, n := range r.Neighbors {
				for _, s := range n.ToReceive.Allowed.Prefixes {
					if strings.HasPrefix(s.Prefix, "10.244.") || strings.HasPrefix(s.Prefix, "fd10:244:") {
						got[n.Address+" "+s.Prefix] = true
					}
				}
			}
		}
	}
	expect(t, "node1 accepts", got, "172.18.0.2 10.244.1.0/24", "172.18.0.3 10.244.2.0/24", "fd00:18::2 fd10:244:0:1::/64")
	// A node that says it has another's address takes nothing from that one.
	f.Nodes[2].InternalIPs = append(f.Nodes[2].InternalIPs, netip.MustParseAddr("fd00:18::2"))
	converge(t, f, fabric)
	if _, accepted := announced(f, "node1"); !accepted[" fd10:244:0:1::/64"] {
		t.Errorf("node1 accepts %v", slices.Sorted(maps.Keys(accepted)))
	}
	f.Nodes[2].InternalIPs = f.Nodes[2].InternalIPs[:1]
	converge(t, f, fabric)
	if peers := sessions(f)["node3"]; len(peers) != 2 || peers["172.18.0.1"] == "" || peers["172.18.0.2"] == "" {
		t.Errorf("node3, which has no IPv6, has sessions %v", peers)
	}
}

// FRR chooses the router id among the addresses of the VRF: where a network has IPv6 alone there is none.
func TestRouterIDInVRF(t *testing.T) {
	f := &Fake{Inputs: Inputs{
		Namespace: frrNamespace, Nodes: []Node{local(testNode(7))},
		Networks:       []Network{testNetwork(1, "blue", nil, "fd10:10::/48"), testNetwork(2, "red", nil, "10.20.0.0/16", "fd10:20::/48")},
		Configurations: []frrv1.FRRConfiguration{testBase("all", []string{"blue", "red"}, peer(65001, "192.0.2.1"))},
		Advertisements: []udnv1.RouteAdvertisements{testRA("all", network.VRFAuto, "blue", "red")},
	}}
	converge(t, f, Fabric{})
	got := map[string]bool{}
	for _, c := range ofNode(f, "node7") {
		for _, r := range c.Spec.BGP.Routers {
			got[r.VRF+" "+r.ID] = true
		}
	}
	expect(t, "router ids", got, "blue 0.0.0.7", "red ")

	// The addresses in an operator's VRF are not known.
	f.Nodes[0].Mode = network.LocalGateway
	f.Configurations = []frrv1.FRRConfiguration{testBase("all", []string{"core", ""}, peer(65001, "fd10:99:1::1"))}
	f.Advertisements = []udnv1.RouteAdvertisements{testRA("all", "core", "red")}
	converge(t, f, Fabric{})
	clear(got)
	for _, c := range ofNode(f, "node7") {
		for _, r := range c.Spec.BGP.Routers {
			if r.VRF == "core" {
				got[r.VRF+" "+r.ID] = true
			}
		}
	}
	expect(t, "router ids in a joined VRF", got, "core 0.0.0.7")
}
