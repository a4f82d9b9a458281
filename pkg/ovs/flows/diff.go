// SPDX-License-Identifier: Apache-2.0

package flows

import "slices"

// Op adds or deletes one flow. Adding replaces a flow with the same key.
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

// bundleLine returns the operation as a line of an ovs-ofctl bundle.
func (o Op) bundleLine() string {
	if o.Delete {
		return "delete_strict " + Flow{Cookie: o.Flow.Cookie, Table: o.Flow.Table, Priority: o.Flow.Priority, Match: o.Flow.Match}.deleteLine()
	}
	return "add " + o.Flow.String()
}

// Diff returns the operations that turn have into want. A bundle is atomic;
// nevertheless Diff adds flows that drop before all other flows.
func Diff(want, have State) []Op {
	var deny, pass, deletes []Op
	wanted, had := map[string]struct{}{}, map[Flow]struct{}{}
	for _, h := range have {
		had[h] = struct{}{}
	}
	for _, w := range want {
		wanted[w.key()] = struct{}{}
		if _, ok := had[w]; ok {
			continue
		}
		if w.Actions == "drop" {
			deny = append(deny, Op{Flow: w})
		} else {
			pass = append(pass, Op{Flow: w})
		}
	}
	for _, h := range have {
		if _, ok := wanted[h.key()]; !ok {
			deletes = append(deletes, Op{Delete: true, Flow: h})
		}
	}
	return slices.Concat(deny, deletes, pass)
}
