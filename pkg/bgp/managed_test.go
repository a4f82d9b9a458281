// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
)

// The managed fabric: its own objects, and what is generated from them.
func TestManagedGoldens(t *testing.T) {
	for name, f := range map[string]*Fake{
		"fullmesh":   managedFake(3),
		"reflectors": managedFake(4),
		"single":     managedFake(1),
	} {
		t.Run(name, func(t *testing.T) {
			fabric := Fabric{Topology: config.FullMesh, ASN: 64514, Namespace: frrNamespace, Default: true}
			if name == "reflectors" {
				fabric.Topology = config.RouteReflectors
				f.Nodes[3].Labels[LabelReflector] = ""
			}
			st := converge(t, f, fabric)
			var objects strings.Builder
			have := managedOf(f.Configurations, f.Advertisements)
			for _, c := range have.Bases {
				st.Configurations[c.Name] = c
			}
			for _, ra := range f.Advertisements {
				ra.UID, ra.Status = "", udnv1.RouteAdvertisementsStatus{}
				objects.Write(must(yaml.Marshal(ra)))
				objects.WriteString("---\n")
			}
			goldenWith(t, name, objects.String(), st)
		})
	}
}

func managedFake(nodes int) *Fake {
	blue := testNetwork(1, "blue", noOverlay, "10.10.0.0/16", "fd10:10::/48")
	f := &Fake{Inputs: Inputs{Namespace: frrNamespace, Networks: []Network{defaultNetwork(), blue, testNetwork(2, "red", nil, "10.20.0.0/16")}}}
	noOverlay(&f.Networks[0])
	for i := range nodes {
		f.Nodes = append(f.Nodes, testNode(i+1))
	}
	for _, n := range f.Networks[1:] {
		c := udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.CUDN, Labels: n.Labels}}
		if n.Transport != "" {
			c.Spec.Network.NoOverlayOptions = &udnv1.NoOverlayOptions{Routing: udnv1.RoutingManaged}
		}
		f.CUDNs = append(f.CUDNs, c)
	}
	return f
}

// A node that comes or goes changes no session between the others.
func TestSessionsStay(t *testing.T) {
	for _, topology := range []string{config.FullMesh, config.RouteReflectors} {
		f, fabric := managedFake(4), Fabric{Topology: topology, ASN: 64512, Namespace: frrNamespace, Default: true}
		converge(t, f, fabric)
		before := sessions(f)
		f.Nodes = append(f.Nodes, testNode(5))
		converge(t, f, fabric)
		with := sessions(f)
		for node, peers := range before {
			for p, settings := range peers {
				if with[node][p] != settings {
					t.Errorf("%s: with another node, %s's session with %s is %q, was %q", topology, node, p, with[node][p], settings)
				}
			}
		}
		if len(with["node5"]) == 0 {
			t.Errorf("%s: the new node has no session", topology)
		}
		f.Nodes = f.Nodes[:4]
		converge(t, f, fabric)
		if diff := gocmp.Diff(before, sessions(f)); diff != "" {
			t.Errorf("%s: after the node's end: %s", topology, diff)
		}
	}
}

// Every node learns from every other: by a session or by a route reflector that both
// have one with. The loss of one reflector leaves that true at once.
func TestReflectors(t *testing.T) {
	f, fabric := managedFake(8), Fabric{Topology: config.RouteReflectors, ASN: 64512, Namespace: frrNamespace, Default: true}
	converge(t, f, fabric)
	all := sessions(f)
	reflectors := map[string]bool{"node1": true, "node2": true}
	for node, peers := range all {
		want := 4 // two reflectors, two families
		if reflectors[node] {
			want = 14
		}
		if len(peers) != want {
			t.Errorf("%s has %d sessions, want %d", node, len(peers), want)
		}
		for _, lost := range []string{"", "node1", "node2"} {
			if reflectors[node] {
				continue
			}
			left := 0
			for r := range reflectors {
				if r != lost && peers["172.18.0."+strings.TrimPrefix(r, "node")] != "" {
					left++
				}
			}
			if left == 0 {
				t.Errorf("without %s, %s has no reflector", lost, node)
			}
		}
	}
	// The first reflector goes for good: the other stays, and the next node takes its place.
	f.Nodes = f.Nodes[1:]
	converge(t, f, fabric)
	if got := sessions(f)["node8"]; got["172.18.0.2"] == "" || got["172.18.0.3"] == "" || len(got) != 4 {
		t.Errorf("node8's sessions: %v", got)
	}
	// It comes back: the reflectors remain.
	f.Nodes = append([]Node{testNode(1)}, f.Nodes...)
	converge(t, f, fabric)
	if got := sessions(f)["node8"]; got["172.18.0.1"] != "" || len(got) != 4 {
		t.Errorf("node8's sessions after the return of node1: %v", got)
	}
}

