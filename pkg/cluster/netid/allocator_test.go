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

// Ids: the next one, one for a network, never one for two.
func TestIDs(t *testing.T) {
	now := epoch
	l, woken := New(3, age, &idlease.Memory{}, func() time.Time { return now }), 0
	wake := func() { woken++ }
	want := func(name string, id int) {
		t.Helper()
		if got, err := l.ID(t.Context(), name, wake); err != nil || got != id {
			t.Errorf("%s has the id %d, %v; want %d", name, got, err, id)
		}
	}
	for i := range 3 {
		want(fmt.Sprint(i), i+1)
	}
	want("1", 2) // asking again
	if _, err := l.ID(t.Context(), "4", wake); !errors.Is(err, ErrFull) {
		t.Errorf("more networks than the limit: %v", err)
	}
	if l.ReleaseID("none"); woken != 0 {
		t.Error("woken, though nothing was given back")
	}
	if l.ReleaseID("0"); woken != 1 {
		t.Errorf("woken %d times by an id that was given back", woken)
	}
	want("4", 4)
	if err := l.RestoreID("5", 2); err == nil {
		t.Error("an id was restored that another network has")
	}
	if used, limit := l.IDs(); used != 3 || limit != 3 {
		t.Errorf("%d of %d ids are used", used, limit)
	}
	l.CancelID("4") // nobody was told of it
	want("5", 4)
}

// An id that was given back is given to nobody while it is young, not by the
// next leader either, nor while something of it is left, however old it is.
func TestIDsOfFormerNetworks(t *testing.T) {
	now, m := epoch, &idlease.Memory{}
	leader := func() *Allocator {
		l := New(network.MaxID, age, m, func() time.Time { return now })
		if err := l.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		return l
	}
	l, nobody := leader(), func() {}
	seen := map[int]bool{}
	for i := range 3 * network.MaxID / 2 { // more than there are
		if i%1000 == 999 {
			l = leader()
		}
		now = now.Add(age / network.MaxID)
		id, err := l.ID(t.Context(), fmt.Sprint(i), nobody)
		if err != nil {
			t.Fatal(err)
		}
		if i < network.MaxID-1000 && seen[id] {
			t.Fatalf("network %d has the id %d, which another had", i, id)
		}
		seen[id] = true
		l.ReleaseID(fmt.Sprint(i))
	}
	if len(seen) < network.MaxID-10*ahead {
		t.Errorf("%d ids were given", len(seen))
	}
	// Ids of which something is left.
	l = leader()
	now = now.Add(2 * age)
	left := map[int]string{}
	for id := 1; id <= network.MaxID; id++ {
		if id != 77 {
			left[id] = "node1"
		}
	}
	l.SetInUse(left)
	if id, err := l.ID(t.Context(), "a", nobody); err != nil || id != 77 {
		t.Errorf("a has the id %d, %v; want 77, all others are in use", id, err)
	}
	woken := 0
	if id, err := l.ID(t.Context(), "b", func() { woken++ }); !errors.Is(err, ErrFull) {
		t.Errorf("b has the id %d, %v, and all are in use", id, err)
	}
	if l.SetInUse(nil); woken != 1 {
		t.Errorf("woken %d times when they are in use no more", woken)
	}
}

// An id is given only when that can be noted.
func TestIDNotNoted(t *testing.T) {
	m := &idlease.Memory{Err: errors.New("no API server")}
	l := New(3, age, m, func() time.Time { return epoch })
	if _, err := l.ID(t.Context(), "a", func() {}); err == nil || errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want an error that is worth another try", err)
	}
	m.Err = nil
	if id, err := l.ID(t.Context(), "a", func() {}); err != nil || id != 1 {
		t.Errorf("id %d, %v", id, err)
	}
}

// One primary network a namespace; those who wait are told when it is free.
func TestClaim(t *testing.T) {
	l := New(1, age, &idlease.Memory{}, time.Now)
	var told []string
	l.OnFreed(func(ns string) { told = append(told, ns) })
	if _, ok := l.Claim("ns", "a"); !ok {
		t.Error("a free namespace is refused")
	}
	if holder, ok := l.Claim("ns", "b"); ok || holder != "a" {
		t.Errorf("a taken namespace is %v's, %v", holder, ok)
	}
	if l.Keep("a", func(string) bool { return true }); told != nil {
		t.Errorf("freed %v, which is in use", told)
	}
	if l.Keep("b", func(string) bool { return false }); told != nil {
		t.Errorf("freed %v, which is another's", told)
	}
	if l.Keep("a", func(string) bool { return false }); !slices.Equal(told, []string{"ns"}) {
		t.Errorf("freed %v", told)
	}
	if _, ok := l.Claim("ns", "b"); !ok {
		t.Error("a freed namespace is refused")
	}
}

// Concurrent networks: as many ids as networks.
func TestConcurrent(t *testing.T) {
	l, wake := New(network.MaxID, age, &idlease.Memory{}, time.Now), func() {}
	ids := make(chan int)
	const n = 500
	for i := range n {
		go func() {
			id, _ := l.ID(t.Context(), fmt.Sprint(i), wake)
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
