// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"fmt"
	"maps"
	"slices"
)

// OpKind is the kind of an Op.
type OpKind string

// The kinds of operations, in the order in which they are applied.
const (
	Delete OpKind = "delete"
	Create OpKind = "create"
	Update OpKind = "update"
)

// Op is one API write.
type Op struct {
	Kind   OpKind
	Source Source
	Mirror Mirror // desired state; Update: with the actual identity; Delete: actual state
}

func (o Op) String() string {
	m := o.Mirror
	if o.Kind == Delete {
		return fmt.Sprintf("delete EndpointSlice %s/%s, mirror of %s", m.Namespace, m.Name, o.Source.Name)
	}
	return fmt.Sprintf("%s EndpointSlice %s/%s, mirror of %s: %d endpoints of Service %s on network %s",
		o.Kind, m.Namespace, m.Name, o.Source.Name, len(m.Endpoints), m.Service, m.Network)
}

// Diff returns the operations that lead from have to want.
func Diff(want, have State) []Op {
	var remove, create, update []Op
	for _, name := range slices.Sorted(maps.Keys(want.Mirrors)) {
		w := want.Mirrors[name]
		h, exists := have.Mirrors[name]
		switch {
		case !exists:
			create = append(create, Op{Kind: Create, Source: want.Source, Mirror: w})
		case w.AddressType != h.AddressType: // which is immutable
			remove = append(remove, Op{Kind: Delete, Source: want.Source, Mirror: h})
			create = append(create, Op{Kind: Create, Source: want.Source, Mirror: w})
		case !w.Matches(h):
			w.UID, w.ResourceVersion = h.UID, h.ResourceVersion
			update = append(update, Op{Kind: Update, Source: want.Source, Mirror: w})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.Mirrors)) {
		if _, wanted := want.Mirrors[name]; !wanted {
			remove = append(remove, Op{Kind: Delete, Source: want.Source, Mirror: have.Mirrors[name]})
		}
	}
	return slices.Concat(remove, create, update)
}
