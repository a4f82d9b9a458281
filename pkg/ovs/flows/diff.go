// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"slices"

	"bulkhead/pkg/network"
)

// Op adds or deletes one flow. Adding replaces what has the same match.
type Op struct {
	Delete bool
	Flow   Flow
}

func (o Op) String() string {
	if o.Delete {
		return "delete flow " + o.Flow.String()
	}
	return "add flow " + o.Flow.String()
}

// command is the line of a bundle that ovs-ofctl reads.
func (o Op) command() string {
	if o.Delete {
		return "delete_strict " + Flow{Cookie: o.Flow.Cookie, Table: o.Flow.Table, Priority: o.Flow.Priority, Match: o.Flow.Match}.strict()
	}
	return "add " + o.Flow.String()
}

// Diff is what turns have into want. Bundles take effect as a whole; still,
// what denies is added before what passes.
func Diff(want, have State) []Op {
	var deny, pass, off []Op
	for _, w := range want {
		if slices.Contains(have, w) {
			continue
		}
		if w.Actions == "drop" {
			deny = append(deny, Op{Flow: w})
		} else {
			pass = append(pass, Op{Flow: w})
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w Flow) bool { return w.key() == h.key() }) {
			off = append(off, Op{Delete: true, Flow: h})
		}
	}
	return slices.Concat(deny, off, pass)
}

// OfNetwork are a network's own flows.
func (s State) OfNetwork(n network.Network) State {
	var out State
	for _, f := range s {
		if f.Cookie == Cookie(n) {
			out = append(out, f)
		}
	}
	return out
}
