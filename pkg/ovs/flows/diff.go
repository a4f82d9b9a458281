// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"maps"
	"slices"
)

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

// maxBundle is how many operations a bundle has, unless one network has more.
const maxBundle = 4096

// Bundles divides operations into bundles: first the flows that belong to no network, then networks in the order of their
// number of operations. So a network with many operations does not delay others, and may take the time of a whole
// bundle. The operations of a network stay together, in their order.
func Bundles(ops []Op) (bundles [][]Op) {
	if len(ops) <= maxBundle {
		return [][]Op{ops}
	}
	byCookie := map[uint64][]Op{}
	for _, op := range ops {
		byCookie[op.Flow.Cookie] = append(byCookie[op.Flow.Cookie], op)
	}
	cookies := slices.SortedFunc(maps.Keys(byCookie), func(a, b uint64) int {
		return cmp.Or(compareBase(a, b), cmp.Compare(len(byCookie[a]), len(byCookie[b])), cmp.Compare(a, b))
	})
	for _, cookie := range cookies {
		if last := len(bundles) - 1; last >= 0 && len(bundles[last])+len(byCookie[cookie]) <= maxBundle {
			bundles[last] = append(bundles[last], byCookie[cookie]...)
		} else {
			bundles = append(bundles, byCookie[cookie])
		}
	}
	return bundles
}

// compareBase orders CookieBase before all others.
func compareBase(a, b uint64) int {
	switch {
	case a == CookieBase && b != CookieBase:
		return -1
	case b == CookieBase && a != CookieBase:
		return 1
	}
	return 0
}

// ByNetwork divides a bundle's operations into one bundle per network.
func ByNetwork(ops []Op) (bundles [][]Op) {
	at := map[uint64]int{}
	for _, op := range ops {
		i, ok := at[op.Flow.Cookie]
		if !ok {
			i = len(bundles)
			at[op.Flow.Cookie], bundles = i, append(bundles, nil)
		}
		bundles[i] = append(bundles[i], op)
	}
	return bundles
}
