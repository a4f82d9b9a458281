// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// OpKind is the kind of an Op.
type OpKind string

// The kinds of operations, in the order in which they are applied.
const (
	SetClaim OpKind = "set status of"
	Annotate OpKind = "annotate"
)

// Op is one API write.
type Op struct {
	Kind   OpKind
	Pod    Pod
	Set    network.PodNetworks // Annotate: entries to write
	Remove []string            // Annotate: keys of entries to remove
	Label  bool                // Annotate: add network.LabelLayer2Pod, too
	Claim  Holder              // SetClaim
	Status Status              // SetClaim
}

func (o Op) String() string {
	if o.Kind == SetClaim {
		return fmt.Sprintf("set status of %s to %s", o.Claim, strings.Join(o.Status.IPs, ","))
	}
	var changes []string
	for _, k := range slices.Sorted(maps.Keys(o.Set)) {
		changes = append(changes, fmt.Sprintf("%s=%s", k, join(o.Set[k].IPs)))
	}
	for _, k := range o.Remove {
		changes = append(changes, "-"+k)
	}
	if o.Label {
		changes = append(changes, "label "+network.LabelLayer2Pod)
	}
	return fmt.Sprintf("annotate pod %s with %s", network.NADKey(o.Pod.Namespace, o.Pod.Name), strings.Join(changes, " "))
}

// Diff returns the operations that lead from have to want. A claim's status
// shows addresses before a pod has them.
func Diff(want, have State) []Op {
	var ops []Op
	for _, name := range slices.Sorted(maps.Keys(want.Claims)) {
		if w := want.Claims[name]; !w.Equal(have.Claims[name]) {
			ops = append(ops, Op{Kind: SetClaim, Pod: want.Pod, Status: w,
				Claim: Holder{Claim: true, Namespace: want.Pod.Namespace, Name: name, UID: w.UID}})
		}
	}
	op := Op{Kind: Annotate, Pod: want.Pod, Set: network.PodNetworks{}, Label: want.Labelled}
	for key, w := range want.Entries {
		if h, ok := have.Entries[key]; !ok || !sameEntry(w, h) {
			op.Set[key] = w
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have.Entries)) {
		if _, ok := want.Entries[key]; !ok {
			op.Remove = append(op.Remove, key)
		}
	}
	if len(op.Set)+len(op.Remove) > 0 || want.Labelled && !have.Labelled {
		ops = append(ops, op)
	}
	return ops
}

func sameEntry(a, b network.PodNetwork) bool {
	a, b = a.WithLegacyFields(), b.WithLegacyFields()
	for _, n := range []*network.PodNetwork{&a, &b} { // empty and nil are equal
		if len(n.IPs) == 0 {
			n.IPs = nil
		}
		if len(n.Gateways) == 0 {
			n.Gateways = nil
		}
		if len(n.Routes) == 0 {
			n.Routes = nil
		}
	}
	return reflect.DeepEqual(a, b)
}
