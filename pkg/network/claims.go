// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// Claims indexes claimants by what they claim. The first one in order of precedence has it. The zero value is
// empty. It is for things that tenants claim freely, as external addresses of Services: an event's cost
// grows with the number of namespaces that claim a thing, and not with that of the claimants.
type Claims[K comparable] struct {
	byThing map[K][]Claimant // in the order of compareByNamespace
}

// Claimant is an object that claims something.
type Claimant struct {
	// Own: the object's author chose the thing. An object that was given the thing takes precedence:
	// an edit of an older object must not take it away.
	Own     bool
	Created time.Time
	Name    string // namespace/name
}

// compare orders claimants: those that were given the thing, then by age, and those of one age
// by name.
func (c Claimant) compare(o Claimant) int {
	switch {
	case c.Own && !o.Own:
		return 1
	case o.Own && !c.Own:
		return -1
	}
	return cmp.Or(c.Created.Compare(o.Created), strings.Compare(c.Name, o.Name))
}

// Before reports whether c precedes o.
func (c Claimant) Before(o Claimant) bool { return c.compare(o) < 0 }

// compareByNamespace orders claimants by namespace, and within one by precedence.
func (c Claimant) compareByNamespace(o Claimant) int {
	return cmp.Or(strings.Compare(c.namespace(), o.namespace()), c.compare(o))
}

func (c Claimant) namespace() string {
	namespace, _, _ := strings.Cut(c.Name, "/")
	return namespace
}

// Add adds a claim. To add it twice has no effect.
func (x *Claims[K]) Add(thing K, c Claimant) {
	if x.byThing == nil {
		x.byThing = map[K][]Claimant{}
	}
	list := x.byThing[thing]
	if i, found := slices.BinarySearchFunc(list, c, Claimant.compareByNamespace); !found {
		x.byThing[thing] = slices.Insert(list, i, c)
	}
}

// Remove removes a claim, if it is there.
func (x *Claims[K]) Remove(thing K, c Claimant) {
	list := x.byThing[thing]
	i, found := slices.BinarySearchFunc(list, c, Claimant.compareByNamespace)
	switch {
	case !found:
	case len(list) == 1:
		delete(x.byThing, thing)
	default:
		x.byThing[thing] = slices.Delete(list, i, i+1)
	}
}

// Things iterates over what is claimed, in no order.
func (x *Claims[K]) Things() iter.Seq[K] { return maps.Keys(x.byThing) }

// Namespaces iterates over the namespaces of a thing's claimants.
func (x *Claims[K]) Namespaces(thing K) iter.Seq[string] {
	return func(yield func(string) bool) {
		for list := range x.byNamespace(thing) {
			if !yield(list[0].namespace()) {
				return
			}
		}
	}
}

// First returns a thing's first claimant, besides the one named except, in the namespaces for which in returns true;
// nil means all. ok is false if there is none.
func (x *Claims[K]) First(thing K, in func(namespace string) bool, except string) (first Claimant, ok bool) {
	for list := range x.byNamespace(thing) {
		if in != nil && !in(list[0].namespace()) {
			continue
		}
		i := slices.IndexFunc(list, func(c Claimant) bool { return c.Name != except })
		if i >= 0 && (!ok || list[i].Before(first)) {
			first, ok = list[i], true
		}
	}
	return first, ok
}

// byNamespace iterates over a thing's claimants, those of one namespace at a time, in order of precedence.
func (x *Claims[K]) byNamespace(thing K) iter.Seq[[]Claimant] {
	return func(yield func([]Claimant) bool) {
		for list := x.byThing[thing]; len(list) > 0; {
			n, _ := slices.BinarySearchFunc(list, list[0].namespace(), func(c Claimant, namespace string) int {
				return cmp.Or(strings.Compare(c.namespace(), namespace), -1) // behind the last of the namespace
			})
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}