// sessions returns the settings of each node's sessions by the peer's address, without
// what is advertised and received, which does not reset them.
func sessions(f *Fake) map[string]map[string]string {
	out := map[string]map[string]string{}
	for i := range f.Configurations {
		source, ok := SourceOf(&f.Configurations[i])
		if !ok {
			continue
		}
		if out[source.Node] == nil {
			out[source.Node] = map[string]string{}
		}
		for _, r := range f.Configurations[i].Spec.BGP.Routers {
			for _, n := range r.Neighbors {
				n.ToAdvertise, n.ToReceive = frrv1.Advertise{}, frrv1.Receive{}
				out[source.Node][n.Address] = fmt.Sprintf("%d %+v", r.ASN, n)
			}
		}
	}
	return out
}

// manyNetworks returns the managed fabric with networks without an overlay, besides the default one.
func manyNetworks(nodes, networks int) *Fake {
	f := managedFake(nodes)
	for i := range networks - 1 {
		n := testNetwork(i+3, fmt.Sprint("n", i), noOverlay, fmt.Sprintf("10.%d.%d.0/20", 64+i/16, i%16*16))
		f.Networks = append(f.Networks, n)
		c := udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.CUDN, Labels: n.Labels}}
		c.Spec.Network.NoOverlayOptions = &udnv1.NoOverlayOptions{Routing: udnv1.RoutingManaged}
		f.CUDNs = append(f.CUDNs, c)
	}
	return f
}

// More filters than an object can hold are refused before the API server does: with 2000 networks
// and 12 nodes in a full mesh, which is as many as with 500 networks and 42 nodes. With few sessions a
// node the objects are far smaller.
func TestManyFilters(t *testing.T) {
	f, fabric := manyNetworks(12, 2000), Fabric{Topology: config.FullMesh, ASN: 64512, Namespace: frrNamespace}
	name := managedName("advertisements/cudns")
	st := converge(t, f, fabric)
	if c := st.Accepted[name]; c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "fewer sessions") {
		t.Errorf("full mesh of 12 nodes: %+v", c)
	}
	if len(st.Networks) > 0 { // nodes would no longer translate the addresses of pods
		t.Errorf("full mesh of 12 nodes: %d networks count as advertised, and no object is generated", len(st.Networks))
	}
	f = manyNetworks(10, 2000)
	if st = converge(t, f, fabric); st.Accepted[name].Status != metav1.ConditionTrue {
		t.Errorf("full mesh of 10 nodes: %+v", st.Accepted[name])
	}
	advertised := len(st.Networks)
	for _, c := range st.Configurations {
		if size := len(must(json.Marshal(c))); size > 1400<<10 {
			t.Errorf("%s has %d bytes", c.Name, size)
		}
	}
	f.Nodes = append(f.Nodes, testNode(11), testNode(12))
	if st = converge(t, f, fabric); st.Accepted[name].Status != metav1.ConditionFalse || len(st.Networks) != advertised {
		t.Errorf("a full mesh that has grown to 12 nodes: %d networks are advertised, were %d: %+v", len(st.Networks), advertised, st.Accepted[name])
	}
}

// BenchmarkBuild: 500 networks without an overlay on 15 nodes in a full mesh, built and compared,
// as every event does.
func BenchmarkBuild(b *testing.B) {
	f, fabric := manyNetworks(15, 500), Fabric{Topology: config.FullMesh, ASN: 64512, Namespace: frrNamespace, Default: true}
	converge(b, f, fabric)
	for b.Loop() {
		if ops, _ := Plan(fabric, f.Inputs, f.CUDNs); len(ops) > 0 {
			b.Fatal(ops)
		}
	}
}
