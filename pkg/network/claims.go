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

// Claims indexes claimants by what they claim, in order of precedence: the first one has it. The zero value is
// empty. It is for things that tenants claim freely, as external addresses of Services: an event's cost
// must not grow with the square of their number.
type Claims[K comparable] struct{ byThing map[K][]Claimant }

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

// Add adds a claim. To add it twice has no effect.
func (x *Claims[K]) Add(thing K, c Claimant) {
	if x.byThing == nil {
		x.byThing = map[K][]Claimant{}
	}
	list := x.byThing[thing]
	if i, found := slices.BinarySearchFunc(list, c, Claimant.compare); !found {
		x.byThing[thing] = slices.Insert(list, i, c)
	}
}

// Remove removes a claim, if it is there.
func (x *Claims[K]) Remove(thing K, c Claimant) {
	list := x.byThing[thing]
	i, found := slices.BinarySearchFunc(list, c, Claimant.compare)
	switch {
	case !found:
	case len(list) == 1:
		delete(x.byThing, thing)
	default:
		x.byThing[thing] = slices.Delete(list, i, i+1)
	}
}

// All iterates over what is claimed, with the claimants in order. The caller must not modify
// the lists.
func (x *Claims[K]) All() iter.Seq2[K, []Claimant] { return maps.All(x.byThing) }

// Of returns a thing's claimants in order. The caller must not modify the list.
func (x *Claims[K]) Of(thing K) []Claimant { return x.byThing[thing] }
