// SPDX-License-Identifier: Apache-2.0

// Package ipam hands out addresses and small numbers. Allocators are plain
// values without clocks or clients; callers serialise access.
package ipam

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrExhausted is wrapped by errors that say a range is used up.
var ErrExhausted = errors.New("range is used up")

// IDs hands out the lowest free number of first..last and remembers who holds
// which, so that asking again gives the same one.
type IDs struct {
	first, last int
	used        []uint64 // bit per number, from first; as long as there was need for
	owner       map[int]string
	held        map[string]int
	low         int // no free number below this word
}

// NewIDs makes an allocator of the numbers first..last, both included.
func NewIDs(first, last int) *IDs {
	return &IDs{first: first, last: last, owner: map[int]string{}, held: map[string]int{}}
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
	a.take(owner, id)
	return nil
}

// Allocate gives owner the lowest free number, or the one it holds.
func (a *IDs) Allocate(owner string) (int, error) {
	if id, ok := a.held[owner]; ok {
		return id, nil
	}
	for w := a.low; w <= (a.last-a.first)/64; w++ {
		var used uint64
		if w < len(a.used) {
			used = a.used[w]
		}
		if free := bits.TrailingZeros64(^used); free < 64 {
			a.low = w
			id := a.first + w*64 + free
			if id > a.last {
				break
			}
			a.take(owner, id)
			return id, nil
		}
	}
	return 0, fmt.Errorf("allocate an id for %s in %d..%d: %w", owner, a.first, a.last, ErrExhausted)
}

// Release gives back what owner holds, if anything.
func (a *IDs) Release(owner string) {
	id, ok := a.held[owner]
	if !ok {
		return
	}
	delete(a.held, owner)
	delete(a.owner, id)
	i := id - a.first
	a.used[i/64] &^= 1 << (i % 64)
	a.low = min(a.low, i/64)
}

// Get is the number that owner holds.
func (a *IDs) Get(owner string) (int, bool) { id, ok := a.held[owner]; return id, ok }

// Owner is who holds id.
func (a *IDs) Owner(id int) (string, bool) { o, ok := a.owner[id]; return o, ok }

// Len is how many numbers are held.
func (a *IDs) Len() int { return len(a.held) }

func (a *IDs) take(owner string, id int) {
	i := id - a.first
	for len(a.used) <= i/64 {
		a.used = append(a.used, 0)
	}
	a.used[i/64] |= 1 << (i % 64)
	a.owner[id], a.held[owner] = owner, id
}
