// SPDX-License-Identifier: Apache-2.0

package nodeid

import "fmt"

// Op sets a node's id.
type Op struct{ State }

func (o Op) String() string { return fmt.Sprintf("give node %s the id %d", o.Node, o.ID) }

// Diff is the write that the node needs, if any.
func Diff(want, have State) []Op {
	if want == have || want.ID == 0 {
		return nil
	}
	return []Op{{want}}
}
