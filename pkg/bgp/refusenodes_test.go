// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// A network whose subnets contain an address that the nodes need is not in their default VRF, whatever its age and
// whatever advertised it before. Others are, also those whose addresses it has.
func TestRefuseNodes(t *testing.T) {
	joins := func(change func(*Node)) Node {
		n := Node{Name: "node3", ID: 3, Labels: map[string]string{corev1.LabelHostname: "node3"}, Mode: network.LocalGateway}
		change(&n)
		return n
	}
	addr := netip.MustParseAddr
	for _, c := range []struct{ cidr, what string }{
		{"10.10.0.0/16", "10.10.0.3, the address of node node3"},
		{"10.11.0.0/16", "10.11.255.255, the address of node node3"},
		{"10.12.0.0/16", "10.12.0.0, the address of the default gateway of node node3"},
		{"fd10::/48", "fd10::3, the address of node node3"},
	} {
		node := joins(func(n *Node) {
			n.InternalIPs, n.Addresses, n.NextHops = []netip.Addr{addr("10.10.0.3"), addr("fd10::3")}, []netip.Addr{addr("10.11.255.255")}, []netip.Addr{addr("10.12.0.0")}
		})
		cidrs := []string{"10.200.0.0/16", c.cidr} // the address may be in any
		if strings.Contains(c.cidr, ":") {
			cidrs = []string{c.cidr}
		}
		blue := testNetwork(1, "blue", noOverlay, cidrs...)
		red, lite := testNetwork(2, "red", nil, "10.20.0.0/16"), testNetwork(3, "lite", noOverlay, cidrs...)
		younger := testNetwork(4, "younger", nil, "10.10.128.0/17")
		f := &Fake{Inputs: Inputs{
			Namespace: frrNamespace, Networks: []Network{blue, red, lite, younger}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue", "red"), testRA("lite", network.VRFAuto, "lite"), testRA("younger", "", "younger")},
			Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, dualPeer()), testBase("lite", []string{"lite"}, dualPeer()), testBase("younger", []string{""}, dualPeer())},
		}}
		before := converge(t, f, Fabric{})
		if len(before.Networks[blue.Name]) != 1 || before.Accepted["all"].Status != metav1.ConditionTrue {
			t.Fatalf("%s: before the node joins: %+v", c.cidr, before)
		}
		f.Nodes = append(f.Nodes, node)
		st := converge(t, f, Fabric{})
		want := map[string][]string{red.Name: {DefaultVRF}, lite.Name: {network.VRFAuto}, younger.Name: {DefaultVRF}}
		if diff := gocmp.Diff(want, st.Networks); diff != "" {
			t.Errorf("%s: advertised (-want +got):\n%s", c.cidr, diff)
		}
		if got := st.Accepted["all"]; got.Reason != udnv1.ReasonConfigurationError || !strings.Contains(got.Message, "network cluster_udn_blue is not advertised: its subnet "+c.cidr+" contains "+c.what) {
			t.Errorf("%s: %+v", c.cidr, got)
		}
		own, accepted := announced(f, "node1")
		for _, h := range must(blue.HostSubnets(1)) {
			if own[" "+h.String()] || !own["lite "+h.String()] {
				t.Errorf("%s: node1 announces %v", c.cidr, own)
			}
		}
		if accepted[" "+c.cidr] {
			t.Errorf("%s: node1 accepts %v", c.cidr, accepted)
		}
		// Another mistake does not advertise it again.
		f.Advertisements = slices.Clone(f.Advertisements)
		f.Advertisements[0].Spec.Advertisements = []udnv1.AdvertisementType{udnv1.EgressIP}
		if got := converge(t, f, Fabric{}).Networks[blue.Name]; len(got) > 0 {
			t.Errorf("%s: after a mistake, advertised in %v", c.cidr, got)
		}
		f.Advertisements[0].Spec.Advertisements, f.Nodes = []udnv1.AdvertisementType{udnv1.PodNetwork}, f.Nodes[:2]
		if got := converge(t, f, Fabric{}).Networks[blue.Name]; len(got) != 1 {
			t.Errorf("%s: without the node, advertised in %v", c.cidr, got)
		}
	}
}

// A mistake in a RouteAdvertisements, whose objects all stay, and then a node with an address of its network.
func TestRefuseNodesKept(t *testing.T) {
	blue := testNetwork(1, "blue", noOverlay, "10.10.0.0/16")
	f := &Fake{Inputs: Inputs{
		Namespace: frrNamespace, Networks: []Network{blue}, Nodes: []Node{testNode(1)}, Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue")},
		Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(64512, "192.0.2.1"))},
	}}
	converge(t, f, Fabric{})
	f.Advertisements[0].Spec.Advertisements = []udnv1.AdvertisementType{udnv1.EgressIP}
	if got := converge(t, f, Fabric{}).Networks[blue.Name]; len(got) != 1 {
		t.Fatalf("after the mistake, advertised in %v", got)
	}
	other := testNode(2)
	other.Addresses = append(other.Addresses, netip.MustParseAddr("10.10.7.7"))
	f.Nodes = append(f.Nodes, other)
	if got := converge(t, f, Fabric{}).Networks[blue.Name]; len(got) > 0 {
		t.Errorf("with a node in its subnet, advertised in %v", got)
	}
}

// The managed fabric carries no such network either; the cluster default network it does.
func TestRefuseNodesManaged(t *testing.T) {
	f, fabric := managedFake(2), Fabric{Topology: config.FullMesh, ASN: 64512, Namespace: frrNamespace, Default: true}
	f.Nodes[0].Addresses = append(f.Nodes[0].Addresses, netip.MustParseAddr("10.10.7.7"), netip.MustParseAddr("10.244.7.7"))
	st := converge(t, f, fabric)
	if got := st.Networks["cluster_udn_blue"]; len(got) > 0 {
		t.Errorf("blue is advertised in %v", got)
	}
	if got := st.Networks[network.DefaultName]; len(got) != 1 {
		t.Errorf("the cluster default network is advertised in %v", got)
	}
}

func dualPeer() frrv1.Neighbor {
	n := peer(64512, "192.0.2.1")
	n.DualStackAddressFamily = true
	return n
}

// What a node has written about itself counts as the nodes' own, as the cache keeps it.
func TestNodeOf(t *testing.T) {
	addr := netip.MustParseAddr
	annotations, err := network.Node{Chassis: "c", EncapIPs: []netip.Addr{addr("10.1.0.1")}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.2.0.1/24")}, NextHops: []netip.Addr{addr("10.2.0.254")},
		BridgeMAC: "52:54:00:00:00:01", Mode: network.SharedGateway}.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	trimmed, err := TrimNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: annotations},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.3.0.1"}, {Type: corev1.NodeHostName, Address: "node1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	got := nodeOf(trimmed.(*corev1.Node))
	if want := []netip.Addr{addr("10.2.0.1"), addr("10.1.0.1")}; !slices.Equal(got.Addresses, want) {
		t.Errorf("addresses %v, want %v", got.Addresses, want)
	}
	if !slices.Equal(got.NextHops, []netip.Addr{addr("10.2.0.254")}) || !slices.Equal(got.InternalIPs, []netip.Addr{addr("10.3.0.1")}) {
		t.Errorf("next hops %v, InternalIPs %v", got.NextHops, got.InternalIPs)
	}
}
