// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"slices"
)

// Verb is what an Op does.
type Verb int

const (
	CreateTable Verb = iota + 1 // with its counters and sets
	SetChain                    // creates the chain or replaces its rules
	DeleteChain                 // with its rules
	AddElements
	DeleteElements
)

// Op is one change to the table.
type Op struct {
	Verb     Verb
	State    State // CreateTable: the counters and the names of the sets
	Chain    Chain
	Set      string
	Elements []string
}

func (o Op) String() string {
	switch o.Verb {
	case CreateTable:
		return "create nft table inet " + Table + " with its sets and counters"
	case SetChain:
		return fmt.Sprintf("write chain %s, %d rules", o.Chain.Name, len(o.Chain.Rules))
	case DeleteChain:
		return "delete chain " + o.Chain.Name
	case AddElements:
		return fmt.Sprintf("add %v to set %s", o.Elements, o.Set)
	case DeleteElements:
		return fmt.Sprintf("delete %v from set %s", o.Elements, o.Set)
	default:
		return fmt.Sprintf("unknown operation %d", o.Verb)
	}
}

// Diff returns the operations that turn have into want. Apply normally runs them
// in one nft transaction. If it has to run them one by one, the order still
// blocks locked addresses before a changed chain accepts anything.
func Diff(want, have State) []Op {
	var ops []Op
	if !hasObjects(want, have) {
		ops = append(ops, Op{Verb: CreateTable, State: want})
	}
	names := make([]string, 0, len(want.Sets))
	for name := range want.Sets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if removed := difference(have.Sets[name], want.Sets[name]); len(removed) > 0 && deletedFirst(name) {
			ops = append(ops, Op{Verb: DeleteElements, Set: name, Elements: removed})
		}
	}
	for _, name := range names {
		if added := difference(want.Sets[name], have.Sets[name]); len(added) > 0 {
			ops = append(ops, Op{Verb: AddElements, Set: name, Elements: added})
		}
	}
	for _, w := range want.Chains {
		i := slices.IndexFunc(have.Chains, func(h Chain) bool { return h.Name == w.Name })
		if i < 0 || !sameRules(w.Rules, have.Chains[i].Rules) {
			ops = append(ops, Op{Verb: SetChain, Chain: w})
		}
	}
	for _, h := range have.Chains {
		if !slices.ContainsFunc(want.Chains, func(w Chain) bool { return w.Name == h.Name }) {
			ops = append(ops, Op{Verb: DeleteChain, Chain: Chain{Name: h.Name}})
		}
	}
	for _, name := range names {
		if removed := difference(have.Sets[name], want.Sets[name]); len(removed) > 0 && !deletedFirst(name) {
			ops = append(ops, Op{Verb: DeleteElements, Set: name, Elements: removed})
		}
	}
	return ops
}

func hasObjects(want, have State) bool {
	for name := range want.Sets {
		if _, ok := have.Sets[name]; !ok {
			return false
		}
	}
	for _, c := range want.Counters {
		if !slices.Contains(have.Counters, c) {
			return false
		}
	}
	return true
}

func sameRules(want, have []Rule) bool {
	return slices.EqualFunc(want, have, func(a, b Rule) bool { return a.Comment == b.Comment })
}

// difference returns the elements of a that are not in b; both are sorted.
func difference(a, b []string) []string {
	var out []string
	for _, x := range a {
		if _, ok := slices.BinarySearch(b, x); !ok {
			out = append(out, x)
		}
	}
	return out
}
