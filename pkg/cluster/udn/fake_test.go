// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"maps"
)

// Fake is a Target in memory that follows the API server's rules: deleting a NAD
// with a finalizer only marks it, and removing the last finalizer removes it.
type Fake struct {
	Owners map[Owner]State // without NADs
	NADs   map[string]FakeNAD
	Fail   func(Op) error // injects failures
	Writes int
}

// FakeNAD is a NAD and the owner that its mark names.
type FakeNAD struct {
	Owner Owner
	NAD
}

// NewFake returns an empty Fake.
func NewFake() *Fake { return &Fake{Owners: map[Owner]State{}, NADs: map[string]FakeNAD{}} }

// Read implements Target.
func (f *Fake) Read(_ context.Context, o Owner) (State, error) {
	s := f.Owners[o]
	s.Owner, s.NADs = o, map[string]NAD{}
	for _, n := range f.NADs {
		if n.Owner == o {
			s.NADs[n.Namespace] = n.NAD
		}
	}
	return s, nil
}

// Apply implements Target.
func (f *Fake) Apply(_ context.Context, ops []Op) error {
	return runOps(ops, func(op Op) error {
		if f.Fail != nil {
			if err := f.Fail(op); err != nil {
				return err
			}
		}
		f.Writes++
		return f.do(op)
	})
}

func (f *Fake) do(op Op) error {
	key, o := op.NAD.Key(), f.Owners[op.Owner]
	have, exists := f.NADs[key]
	switch op.Kind {
	case AddFinalizer, RemoveFinalizer:
		o.Finalizer = op.Kind == AddFinalizer
		f.Owners[op.Owner] = o
	case SetStatus:
		o.Status = op.Status
		f.Owners[op.Owner] = o
	case CreateNAD:
		if exists {
			return fmt.Errorf("%s already exists", key)
		}
		n := op.NAD
		n.Labels, n.Annotations = maps.Clone(n.Labels), maps.Clone(n.Annotations)
		f.NADs[key] = FakeNAD{op.Owner, n}
	case RepairNAD:
		if !exists {
			return fmt.Errorf("%s not found", key)
		}
		n := op.NAD
		n.Phase = have.Phase
		f.NADs[key] = FakeNAD{op.Owner, n}
	case DeleteNAD:
		if !exists {
			return nil
		}
		have.Phase = Terminating
		f.NADs[key] = have
		if !have.Finalizer {
			delete(f.NADs, key)
		}
	case ReleaseNAD:
		have.Finalizer = false
		f.NADs[key] = have
		if !exists || have.Phase == Terminating {
			delete(f.NADs, key)
		}
	}
	return nil
}
