// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
)

// OpKind is the kind of an Op.
type OpKind string

// The kinds of operations. What withdraws routes comes first.
const (
	Delete    OpKind = "delete"
	Create    OpKind = "create"
	Update    OpKind = "update"
	SetLabel  OpKind = "label" // adds or removes LabelFabric
	SetStatus OpKind = "set the status of"
)

// Op is one API write.
type Op struct {
	Kind   OpKind
	Object client.Object // desired; Delete: actual; SetLabel: actual, whose label changes
	Add    bool          // SetLabel: add it
}

func (o Op) String() string {
	name := o.Object.GetName()
	if ns := o.Object.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return fmt.Sprintf("%s %s %s", o.Kind, kindOf(o.Object), name)
}

func kindOf(o client.Object) string {
	switch o.(type) {
	case *frrv1.FRRConfiguration:
		return "FRRConfiguration"
	case *udnv1.RouteAdvertisements:
		return "RouteAdvertisements"
	}
	return "ClusterUserDefinedNetwork"
}

// Plan returns the operations that one reconcile applies, and the state that they lead to.
func Plan(f Fabric, in Inputs, cudns []udnv1.ClusterUserDefinedNetwork) ([]Op, State) {
	have := managedOf(in.Configurations, in.Advertisements)
	ops := DiffManaged(BuildManaged(f, managedNetworks(cudns), in.Nodes, have.Bases), have, cudns)
	want := Build(in)
	return append(ops, Diff(want, in)...), want
}

// Diff returns the operations that lead from the actual objects to want.
func Diff(want State, in Inputs) []Op {
	var remove, create, update, status []Op
	have := map[string]bool{}
	for i := range in.Configurations {
		h := &in.Configurations[i]
		if !IsGenerated(h) {
			continue
		}
		source, _ := SourceOf(h)
		w, wanted := want.Configurations[h.Name]
		switch {
		case wanted:
			have[h.Name] = true
			if sameConfiguration(w, h) || h.DeletionTimestamp != nil {
				continue
			}
			update = append(update, Op{Kind: Update, Object: replaceConfiguration(h, w)})
		case !want.Keep[source] && !want.Keep[Source{Advertisements: source.Advertisements}]:
			remove = append(remove, Op{Kind: Delete, Object: h})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Configurations)) {
		if !have[name] {
			create = append(create, Op{Kind: Create, Object: want.Configurations[name]})
		}
	}
	for i := range in.Advertisements {
		ra := &in.Advertisements[i]
		c, known := want.Accepted[ra.Name]
		if next := withCondition(ra.Status, c); known && !equality.Semantic.DeepEqual(ra.Status, next) {
			status = append(status, Op{Kind: SetStatus, Object: &udnv1.RouteAdvertisements{
				ObjectMeta: metav1.ObjectMeta{Name: ra.Name, UID: ra.UID}, Status: next,
			}})
		}
	}
	return slices.Concat(remove, update, create, status)
}

// withCondition returns the status with the condition Accepted. Its transition time is
// that of the actual condition, or zero if its status changes.
func withCondition(have udnv1.RouteAdvertisementsStatus, c metav1.Condition) udnv1.RouteAdvertisementsStatus {
	out := udnv1.RouteAdvertisementsStatus{Status: "Accepted", Conditions: slices.Clone(have.Conditions)}
	if c.Status != metav1.ConditionTrue {
		out.Status = "Not Accepted: " + c.Message
	}
	if h := meta.FindStatusCondition(have.Conditions, c.Type); h != nil && h.Status == c.Status {
		c.LastTransitionTime = h.LastTransitionTime
	}
	out.Conditions = slices.DeleteFunc(out.Conditions, func(h metav1.Condition) bool { return h.Type == c.Type })
	out.Conditions = append(out.Conditions, c)
	slices.SortFunc(out.Conditions, func(x, y metav1.Condition) int { return cmp.Compare(x.Type, y.Type) })
	return out
}

func sameConfiguration(w, h *frrv1.FRRConfiguration) bool {
	if !hasAll(h.Labels, w.Labels) || !hasAll(h.Annotations, w.Annotations) {
		return false
	}
	// The copies are for the few objects that differ, if only by the defaults.
	return equality.Semantic.DeepEqual(w.Spec, h.Spec) || equality.Semantic.DeepEqual(withDefaults(w).Spec, withDefaults(h).Spec)
}

