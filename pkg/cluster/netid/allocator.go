// SPDX-License-Identifier: Apache-2.0

// Package netid is what the cluster role's reconcilers must agree on before
// it is in the API: which network has which id, and which network is the
// primary one of a namespace. It holds nothing that is not in the API a moment
// later, and is rebuilt from there whenever a process becomes the leader.
package netid

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// ahead is how many ids may be given before their mark is written again.
const ahead = 64

// Allocator is safe for concurrent use. Holders are named as an administrator
// knows them, as their names end up in messages: "ClusterUserDefinedNetwork
// red", "NetworkAttachmentDefinition a/net".
type Allocator struct {
	marks idlease.HighWater
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
func New(max int, age time.Duration, m idlease.HighWater, now func() time.Time) *Allocator {
	return &Allocator{
		max: max, ids: ipam.NewIDs(1, network.MaxID, ipam.NextFit, age), marks: m, now: now,
		primary: map[string]string{}, held: map[string]map[string]struct{}{},
	}
}

// Restore takes over how far ids have been given out. It comes first.
func (a *Allocator) Restore(ctx context.Context) error {
	mark, err := a.marks.Get(ctx, idlease.Networks)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids.Restore(mark, a.now())
	return nil
}

// RestoreID takes over an id that the API says the network has. The error
// says which network has it.
func (a *Allocator) RestoreID(networkName string, id int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids.Reserve(networkName, id)
}

// SetInUse says of which ids something is left that no network has any more,
// and where. They are given to nobody.
func (a *Allocator) SetInUse(where map[int]string) {
	a.mu.Lock()
	a.inUse = where
	wake := a.refused
	a.refused = nil
	a.mu.Unlock()
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
func (a *Allocator) ID(ctx context.Context, networkName string, wake func()) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id, ok := a.ids.Get(networkName); ok {
		return id, nil
	}
	var err error
	if a.ids.Len() >= a.max {
		err = fmt.Errorf("the cluster has %d networks, as many as it may have: delete one, or raise max-networks", a.max)
	}
	id := 0
	if err == nil {
		id, err = a.ids.Allocate(networkName, a.now(), func(id int) bool { return a.inUse[id] != "" })
	}
	if err != nil {
		if a.refused == nil {
			a.refused = map[string]func(){}
		}
		a.refused[networkName] = wake
		return 0, full{err}
	}
	// Once in so many ids, others wait here for the API server.
	if err := a.marks.Raise(ctx, idlease.Networks, a.ids.Mark(), ahead); err != nil {
		a.ids.Cancel(networkName)
		return 0, fmt.Errorf("note that id %d is given to network %s: %w", id, networkName, err)
	}
	return id, nil
}

// full is an ErrFull that says no more than what stands in the way.
type full struct{ error }

func (full) Is(target error) bool { return target == ErrFull }

// CancelID undoes ID: nobody was told.
func (a *Allocator) CancelID(networkName string) { a.giveUp(networkName, a.ids.Cancel) }

// ReleaseID gives the network's id back. Nothing may use it any more.
func (a *Allocator) ReleaseID(networkName string) {
	a.giveUp(networkName, func(owner string) { a.ids.Release(owner, a.now()) })
}

func (a *Allocator) giveUp(networkName string, how func(owner string)) {
	a.mu.Lock()
	delete(a.refused, networkName)
	var wake map[string]func()
	if _, ok := a.ids.Get(networkName); ok {
		how(networkName)
		wake, a.refused = a.refused, nil
	}
	a.mu.Unlock()
	for _, w := range wake { // without the lock: who is woken may ask
		w()
	}
}

// HasID is the id that the network has, 0 for none.
func (a *Allocator) HasID(networkName string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, _ := a.ids.Get(networkName)
	return id
}

// Holder is the network that has the id, "" for none.
func (a *Allocator) Holder(id int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	name, _ := a.ids.Owner(id)
	return name
}

// IDs is how many networks have an id, and how many can have one.
func (a *Allocator) IDs() (used, limit int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids.Len(), a.max
}

// Claim makes holder's network the namespace's primary one, or says whose is.
func (a *Allocator) Claim(namespace, holder string) (current string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if current, taken := a.primary[namespace]; taken {
		return current, current == holder
	}
	a.primary[namespace] = holder
	if a.held[holder] == nil {
		a.held[holder] = map[string]struct{}{}
	}
	a.held[holder][namespace] = struct{}{}
	return holder, true
}

// OnFreed adds somebody to tell which namespaces have become free, for those
// who want them.
func (a *Allocator) OnFreed(tell func(namespace string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tell = append(a.tell, tell)
}

// Keep gives up holder's claims on all namespaces but those that inUse names.
func (a *Allocator) Keep(holder string, inUse func(namespace string) bool) {
	freed, all := a.keep(holder, inUse)
	for _, ns := range freed {
		for _, tell := range all { // without the lock: who is told may claim
			tell(ns)
		}
	}
}

func (a *Allocator) keep(holder string, inUse func(namespace string) bool) (freed []string, tell []func(string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ns := range maps.Clone(a.held[holder]) {
		if inUse(ns) {
			continue
		}
		delete(a.held[holder], ns)
		delete(a.primary, ns)
		freed = append(freed, ns)
	}
	if len(a.held[holder]) == 0 {
		delete(a.held, holder)
	}
	slices.Sort(freed)
	return freed, a.tell
}
