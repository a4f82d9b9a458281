// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// A base that loses one of its routers, or a router's neighbors, cuts off no network: that VRF's sessions and
// prefixes stay as they were, and those of the others follow the base.
func TestRouterLost(t *testing.T) {
	blue, twin := testNetwork(1, "blue", noOverlay, "10.10.0.0/16"), testNetwork(2, "twin", noOverlay, "10.10.0.0/16")
	for name, mistake := range map[string]func(*frrv1.FRRConfiguration){
		"another VRF":  func(c *frrv1.FRRConfiguration) { c.Spec.BGP.Routers[1].VRF = "twim" },
		"no router":    func(c *frrv1.FRRConfiguration) { c.Spec.BGP.Routers = c.Spec.BGP.Routers[:1] },
		"no neighbors": func(c *frrv1.FRRConfiguration) { c.Spec.BGP.Routers[1].Neighbors = nil },
	} {
		base := testBase("all", []string{"blue", "twin"}, peer(65001, "10.99.1.1"))
		base.Spec.BGP.BFDProfiles = []frrv1.BFDProfile{{Name: "fast"}, {Name: "slow"}}
		base.Spec.BGP.Routers[1].Neighbors = slices.Clone(base.Spec.BGP.Routers[1].Neighbors)
		base.Spec.BGP.Routers[1].Neighbors[0].BFDProfile = "fast"
		f := &Fake{Inputs: Inputs{
			Namespace: frrNamespace, Networks: []Network{blue, twin}, Nodes: []Node{local(testNode(1)), local(testNode(2))},
			Advertisements: []udnv1.RouteAdvertisements{testRA("all", network.VRFAuto, "blue", "twin")}, Configurations: []frrv1.FRRConfiguration{base},
		}}
		before := converge(t, f, Fabric{})
		want := generated(f, "twin")
		if len(want) != 2 || len(before.Networks) != 2 {
			t.Fatalf("%s: before the mistake: %v, advertised %v", name, want, before.Networks)
		}
		f.Configurations = slices.Clone(f.Configurations)
		next := f.Configurations[0].DeepCopy()
		mistake(next)
		next.Spec.BGP.Routers[0].Neighbors = append(next.Spec.BGP.Routers[0].Neighbors, peer(65001, "10.99.1.2"))
		f.Configurations[0] = *next
		st := converge(t, f, Fabric{})
		if diff := gocmp.Diff(before.Networks, st.Networks); diff != "" {
			t.Errorf("%s: advertised (-before +after):\n%s", name, diff)
		}
		if diff := gocmp.Diff(want, generated(f, "twin")); diff != "" {
			t.Errorf("%s: in VRF twin (-before +after):\n%s", name, diff)
		}
		for node, text := range generated(f, "blue") {
			if !strings.Contains(text, "10.99.1.2") {
				t.Errorf("%s: in VRF blue, %s has %s", name, node, text)
			}
		}
		if c := st.Accepted["all"]; c.Reason != udnv1.ReasonConfigurationError || !strings.Contains(c.Message, "has a router in VRF twin with a neighbor") {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// generated returns what generated FRRConfigurations have for a VRF, by node: its router, the lines for it, the BFD
// profiles of its neighbors, and whether the network's id is recorded.
func generated(f *Fake, vrf string) map[string]string {
	out := map[string]string{}
	for i := range f.Configurations {
		c := &f.Configurations[i]
		source, ok := SourceOf(c)
		if !ok {
			continue
		}
		for _, r := range c.Spec.BGP.Routers {
			if r.VRF != vrf {
				continue
			}
			var profiles []frrv1.BFDProfile
			for _, p := range c.Spec.BGP.BFDProfiles {
				if p.Name == r.Neighbors[0].BFDProfile {
					profiles = append(profiles, p)
				}
			}
			out[source.Node] = fmt.Sprintf("%+v %q %+v %s", r, linesOf(c.Spec.Raw.Config, r), profiles, c.Annotations[AnnotationNetworks])
		}
	}
	return out
}

// A network is advertised in the nodes' default VRF or in others, by the oldest RouteAdvertisements; once that is
// gone, by the other.
func TestRefuseBoth(t *testing.T) {
	for _, target := range []string{network.VRFAuto, "core"} {
		for _, defaultFirst := range []bool{true, false} {
			blue := testNetwork(1, "blue", nil, "10.10.0.0/16")
			vrf := map[string]string{network.VRFAuto: "blue", "core": "core"}[target]
			inVRF, inDefault := testRA("vrf", target, "blue"), testRA("default", "", "blue")
			older, younger := &inVRF, &inDefault
			if defaultFirst {
				older, younger = &inDefault, &inVRF
			}
			older.CreationTimestamp, younger.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
			f := &Fake{Inputs: Inputs{
				Namespace: frrNamespace, Networks: []Network{blue}, Nodes: []Node{local(testNode(1))},
				Advertisements: []udnv1.RouteAdvertisements{inVRF, inDefault},
				Configurations: []frrv1.FRRConfiguration{testBase("vrf", []string{vrf}, peer(65001, "10.99.1.1")), testBase("default", []string{""}, peer(64512, "192.0.2.1"))},
			}}
			first, second := target, DefaultVRF
			if defaultFirst {
				first, second = DefaultVRF, target
			}
			st := converge(t, f, Fabric{})
			if got := st.Networks[blue.Name]; !slices.Equal(got, []string{first}) {
				t.Errorf("advertised in %v, want %s", got, first)
			}
			if c := st.Accepted[younger.Name]; c.Reason != udnv1.ReasonConfigurationError || !strings.Contains(c.Message, "because the older RouteAdvertisements "+older.Name+" advertises it") {
				t.Errorf("the younger: %+v", c)
			}
			if c := st.Accepted[older.Name]; c.Status != metav1.ConditionTrue {
				t.Errorf("the older: %+v", c)
			}
			// A mistake in the older one hands nothing to the younger.
			f.Advertisements = slices.Clone(f.Advertisements)
			at := slices.IndexFunc(f.Advertisements, func(ra udnv1.RouteAdvertisements) bool { return ra.Name == older.Name })
			f.Advertisements[at].Spec.Advertisements = []udnv1.AdvertisementType{udnv1.EgressIP}
			if got := converge(t, f, Fabric{}).Networks[blue.Name]; !slices.Equal(got, []string{first}) {
				t.Errorf("after a mistake, advertised in %v, want %s", got, first)
			}
			f.Advertisements = slices.Delete(f.Advertisements, at, at+1)
			if got := converge(t, f, Fabric{}).Networks[blue.Name]; !slices.Equal(got, []string{second}) {
				t.Errorf("without the older, advertised in %v, want %s", got, second)
			}
		}
	}
}

// An older RouteAdvertisements that a network's subnets keep from advertising it does not keep another one from it.
func TestRefuseBothOverlapping(t *testing.T) {
	for _, first := range []string{"default", "vrf"} { // the older RouteAdvertisements of blue
		for _, older := range []string{"red", "blue"} { // of two networks with the same subnets
			blue, red := testNetwork(2, "blue", noOverlay, "10.10.0.0/16"), testNetwork(1, "red", noOverlay, "10.10.0.0/16")
			if older == "blue" {
				blue.Created, red.Created = red.Created, blue.Created
			}
			inVRF, inDefault, others := testRA("vrf", network.VRFAuto, "blue"), testRA("default", "", "blue"), testRA("others", "", "red")
			inVRF.CreationTimestamp, inDefault.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
			if first == "default" {
				inVRF.CreationTimestamp, inDefault.CreationTimestamp = inDefault.CreationTimestamp, inVRF.CreationTimestamp
			}
			others.CreationTimestamp = metav1.NewTime(time.Unix(3, 0))
			f := &Fake{Inputs: Inputs{
				Namespace: frrNamespace, Networks: []Network{blue, red}, Nodes: []Node{local(testNode(1))}, Advertisements: []udnv1.RouteAdvertisements{inVRF, inDefault, others},
				Configurations: []frrv1.FRRConfiguration{testBase("vrf", []string{"blue"}, peer(65001, "10.99.1.1")), testBase("default", []string{""}, peer(64512, "192.0.2.1")), testBase("others", []string{""}, peer(64512, "192.0.2.1"))},
			}}
			want, refused, message := map[string][]string{blue.Name: {network.VRFAuto}, red.Name: {DefaultVRF}}, "default", "because the older RouteAdvertisements vrf advertises it"
			switch {
			case first == "default" && older == "blue":
				want, refused, message = map[string][]string{blue.Name: {DefaultVRF}}, "others", "overlaps network "+blue.Name
			case first == "default":
				message = "overlaps network " + red.Name
			}
			st := converge(t, f, Fabric{})
			if diff := gocmp.Diff(want, st.Networks); diff != "" {
				t.Errorf("RouteAdvertisements %s and network %s are older: advertised (-want +got):\n%s", first, older, diff)
			}
			if c := st.Accepted[refused]; c.Reason != udnv1.ReasonConfigurationError || !strings.Contains(c.Message, message) {
				t.Errorf("RouteAdvertisements %s and network %s are older: %s: %+v", first, older, refused, c)
			}
		}
	}
}

// Somebody deletes or edits an object of the managed fabric: it is restored, and nothing that is generated from
// it changes.
func TestManagedRestored(t *testing.T) {
	for _, topology := range []string{config.FullMesh, config.RouteReflectors} {
		for name, harm := range map[string]func(*Fake){
			"bases deleted": func(f *Fake) {
				f.Configurations = slices.DeleteFunc(slices.Clone(f.Configurations), func(c frrv1.FRRConfiguration) bool { return isManagedBase(&c) })
			},
			"bases edited": func(f *Fake) {
				f.Configurations = slices.Clone(f.Configurations)
				for i := range f.Configurations {
					if isManagedBase(&f.Configurations[i]) {
						next := f.Configurations[i].DeepCopy()
						next.Labels, next.Spec.BGP.Routers = nil, nil
						next.Annotations = withAll(next.Annotations, map[string]string{annotationRole: ""})
						f.Configurations[i] = *next
					}
				}
			},
			"advertisements deleted": func(f *Fake) { f.Advertisements = nil },
			"advertisements edited": func(f *Fake) {
				f.Advertisements = slices.Clone(f.Advertisements)
				for i := range f.Advertisements {
					f.Advertisements[i].Spec.NetworkSelectors = nil
				}
			},
			"labels removed": func(f *Fake) {
				for i := range f.CUDNs {
					c := f.CUDNs[i].DeepCopy()
					delete(c.Labels, LabelFabric)
					f.CUDNs[i] = *c
					f.relabel(c)
				}
			},
		} {
			f, fabric := managedFake(4), Fabric{Topology: topology, ASN: 64512, Namespace: frrNamespace, Default: true}
			before := converge(t, f, fabric)
			if len(before.Networks) != 2 {
				t.Fatalf("advertised are %v, want two networks", before.Networks)
			}
			harm(f)
			ops, st := Plan(fabric, f.Inputs, f.CUDNs)
			if diff := gocmp.Diff(before.Networks, st.Networks); diff != "" {
				t.Errorf("%s, %s: advertised (-before +after):\n%s", topology, name, diff)
			}
			restored := false
			for _, op := range ops {
				c, is := op.Object.(*frrv1.FRRConfiguration)
				if is && IsGenerated(c) {
					t.Errorf("%s, %s: %s", topology, name, op)
				}
				restored = true
			}
			if !restored {
				t.Errorf("%s, %s: nothing is restored", topology, name)
			}
			converge(t, f, fabric)
		}
	}
}

// With frr-k8s' webhook no object may have other settings of a session than another object of the node: those of
// the fabric change nevertheless.
func TestSettingsChange(t *testing.T) {
	f, fabric := managedFake(3), Fabric{Topology: config.FullMesh, ASN: 64512, Namespace: frrNamespace, Default: true}
	f.Fail = func(op Op) error {
		c, ok := op.Object.(*frrv1.FRRConfiguration)
		if !ok || op.Kind == Delete || !IsGenerated(c) {
			return nil
		}
		source, _ := SourceOf(c)
		for i := range f.Configurations {
			other := &f.Configurations[i]
			if s, ok := SourceOf(other); ok && s.Node == source.Node && other.Name != c.Name && other.Spec.BGP.Routers[0].ASN != c.Spec.BGP.Routers[0].ASN {
				return errors.New("different asns")
			}
		}
		return nil
	}
	before := converge(t, f, fabric)
	fabric.ASN = 64999
	after := converge(t, f, fabric)
	if diff := gocmp.Diff(before.Networks, after.Networks); diff != "" {
		t.Errorf("advertised (-before +after):\n%s", diff)
	}
	found := 0
	for i := range f.Configurations {
		if c := &f.Configurations[i]; IsGenerated(c) {
			found++
			if asn := c.Spec.BGP.Routers[0].ASN; asn != fabric.ASN {
				t.Errorf("%s has autonomous system %d", c.Name, asn)
			}
		}
	}
	if found != 6 {
		t.Errorf("%d objects are generated, want two for each of three nodes", found)
	}
}

// A RouteAdvertisements of which an object cannot be written says so, and advertises nothing new: pods keep their
// way out. What it advertised before stays, and so does what another one advertises.
func TestFailures(t *testing.T) {
	blue, red := testNetwork(1, "blue", nil, "10.10.0.0/16"), testNetwork(2, "red", nil, "10.20.0.0/16")
	grey := testNetwork(3, "grey", nil, "10.30.0.0/16")
	f := &Fake{Inputs: Inputs{
		Namespace: frrNamespace, Networks: []Network{blue, red, grey}, Nodes: []Node{testNode(1), testNode(2)},
		Advertisements: []udnv1.RouteAdvertisements{testRA("all", "", "blue"), testRA("other", "", "grey")},
		Configurations: []frrv1.FRRConfiguration{testBase("all", []string{""}, peer(64512, "192.0.2.1")), testBase("other", []string{""}, peer(64512, "192.0.2.1"))},
	}}
	converge(t, f, Fabric{})
	f.Advertisements = []udnv1.RouteAdvertisements{testRA("all", "", "blue", "red"), testRA("other", "", "grey")}
	ops, st := Plan(Fabric{}, f.Inputs, f.CUDNs)
	if len(ops) != 2 || len(st.Networks) != 3 {
		t.Fatalf("operations %v, networks %v", ops, st.Networks)
	}
	refused := errors.Join(&OpError{ops[0], errors.New("denied by the webhook")}, &OpError{ops[1], errors.New("denied, too")})
	got := st.WithFailures(refused, f.Inputs)
	want := map[string][]string{blue.Name: {DefaultVRF}, grey.Name: {DefaultVRF}}
	if diff := gocmp.Diff(want, got.Networks); diff != "" {
		t.Errorf("advertised (-want +got):\n%s", diff)
	}
	if c := got.Accepted["all"]; c.Status != metav1.ConditionFalse || c.Reason != udnv1.ReasonInternalError || !strings.Contains(c.Message, "refuses 2 of the FRRConfigurations") || !strings.Contains(c.Message, "denied by the webhook") {
		t.Errorf("of the one that failed: %+v", c)
	}
	if c := got.Accepted["other"]; c.Status != metav1.ConditionTrue {
		t.Errorf("of the other: %+v", c)
	}
	if got := st.WithFailures(nil, f.Inputs); !maps.EqualFunc(got.Networks, st.Networks, slices.Equal[[]string]) {
		t.Errorf("without failures: %v", got.Networks)
	}
	f.Fail = func(op Op) error { return errors.New("refused") }
	if err := f.Apply(context.Background(), ops); len(opErrors(err)) != 1 || isStale(err) {
		t.Errorf("the error of Apply: %v", err)
	}
}
