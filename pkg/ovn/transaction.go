// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// transact runs ops as one transaction.
func (n *NB) transact(ctx context.Context, ops []Op) error {
	s := n.session()
	if s == nil {
		return errNotConnected
	}
	t := transaction{session: s, inserted: map[string]struct{}{}, members: map[member]*[]any{}}
	for _, op := range ops {
		if err := t.add(op); err != nil {
			return err
		}
	}
	all := t.finish()
	if len(all) == 0 {
		return nil
	}
	results, err := n.conn.transact(ctx, s.client, all...)
	if err != nil {
		return fmt.Errorf("transaction: %w", err)
	}
	n.transactions.Add(1)
	if opErrs, err := ovsdb.CheckOperationResults(results, all); err != nil {
		return errors.Join(append([]error{err}, asErrors(opErrs)...)...)
	}
	return nil
}

func asErrors(in []ovsdb.OperationError) []error {
	out := make([]error, len(in))
	for i, e := range in {
		out[i] = e
	}
	return out
}

// member is one change of a column that references rows.
type member struct {
	table, uuid, column string
	mutator             ovsdb.Mutator
}

// transaction turns Ops into database operations. It merges the additions to one
// column into one mutation.
type transaction struct {
	session  *session
	ops      []ovsdb.Operation
	inserted map[string]struct{} // UUIDs
	members  map[member]*[]any
	order    []member
}

func (t *transaction) add(op Op) error {
	switch op.Verb {
	case Insert:
		t.inserted[op.Row.UUID] = struct{}{}
		insert, err := t.session.client.Create(op.Row.Model)
		if err != nil {
			return fmt.Errorf("encode %s: %w", op.Row, err)
		}
		insert[0].UUID, insert[0].UUIDName = op.Row.UUID, ""
		t.ops = append(t.ops, insert...)
		for _, ref := range op.Row.In {
			t.list(ref, op.Row.UUID, ovsdb.MutateOperationInsert)
		}
	case Update:
		var whole []string
		var mutations []ovsdb.Mutation
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
			t.ops = append(t.ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: op.Row.Table, Row: row, Where: byUUID(op.Row.UUID)})
		}
		if len(mutations) > 0 {
			t.ops = append(t.ops, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: op.Row.Table, Mutations: mutations, Where: byUUID(op.Row.UUID)})
		}
	case Attach:
		t.list(op.Ref, op.Row.UUID, ovsdb.MutateOperationInsert)
	case Detach:
		t.list(op.Ref, op.Row.UUID, ovsdb.MutateOperationDelete)
	case Delete:
		// The database garbage-collects rows without references.
		for _, ref := range op.Row.In {
			t.list(ref, op.Row.UUID, ovsdb.MutateOperationDelete)
		}
		if isRoot(op.Row.Table) {
			t.ops = append(t.ops, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: op.Row.Table, Where: byUUID(op.Row.UUID)})
		}
	default:
		return fmt.Errorf("unknown verb %d", op.Verb)
	}
	return nil
}

// mutate returns the mutations that change a set of strings into that of op.Row. ok
// is false for other columns. It adds first: some sets may not be empty.
func mutate(op Op, column string) (mutations []ovsdb.Mutation, ok bool) {
	want, ok := field(op.Row.Model, column).Interface().([]string)
	if !ok || op.Old == nil {
		return nil, false
	}
	have, _ := field(op.Old, column).Interface().([]string)
	for _, m := range []struct {
		mutator   ovsdb.Mutator
		all, from []string
	}{{ovsdb.MutateOperationInsert, want, have}, {ovsdb.MutateOperationDelete, have, want}} {
		var set []any
		for _, v := range m.all {
			if !slices.Contains(m.from, v) {
				set = append(set, v)
			}
		}
		if len(set) > 0 {
			mutations = append(mutations, *ovsdb.NewMutation(column, m.mutator, ovsdb.OvsSet{GoSet: set}))
		}
	}
	return mutations, true
}

// list adds a row to the column ref of another row, or removes it.
func (t *transaction) list(ref Ref, rowUUID string, mutator ovsdb.Mutator) {
	m := member{ref.Table, ref.UUID, ref.Column, mutator}
	set, ok := t.members[m]
	if !ok {
		set = &[]any{}
		t.members[m] = set
		t.order = append(t.order, m)
	}
	*set = append(*set, ovsdb.UUID{GoUUID: rowUUID})
}

// finish returns the transaction's operations: first the rows, then the columns
// that reference them. No client sees the order within a transaction.
func (t *transaction) finish() []ovsdb.Operation {
	for _, m := range t.order {
		if _, here := t.inserted[m.uuid]; !here && m.mutator == ovsdb.MutateOperationInsert {
			t.ops = append(t.ops, waitForRow(m.table, m.uuid))
			t.inserted[m.uuid] = struct{}{} // once
		}
		t.ops = append(t.ops, ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: m.table, Where: byUUID(m.uuid),
			Mutations: []ovsdb.Mutation{*ovsdb.NewMutation(m.column, m.mutator, ovsdb.OvsSet{GoSet: *t.members[m]})},
		})
	}
	return t.ops
}

// waitForRow makes the transaction fail if the row does not exist. To change a missing
// row is no error, and a port inserted into no port group would not be locked.
func waitForRow(table, id string) ovsdb.Operation {
	now := 0
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Where: byUUID(id), Columns: []string{"_uuid"}, Timeout: &now,
		Until: string(ovsdb.WaitConditionEqual), Rows: []ovsdb.Row{{"_uuid": ovsdb.UUID{GoUUID: id}}},
	}
}

func byUUID(id string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: id})}
}

// encode encodes columns of a row for the database, including empty ones.
func (s *session) encode(r Row, columns []string) (ovsdb.Row, error) {
	schema := s.client.Schema()
	t := schema.Table(r.Table)
	if t == nil {
		return nil, fmt.Errorf("encode %s: the database has no such table", r)
	}
	out := ovsdb.Row{}
	for _, c := range columns {
		v, err := ovsdb.NativeToOvs(t.Column(c), field(r.Model, c).Interface())
		if err != nil {
			return nil, fmt.Errorf("encode %s of %s: %w", c, r, err)
		}
		out[c] = v
	}
	return out, nil
}
