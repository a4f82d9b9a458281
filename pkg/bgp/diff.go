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

// Plan returns the operations on objects that one reconcile applies, and the state that they lead to. What is
// generated is built from the desired managed fabric, so that restoring one of its objects withdraws no routes meanwhile.
func Plan(f Fabric, in Inputs, cudns []udnv1.ClusterUserDefinedNetwork) ([]Op, State) {
	have := managedOf(in.Configurations, in.Advertisements)
	managed := BuildManaged(f, managedNetworks(cudns), in.Nodes, have.Bases)
	ops := DiffManaged(managed, have, cudns)
	want := Build(withManaged(in, managed, have))
	return append(ops, Diff(want, in)...), want
}

// withManaged returns the inputs with the managed fabric as want has it.
func withManaged(in Inputs, want, have ManagedState) Inputs {
	out := in
	if len(want.Bases)+len(have.Bases)+len(have.Advertisements)+len(want.Advertisements) > 0 {
		out.Configurations = slices.DeleteFunc(slices.Clone(in.Configurations), func(c frrv1.FRRConfiguration) bool { return isManagedBase(&c) })
		for _, name := range slices.Sorted(maps.Keys(want.Bases)) {
			out.Configurations = append(out.Configurations, *want.Bases[name])
		}
		out.Advertisements = slices.DeleteFunc(slices.Clone(in.Advertisements), func(ra udnv1.RouteAdvertisements) bool { return isManaged(&ra) })
		for _, name := range slices.Sorted(maps.Keys(want.Advertisements)) {
			ra := *want.Advertisements[name]
			if h := have.Advertisements[name]; h != nil {
				ra.Generation, ra.CreationTimestamp = h.Generation, h.CreationTimestamp
			}
			out.Advertisements = append(out.Advertisements, ra)
		}
	}
	out.Networks = slices.Clone(in.Networks)
	for i := range out.Networks {
		n := &out.Networks[i]
		value, has := n.Labels[LabelFabric]
		switch wanted := want.Labelled[n.CUDN]; {
		case wanted && value != LabelFabricValue:
			n.Labels = withAll(maps.Clone(n.Labels), fabricLabels())
		case !wanted && has:
			n.Labels = maps.Clone(n.Labels)
			delete(n.Labels, LabelFabric)
		}
	}
	return out
}

// Diff returns the operations that lead from the actual FRRConfigurations to want.
func Diff(want State, in Inputs) []Op {
	var remove, create, update []Op
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
			if sameConfiguration(w, h) || h.DeletionTimestamp != nil {
				have[h.Name] = true
				continue
			}
			if !sameSessions(w, h) {
				remove = append(remove, Op{Kind: Delete, Object: h})
				continue // and created
			}
			have[h.Name] = true
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
	return slices.Concat(remove, update, create)
}

// sameSessions reports whether the sessions that both objects have are configured alike. frr-k8s' webhook refuses
// to change a session while another object of the node has its old settings. So neither object could be updated
// first: both are deleted and created. The session is reset anyway.
func sameSessions(w, h *frrv1.FRRConfiguration) bool {
	w, h = withDefaults(w), withDefaults(h)
	for _, r := range w.Spec.BGP.Routers {
		for _, s := range h.Spec.BGP.Routers {
			if cmp.Or(r.VRF, DefaultVRF) != cmp.Or(s.VRF, DefaultVRF) {
				continue
			}
			if r.ASN != s.ASN || r.ID != s.ID || !sameNeighbors(r.Neighbors, s.Neighbors) {
				return false
			}
		}
	}
	return true
}

// sameNeighbors reports whether the neighbors that both lists have are the same, apart from the routes that
// they send and receive.
func sameNeighbors(w, h []frrv1.Neighbor) bool {
	have := map[string]frrv1.Neighbor{}
	for _, n := range h {
		n.ToAdvertise, n.ToReceive = frrv1.Advertise{}, frrv1.Receive{}
		have[n.Interface+" "+n.Address] = n
	}
	for _, n := range w {
		n.ToAdvertise, n.ToReceive = frrv1.Advertise{}, frrv1.Receive{}
		if other, ok := have[n.Interface+" "+n.Address]; ok && !equality.Semantic.DeepEqual(n, other) {
			return false
		}
	}
	return true
}

// DiffStatus returns the operations that give the RouteAdvertisements the conditions of want.
func DiffStatus(want State, ras []udnv1.RouteAdvertisements) []Op {
	var out []Op
	for i := range ras {
		ra := &ras[i]
		c, known := want.Accepted[ra.Name]
		if next := withCondition(ra.Status, c); known && !equality.Semantic.DeepEqual(ra.Status, next) {
			out = append(out, Op{Kind: SetStatus, Object: &udnv1.RouteAdvertisements{
				ObjectMeta: metav1.ObjectMeta{Name: ra.Name, UID: ra.UID}, Status: next,
			}})
		}
	}
	return out
}

// WithFailures returns the state after the failure of the operations that err names. If an object of a
// RouteAdvertisements could not be written, the RouteAdvertisements is not accepted, and advertises no network that it
// did not advertise before: the pods would send with addresses to which no route leads.
func (st State) WithFailures(err error, in Inputs) State {
	failed := failures(err)
	if len(failed) == 0 {
		return st
	}
	_, generated := splitConfigurations(in.Configurations)
	before := map[Advertised]bool{}
	out := st
	out.Accepted, out.Networks = maps.Clone(st.Accepted), map[string][]string{}
	for ra, message := range failed {
		for _, p := range placedIn(generated[ra], in.Nodes, in.Networks) {
			before[Advertised{p.Name, p.vrf}] = true
		}
		if c := out.Accepted[ra]; c.Status == metav1.ConditionTrue {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, udnv1.ReasonInternalError, message
			out.Accepted[ra] = c
		}
	}
	for name, vrfs := range st.Networks {
		for _, vrf := range vrfs {
			a := Advertised{name, vrf}
			written := slices.ContainsFunc(st.Advertisers[a], func(ra string) bool { return failed[ra] == "" })
			if written || before[a] {
				out.Networks[name] = append(out.Networks[name], vrf)
			}
		}
	}
	return out
}

// failures returns a message for each RouteAdvertisements of which Apply could not write an FRRConfiguration.
func failures(err error) map[string]string {
	out := map[string]string{}
	count := map[string]int{}
	for _, e := range opErrors(err) {
		c, ok := e.Op.Object.(*frrv1.FRRConfiguration)
		source, generated := Source{}, false
		if ok {
			source, generated = SourceOf(c)
		}
		if !generated || e.Op.Kind == Delete || isStale(e) {
			continue
		}
		if count[source.Advertisements]++; count[source.Advertisements] == 1 {
			out[source.Advertisements] = e.Error()
		}
	}
	for ra, n := range count {
		out[ra] = fmt.Sprintf("the API server refuses %d of the FRRConfigurations: %s", n, out[ra])
	}
	return out
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

// withDefaults returns a copy of c with what the API server adds to a neighbor. frr-k8s of a version
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