// withDefaults returns a copy of c with what the API server adds to a neighbour. frr-k8s of a version
// without that field drops it, so Build leaves it out.
func withDefaults(c *frrv1.FRRConfiguration) *frrv1.FRRConfiguration {
	out := c.DeepCopy()
	for i := range out.Spec.BGP.Routers {
		for j := range out.Spec.BGP.Routers[i].Neighbors {
			n := &out.Spec.BGP.Routers[i].Neighbors[j]
			if len(n.AddressFamilies) == 0 {
				n.AddressFamilies = []frrv1.AddressFamily{frrv1.AddressFamilyUnicast}
			}
		}
	}
	return out
}

func sameAdvertisements(w, h *udnv1.RouteAdvertisements) bool {
	return equality.Semantic.DeepEqual(w.Spec, h.Spec) && hasAll(h.Labels, w.Labels)
}

// hasAll reports whether have has the entries of want.
func hasAll(have, want map[string]string) bool {
	return labels.Set(want).AsSelectorPreValidated().Matches(labels.Set(have))
}

// replaceConfiguration returns h with the fields of w.
func replaceConfiguration(h, w *frrv1.FRRConfiguration) *frrv1.FRRConfiguration {
	out := h.DeepCopy()
	out.Spec = *w.Spec.DeepCopy()
	out.Labels, out.Annotations = withAll(out.Labels, w.Labels), withAll(out.Annotations, w.Annotations)
	return out
}

func withAll(have, want map[string]string) map[string]string {
	if have == nil {
		have = map[string]string{}
	}
	maps.Copy(have, want)
	return have
}

// DiffManaged returns the operations that lead from the actual objects of the managed
// fabric to want.
func DiffManaged(want ManagedState, have ManagedState, cudns []udnv1.ClusterUserDefinedNetwork) []Op {
	var remove, rest []Op
	for _, name := range slices.Sorted(maps.Keys(have.Advertisements)) {
		h := have.Advertisements[name]
		switch w, wanted := want.Advertisements[name]; {
		case !wanted:
			remove = append(remove, Op{Kind: Delete, Object: h})
		case !sameAdvertisements(w, h):
			next := h.DeepCopy()
			next.Spec, next.Labels = *w.Spec.DeepCopy(), withAll(next.Labels, w.Labels)
			rest = append(rest, Op{Kind: Update, Object: next})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.Bases)) {
		h := have.Bases[name]
		switch w, wanted := want.Bases[name]; {
		case !wanted:
			remove = append(remove, Op{Kind: Delete, Object: h})
		case !sameConfiguration(w, h):
			rest = append(rest, Op{Kind: Update, Object: replaceConfiguration(h, w)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Bases)) {
		if have.Bases[name] == nil {
			rest = append(rest, Op{Kind: Create, Object: want.Bases[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Advertisements)) {
		if have.Advertisements[name] == nil {
			rest = append(rest, Op{Kind: Create, Object: want.Advertisements[name]})
		}
	}
	for i := range cudns {
		c := &cudns[i]
		_, has := c.Labels[LabelFabric]
		switch {
		case want.Labelled[c.Name] && c.Labels[LabelFabric] != LabelFabricValue:
			rest = append(rest, Op{Kind: SetLabel, Object: c, Add: true})
		case has && !want.Labelled[c.Name]:
			remove = append(remove, Op{Kind: SetLabel, Object: c})
		}
	}
	return append(remove, rest...)
}

// managedOf returns the actual objects of the managed fabric.
func managedOf(configs []frrv1.FRRConfiguration, ras []udnv1.RouteAdvertisements) ManagedState {
	st := ManagedState{Bases: map[string]*frrv1.FRRConfiguration{}, Advertisements: map[string]*udnv1.RouteAdvertisements{}}
	for i := range configs {
		if isManagedBase(&configs[i]) {
			st.Bases[configs[i].Name] = &configs[i]
		}
	}
	for i := range ras {
		if isManaged(&ras[i]) {
			st.Advertisements[ras[i].Name] = &ras[i]
		}
	}
	return st
}
