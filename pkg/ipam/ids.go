// SPDX-License-Identifier: Apache-2.0

// Package ipam allocates addresses and ids. Allocators are plain values
// without clocks or clients; callers serialise access.
package ipam

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// ErrExhausted is wrapped by the errors of an allocator that has nothing left to
// allocate.
var ErrExhausted = errors.New("range is exhausted")

// Fit selects which free id is allocated next.
type Fit int

// Fits.
const (
	LowestFit Fit = iota // the lowest
	NextFit              // the one after the last that was allocated, wrapping around
)

// IDs allocates the ids first..last and records their owners; allocating again
// for an owner returns the id that it holds. A released id is not allocated to
// another owner before a minimum age, because state that carries the id may not be
// removed everywhere yet. Only if no other id is free, the one released first is
// allocated earlier.
//
// Released ids are not in the API. A process that takes over restores Mark
// instead, and treats every free id up to it as released just then. Once the mark
// exceeds the size of the range, these are all free ids.
type IDs struct {
	first, last int
	fit         Fit
	age         time.Duration
	used        []uint64 // a bit per id that is held or aging, starting at first; grows on demand
	owner       map[int]string
	held        map[string]int
	aging       []aging // in the order of release
	mark        int64   // see Mark
	restoredTo  int     // free ids up to this one may have been released just before
	restoredAt  time.Time
}

type aging struct {
	id int
	at time.Time
}

// NewIDs returns an allocator of the ids first..last, both included.
func NewIDs(first, last int, fit Fit, age time.Duration) *IDs {
	return &IDs{first: first, last: last, fit: fit, age: age, owner: map[int]string{}, held: map[string]int{}, restoredTo: first - 1}
}

// Mark is the high-water mark: the highest id ever allocated, counted from first.
// For NextFit it is the last id allocated, plus the size of the range for each
// time that the search wrapped around. It never falls, except by Cancel.
func (a *IDs) Mark() int64 { return a.mark }

// Restore sets the mark of a former allocator, or a greater one, at now. Callers
// call it before the first Allocate.
func (a *IDs) Restore(mark int64, now time.Time) {
	a.mark = max(a.mark, mark)
	a.restoredTo, a.restoredAt = a.first-1+int(min(a.mark, a.size())), now
}

// Reserve records that owner holds id, as found in the API at start. It fails if
// another owner holds id or if owner holds another id.
func (a *IDs) Reserve(owner string, id int) error {
	if id < a.first || id > a.last {
		return fmt.Errorf("reserve id %d for %s: outside %d..%d", id, owner, a.first, a.last)
	}
	if other, ok := a.owner[id]; ok && other != owner {
		return fmt.Errorf("reserve id %d for %s: %s holds it", id, owner, other)
	}
	if held, ok := a.held[owner]; ok && held != id {
		return fmt.Errorf("reserve id %d for %s: it holds %d", id, owner, held)
	}
	a.aging = slices.DeleteFunc(a.aging, func(g aging) bool { return g.id == id })
	a.assign(owner, id)
	if n := int64(id-a.first) + 1; n > a.mark {
		a.mark = n
	}
	return nil
}

// Allocate returns the id that owner holds, or assigns one as Fit says. inUse,
// which may be nil, reports ids that must not be assigned however old they are.
func (a *IDs) Allocate(owner string, now time.Time, inUse func(id int) bool) (int, error) {
	return a.AllocateUpTo(owner, a.last, now, inUse)
}

// AllocateUpTo is like Allocate, but assigns no id above last: one that was released
// just before is better than a higher one.
func (a *IDs) AllocateUpTo(owner string, last int, now time.Time, inUse func(id int) bool) (int, error) {
	if id, ok := a.held[owner]; ok {
		return id, nil
	}
	last = min(last, a.last)
	a.expire(now)
	id := a.freeOf(a.restoredTo+1, last, inUse)
	if id == 0 {
		id = a.oldestReleased(last, inUse)
	}
	if id == 0 {
		return 0, fmt.Errorf("allocate an id for %s in %d..%d: %w", owner, a.first, last, ErrExhausted)
	}
	a.assign(owner, id)
	n := int64(id-a.first) + 1
	if a.fit == NextFit {
		n += a.mark / a.size() * a.size()
		if n <= a.mark {
			n += a.size()
		}
	}
	a.mark = max(a.mark, n)
	return id, nil
}

