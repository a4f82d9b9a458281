// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/knftables"

	"bulkhead/pkg/batch"
)

// Target accesses the table in the kernel or in knftables' in-memory fake.
type Target struct {
	nft knftables.Interface
	// generation returns the number of the last transaction.
	generation func() (uint32, error)
	// forgetStale removes connections by translations that are gone.
	forgetStale func(translations) error
}

// Open returns the kernel's table, accessed with the program nft.
func Open() (*Target, error) {
	nft, err := knftables.New(knftables.InetFamily, Table, knftables.NoObjectCommentEmulation)
	if err != nil {
		return nil, fmt.Errorf("access nftables (is the program nft installed?): %w", err)
	}
	return &Target{nft, generation, forgetStale}, nil
}

// MatchesSockets returns an error if this kernel or nft cannot match the mark
// and the cgroup of the socket that sends a packet.
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

// NewFake returns a Target in memory.
func NewFake() (*Target, *knftables.Fake) {
	f := knftables.NewFake(knftables.InetFamily, Table)
	return &Target{f, func() (uint32, error) { return 0, nil }, func(translations) error { return nil }}, f
}

// Read returns the table's actual state; a missing table has an empty State.
// Read runs nft several times, so it must not run for each change.
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
			st.Sets[name] = append(st.Sets[name], canonical(setTypes[name].key, e.Key))
		}
		slices.Sort(st.Sets[name])
	}
	for _, name := range objects["map"] {
		st.Sets[name] = nil
		elements, err := t.nft.ListElements(ctx, "map", name)
		if err != nil {
			return st, fmt.Errorf("list map %s: %w", name, err)
		}
		for _, e := range elements {
			st.Sets[name] = append(st.Sets[name], canonical(setTypes[name].key, e.Key)+valueSeparator+canonical(setTypes[name].value, e.Value))
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

// markText returns a mark in the format of Build, and other text as it is.
func markText(text string) string {
	if n, err := strconv.ParseUint(text, 0, 32); err == nil {
		return fmt.Sprintf("%#08x", n)
	}
	return text
}

// protocols are the names of a service's protocols by number (IANA).
var protocols = map[string]string{"6": "tcp", "17": "udp", "132": "sctp"}

// Apply applies all operations in one transaction. If it fails, Apply retries
// them one by one, so that a faulty operation does not block the others. The
// error names each failed operation.
func (t *Target) Apply(ctx context.Context, ops []Op) error {
	return batch.Apply(ops, len(ops), func(ops []Op) error {
		tx := t.nft.NewTransaction()
		for _, op := range ops {
			op.addTo(tx)
		}
		return t.nft.Run(ctx, tx)
	}, func(error) error { return ctx.Err() })
}

// priorityDNAT and prioritySNAT are those of dstnat and srcnat, names that nft does not know in
// every hook.
const (
	priorityDNAT = knftables.BaseChainPriority("-100")
	prioritySNAT = knftables.BaseChainPriority("100")
	// priorityEarly is before conntrack assembles fragments (-400).
	priorityEarly = knftables.BaseChainPriority("-450")
)

// addTo adds an operation to a transaction. knftables needs one call per
// element, but nft gets all of them at once.
func (o Op) addTo(tx *knftables.Transaction) {
	switch o.Verb {
	case CreateTable:
		tx.Add(&knftables.Table{})
		for _, c := range o.State.Counters {
			tx.Add(&knftables.Counter{Name: c})
		}
		for name, t := range setTypes {
			switch {
			case t.value != "":
				tx.Add(&knftables.Map{Name: name, Type: t.key + valueSeparator + t.value})
			case t.interval:
				tx.Add(&knftables.Set{Name: name, Type: t.key, Flags: []knftables.SetFlag{knftables.IntervalFlag}})
			default:
				tx.Add(&knftables.Set{Name: name, Type: t.key})
			}
		}
	case SetChain:
		tx.Add(&knftables.Table{})
		c := &knftables.Chain{Name: o.Chain.Name}
		if o.Chain.Hook != "" {
			c.Type, c.Hook = knftables.PtrTo(knftables.FilterType), knftables.PtrTo(knftables.BaseChainHook(o.Chain.Hook))
			c.Priority = knftables.PtrTo(knftables.FilterPriority)
			if o.Chain.Early {
				c.Priority = knftables.PtrTo(priorityEarly)
			}
			if o.Chain.NAT {
				c.Type, c.Priority = knftables.PtrTo(knftables.NATType), knftables.PtrTo(priorityDNAT)
				if o.Chain.Hook == "postrouting" {
					c.Priority = knftables.PtrTo(prioritySNAT)
				}
			}
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
			key, value, isMap := strings.Cut(x, valueSeparator)
			if setTypes[o.Set].key == "ifname" {
				key = strconv.Quote(key) // nft would read names like 5g or log as something else
			}
			e := &knftables.Element{Set: o.Set, Key: splitFields(key)}
			if isMap {
				e.Set, e.Map, e.Value = "", o.Set, splitFields(value)
			}
			if o.Verb == AddElements {
				tx.Add(e)
			} else {
				tx.Delete(e)
			}
		}
	}
}

// Delete deletes the whole table, for uninstallation.
func (t *Target) Delete(ctx context.Context) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete table inet %s: %w", Table, err)
	}
	return nil
}

