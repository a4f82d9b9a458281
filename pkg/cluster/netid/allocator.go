// SPDX-License-Identifier: Apache-2.0

// Package netid allocates network ids and the primary network of each namespace
// for the cluster controller's reconcilers. Both are in the API only after the
// reconciler's write, so the allocator prevents conflicts until then. A process
// rebuilds it from the API when it becomes the leader.
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

// markAhead is how many ids are allocated per write of the high-water mark.
const markAhead = 64

// Allocator is safe for concurrent use. A holder is named by kind and name,
// because messages contain it: "ClusterUserDefinedNetwork red",
// "NetworkAttachmentDefinition a/net".
type Allocator struct {
	marks idlease.HighWater
	now   func() time.Time

	mu      sync.Mutex
	max     int
	inUse   map[int]struct{}               // ids that nodes still use
	ids     *ipam.IDs                      // by network name
	primary map[string]string              // holder by namespace
	claims  map[string]map[string]struct{} // namespaces by holder
	onFreed []func(namespace string)
	waiters map[string]func() // callbacks by network name, for when an id is free
}

// New returns an empty allocator for at most max networks. A released id is
// allocated again only after age, unless no other id is free.
func New(max int, age time.Duration, m idlease.HighWater, now func() time.Time) *Allocator {
	return &Allocator{
		max: max, ids: ipam.NewIDs(1, network.MaxID, ipam.NextFit, age), marks: m, now: now,
		inUse: map[int]struct{}{}, primary: map[string]string{}, claims: map[string]map[string]struct{}{},
	}
}

// Restore reads the high-water mark. Callers call it before any other method.
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

// RestoreID records the id that the network has in the API. The error names the
// network that has the id already.
func (a *Allocator) RestoreID(networkName string, id int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids.Reserve(networkName, id)
}

// ChangeInUse records ids that nodes use from now on, and those that none uses any more. Ids in use are not allocated,
// whether a network has them or not.
func (a *Allocator) ChangeInUse(used, unused []int) {
	a.mu.Lock()
	for _, id := range used {
		a.inUse[id] = struct{}{}
	}
	for _, id := range unused {
		delete(a.inUse, id)
	}
	var waiters map[string]func()
	if len(unused) > 0 {
		waiters, a.waiters = a.waiters, nil
	}
	a.mu.Unlock()
	for _, onFree := range waiters {
		onFree()
	}
}

// ErrFull is wrapped by the error of AllocateID if no id is free.
var ErrFull = errors.New("no network id is free")

// AllocateID returns the network's id, and allocates one if the network has
// none. If no id is free, the error is ErrFull, and onFree is called once when an
// id may be free. The caller retries after any other error.
func (a *Allocator) AllocateID(ctx context.Context, networkName string, onFree func()) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id, ok := a.ids.Get(networkName); ok {
		return id, nil
	}
	var err error
	if a.ids.Len() >= a.max {
		err = fmt.Errorf("the cluster has %d networks, which is the limit: delete one, or raise max-networks", a.max)
	}
	id := 0
	if err == nil {
		id, err = a.ids.Allocate(networkName, a.now(), func(id int) bool { _, ok := a.inUse[id]; return ok })
	}
	if err != nil {
		if a.waiters == nil {
			a.waiters = map[string]func(){}
		}
		a.waiters[networkName] = onFree
		return 0, fullError{err}
	}
	// One call in markAhead writes to the API server while it holds the lock.
	if err := a.marks.Raise(ctx, idlease.Networks, a.ids.Mark(), markAhead); err != nil {
		a.ids.Cancel(networkName)
		return 0, fmt.Errorf("raise the high-water mark for id %d of network %s: %w", id, networkName, err)
	}
	return id, nil
}

// fullError is an ErrFull whose message is only the reason.
type fullError struct{ error }

func (fullError) Is(target error) bool { return target == ErrFull }

// CancelID undoes AllocateID. The id must not have been published.
func (a *Allocator) CancelID(networkName string) { a.release(networkName, a.ids.Cancel) }

// ReleaseID releases the network's id. Nothing may use it any more.
func (a *Allocator) ReleaseID(networkName string) {
	a.release(networkName, func(owner string) { a.ids.Release(owner, a.now()) })
}

func (a *Allocator) release(networkName string, free func(owner string)) {
	a.mu.Lock()
	delete(a.waiters, networkName)
	var waiters map[string]func()
	if _, ok := a.ids.Get(networkName); ok {
		free(networkName)
		waiters, a.waiters = a.waiters, nil
	}
	a.mu.Unlock()
	for _, onFree := range waiters { // without the lock: the callback may call AllocateID
		onFree()
	}
}

// IDOf returns the network's id, 0 for none.
func (a *Allocator) IDOf(networkName string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, _ := a.ids.Get(networkName)
	return id
}

// NetworkOf returns the network that has the id, "" for none.
func (a *Allocator) NetworkOf(id int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	name, _ := a.ids.Owner(id)
	return name
}

// Usage returns how many ids networks have, and the limit.
func (a *Allocator) Usage() (used, limit int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids.Len(), a.max
}

// Claim makes holder's network the namespace's primary network. If another holder
// has the namespace, ok is false and current names that holder.
func (a *Allocator) Claim(namespace, holder string) (current string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if current, taken := a.primary[namespace]; taken {
		return current, current == holder
	}
	a.primary[namespace] = holder
	if a.claims[holder] == nil {
		a.claims[holder] = map[string]struct{}{}
	}
	a.claims[holder][namespace] = struct{}{}
	return holder, true
}

// OnFreed adds a callback for each namespace whose claim is released.
func (a *Allocator) OnFreed(callback func(namespace string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onFreed = append(a.onFreed, callback)
}

// ReleaseClaims releases holder's claims on all namespaces for which keep is
// false.
func (a *Allocator) ReleaseClaims(holder string, keep func(namespace string) bool) {
	freed, callbacks := a.releaseClaims(holder, keep)
	for _, ns := range freed {
		for _, onFreed := range callbacks { // without the lock: the callback may call Claim
			onFreed(ns)
		}
	}
}

func (a *Allocator) releaseClaims(holder string, keep func(namespace string) bool) (freed []string, onFreed []func(string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ns := range maps.Clone(a.claims[holder]) {
		if keep(ns) {
			continue
		}
		delete(a.claims[holder], ns)
		delete(a.primary, ns)
		freed = append(freed, ns)
	}
	if len(a.claims[holder]) == 0 {
		delete(a.claims, holder)
	}
	slices.Sort(freed)
	return freed, a.onFreed
}
