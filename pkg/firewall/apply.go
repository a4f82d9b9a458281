// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/knftables"

	"bulkhead/pkg/batch"
)

// Target is the table, in the kernel or in knftables' in-memory fake.
type Target struct {
	nft knftables.Interface
	// generation is the number of the last transaction.
	generation func() (uint32, error)
}

// Open reaches the kernel through the nft program.
func Open() (*Target, error) {
	nft, err := knftables.New(knftables.InetFamily, Table, knftables.NoObjectCommentEmulation)
	if err != nil {
		return nil, fmt.Errorf("reach nftables (is the program nft installed?): %w", err)
	}
	return &Target{nft, generation}, nil
}

// MatchesSockets tells whether this kernel and nft can match the mark and the
// cgroup of the socket that sends a packet.
func (t *Target) MatchesSockets(ctx context.Context) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "probe"})
	tx.Add(&knftables.Rule{Chain: "probe", Rule: `socket mark 0x1 socket cgroupv2 level 1 "/" drop`})
	if err := t.nft.Check(ctx, tx); err != nil {
		return fmt.Errorf("match packets by their socket: %w", err)
	}
	return nil
}

// NewFake is a Target in memory.
func NewFake() (*Target, *knftables.Fake) {
	f := knftables.NewFake(knftables.InetFamily, Table)
	return &Target{f, func() (uint32, error) { return 0, nil }}, f
}

// Read is what the table holds. A table that is not there is an empty State.
// It costs a few runs of nft: at start and now and then, not at each change.
func (t *Target) Read(ctx context.Context) (State, error) {
	st := State{Sets: map[string][]string{}}
	objects, err := t.nft.ListAll(ctx)
	if knftables.IsNotFound(err) {
		return st, nil
	}
	if err != nil {
		return st, fmt.Errorf("list table inet %s: %w", Table, err)
	}
	st.Counters = slices.Clone(objects["counter"])
	slices.Sort(st.Counters)
	for _, name := range objects["set"] {
		st.Sets[name] = nil
		elements, err := t.nft.ListElements(ctx, "set", name)
		if err != nil {
			return st, fmt.Errorf("list set %s: %w", name, err)
		}
		for _, e := range elements {
			st.Sets[name] = append(st.Sets[name], element(e.Key))
		}
		slices.Sort(st.Sets[name])
	}
	for _, name := range objects["chain"] {
		st.Chains = append(st.Chains, Chain{Name: name})
	}
	rules, err := t.nft.ListRules(ctx, "")
	if err != nil && !knftables.IsNotFound(err) {
		return st, fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		i := slices.IndexFunc(st.Chains, func(c Chain) bool { return c.Name == r.Chain })
		if i < 0 {
			continue
		}
		comment := ""
		if r.Comment != nil {
			comment = *r.Comment
		}
		st.Chains[i].Rules = append(st.Chains[i].Rules, Rule{Comment: comment})
	}
	return st, nil
}

// element joins the parts of a set's element as Build writes them. nft prints a
// mark as a number now and in hexadecimal then.
func element(key []string) string {
	parts := make([]string, len(key))
	for i, k := range key {
		k = strings.Trim(k, `"`)
		if n, err := strconv.ParseUint(k, 0, 32); err == nil && len(key) > 1 {
			k = fmt.Sprintf("%#08x", n)
		}
		if a, err := netip.ParseAddr(k); err == nil {
			k = a.String()
		}
		parts[i] = k
	}
	return strings.Join(parts, " . ")
}

// Apply makes all changes in one transaction. If that fails, they are made one
// by one, so that one that cannot be made does not hold back the others; the
// error names each that failed.
func (t *Target) Apply(ctx context.Context, ops []Op) error {
	return batch.Apply(ops, len(ops), func(ops []Op) error {
		tx := t.nft.NewTransaction()
		for _, op := range ops {
			op.into(tx)
		}
		return t.nft.Run(ctx, tx)
	}, func(error) error { return ctx.Err() })
}

