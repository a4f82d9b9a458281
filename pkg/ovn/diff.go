// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovn/nbdb"
)

// Verb is the action of an Op.
type Verb int

const (
	Insert Verb = iota + 1 // the row, and add it to the columns Row.In
	Update                 // the row's Columns
	Attach                 // add the row to the column Ref
	Detach                 // remove the row from the column Ref
	Delete                 // the row, and remove it from the columns Row.In
)

// Op is one change of the northbound database. Ops are idempotent: deleting a
// missing row succeeds, as does attaching an attached one.
type Op struct {
	Verb    Verb
	Row     Row
	Columns []string
	Old     model.Model // of an Update: the row before
	Ref     Ref

	// closesIn marks the Insert of a row that a closing row is in: both are inserted
	// together.
	closesIn bool
}

func (o Op) String() string {
	switch o.Verb {
	case Insert:
		s := "insert " + o.Row.String()
		for i, in := range o.Row.In {
			if i == 0 {
				s += " into " + in.String()
			} else {
				s += " and " + in.String()
			}
		}
		return s
	case Update:
		parts := make([]string, len(o.Columns))
		for i, c := range o.Columns {
			parts[i] = fmt.Sprintf("%s=%q", c, columnText(field(o.Row.Model, c)))
		}
		return fmt.Sprintf("update %s: %s", o.Row, strings.Join(parts, " "))
	case Attach:
		return fmt.Sprintf("attach %s to %s", o.Row, o.Ref)
	case Detach:
		return fmt.Sprintf("detach %s from %s", o.Row, o.Ref)
	case Delete:
		return "delete " + o.Row.String()
	default:
		return fmt.Sprintf("unknown operation %d on %s", o.Verb, o.Row)
	}
}

// Diff returns the operations that turn have into want. What closes is added first
// and removed last. In between, containers are inserted before the rows that they
// contain. Rows are the same if their UUIDs are: a copy of a row is deleted. Strays are
// removed from where they are.
func Diff(want, have State) []Op {
	wanted := make(map[string]struct{}, len(want))
	for _, r := range want {
		wanted[r.UUID] = struct{}{}
	}
	present := make(map[string]Row, len(have))
	var ops []Op
	for _, r := range have {
		if r.Stray {
			for _, ref := range r.In {
				ops = append(ops, Op{Verb: Detach, Row: r, Ref: ref})
			}
			continue
		}
		if _, keep := wanted[r.UUID]; !keep {
			ops = append(ops, Op{Verb: Delete, Row: r})
			continue
		}
		present[r.UUID] = r
	}
	for _, r := range want {
		h, ok := present[r.UUID]
		if !ok {
			ops = append(ops, Op{Verb: Insert, Row: r})
			continue
		}
		if cols := changed(r, h); len(cols) > 0 {
			ops = append(ops, Op{Verb: Update, Row: r, Columns: cols, Old: h.Model})
		}
		for _, ref := range r.In {
			if !hasRef(h.In, ref) {
				ops = append(ops, Op{Verb: Attach, Row: r, Ref: ref})
			}
		}
		for _, ref := range h.In {
			if !hasRef(r.In, ref) {
				ops = append(ops, Op{Verb: Detach, Row: r, Ref: ref})
			}
		}
	}
	markContainers(ops)
	slices.SortStableFunc(ops, func(a, b Op) int {
		return cmp.Or(cmp.Compare(a.phase(), b.phase()), cmp.Compare(a.order(), b.order()),
			cmp.Compare(a.Row.ID, b.Row.ID), cmp.Compare(a.Verb, b.Verb))
	})
	return ops
}

// markContainers sets closesIn.
func markContainers(ops []Op) {
	inserts := map[string]*Op{}
	for i := range ops {
		if ops[i].Verb == Insert {
			inserts[ops[i].Row.UUID] = &ops[i]
		}
	}
	var mark func(refs []Ref)
	mark = func(refs []Ref) {
		for _, ref := range refs {
			if container := inserts[ref.UUID]; container != nil && !container.closesIn {
				container.closesIn = true
				mark(container.Row.In)
			}
		}
	}
	for _, op := range ops {
		switch {
		case op.Verb == Insert && op.Row.Effect == Closes:
			mark(op.Row.In)
		case op.Verb == Attach && op.Ref.Closes:
			mark([]Ref{op.Ref})
		}
	}
}

// phase returns an Op's phase: close, delete, update, insert, stop closing.
func (o Op) phase() int {
	switch {
	case o.closes():
		return 0
	case o.Row.Effect == Closes && o.Verb == Delete, o.Verb == Detach:
		return 4 // detach from a column only after attaching to another
	case o.Verb == Delete:
		return 1
	case o.Verb == Update && o.Row.Effect != Opens, o.Verb == Insert && o.Row.Table == nbdb.DHCPOptionsTable:
		// A port's update may refer to DHCP options. The reference is weak, so the
		// database drops it unless the options exist.
		return 2
	default:
		return 3
	}
}

// closes reports whether the operation restricts traffic.
func (o Op) closes() bool {
	switch o.Verb {
	case Insert, Update:
		return o.Row.Effect == Closes || o.closesIn
	case Attach:
		return o.Ref.Closes
	case Detach:
		return o.Row.Stray // it would connect two networks
	}
	return false
}

// opens reports whether the operation lets traffic through.
func (o Op) opens() bool {
	switch o.Verb {
	case Insert, Update, Attach:
		return o.Row.Effect == Opens && !o.closes()
	case Delete:
		return o.Row.Effect == Closes
	case Detach:
		return o.Ref.Closes && !o.Row.Stray
	}
	return false
}

// order returns an Op's position in its phase: containers are inserted first and
// deleted last, unless they may not be empty.
func (o Op) order() int {
	t := tables[o.Row.Table]
	if o.Verb == Delete && !t.required {
		return -t.rank
	}
	return t.rank
}
