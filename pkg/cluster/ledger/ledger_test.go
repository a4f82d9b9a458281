// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"slices"
	"testing"

	"bulkhead/pkg/network"
)

// Ids: the lowest free one, one for a network, never one for two.
func TestIDs(t *testing.T) {
	l, woken := New(3), 0
	wake := func() { woken++ }
	for i := range 3 {
		if id, err := l.ID(fmt.Sprint(i), wake); err != nil || id != i+1 {
			t.Fatalf("id %d, %v", id, err)
		}
	}
	if id, err := l.ID("1", wake); err != nil || id != 2 {
		t.Errorf("asking again gives %d, %v", id, err)
	}
	if _, err := l.ID("4", wake); err == nil {
		t.Error("more networks than the limit")
	}
	if l.ReleaseID("none"); woken != 0 {
		t.Error("woken, though nothing was given back")
	}
	if l.ReleaseID("0"); woken != 1 {
		t.Errorf("woken %d times by an id that was given back", woken)
	}
	if id, err := l.ID("4", wake); err != nil || id != 1 {
		t.Errorf("the lowest free id is %d, %v", id, err)
	}
	if err := l.RestoreID("5", 2); err == nil {
		t.Error("an id was restored that another network has")
	}
	if used, limit := l.IDs(); used != 3 || limit != 3 {
		t.Errorf("%d of %d ids are used", used, limit)
	}
}

// One primary network a namespace; those who wait are told when it is free.
func TestClaim(t *testing.T) {
	l := New(1)
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
	l, wake := New(network.MaxID), func() {}
	ids := make(chan int)
	const n = 500
	for i := range n {
		go func() {
			id, _ := l.ID(fmt.Sprint(i), wake)
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