// Counters returns the number of packets of each named counter.
func (t *Target) Counters(ctx context.Context) (map[string]uint64, error) {
	list, err := t.nft.ListCounters(ctx)
	if err != nil {
		return nil, fmt.Errorf("list counters of table inet %s: %w", Table, err)
	}
	out := make(map[string]uint64, len(list))
	for _, c := range list {
		if c != nil && c.Packets != nil { // the fake's list has nil entries
			out[c.Name] = *c.Packets
		}
	}
	return out, nil
}

// Reconciler reconciles the table. It caches the table's actual state, so that a
// change needs one transaction and no Read.
type Reconciler struct {
	Target *Target
	Log    *slog.Logger // nil: slog.Default
	// SearchInterval is the least time from a search for stale connections to the next one, which is also at least nine times
	// as long as the search took: a search reads all connections of the node, tenants choose how often their services
	// change, and pods that start wait for Reconcile. With 0 searches follow at once.
	SearchInterval time.Duration

	mu    sync.Mutex
	have  State
	valid bool     // have is the table's state
	own   []uint32 // numbers of the last transactions, if they were ours
	// stale: connections that began with earlier translations may remain, including translations that
	// changed while the agent was down or another program had changed the table.
	stale  bool
	search time.Time // when they may be searched for again
	failed bool      // the last search
}

// Reconcile applies the desired state for in and returns the operations.
// With recheck it reads the table first, in case another program changed it.
// After an error the table may not have the desired state. Connections that cannot be removed are no
// error: the table restricts without that, and a later Reconcile tries again.
func (r *Reconciler) Reconcile(ctx context.Context, in Inputs, recheck bool) ([]Op, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.valid || recheck {
		have, err := r.Target.Read(ctx)
		if err != nil {
			r.valid = false
			return nil, err
		}
		r.have, r.stale, r.valid = have, r.stale || !r.valid, true
	}
	want := Build(in)
	ops := Diff(want, r.have)
	if len(ops) > 0 {
		if err := r.apply(ctx, ops); err != nil {
			return ops, err
		}
	}
	r.have = want
	r.stale = r.stale || slices.ContainsFunc(ops, changesUDP)
	if begin := time.Now(); r.stale && !begin.Before(r.search) {
		err := r.Target.forgetStale(in.udpTranslations())
		if err != nil {
			cmp.Or(r.Log, slog.Default()).Warn("some UDP clients may keep their former destination: cannot remove stale connections", "error", err)
		}
		r.failed = err != nil
		r.stale = r.failed
		if r.SearchInterval > 0 {
			r.search = time.Now().Add(max(r.SearchInterval, 9*time.Since(begin)))
		}
	}
	return ops, nil
}

// SearchDue reports whether Reconcile has put off the search for stale connections, and after what time it should be
// called again. After a failed search nothing is due: the next Reconcile searches again.
func (r *Reconciler) SearchDue() (after time.Duration, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, time.Until(r.search)), r.stale && !r.failed
}

// apply applies the operations, and stores whose transaction it was.
func (r *Reconciler) apply(ctx context.Context, ops []Op) error {
	before, err1 := r.Target.generation()
	if err := r.Target.Apply(ctx, ops); err != nil {
		r.valid = false // the next Reconcile reads the actual state
		return err
	}
	after, err2 := r.Target.generation()
	if err1 == nil && err2 == nil && after == before+1 {
		const maxOwn = 16
		r.own = append(r.own[max(0, len(r.own)-maxOwn+1):], after)
	}
	return nil
}

// Changed handles the event of a transaction on the table, given by its number
// (0: events were lost). It returns true if the transaction may be another
// program's: the next Reconcile then reads the table.
func (r *Reconciler) Changed(generation uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.own, generation) {
		return false
	}
	r.valid = false
	return true
}
