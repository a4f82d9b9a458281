// SPDX-License-Identifier: Apache-2.0

// Package ledger is what the cluster role's reconcilers must agree on before
// it is in the API: which network has which id, and which network is the
// primary one of a namespace. It holds nothing that is not in the API a moment
// later, and is rebuilt from there whenever a process becomes the leader.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/pkg/cluster/marks"
	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// ahead is how many ids may be given before their mark is written again.
const ahead = 64

// Ledger is safe for concurrent use. Holders are named as an administrator
// knows them, as their names end up in messages: "ClusterUserDefinedNetwork
// red", "NetworkAttachmentDefinition a/net".
type Ledger struct {
	marks marks.Marks
	now   func() time.Time

	mu      sync.Mutex
	max     int
	inUse   map[int]string                 // where ids are still used, by id
	ids     *ipam.IDs                      // by network name
	primary map[string]string              // holder by namespace
	held    map[string]map[string]struct{} // the same by holder
	tell    []func(namespace string)
	refused map[string]func() // by network name, for want of ids
}

// New makes an empty ledger for at most max networks. An id that was given
// back is not given again before it is of that age, while others are left.
func New(max int, age time.Duration, m marks.Marks, now func() time.Time) *Ledger {
	return &Ledger{
		max: max, ids: ipam.NewIDs(1, network.MaxID, ipam.NextFit, age), marks: m, now: now,
		primary: map[string]string{}, held: map[string]map[string]struct{}{},
	}
}

// Restore takes over how far ids have been given out. It comes first.
func (l *Ledger) Restore(ctx context.Context) error {
	mark, err := l.marks.Get(ctx, marks.Networks)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids.Restore(mark, l.now())
	return nil
}

// RestoreID takes over an id that the API says the network has. The error
// says which network has it.
func (l *Ledger) RestoreID(networkName string, id int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids.Reserve(networkName, id)
}

// SetInUse says of which ids something is left that no network has any more,
// and where. They are given to nobody.
func (l *Ledger) SetInUse(where map[int]string) {
	l.mu.Lock()
	l.inUse = where
	wake := l.refused
	l.refused = nil
	l.mu.Unlock()
	for _, w := range wake {
		w()
	}
}

// ErrFull is wrapped by errors that say that there is no id left; another
// network's end ends them.
var ErrFull = errors.New("no network id is left")

// ID gives the network an id, or the one it has. Where there is none left,
// the error is ErrFull, and wake is called once when another network has given
// its back. Any other error is worth another try.
func (l *Ledger) ID(ctx context.Context, networkName string, wake func()) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.ids.Get(networkName); ok {
		return id, nil
	}
	var err error
	if l.ids.Len() >= l.max {
		err = fmt.Errorf("the cluster has %d networks, as many as it may have: delete one, or raise max-networks", l.max)
	}
	id := 0
	if err == nil {
		id, err = l.ids.Allocate(networkName, l.now(), func(id int) bool { return l.inUse[id] != "" })
	}
	if err != nil {
		if l.refused == nil {
			l.refused = map[string]func(){}
		}
		l.refused[networkName] = wake
		return 0, full{err}
	}
	// Once in so many ids, others wait here for the API server.
	if err := l.marks.Raise(ctx, marks.Networks, l.ids.Mark(), ahead); err != nil {
		l.ids.Cancel(networkName)
		return 0, fmt.Errorf("note that id %d is given to network %s: %w", id, networkName, err)
	}
	return id, nil
}

// full is an ErrFull that says no more than what stands in the way.
type full struct{ error }

func (full) Is(target error) bool { return target == ErrFull }

// CancelID undoes ID: nobody was told.
func (l *Ledger) CancelID(networkName string) { l.giveUp(networkName, l.ids.Cancel) }

// ReleaseID gives the network's id back. Nothing may use it any more.
func (l *Ledger) ReleaseID(networkName string) {
	l.giveUp(networkName, func(owner string) { l.ids.Release(owner, l.now()) })
}

func (l *Ledger) giveUp(networkName string, how func(owner string)) {
	l.mu.Lock()
	delete(l.refused, networkName)
	var wake map[string]func()
	if _, ok := l.ids.Get(networkName); ok {
		how(networkName)
		wake, l.refused = l.refused, nil
	}
	l.mu.Unlock()
	for _, w := range wake { // without the lock: who is woken may ask
		w()
	}
}

// HasID is the id that the network has, 0 for none.
func (l *Ledger) HasID(networkName string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, _ := l.ids.Get(networkName)
	return id
}

// Holder is the network that has the id, "" for none.
func (l *Ledger) Holder(id int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, _ := l.ids.Owner(id)
	return name
}

// IDs is how many networks have an id, and how many can have one.
func (l *Ledger) IDs() (used, limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids.Len(), l.max
}

// Claim makes holder's network the namespace's primary one, or says whose is.
func (l *Ledger) Claim(namespace, holder string) (current string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if current, taken := l.primary[namespace]; taken {
		return current, current == holder
	}
	l.primary[namespace] = holder
	if l.held[holder] == nil {
		l.held[holder] = map[string]struct{}{}
	}
	l.held[holder][namespace] = struct{}{}
	return holder, true
}

// OnFreed adds somebody to tell which namespaces have become free, for those
// who want them.
func (l *Ledger) OnFreed(tell func(namespace string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = append(l.tell, tell)
}

// Keep gives up holder's claims on all namespaces but those that inUse names.
func (l *Ledger) Keep(holder string, inUse func(namespace string) bool) {
	freed, all := l.keep(holder, inUse)
	for _, ns := range freed {
		for _, tell := range all { // without the lock: who is told may claim
			tell(ns)
		}
	}
}

func (l *Ledger) keep(holder string, inUse func(namespace string) bool) (freed []string, tell []func(string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ns := range maps.Clone(l.held[holder]) {
		if inUse(ns) {
			continue
		}
		delete(l.held[holder], ns)
		delete(l.primary, ns)
		freed = append(freed, ns)
	}
	if len(l.held[holder]) == 0 {
		delete(l.held, holder)
	}
	slices.Sort(freed)
	return freed, l.tell
}
