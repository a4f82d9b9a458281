// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"slices"

	"bulkhead/pkg/network"
)

// Fake is a Target in memory that follows the API server's rules: a NAD that is
// being deleted is removed with its last finalizer.
type Fake struct {
	NADs   map[Key]NAD
	Events []string
	Writes int
}

// NewFake returns an empty Fake.
func NewFake() *Fake { return &Fake{NADs: map[Key]NAD{}} }

// Apply implements Target.
func (f *Fake) Apply(_ context.Context, ops []Op) error {
	for _, op := range ops {
		n, ok := f.NADs[op.NAD.Key]
		if !ok {
			continue
		}
		if op.Kind == Warn {
			f.Events = append(f.Events, op.Want.Problem)
			continue
		}
		f.Writes++
		n.ID, n.Network = op.Want.ID, op.Want.Network
		n.Finalizers = slices.DeleteFunc(slices.Clone(n.Finalizers), func(x string) bool { return x == network.FinalizerNAD })
		if op.Want.Finalizer {
			n.Finalizers = append(n.Finalizers, network.FinalizerNAD)
		}
		f.NADs[n.Key] = n
		f.collect(n.Key)
	}
	return nil
}

// Delete marks a NAD as deleting, and removes it if it has no finalizer.
func (f *Fake) Delete(key Key) {
	n, ok := f.NADs[key]
	if !ok {
		return
	}
	n.Deleting = true
	f.NADs[key] = n
	f.collect(key)
}

func (f *Fake) collect(key Key) {
	if n := f.NADs[key]; n.Deleting && len(n.Finalizers) == 0 {
		delete(f.NADs, key)
	}
}
