// SPDX-License-Identifier: Apache-2.0

package nad

// Diff lists what to do to get a NAD from have to want. said is what its last
// event told, as events are for news.
func Diff(n NAD, want, have State, said string) []Op {
	var ops []Op
	if want.ID != have.ID || want.Network != have.Network || want.Finalizer != have.Finalizer {
		// An object that is being deleted takes no new finalizer.
		if !(n.Deleting && want.Finalizer && !have.Finalizer) {
			ops = append(ops, Op{Kind: Mark, NAD: n, Want: want})
		}
	}
	if want.Problem != "" && want.Problem != said {
		ops = append(ops, Op{Kind: Warn, NAD: n, Want: want})
	}
	return ops
}