// into adds an operation to a transaction. Elements are added one by one, as
// knftables wants them, but they travel together.
func (o Op) into(tx *knftables.Transaction) {
	switch o.Verb {
	case MakeTable:
		tx.Add(&knftables.Table{})
		for _, c := range o.State.Counters {
			tx.Add(&knftables.Counter{Name: c})
		}
		tx.Add(&knftables.Set{Name: SetLocked4, Type: "ipv4_addr"})
		tx.Add(&knftables.Set{Name: SetLocked6, Type: "ipv6_addr"})
		tx.Add(&knftables.Set{Name: SetOwn, Type: "ifname . mark"})
	case SetChain:
		tx.Add(&knftables.Table{})
		c := &knftables.Chain{Name: o.Chain.Name}
		if o.Chain.Hook != "" {
			c.Type, c.Hook = knftables.PtrTo(knftables.FilterType), knftables.PtrTo(knftables.BaseChainHook(o.Chain.Hook))
			c.Priority = knftables.PtrTo(knftables.FilterPriority)
		}
		tx.Add(c)
		tx.Flush(&knftables.Chain{Name: o.Chain.Name})
		for _, r := range o.Chain.Rules {
			tx.Add(&knftables.Rule{Chain: o.Chain.Name, Rule: r.Text, Comment: knftables.PtrTo(r.Comment)})
		}
	case DeleteChain:
		tx.Flush(&knftables.Chain{Name: o.Chain.Name})
		tx.Delete(&knftables.Chain{Name: o.Chain.Name})
	case AddElements, DeleteElements:
		for _, x := range o.Elements {
			e := &knftables.Element{Set: o.Set, Key: strings.Split(x, " . ")}
			if o.Verb == AddElements {
				tx.Add(e)
			} else {
				tx.Delete(e)
			}
		}
	}
}

// Delete takes the whole table away: uninstalling.
func (t *Target) Delete(ctx context.Context) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete table inet %s: %w", Table, err)
	}
	return nil
}

// Counters are the packets each named counter has seen.
func (t *Target) Counters(ctx context.Context) (map[string]uint64, error) {
	list, err := t.nft.ListCounters(ctx)
	if err != nil {
		return nil, fmt.Errorf("list counters of table inet %s: %w", Table, err)
	}
	out := make(map[string]uint64, len(list))
	for _, c := range list {
		if c != nil && c.Packets != nil { // the fake leaves gaps
			out[c.Name] = *c.Packets
		}
	}
	return out, nil
}

// Keeper remembers what the table holds, so that a change costs one
// transaction and no reading.
type Keeper struct {
	Target *Target

	mu    sync.Mutex
	have  State
	known bool
	ours  []uint32 // numbers of the last transactions that were ours alone
}

// Reconcile makes the table what in says, and returns the operations it took.
// recheck reads the table anew, in case somebody changed it.
func (k *Keeper) Reconcile(ctx context.Context, in Inputs, recheck bool) ([]Op, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known || recheck {
		have, err := k.Target.Read(ctx)
		if err != nil {
			k.known = false
			return nil, err
		}
		k.have, k.known = have, true
	}
	want := Build(in)
	ops := Diff(want, k.have)
	if len(ops) == 0 {
		k.have = want
		return nil, nil
	}
	before, err1 := k.Target.generation()
	if err := k.Target.Apply(ctx, ops); err != nil {
		k.known = false // how far it got is read next time
		return ops, err
	}
	after, err2 := k.Target.generation()
	if err1 == nil && err2 == nil && after == before+1 {
		const remembered = 16
		k.ours = append(k.ours[max(0, len(k.ours)-remembered+1):], after)
	}
	k.have = want
	return ops, nil
}

// Changed is told of a transaction, by its number, that touched the table (0:
// of some that were lost). It is true when somebody else may have made it: the
// next Reconcile reads the table anew.
func (k *Keeper) Changed(generation uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Contains(k.ours, generation) {
		return false
	}
	k.known = false
	return true
}
