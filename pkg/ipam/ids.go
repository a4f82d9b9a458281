// SPDX-License-Identifier: Apache-2.0

// Package ipam hands out addresses and small numbers. Allocators are plain
// values without clocks or clients; callers serialise access.
package ipam

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// ErrExhausted is wrapped by errors that say a range is used up.
var ErrExhausted = errors.New("range is used up")

// Fit is which of the free numbers is next.
type Fit int

// Fits.
const (
	LowestFit Fit = iota // the lowest
	NextFit              // the one after the last that was given, and around
)

// IDs hands out numbers of first..last and remembers who holds which, so that
// asking again gives the same one. A number that is given back is not given to
// another before it is a minimum age, as what it named may not be gone
// everywhere; only where no other is left, the oldest is.
//
// What was given back is not in the API. A process that takes over has Mark
// instead, and takes every free number up to it for one given back just now.
type IDs struct {
	first, last int
	fit         Fit
	age         time.Duration
	used        []uint64 // bit per number that is held or aging, from first; as long as there was need for
	owner       map[int]string
	held        map[string]int
	aging       []aging // oldest first
	mark        int64   // see Mark
	unknown     int     // free numbers up to this one were given back nobody knows when,
	since       time.Time
}

type aging struct {
	id int
	at time.Time
}

// NewIDs makes an allocator of the numbers first..last, both included.
func NewIDs(first, last int, fit Fit, age time.Duration) *IDs {
	return &IDs{first: first, last: last, fit: fit, age: age, owner: map[int]string{}, held: map[string]int{}, unknown: first - 1}
}

// Mark grows with what has been given: the highest number ever given, counted
// from first; of NextFit the last one, and every time around counts on.
func (a *IDs) Mark() int64 { return a.mark }

// Restore takes over the mark of another allocator, or a greater one, at now.
// It comes before any Allocate.
func (a *IDs) Restore(mark int64, now time.Time) {
	a.mark = max(a.mark, mark)
	a.unknown, a.since = a.first-1+int(min(a.mark, a.size())), now
}

// Reserve records that owner holds id, as found in the API at start. It is an
// error when another owner holds it or when owner holds another number.
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
	a.take(owner, id)
	if n := int64(id-a.first) + 1; n > a.mark {
		a.mark = n
	}
	return nil
}

// Allocate gives owner the number it holds, or another as Fit says. inUse, which
// may be nil, tells of numbers that may not be given however old they are.
func (a *IDs) Allocate(owner string, now time.Time, inUse func(id int) bool) (int, error) {
	if id, ok := a.held[owner]; ok {
		return id, nil
	}
	a.grown(now)
	id := a.next(now, inUse)
	if id == 0 {
		id = a.oldest(inUse)
	}
	if id == 0 {
		return 0, fmt.Errorf("allocate an id for %s in %d..%d: %w", owner, a.first, a.last, ErrExhausted)
	}
	a.take(owner, id)
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

// Release gives back what owner holds, if anything.
func (a *IDs) Release(owner string, now time.Time) {
	if id, ok := a.held[owner]; ok {
		a.drop(owner, id)
		a.aging = append(a.aging, aging{id, now})
	}
}

// Cancel undoes owner's last Allocate: nobody has learnt of the number.
func (a *IDs) Cancel(owner string) {
	if id, ok := a.held[owner]; ok {
		a.drop(owner, id)
		a.clear(id)
		if a.mark%a.size() == int64(id-a.first+1)%a.size() {
			a.mark--
		}
	}
}

// Get is the number that owner holds.
func (a *IDs) Get(owner string) (int, bool) { id, ok := a.held[owner]; return id, ok }

// Owner is who holds id.
func (a *IDs) Owner(id int) (string, bool) { o, ok := a.owner[id]; return o, ok }

// Len is how many numbers are held.
func (a *IDs) Len() int { return len(a.held) }

func (a *IDs) size() int64 { return int64(a.last-a.first) + 1 }

// grown frees the numbers that are old enough.
func (a *IDs) grown(now time.Time) {
	n := 0
	for n < len(a.aging) && !now.Before(a.aging[n].at.Add(a.age)) {
		a.clear(a.aging[n].id)
		n++
	}
	a.aging = slices.Delete(a.aging, 0, n)
	if !now.Before(a.since.Add(a.age)) {
		a.unknown = a.first - 1
	}
}

// next is a free number that is old enough, 0 for none.
func (a *IDs) next(now time.Time, inUse func(int) bool) int {
	from := a.first
	if a.fit == NextFit {
		from += int(a.mark % a.size())
	}
	if id := a.free(max(from, a.unknown+1), a.last, inUse); id != 0 || from == a.first {
		return id
	}
	return a.free(a.unknown+1, from-1, inUse)
}

// oldest is the number that was given back first, 0 for none.
func (a *IDs) oldest(inUse func(int) bool) int {
	if id := a.free(a.first, a.unknown, inUse); id != 0 {
		return id
	}
	for i, g := range a.aging {
		if inUse == nil || !inUse(g.id) {
			a.aging = slices.Delete(a.aging, i, i+1)
			return g.id
		}
	}
	return 0
}

// free is the lowest free number of from..to, 0 for none.
func (a *IDs) free(from, to int, inUse func(int) bool) int {
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

func (a *IDs) take(owner string, id int) {
	i := id - a.first
	for len(a.used) <= i/64 {
		a.used = append(a.used, 0)
	}
	a.used[i/64] |= 1 << (i % 64)
	a.owner[id], a.held[owner] = owner, id
}

func (a *IDs) drop(owner string, id int) {
	delete(a.held, owner)
	delete(a.owner, id)
}

func (a *IDs) clear(id int) {
	i := id - a.first
	a.used[i/64] &^= 1 << (i % 64)
}
