// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"slices"
	"strings"
	"testing"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// A network's IP family that no session carries is in the condition: an error if its pods need the routes.
func TestSessionsOfOneFamily(t *testing.T) {
	both := []string{"10.10.0.0/16", "fd10:10::/48"}
	dualStack := peer(64512, "192.0.2.1")
	dualStack.DualStackAddressFamily = true
	const v6 = "no neighbor in VRF default carries IPv6 routes on nodes node1, node2, node3 and 1 more, so that IPv6 addresses"
	for _, tt := range []struct {
		name      string
		change    func(*Network)
		subnets   []string
		neighbors []frrv1.Neighbor
		status    metav1.ConditionStatus
		message   string // "": nothing about IP families
	}{
		{"overlay", nil, both, []frrv1.Neighbor{peer(64512, "192.0.2.1")}, metav1.ConditionTrue, v6},
		{"no overlay", noOverlay, both, []frrv1.Neighbor{peer(64512, "192.0.2.1")}, metav1.ConditionFalse, v6},
		{"IPv6 sessions", noOverlay, both, []frrv1.Neighbor{peer(64512, "2001:db8::1")}, metav1.ConditionFalse, strings.ReplaceAll(v6, "IPv6", "IPv4")},
		{"a session of each family", noOverlay, both, []frrv1.Neighbor{peer(64512, "192.0.2.1"), peer(64512, "2001:db8::1")}, metav1.ConditionTrue, ""},
		{"a session of both families", noOverlay, both, []frrv1.Neighbor{dualStack}, metav1.ConditionTrue, ""},
		{"a session by an interface", noOverlay, both, []frrv1.Neighbor{{ASN: 64512, Interface: "fabric0"}}, metav1.ConditionTrue, ""},
		{"a network of one family", noOverlay, both[:1], []frrv1.Neighbor{peer(64512, "192.0.2.1")}, metav1.ConditionTrue, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := Build(Inputs{
				Namespace: frrNamespace, Networks: []Network{testNetwork(1, "blue", tt.change, tt.subnets...)},
				Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, tt.neighbors...)},
				Nodes:          []Node{testNode(1), testNode(2), testNode(3), testNode(4)}, Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
			})
			c := st.Accepted["all"]
			if c.Status != tt.status || tt.message != "" && !strings.Contains(c.Message, tt.message) || tt.message == "" && strings.Contains(c.Message, "carries") {
				t.Errorf("Accepted=%s, %q; want %s, %q", c.Status, c.Message, tt.status, tt.message)
			}
			if len(st.Configurations) != 4 {
				t.Errorf("%d FRRConfigurations, want one per node: what sessions carry is advertised", len(st.Configurations))
			}
		})
	}
}

// A session that carries EVPN alone is none for the routes of pods: nothing is generated for it, and a VRF without another
// has no session.
func TestEVPNSession(t *testing.T) {
	evpn, both := peer(64512, "192.0.2.1"), peer(64512, "192.0.2.1")
	evpn.AddressFamilies, both.AddressFamilies = []frrv1.AddressFamily{frrv1.AddressFamilyEVPN}, []frrv1.AddressFamily{frrv1.AddressFamilyEVPN, frrv1.AddressFamilyUnicast}
	for _, tt := range []struct {
		name      string
		neighbors []frrv1.Neighbor
		want      []string // neighbors of the generated router
	}{
		{"EVPN", []frrv1.Neighbor{evpn}, nil},
		{"EVPN and another", []frrv1.Neighbor{evpn, peer(64512, "192.0.2.2")}, []string{"192.0.2.2"}},
		{"one with both", []frrv1.Neighbor{both}, []string{"192.0.2.1"}},
	} {
		st := Build(Inputs{
			Namespace: frrNamespace, Networks: []Network{testNetwork(1, "blue", noOverlay, "10.10.0.0/16")}, Nodes: []Node{testNode(1)},
			Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, tt.neighbors...)}, Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
		})
		var got []string
		for _, c := range st.Configurations {
			for _, n := range c.Spec.BGP.Routers[0].Neighbors {
				got = append(got, n.Address)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: neighbors %v, want %v", tt.name, got, tt.want)
		}
		want := metav1.ConditionTrue
		if tt.want == nil {
			want = metav1.ConditionFalse
		}
		if c := st.Accepted["all"]; c.Status != want || len(st.Networks["cluster_udn_blue"]) != len(tt.want) {
			t.Errorf("%s: %+v, advertised in %v", tt.name, c, st.Networks)
		}
	}
}

