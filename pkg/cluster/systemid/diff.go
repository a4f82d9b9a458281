// SPDX-License-Identifier: Apache-2.0

package systemid

import "fmt"

// Op writes a node's annotation, or removes it.
type Op struct{ State }

func (o Op) String() string {
	if o.SharedWith == "" {
		return fmt.Sprintf("node %s has a system-id of its own", o.Node)
	}
	return fmt.Sprintf("node %s has the system-id of %s", o.Node, o.SharedWith)
}

// Diff returns the write from have to want, if one is needed.
func Diff(want, have State) []Op {
	if want == have {
		return nil
	}
	return []Op{{want}}
}
