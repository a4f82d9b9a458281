// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const age = time.Minute

// want allocates an id for owner and compares it.
func want(t *testing.T, a *IDs, at time.Duration, owner string, id int) {
	t.Helper()
	if got, err := a.Allocate(owner, start.Add(at), nil); err != nil || got != id {
		t.Errorf("%s at %s: got %d, %v; want %d", owner, at, got, err, id)
	}
}

func TestIDsFits(t *testing.T) {
	for fit, after := range map[Fit][]int{LowestFit: {3, 70, 131}, NextFit: {131, 132, 133}} {
		a := NewIDs(1, 133, fit, age)
		for id := 1; id <= 130; id++ {
			want(t, a, 0, fmt.Sprint("o", id), id)
		}
		a.Release("o70", start)
		a.Release("o3", start)
		for i, id := range after {
			want(t, a, age, fmt.Sprint("x", i), id)
		}
		want(t, a, age, "x0", after[0]) // x0 holds it already
		if err := a.Reserve("y", after[0]); err == nil {
			t.Error("Reserve of a held id succeeded")
		}
		if err := a.Reserve("y", 134); err == nil {
			t.Error("Reserve outside the range succeeded")
		}
	}
}

// A released id is allocated again after its minimum age, or earlier if no other
// id is free.
func TestIDsAge(t *testing.T) {
	a := NewIDs(1, 4, LowestFit, age)
	want(t, a, 0, "a", 1)
	want(t, a, 0, "b", 2)
	a.Release("a", start)
	want(t, a, age-1, "c", 3)
	want(t, a, age, "d", 1)
	a.Release("c", start.Add(age))
	a.Release("d", start.Add(age+1))
	want(t, a, age+2, "e", 4)
	want(t, a, age+3, "f", 3) // released first
	want(t, a, age+4, "g", 1)
	if _, err := a.Allocate("h", start.Add(age+5), nil); !errors.Is(err, ErrExhausted) {
		t.Errorf("range is exhausted: got %v", err)
	}
}

// Below a limit, an aging id is allocated before a free one above it: those of a former
// allocator first, then the one that was released first.
func TestIDsUpTo(t *testing.T) {
	a := NewIDs(1, 9, LowestFit, age)
	a.Restore(3, start)
	for id := 1; id <= 2; id++ {
		if err := a.Reserve(fmt.Sprint(id), id); err != nil {
			t.Fatal(err)
		}
	}
	upTo := func(owner string, id int) {
		t.Helper()
		if got, err := a.AllocateUpTo(owner, 4, start, nil); got != id || (err == nil) != (id != 0) {
			t.Errorf("%s: got %d, %v; want %d", owner, got, err, id)
		}
	}
	upTo("a", 4)
	want(t, a, 0, "b", 5)
	a.Release("b", start)
	a.Release("2", start)
	a.Release("1", start)
	upTo("c", 3)
	upTo("d", 2)
	upTo("e", 1)
	upTo("f", 0)
	want(t, a, 0, "f", 6)
	upTo("f", 6) // f holds it
}

// An id that is in use is not allocated, however old it is and however few are
// free.
func TestIDsInUse(t *testing.T) {
	for _, fit := range []Fit{LowestFit, NextFit} {
		a := NewIDs(1, 3, fit, age)
		for _, o := range []string{"a", "b", "c"} {
			_, _ = a.Allocate(o, start, nil)
			a.Release(o, start)
		}
		inUse := func(id int) bool { return id != 2 }
		for _, at := range []time.Duration{0, 10 * age} {
			if id, err := a.Allocate("d", start.Add(at), inUse); err != nil || id != 2 {
				t.Errorf("got %d, %v; want 2", id, err)
			}
			if id, err := a.Allocate("e", start.Add(at), inUse); err == nil {
				t.Errorf("got %d, which is in use", id)
			}
			a.Release("d", start)
		}
	}
}

// An allocator that restores a mark lets the free ids below it age, because they
// may have been released just before.
func TestIDsRestore(t *testing.T) {
	for fit, after := range map[Fit]int{LowestFit: 2, NextFit: 7} {
		a := NewIDs(1, 9, fit, age)
		for id := 1; id <= 5; id++ {
			want(t, a, 0, fmt.Sprint(id), id)
		}
		b := NewIDs(1, 9, fit, age)
		b.Restore(a.Mark(), start)
		for _, id := range []int{1, 3, 4} {
			if err := b.Reserve(fmt.Sprint(id), id); err != nil {
				t.Fatal(err)
			}
		}
		want(t, b, age-1, "x", 6)
		want(t, b, age, "y", after)
	}
}

// Once the search has wrapped around, every free id may have been released just before the mark
// was restored. Those that were allocated longest ago are allocated first, so the next
// allocators continue where the former ones stopped.
func TestIDsRestoreAfterWrap(t *testing.T) {
	for _, mark := range []int64{9, 14, 18, 27, 100} {
		last := int(mark % 9) // the last id that was allocated; 0 for 9
		a := NewIDs(1, 9, NextFit, age)
		a.Restore(mark, start)
		for i := range 20 {
			last = last%9 + 1
			want(t, a, 0, fmt.Sprint(i), last)
			a.Release(fmt.Sprint(i), start)
			b := NewIDs(1, 9, NextFit, age)
			b.Restore(a.Mark(), start)
			a = b
		}
	}
}

// A cancelled id is free at once.
func TestIDsCancel(t *testing.T) {
	for _, fit := range []Fit{LowestFit, NextFit} {
		a := NewIDs(1, 3, fit, age)
		for range 10 {
			want(t, a, 0, "a", 1)
			a.Cancel("a")
		}
		if a.Mark() != 0 || a.Len() != 0 {
			t.Errorf("mark %d, %d held", a.Mark(), a.Len())
		}
	}
}

// After any sequence of Allocate, Release and Restore: no id has two owners,
// Allocate fails only if all ids are held, and an aging id is allocated only if
// every id has been allocated before.
func TestIDsChurn(t *testing.T) {
	const size = 20
	rapid.Check(t, func(t *rapid.T) {
		fit := rapid.SampledFrom([]Fit{LowestFit, NextFit}).Draw(t, "fit")
		a, held := NewIDs(1, size, fit, age), map[string]int{}
		now, freed, ever := start, map[int]time.Time{}, map[int]bool{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second)
			owner := fmt.Sprint(rapid.IntRange(1, 25).Draw(t, "owner"))
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1, 2:
				a.Release(owner, now)
				if id, ok := held[owner]; ok {
					freed[id] = now
				}
				delete(held, owner)
				continue
			case 3:
				b := NewIDs(1, size, fit, age)
				b.Restore(a.Mark(), now)
				for o, id := range held {
					if err := b.Reserve(o, id); err != nil {
						t.Fatal(err)
					}
				}
				a = b
				continue
			}
			id, err := a.Allocate(owner, now, nil)
			if err != nil {
				if len(held) < size {
					t.Fatalf("Allocate failed with %d of %d ids held: %v", len(held), size, err)
				}
				continue
			}
			for o, other := range held {
				if other == id && o != owner {
					t.Fatalf("%s and %s hold %d", o, owner, id)
				}
			}
			if at, young := freed[id]; young && held[owner] != id && now.Sub(at) < age && len(ever) < size {
				t.Fatalf("id %d was released %s ago, and only %d of %d were ever allocated", id, now.Sub(at), len(ever), size)
			}
			held[owner], ever[id] = id, true
		}
		if a.Len() != len(held) {
			t.Fatalf("Len %d, held %d", a.Len(), len(held))
		}
	})
}
