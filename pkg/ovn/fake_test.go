// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovn/nbdb"
)

// Fake is an in-memory northbound database that runs operations one by one with the
// database's own rules: rows of non-root tables without references are deleted, and
// references to missing rows are errors.
type Fake struct {
	mu   sync.Mutex
	rows State
	// Fail, if set, is called before each Op, which fails with its error.
	Fail func(Op) error
	// Batches counts the calls of Apply with operations.
	Batches int
}

// Read implements Target.
func (f *Fake) Read(_ context.Context, selection Selection) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out State
	for _, r := range f.rows {
		ids := externalIDs(r.Model)
		if network, u := parseUnitMark(ids[markUnit]); ids[markOwner] == ownerValue && network == selection.Network && selection.has(u) {
			out = append(out, r.clone())
		}
	}
	for _, r := range f.rows {
		if b, ok := r.Model.(*nbdb.StaticMACBinding); ok && b.LogicalPort == selection.externalPort() && selection.has(topologyUnit) {
			out = append(out, r.clone())
		}
	}
	return out, nil
}

// Networks implements Target.
func (f *Fake) Networks(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, r := range f.rows {
		if ids := externalIDs(r.Model); ids[markOwner] == ownerValue && !slices.Contains(out, ids[markNetwork]) {
			out = append(out, ids[markNetwork])
		}
	}
	slices.Sort(out)
	return out, nil
}

// Add adds a row as another client would.
func (f *Fake) Add(r Row) { f.mu.Lock(); defer f.mu.Unlock(); f.insert(r) }

// Rows returns all rows.
func (f *Fake) Rows() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.copyRows()
}

func (f *Fake) copyRows() State {
	out := make(State, len(f.rows))
	for i, r := range f.rows {
		out[i] = r.clone()
	}
	return out
}

// Lookup implements Target.
func (f *Fake) Lookup(_ context.Context, rows State) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out State
	for _, r := range f.rows {
		if slices.ContainsFunc(rows, func(o Row) bool { return o.UUID == r.UUID }) {
			out = append(out, r.clone())
		}
	}
	return out, nil
}

// Apply implements Target.
func (f *Fake) Apply(_ context.Context, ops []Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(ops) > 0 {
		f.Batches++
	}
	return applySteps(ops, 1, func(ops []Op) error {
		before := f.copyRows()
		for _, op := range ops {
			if err := f.apply(op); err != nil {
				f.rows = before
				return err
			}
		}
		f.dropWeakReferences()
		if err := f.checkReferences(); err != nil {
			f.rows = before
			return err
		}
		return nil
	}, func(error) error { return nil })
}

func (f *Fake) apply(op Op) error {
	if f.Fail != nil {
		if err := f.Fail(op); err != nil {
			return err
		}
	}
	switch op.Verb {
	case Insert:
		for _, ref := range op.Row.In {
			if !f.has(ref) {
				return fmt.Errorf("%s does not exist", ref)
			}
		}
		if slices.ContainsFunc(f.rows, func(r Row) bool { return r.UUID == op.Row.UUID }) {
			return errors.New("row exists")
		}
		f.insert(op.Row)
	case Update, Attach, Detach:
		i := slices.IndexFunc(f.rows, func(r Row) bool { return r.UUID == op.Row.UUID })
		if i < 0 {
			return errors.New("row does not exist")
		}
		r := &f.rows[i]
		switch op.Verb {
		case Update:
			for _, c := range op.Columns {
				field(r.Model, c).Set(field(op.Row.Model, c))
			}
			if ids := externalIDs(r.Model); ids != nil {
				r.ID, r.Unit, r.Effect = ids[markID], ids[markUnit], Effect(ids[markEffect])
			}
		case Attach:
			if !f.has(op.Ref) {
				return fmt.Errorf("%s does not exist", op.Ref)
			}
			if !hasRef(r.In, op.Ref) {
				r.In = append(r.In, op.Ref)
			}
		case Detach:
			r.In = slices.DeleteFunc(r.In, op.Ref.same)
		}
		f.collect()
	case Delete:
		f.rows = slices.DeleteFunc(f.rows, func(r Row) bool { return r.UUID == op.Row.UUID })
		f.collect()
	default:
		return fmt.Errorf("unknown verb %d", op.Verb)
	}
	return nil
}

// checkReferences returns an error if a NAT rule's address set does not exist, or a meter has no
// band.
func (f *Fake) checkReferences() error {
	for _, r := range f.rows {
		if r.Table == nbdb.MeterTable && !slices.ContainsFunc(f.rows, func(band Row) bool {
			return slices.ContainsFunc(band.In, func(ref Ref) bool { return ref.UUID == r.UUID })
		}) {
			return fmt.Errorf("%s has no band", r)
		}
		nat, ok := r.Model.(*nbdb.NAT)
		if !ok || nat.ExemptedExtIPs == nil {
			continue
		}
		if !slices.ContainsFunc(f.rows, func(set Row) bool { return set.UUID == *nat.ExemptedExtIPs }) {
			return fmt.Errorf("%s: address set %s does not exist", r, *nat.ExemptedExtIPs)
		}
	}
	return nil
}

// dropWeakReferences clears the references to DHCP options and rate limits that do not exist,
// as the database does at the end of a transaction.
func (f *Fake) dropWeakReferences() {
	for _, r := range f.rows {
		var refs []**string
		switch m := r.Model.(type) {
		case *nbdb.LogicalSwitchPort:
			refs = []**string{&m.Dhcpv4Options, &m.Dhcpv6Options}
		case *nbdb.LogicalSwitch:
			refs = []**string{&m.Copp}
		case *nbdb.LogicalRouter:
			refs = []**string{&m.Copp}
		}
		for _, ref := range refs {
			if *ref != nil && !f.has(Ref{UUID: **ref}) {
				*ref = nil
			}
		}
	}
}

func (f *Fake) insert(r Row) { f.rows = append(f.rows, r.clone()) }

func (f *Fake) has(ref Ref) bool {
	return slices.ContainsFunc(f.rows, func(r Row) bool { return r.UUID == ref.UUID })
}

// collect removes references to deleted rows and unreferenced rows of non-root
// tables until nothing changes.
func (f *Fake) collect() {
	for again := true; again; {
		again = false
		for i := range f.rows {
			r := &f.rows[i]
			r.In = slices.DeleteFunc(r.In, func(ref Ref) bool { return !f.has(ref) })
		}
		n := len(f.rows)
		f.rows = slices.DeleteFunc(f.rows, func(r Row) bool {
			// A port group's ports are weak references.
			strong := slices.ContainsFunc(r.In, func(ref Ref) bool { return !isWeak(ref.Table, ref.Column) })
			return !tables[r.Table].root && !strong
		})
		again = len(f.rows) != n
	}
}

func (r Row) clone() Row {
	r.Model = model.Clone(r.Model)
	r.In = slices.Clone(r.In)
	return r
}