// A node of the managed fabric without an InternalIP of an IP family has no sessions that carry it.
func TestManagedNodeOfOneFamily(t *testing.T) {
	v4Only := func(n Node) Node {
		n.InternalIPs, n.Addresses = network.FilterFamilies(n.InternalIPs, true, false), network.FilterFamilies(n.Addresses, true, false)
		return n
	}
	for _, tt := range []struct {
		name     string
		topology string
		change   func(Node) Node
		nodes    string
	}{
		{"full mesh", config.FullMesh, v4Only, "IPv6 routes on nodes node3,"},
		{"full mesh, IPv6", config.FullMesh, ipv6Only, "IPv4 routes on nodes node3,"},
		{"route reflectors", config.RouteReflectors, v4Only, "IPv6 routes on nodes node3,"},
		{"all nodes have both", config.FullMesh, func(n Node) Node { return n }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := managedFake(3)
			f.Nodes[2] = tt.change(f.Nodes[2])
			st := converge(t, f, Fabric{Topology: tt.topology, ASN: 64512, Namespace: frrNamespace, Default: true})
			c := st.Accepted[managedName("advertisements/cudns")]
			if tt.nodes == "" {
				if c.Status != metav1.ConditionTrue {
					t.Errorf("Accepted=%s, %q; want True", c.Status, c.Message)
				}
				return
			}
			for _, want := range []string{tt.nodes, "--node-ip"} {
				if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, want) {
					t.Errorf("Accepted=%s, %q; want False with %q", c.Status, c.Message, want)
				}
			}
		})
	}
}

// A node without an IPv4 address gets a router id, unless another FRRConfiguration for the node has one for the VRF: frr-k8s
// refuses to merge two.
func TestRouterID(t *testing.T) {
	withID := func(name, vrf, id, node string) frrv1.FRRConfiguration {
		c := testBase(name, []string{vrf}, peer(64512, "2001:db8::2"))
		c.Spec.BGP.Routers[0].ID = id
		if node != "" {
			c.Spec.NodeSelector.MatchLabels = map[string]string{corev1.LabelHostname: node}
		}
		return c
	}
	deleted := withID("a", "", "10.0.0.9", "")
	deleted.DeletionTimestamp = &metav1.Time{}
	for _, tt := range []struct {
		name   string
		others []frrv1.FRRConfiguration
		own    string // of the selected one
		want   string
	}{
		{"none", nil, "", "0.0.0.1"},
		{"another", []frrv1.FRRConfiguration{withID("other", "", "10.0.0.7", "")}, "", "10.0.0.7"},
		{"another that names the VRF", []frrv1.FRRConfiguration{withID("other", DefaultVRF, "10.0.0.7", "node1")}, "", "10.0.0.7"},
		{"one of another node", []frrv1.FRRConfiguration{withID("other", "", "10.0.0.7", "node2")}, "", "0.0.0.1"},
		{"one in another VRF", []frrv1.FRRConfiguration{withID("other", "core", "10.0.0.7", "")}, "", "0.0.0.1"},
		{"one that is being deleted", []frrv1.FRRConfiguration{deleted}, "", "0.0.0.1"},
		{"the first by name", []frrv1.FRRConfiguration{withID("other2", "", "10.0.0.8", ""), withID("other1", "", "10.0.0.7", "")}, "", "10.0.0.7"},
		{"the selected one", []frrv1.FRRConfiguration{withID("a", "", "10.0.0.7", "")}, "10.0.0.6", "10.0.0.6"},
	} {
		st := Build(Inputs{
			Namespace: frrNamespace, Networks: []Network{testNetwork(1, "blue", noOverlay, "fd10:10::/48")}, Nodes: []Node{ipv6Only(testNode(1))},
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
			Configurations: append([]frrv1.FRRConfiguration{labelled(withID("base", "", tt.own, ""), "all")}, tt.others...),
		})
		if len(st.Configurations) != 1 {
			t.Errorf("%s: %d FRRConfigurations", tt.name, len(st.Configurations))
		}
		for _, c := range st.Configurations {
			if got := c.Spec.BGP.Routers[0].ID; got != tt.want {
				t.Errorf("%s: router id %s, want %s", tt.name, got, tt.want)
			}
		}
	}
}
