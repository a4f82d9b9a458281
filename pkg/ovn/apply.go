// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"slices"

	"bulkhead/pkg/batch"
)

// Target is a northbound database, or Fake.
type Target interface {
	// Read returns the selected rows that have our marks.
	Read(ctx context.Context, selection Selection) (State, error)
	// Apply runs ops, in one transaction if it can. A failed op does not block
	// the others, except that a unit opens nothing after one of its closing ops has
	// failed. The error names each failed Op.
	Apply(ctx context.Context, ops []Op) error
	// Lookup returns those of the rows that exist, whatever marks they have.
	Lookup(ctx context.Context, rows State) (State, error)
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
	return applySteps(ops, size, func(ops []Op) error { return n.transact(ctx, ops) }, n.conn.Fatal(ctx))
}

// step is an operation, or the operations of a unit that close: they are applied
// together or not at all, so that e.g. a port group never lacks a rule.
type step []Op

func (s step) String() string { return s[0].String() }

// steps splits ops, which are in Diff's order.
func steps(ops []Op) []step {
	var out []step
	closing := map[string]int{} // by unit: its step
	for _, op := range ops {
		if !op.closes() {
			out = append(out, step{op})
			continue
		}
		i, ok := closing[op.Row.Unit]
		if !ok {
			i = len(out)
			closing[op.Row.Unit] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], op)
	}
	return out
}

// errClosingFailed is the error of operations that open something in a unit of which
// another thing could not be closed.
var errClosingFailed = errors.New("not tried: an operation that restricts traffic failed")

// applySteps applies ops with batch.Apply.
func applySteps(ops []Op, size int, transact func([]Op) error, fatal func(error) error) error {
	open := map[string]struct{}{} // units of which something could not be closed
	return batch.Apply(steps(ops), size, func(part []step) error {
		all := slices.Concat(part...)
		for _, op := range all {
			if _, ok := open[op.Row.Unit]; ok && op.opens() {
				return errClosingFailed // batch.Apply repeats the others one by one
			}
		}
		err := transact(all)
		if err != nil && len(part) == 1 && all[0].closes() {
			open[all[0].Row.Unit] = struct{}{}
		}
		return err
	}, fatal)
}

// failedUnits returns the units of a network to which the failed operations of an error of Apply belong. ok is false
// if any operation can have failed, e.g. because the connection did.
func failedUnits(err error) (failed map[Unit]bool, ok bool) {
	failed = map[Unit]bool{}
	var add func(error) bool
	add = func(err error) bool {
		switch e := err.(type) { //nolint:errorlint // every joined error is handled
		case *batch.Error[step]:
			_, unit := parseUnitMark(e.Op[0].Row.Unit)
			failed[unit] = true
			return e.More == 0
		case interface{ Unwrap() []error }:
			return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !add(err) })
		}
		return false
	}
	return failed, add(err)
}
