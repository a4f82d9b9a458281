// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// Fake is a Target in memory that applies the same operations, with the API
// server's rules.
type Fake struct {
	Slices map[string]FakeSlice // by namespace and name
	Fail   func(Op) error       // injects failures
	Writes int
}

// FakeSlice is a slice, and the source whose mirror it is.
type FakeSlice struct {
	MirrorOf Source // the zero value: not a mirror
	Mirror
}

// NewFake returns an empty Fake.
func NewFake() *Fake { return &Fake{Slices: map[string]FakeSlice{}} }

// Read implements Target.
func (f *Fake) Read(_ context.Context, s Source) (State, error) {
	state := State{Source: s, Mirrors: map[string]Mirror{}}
	for _, x := range f.Slices {
		if x.MirrorOf == s {
			state.Mirrors[x.Name] = x.Mirror
		}
	}
	return state, nil
}

// Apply implements Target.
func (f *Fake) Apply(_ context.Context, ops []Op) error {
	return applyAll(ops, func(op Op) error {
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
	m := op.Mirror
	key := m.Namespace + "/" + m.Name
	have, exists := f.Slices[key]
	switch op.Kind {
	case Create:
		if exists {
			return fmt.Errorf("%s already exists", key)
		}
		m.UID = types.UID(fmt.Sprint("created-", f.Writes))
		f.Slices[key] = FakeSlice{op.Source, m}
	case Update:
		if !exists || have.UID != m.UID {
			return fmt.Errorf("%s was deleted or recreated", key)
		}
		if have.AddressType != m.AddressType {
			return fmt.Errorf("%s: addressType is immutable", key)
		}
		f.Slices[key] = FakeSlice{op.Source, m}
	case Delete:
		if exists && have.UID == m.UID {
			delete(f.Slices, key)
		}
	}
	return nil
}
