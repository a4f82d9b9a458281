// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"slices"
	"strings"
)

// Cookies mark flows as ours. Each of our flows has CookieMark in the bits of
// CookieMask.
const (
	CookieMark = uint64(0xb01c) << 48
	CookieMask = uint64(0xffff) << 48
	// CookieBase is the cookie of flows that belong to no network.
	CookieBase = CookieMark | 1<<32
)

// Cookie is the cookie of the flows of the network with that id.
func Cookie(network int) uint64 { return CookieMark | 2<<32 | uint64(network) }

// NetworkOf is the inverse of Cookie.
func NetworkOf(cookie uint64) int { return int(uint32(cookie)) }

// Flow is one OpenFlow flow, in the format of ovs-ofctl.
type Flow struct {
	Cookie   uint64
	Table    int
	Priority int
	Match    string // "" matches everything
	Actions  string
}

func (f Flow) String() string {
	s := fmt.Sprintf("cookie=%#x, table=%d, priority=%d", f.Cookie, f.Table, f.Priority)
	if f.Match != "" {
		s += "," + f.Match
	}
	return s + " actions=" + f.Actions
}

// key identifies a flow in OpenFlow: two flows with the same key are the same.
func (f Flow) key() string {
	return fmt.Sprintf("table=%d,priority=%d,%s", f.Table, f.Priority, f.Match)
}

// State is flows of a bridge, sorted.
type State []Flow

func sortFlows(s State) {
	slices.SortFunc(s, func(a, b Flow) int {
		if a.Table != b.Table {
			return a.Table - b.Table
		}
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		return strings.Compare(a.Match, b.Match)
	})
}
