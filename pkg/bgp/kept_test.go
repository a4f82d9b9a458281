// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// A network for which no node has a session is not advertised: its pods would lose their way out of the
// cluster. It does not exclude a younger network that has sessions either.
func TestWithoutSession(t *testing.T) {
	for _, target := range []string{"", network.VRFAuto, "core"} {
		blue := testNetwork(1, "blue", nil, "10.10.0.0/16")
		younger := testNetwork(2, "younger", nil, "10.10.0.0/16")
		vrfs := map[string][]string{"": {"", ""}, network.VRFAuto: {"blue", "younger"}, "core": {"core", "core"}}[target]
		in := Inputs{
			Namespace: frrNamespace, Networks: []Network{blue, younger}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
			Configurations: []frrv1.FRRConfiguration{testBase("all", vrfs[:1]), testBase("good", vrfs[1:], peer(64512, "192.0.2.1"))},
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", target, "blue"), testRA("good", target, "younger")},
		}
		st := converge(t, &Fake{Inputs: in}, Fabric{})
		if want := map[string][]string{younger.Name: {cmp.Or(target, DefaultVRF)}}; gocmp.Diff(want, st.Networks) != "" {
			t.Errorf("target %q: advertised %v, want %v", target, st.Networks, want)
		}
		if got := st.Accepted["all"]; got.Reason != udnv1.ReasonConfigurationError || !strings.Contains(got.Message, "node node1: no selected FRRConfiguration has a router") {
			t.Errorf("target %q: without a session: %+v", target, got)
		}
		if got := st.Accepted["good"]; got.Status != metav1.ConditionTrue {
			t.Errorf("target %q: with a session: %+v", target, got)
		}
	}
}

// A mistake in every RouteAdvertisements changes nothing that is advertised: not if networks in VRFs of their
// own have the same subnets, and not if an older network appears with the subnets of a network that is kept.
func TestMistakeKeepsAll(t *testing.T) {
	blue := testNetwork(1, "blue", noOverlay, "10.10.0.0/16", "fd10:10::/48")
	twin := testNetwork(2, "twin", noOverlay, "10.10.0.0/16", "fd10:10::/48")
	red := testNetwork(3, "red", noOverlay, "10.20.0.0/16")
	grey := testNetwork(5, "grey", noOverlay, "10.10.0.0/20")
	f := &Fake{Inputs: Inputs{
		Namespace: frrNamespace, Networks: []Network{blue, twin, red, grey}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
		Advertisements: []udnv1.RouteAdvertisements{testRA("all", network.VRFAuto, "blue", "twin"), testRA("fabric", "", "grey", "older"), testRA("provider", "core", "red")},
		Configurations: []frrv1.FRRConfiguration{
			testBase("all", []string{"blue", "twin"}, peer(65001, "10.99.1.1")), testBase("fabric", []string{""}, peer(64512, "192.0.2.1")),
			testBase("provider", []string{"core"}, peer(65001, "10.99.2.1")),
		},
	}}
	before := converge(t, f, Fabric{})
	want := map[string][]string{blue.Name: {network.VRFAuto}, twin.Name: {network.VRFAuto}, red.Name: {"core"}, grey.Name: {DefaultVRF}}
	if diff := gocmp.Diff(want, before.Networks); diff != "" {
		t.Fatalf("before the mistakes (-want +got):\n%s", diff)
	}
	objects := slices.Clone(f.Configurations)
	f.Advertisements = slices.Clone(f.Advertisements)
	for i := range f.Advertisements {
		spec := f.Advertisements[i].Spec.DeepCopy()
		spec.Advertisements = append(spec.Advertisements, udnv1.EgressIP)
		f.Advertisements[i].Spec = *spec
	}
	older := testNetwork(4, "older", nil, "10.10.0.0/16", "fd10:10::/48")
	older.Created = time.Unix(0, 0)
	f.Networks = append(f.Networks, older)
	st := converge(t, f, Fabric{})
	if diff := gocmp.Diff(want, st.Networks); diff != "" {
		t.Errorf("after the mistakes (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(objects, f.Configurations); diff != "" {
		t.Errorf("FRRConfigurations (-before +after):\n%s", diff)
	}

	// A network whose id was another's, and one without an id, are not those that are recorded.
	gone := slices.Clone(f.Networks)
	gone[0].ID, gone[1].ID, gone[2], gone[3] = 0, 9, testNetwork(3, "other", nil, "10.30.0.0/16"), testNetwork(5, "another", nil, "10.31.0.0/16")
	f.Networks = gone
	if st := converge(t, f, Fabric{}); len(st.Networks) > 0 {
		t.Errorf("advertised are %v, which no FRRConfiguration has", slices.Sorted(maps.Keys(st.Networks)))
	}
}

// mistakeKeepsOwner checks that a mistake in the RouteAdvertisements of the older of two networks with
// overlapping subnets does not hand its addresses to the younger one.
func mistakeKeepsOwner(t *rapid.T, in Inputs, older, younger Network) {
	f := &Fake{Inputs: in}
	before := converge(t, f, Fabric{})
	f.Advertisements = slices.Clone(f.Advertisements)
	name := map[string]string{"a": "x", "b": "y"}[older.CUDN]
	at := slices.IndexFunc(f.Advertisements, func(ra udnv1.RouteAdvertisements) bool { return ra.Name == name })
	spec := f.Advertisements[at].Spec.DeepCopy()
	mistake := rapid.SampledFrom([]string{"EgressIP", "networkSelector", "frrConfigurationSelector", "targetVRF"}).Draw(t, "mistake")
	switch mistake {
	case "EgressIP":
		spec.Advertisements = append(spec.Advertisements, udnv1.EgressIP)
	case "networkSelector":
		spec.NetworkSelectors[0].ClusterUserDefinedNetworkSelector.NetworkSelector.MatchLabels = map[string]string{"/": "x"}
	case "frrConfigurationSelector":
		spec.FRRConfigurationSelector.MatchLabels = map[string]string{"/": "x"}
	case "targetVRF": // no router is in it
		spec.TargetVRF = "core"
	}
	f.Advertisements[at].Spec = *spec
	st := converge(t, f, Fabric{})
	if diff := gocmp.Diff(before.Networks, st.Networks); diff != "" {
		t.Fatalf("advertised after a mistake in %s (-before +after):\n%s", mistake, diff)
	}
	for i := range f.Configurations {
		source, generated := SourceOf(&f.Configurations[i])
		if !generated || source.Advertisements == name {
			continue
		}
		for _, p := range f.Configurations[i].Spec.BGP.Routers[0].Prefixes {
			if slices.ContainsFunc(younger.CIDRs(), prefix(p).Overlaps) {
				t.Fatalf("after a mistake in %s, %s advertises %s of the younger network", mistake, source, p)
			}
		}
	}
}