// Release frees the id that owner holds, if any; its minimum age starts at now.
func (a *IDs) Release(owner string, now time.Time) {
	if id, ok := a.held[owner]; ok {
		a.unassign(owner, id)
		a.aging = append(a.aging, aging{id, now})
	}
}

// Cancel undoes owner's last Allocate. The id must not have been published: it
// is free again at once.
func (a *IDs) Cancel(owner string) {
	if id, ok := a.held[owner]; ok {
		a.unassign(owner, id)
		a.clearUsed(id)
		if a.mark%a.size() == int64(id-a.first+1)%a.size() {
			a.mark--
		}
	}
}

// Get returns the id that owner holds.
func (a *IDs) Get(owner string) (int, bool) { id, ok := a.held[owner]; return id, ok }

// Owner returns the owner that holds id.
func (a *IDs) Owner(id int) (string, bool) { o, ok := a.owner[id]; return o, ok }

// Len returns the number of held ids.
func (a *IDs) Len() int { return len(a.held) }

func (a *IDs) size() int64 { return int64(a.last-a.first) + 1 }

// expire frees the released ids that have reached the minimum age.
func (a *IDs) expire(now time.Time) {
	n := 0
	for n < len(a.aging) && !now.Before(a.aging[n].at.Add(a.age)) {
		a.clearUsed(a.aging[n].id)
		n++
	}
	a.aging = slices.Delete(a.aging, 0, n)
	if !now.Before(a.restoredAt.Add(a.age)) {
		a.restoredTo = a.first - 1
	}
}

// oldestReleased returns the aging id up to last that was released first, 0 for none. Ids that a former allocator may have released
// come first. Their order is unknown, so it returns the next one as Fit says, which was allocated longest ago.
func (a *IDs) oldestReleased(last int, inUse func(int) bool) int {
	if id := a.freeOf(a.first, min(a.restoredTo, last), inUse); id != 0 {
		return id
	}
	for i, g := range a.aging {
		if g.id <= last && (inUse == nil || !inUse(g.id)) {
			a.aging = slices.Delete(a.aging, i, i+1)
			return g.id
		}
	}
	return 0
}

// freeOf returns the next free id of from..to as Fit says, 0 for none.
func (a *IDs) freeOf(from, to int, inUse func(int) bool) int {
	next := a.first
	if a.fit == NextFit {
		next += int(a.mark % a.size())
	}
	if id := a.lowestFree(max(from, next), to, inUse); id != 0 {
		return id
	}
	return a.lowestFree(from, min(to, next-1), inUse)
}

// lowestFree returns the lowest free id of from..to, 0 for none.
func (a *IDs) lowestFree(from, to int, inUse func(int) bool) int {
	for i := from - a.first; i <= to-a.first; {
		var used uint64
		if i/64 < len(a.used) {
			used = a.used[i/64]
		}
		skip := bits.TrailingZeros64(^used >> (i % 64))
		if skip >= 64-i%64 {
			i = (i/64 + 1) * 64
			continue
		}
		i += skip
		if id := a.first + i; id <= to && (inUse == nil || !inUse(id)) {
			return id
		}
		i++
	}
	return 0
}

func (a *IDs) assign(owner string, id int) {
	i := id - a.first
	for len(a.used) <= i/64 {
		a.used = append(a.used, 0)
	}
	a.used[i/64] |= 1 << (i % 64)
	a.owner[id], a.held[owner] = owner, id
}

func (a *IDs) unassign(owner string, id int) {
	delete(a.held, owner)
	delete(a.owner, id)
}

func (a *IDs) clearUsed(id int) {
	i := id - a.first
	a.used[i/64] &^= 1 << (i % 64)
}
