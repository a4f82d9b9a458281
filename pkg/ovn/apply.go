// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/batch"
	"bulkhead/pkg/ovn/nbdb"
)

// Target is a northbound database, or Fake.
type Target interface {
	// Read returns the selected rows that have our marks.
	Read(ctx context.Context, selection Selection) (State, error)
	// Apply runs ops, in one transaction if it can. A failed op does not block
	// the others; the error names each failed Op.
	Apply(ctx context.Context, ops []Op) error
	// Networks returns the names of all networks that have rows.
	Networks(ctx context.Context) ([]string, error)
}

// maxOps is the most operations in one transaction: ovsdb-server serves no other
// client while it runs one.
const maxOps = 2000

// Apply implements Target.
func (n *NB) Apply(ctx context.Context, ops []Op) error {
	return n.apply(ctx, ops, maxOps)
}

func (n *NB) apply(ctx context.Context, ops []Op, size int) error {
	return batch.Apply(ops, size, func(ops []Op) error { return n.transact(ctx, ops) }, n.conn.fatal(ctx))
}

// fatal returns the function that tells batch.Apply when to stop: after a
// transaction that timed out, each further one would wait as long.
func (c *connection) fatal(ctx context.Context) func(error) error {
	return func(err error) error {
		switch {
		case errors.Is(err, errUnresponsive):
			return errUnresponsive
		case c.client() == nil:
			return errNotConnected
		}
		return ctx.Err()
	}
}

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
		row, err := t.session.encode(op.Row, op.Columns)
		if err != nil {
			return err
		}
		t.ops = append(t.ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: op.Row.Table, Row: row, Where: byUUID(op.Row.UUID)})
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

// Read implements Target.
func (n *NB) Read(ctx context.Context, selection Selection) (State, error) {
	s := n.session()
	if s == nil {
		return nil, errNotConnected
	}
	marks := []map[string]string{{markNetwork: selection.Network}}
	if selection.Units != nil {
		marks = nil
		for _, u := range selection.Units {
			marks = append(marks, map[string]string{markUnit: u.mark(selection.Network)})
		}
	}
	var out State
	for _, m := range marks {
		for name := range tables {
			if name == nbdb.StaticMACBindingTable {
				continue
			}
			rows, err := s.find(ctx, name, m)
			if err != nil {
				return nil, fmt.Errorf("read %s of network %s: %w", name, selection.Network, err)
			}
			for _, r := range rows {
				if externalIDs(r.Model)[markOwner] == ownerValue {
					out = append(out, r)
				}
			}
		}
	}
	if err := s.addReferences(ctx, selection.Network, out); err != nil {
		return nil, err
	}
	if selection.has(topologyUnit) {
		bindings, err := s.macBindings(ctx, selection.externalPort())
		if err != nil {
			return nil, err
		}
		out = append(out, bindings...)
	}
	return out, nil
}

var errNotConnected = errors.New("not connected to the database")
