// SPDX-License-Identifier: Apache-2.0

package nad

// Diff returns the operations that take a NAD from have to want. report tells whether its
// problem needs an event.
func Diff(n NAD, want, have State, report bool) []Op {
	var ops []Op
	if want.ID != have.ID || want.Network != have.Network || want.Finalizer != have.Finalizer {
		// The API server refuses a new finalizer on an object that is being deleted.
		if !(n.Deleting && want.Finalizer && !have.Finalizer) {
			ops = append(ops, Op{Kind: Mark, NAD: n, Want: want})
		}
	}
	if report {
		ops = append(ops, Op{Kind: Warn, NAD: n, Want: want})
	}
	return ops
}
