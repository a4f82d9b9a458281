// SPDX-License-Identifier: Apache-2.0

package netid

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/network"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const age = time.Minute

// Each network gets the next id, keeps it, and no two networks have the same.
func TestAllocateID(t *testing.T) {
	now := epoch
	a, calls := New(3, age, &idlease.Memory{}, func() time.Time { return now }), 0
	onFree := func() { calls++ }
	want := func(name string, id int) {
		t.Helper()
		if got, err := a.AllocateID(t.Context(), name, onFree); err != nil || got != id {
			t.Errorf("%s has the id %d, %v; want %d", name, got, err, id)
		}
	}
	for i := range 3 {
		want(fmt.Sprint(i), i+1)
	}
	want("1", 2) // it has the id already
	if _, err := a.AllocateID(t.Context(), "4", onFree); !errors.Is(err, ErrFull) {
		t.Errorf("more networks than the limit: %v", err)
	}
	if a.ReleaseID("none"); calls != 0 {
		t.Error("onFree was called, but no id was released")
	}
	if a.ReleaseID("0"); calls != 1 {
		t.Errorf("onFree was called %d times after a release, want once", calls)
	}
	want("4", 4)
	if err := a.RestoreID("5", 2); err == nil {
		t.Error("RestoreID of another network's id succeeded")
	}
	if used, limit := a.Usage(); used != 3 || limit != 3 {
		t.Errorf("%d of %d ids are used, want 3 of 3", used, limit)
	}
	a.CancelID("4")
	want("5", 4)
}

// Neither this leader nor the next allocates a released id before its minimum
// age, or while a node still uses it.
func TestReleasedIDs(t *testing.T) {
	now, m := epoch, &idlease.Memory{}
	leader := func() *Allocator {
		a := New(network.MaxID, age, m, func() time.Time { return now })
		if err := a.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, ignore := leader(), func() {}
	seen, last := map[int]bool{}, map[int]int{}
	for i := range 3 * network.MaxID / 2 { // more networks than ids
		if i%1000 == 999 {
			a = leader()
		}
		now = now.Add(age / network.MaxID)
		id, err := a.AllocateID(t.Context(), fmt.Sprint(i), ignore)
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] && i-last[id] < network.MaxID-1000 {
			t.Fatalf("network %d has the id %d of network %d", i, id, last[id])
		}
		seen[id], last[id] = true, i
		a.ReleaseID(fmt.Sprint(i))
	}
	if len(seen) < network.MaxID-10*markAhead {
		t.Errorf("only %d ids were allocated", len(seen))
	}
	// Ids that a node still uses.
	a = leader()
	now = now.Add(2 * age)
	var inUse []int
	for id := 1; id <= network.MaxID; id++ {
		if id != 77 {
			inUse = append(inUse, id)
		}
	}
	a.ChangeInUse(inUse, nil)
	if id, err := a.AllocateID(t.Context(), "a", ignore); err != nil || id != 77 {
		t.Errorf("a has the id %d, %v; want 77, all others are in use", id, err)
	}
	calls := 0
	if id, err := a.AllocateID(t.Context(), "b", func() { calls++ }); !errors.Is(err, ErrFull) {
		t.Errorf("b has the id %d, %v; want ErrFull, all ids are in use", id, err)
	}
	if a.ChangeInUse([]int{77}, nil); calls != 0 {
		t.Errorf("onFree was called %d times, and no id became free", calls)
	}
	if a.ChangeInUse(nil, inUse[:1]); calls != 1 {
		t.Errorf("onFree was called %d times after an id became free, want once", calls)
	}
	if id, err := a.AllocateID(t.Context(), "b", ignore); err != nil || id != inUse[0] {
		t.Errorf("b has the id %d, %v; want %d, which is free", id, err, inUse[0])
	}
}

// Each leader raises the mark by more than it allocates. Once the marks exceed the number of ids,
// the next leader still does not allocate what the former one has released just before.
func TestReleasedIDsAfterManyLeaders(t *testing.T) {
	m := &idlease.Memory{}
	if err := m.Raise(t.Context(), idlease.Networks, network.MaxID, 0); err != nil {
		t.Fatal(err)
	}
	seen := map[int]int{}
	for leader := range 2 * network.MaxID / (markAhead + 1) {
		a := New(network.MaxID, age, m, func() time.Time { return epoch })
		if err := a.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		id, err := a.AllocateID(t.Context(), "a", func() {})
		if err != nil {
			t.Fatal(err)
		}
		if former, ok := seen[id]; ok && leader-former < network.MaxID/(markAhead+1) {
			t.Fatalf("leader %d allocates the id %d, which leader %d has released", leader, id, former)
		}
		seen[id] = leader
		a.ReleaseID("a")
	}
}

// AllocateID fails if the high-water mark cannot be written.
func TestAllocateIDWithoutMark(t *testing.T) {
	m := &idlease.Memory{Err: errors.New("no API server")}
	a := New(3, age, m, func() time.Time { return epoch })
	if _, err := a.AllocateID(t.Context(), "a", func() {}); err == nil || errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want an error that the caller retries", err)
	}
	m.Err = nil
	if id, err := a.AllocateID(t.Context(), "a", func() {}); err != nil || id != 1 {
		t.Errorf("got id %d, %v; want 1", id, err)
	}
}

// A namespace has one primary network; OnFreed callbacks run when the claim is
// released.
func TestClaim(t *testing.T) {
	a := New(1, age, &idlease.Memory{}, time.Now)
	var freed []string
	a.OnFreed(func(ns string) { freed = append(freed, ns) })
	if _, ok := a.Claim("ns", "a"); !ok {
		t.Error("claim of a free namespace failed")
	}
	if holder, ok := a.Claim("ns", "b"); ok || holder != "a" {
		t.Errorf("second claim: holder %v, %v; want a", holder, ok)
	}
	if a.ReleaseClaims("a", func(string) bool { return true }); freed != nil {
		t.Errorf("freed %v, which a keeps", freed)
	}
	if a.ReleaseClaims("b", func(string) bool { return false }); freed != nil {
		t.Errorf("freed %v, which a holds", freed)
	}
	if a.ReleaseClaims("a", func(string) bool { return false }); !slices.Equal(freed, []string{"ns"}) {
		t.Errorf("freed %v, want ns", freed)
	}
	if _, ok := a.Claim("ns", "b"); !ok {
		t.Error("claim of a freed namespace failed")
	}
}

// Concurrent calls allocate a distinct id per network.
func TestAllocateIDConcurrently(t *testing.T) {
	a, ignore := New(network.MaxID, age, &idlease.Memory{}, time.Now), func() {}
	ids := make(chan int)
	const n = 500
	for i := range n {
		go func() {
			id, _ := a.AllocateID(t.Context(), fmt.Sprint(i), ignore)
			ids <- id
		}()
	}
	seen := map[int]bool{}
	for range n {
		seen[<-ids] = true
	}
	if len(seen) != n || seen[0] || !seen[n] {
		t.Errorf("%d ids for %d networks", len(seen), n)
	}
}
