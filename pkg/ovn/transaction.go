// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"slices"

	libovsdb "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovsdb"
)

// transact runs ops as one transaction.
func (n *NB) transact(ctx context.Context, ops []Op) error {
	s := n.session()
	if s == nil {
		return ovsdb.ErrNotConnected
	}
	t := transaction{session: s, inserted: map[string]libovsdb.Row{}, required: map[string]struct{}{}, members: map[member]*[]any{}}
	for _, op := range ops {
		if err := t.add(op); err != nil {
			return err
		}
	}
	all := t.finish()
	if len(all) == 0 {
		return nil
	}
	if _, err := n.conn.Transact(ctx, s.client, all...); err != nil {
		return err
	}
	n.transactions.Add(1)
	return nil
}

// member is one change of a column that references rows.
type member struct {
	table, uuid, column string
	mutator             libovsdb.Mutator
}

// transaction turns Ops into database operations. It merges the additions to one
// column into one mutation.
type transaction struct {
	session  *session
	ops      []libovsdb.Operation
	inserted map[string]libovsdb.Row // by UUID
	required map[string]struct{}     // UUIDs of rows that must exist
	members  map[member]*[]any
	order    []member
}

func (t *transaction) add(op Op) error {
	switch op.Verb {
	case Insert:
		insert, err := t.session.client.Create(op.Row.Model)
		if err != nil {
			return fmt.Errorf("encode %s: %w", op.Row, err)
		}
		insert[0].UUID, insert[0].UUIDName = op.Row.UUID, ""
		t.inserted[op.Row.UUID] = insert[0].Row
		t.ops = append(t.ops, insert...)
		for _, ref := range op.Row.In {
			t.list(ref, op.Row.UUID, libovsdb.MutateOperationInsert)
		}
	case Update:
		var whole []string
		var mutations []libovsdb.Mutation
		for _, column := range op.Columns {
			m, ok := mutate(op, column)
			if !ok {
				whole = append(whole, column)
			}
			mutations = append(mutations, m...)
		}
		row, err := t.session.encode(op.Row, whole)
		if err != nil {
			return err
		}
		if len(row) > 0 {
			t.ops = append(t.ops, libovsdb.Operation{Op: libovsdb.OperationUpdate, Table: op.Row.Table, Row: row, Where: ovsdb.ByUUID(op.Row.UUID)})
		}
		if len(mutations) > 0 {
			t.ops = append(t.ops, libovsdb.Operation{Op: libovsdb.OperationMutate, Table: op.Row.Table, Mutations: mutations, Where: ovsdb.ByUUID(op.Row.UUID)})
		}
	case Attach:
		t.list(op.Ref, op.Row.UUID, libovsdb.MutateOperationInsert)
	case Detach:
		t.list(op.Ref, op.Row.UUID, libovsdb.MutateOperationDelete)
	case Delete:
		// The database garbage-collects rows without references.
		for _, ref := range op.Row.In {
			t.list(ref, op.Row.UUID, libovsdb.MutateOperationDelete)
		}
		if tables[op.Row.Table].root {
			t.ops = append(t.ops, libovsdb.Operation{Op: libovsdb.OperationDelete, Table: op.Row.Table, Where: ovsdb.ByUUID(op.Row.UUID)})
		}
	default:
		return fmt.Errorf("unknown verb %d", op.Verb)
	}
	return nil
}

// mutate returns the mutations that change a set of strings into that of op.Row. ok
// is false for other columns. It adds first: some sets may not be empty.
func mutate(op Op, column string) (mutations []libovsdb.Mutation, ok bool) {
	want, ok := field(op.Row.Model, column).Interface().([]string)
	if !ok || op.Old == nil {
		return nil, false
	}
	have, _ := field(op.Old, column).Interface().([]string)
	for _, m := range []struct {
		mutator   libovsdb.Mutator
		all, from []string
	}{{libovsdb.MutateOperationInsert, want, have}, {libovsdb.MutateOperationDelete, have, want}} {
		var set []any
		for _, v := range m.all {
			if !slices.Contains(m.from, v) {
				set = append(set, v)
			}
		}
		if len(set) > 0 {
			mutations = append(mutations, *libovsdb.NewMutation(column, m.mutator, libovsdb.OvsSet{GoSet: set}))
		}
	}
	return mutations, true
}

// list adds a row to the column ref of another row, or removes it.
func (t *transaction) list(ref Ref, rowUUID string, mutator libovsdb.Mutator) {
	m := member{ref.Table, ref.UUID, ref.Column, mutator}
	set, ok := t.members[m]
	if !ok {
		set = &[]any{}
		t.members[m] = set
		t.order = append(t.order, m)
	}
	*set = append(*set, libovsdb.UUID{GoUUID: rowUUID})
}

// finish returns the transaction's operations: first the rows, with the columns that reference
// others, then those columns of rows that existed. No client sees the order within a transaction.
func (t *transaction) finish() []libovsdb.Operation {
	for _, m := range t.order {
		set := libovsdb.OvsSet{GoSet: *t.members[m]}
		if m.mutator == libovsdb.MutateOperationInsert {
			if row, here := t.inserted[m.uuid]; here {
				row[m.column] = set // some may not be empty at any time
				continue
			}
			if _, done := t.required[m.uuid]; !done {
				// A port inserted into no port group would not be restricted.
				t.ops = append(t.ops, ovsdb.RequireRow(m.table, m.uuid))
				t.required[m.uuid] = struct{}{}
			}
		}
		t.ops = append(t.ops, libovsdb.Operation{
			Op: libovsdb.OperationMutate, Table: m.table, Where: ovsdb.ByUUID(m.uuid),
			Mutations: []libovsdb.Mutation{*libovsdb.NewMutation(m.column, m.mutator, set)},
		})
	}
	return t.ops
}

// encode encodes columns of a row for the database, including empty ones.
func (s *session) encode(r Row, columns []string) (libovsdb.Row, error) {
	schema := s.client.Schema()
	t := schema.Table(r.Table)
	if t == nil {
		return nil, fmt.Errorf("encode %s: the database has no such table", r)
	}
	out := libovsdb.Row{}
	for _, c := range columns {
		v, err := libovsdb.NativeToOvs(t.Column(c), field(r.Model, c).Interface())
		if err != nil {
			return nil, fmt.Errorf("encode %s of %s: %w", c, r, err)
		}
		out[c] = v
	}
	return out, nil
}
