// SPDX-License-Identifier: Apache-2.0

package nodeid

import "fmt"

// Op writes a node's id and the transport.
type Op struct{ State }

func (o Op) String() string {
	return fmt.Sprintf("assign id %d to node %s, transport %s", o.ID, o.Node, o.Transport)
}

// Diff returns the write from have to want, if one is needed.
func Diff(want, have State) []Op {
	if want == have || want.ID == 0 {
		return nil
	}
	return []Op{{want}}
}
