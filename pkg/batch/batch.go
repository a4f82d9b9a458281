// SPDX-License-Identifier: Apache-2.0

// Package batch applies operations in transactions and isolates the operations
// that fail.
package batch

import (
	"errors"
	"fmt"
)

// Error is the failure of an operation, or of the transaction that starts with
// it.
type Error[T fmt.Stringer] struct {
	Op   T
	More int // further operations in the same transaction
	Err  error
}

func (e *Error[T]) Error() string {
	if e.More > 0 {
		return fmt.Sprintf("%s and %d more: %v", e.Op, e.More, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Err)
}

func (e *Error[T]) Unwrap() error { return e.Err }

// Apply passes ops to transact in order, at most size per call. If a call with
// several operations fails, Apply retries them one by one, so that a faulty
// operation does not block the others. The returned error joins an Error per
// failed operation.
//
// fatal returns the reason why operations after err would fail too, e.g. a lost
// connection, or nil. Apply then stops, retries nothing, and adds the reason and
// the number of operations not tried to its error.
func Apply[T fmt.Stringer](ops []T, size int, transact func([]T) error, fatal func(err error) error) error {
	var errs []error
	for len(ops) > 0 {
		part := ops[:min(len(ops), size)]
		ops = ops[len(part):]
		err := transact(part)
		if err == nil {
			continue
		}
		if len(part) == 1 || fatal(err) != nil {
			err = &Error[T]{part[0], len(part) - 1, err}
		} else if err = Apply(part, 1, transact, fatal); err == nil {
			continue
		}
		errs = append(errs, err)
		if reason := fatal(err); reason != nil {
			switch {
			case len(ops) > 0:
				errs = append(errs, fmt.Errorf("%d operations not tried: %w", len(ops), reason))
			case !errors.Is(err, reason):
				errs = append(errs, reason)
			}
			break
		}
	}
	return errors.Join(errs...)
}
