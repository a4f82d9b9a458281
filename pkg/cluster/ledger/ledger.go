// SPDX-License-Identifier: Apache-2.0

// Package ledger is what the cluster role's reconcilers must agree on before
// it is in the API: which network has which id, and which network is the
// primary one of a namespace. It holds nothing that is not in the API a moment
// later, and is rebuilt from there whenever a process becomes the leader.
package ledger

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// Ledger is safe for concurrent use. Holders are named as an administrator
// knows them, as their names end up in messages: "ClusterUserDefinedNetwork
// red", "NetworkAttachmentDefinition a/net".
type Ledger struct {
	mu      sync.Mutex
	max     int
	ids     *ipam.IDs                      // by network name
	primary map[string]string              // holder by namespace
	held    map[string]map[string]struct{} // the same by holder
	tell    []func(namespace string)
	refused map[string]func() // by network name, for want of ids
}

// New makes an empty ledger for at most max networks.
func New(max int) *Ledger {
	return &Ledger{
		max: max, ids: ipam.NewIDs(1, network.MaxID),
		primary: map[string]string{}, held: map[string]map[string]struct{}{},
	}
}

// RestoreID takes over an id that the API says the network has. The error
// says which network has it.
func (l *Ledger) RestoreID(networkName string, id int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids.Reserve(networkName, id)
}

// ID gives the network an id, or the one it has. Where there is none left,
// wake is called once when another network has given its back.
func (l *Ledger) ID(networkName string, wake func()) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.ids.Get(networkName); ok {
		return id, nil
	}
	if l.ids.Len() >= l.max {
		if l.refused == nil {
			l.refused = map[string]func(){}
		}
		l.refused[networkName] = wake
		return 0, fmt.Errorf("the cluster has %d networks, as many as it may have: delete one, or raise max-networks", l.max)
	}
	return l.ids.Allocate(networkName)
}

// HasID is the id that the network has, 0 for none.
func (l *Ledger) HasID(networkName string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, _ := l.ids.Get(networkName)
	return id
}

// ReleaseID gives the network's id back. Nothing may use it any more.
func (l *Ledger) ReleaseID(networkName string) {
	for _, wake := range l.releaseID(networkName) {
		wake()
	}
}

func (l *Ledger) releaseID(networkName string) (wake []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.refused, networkName)
	if _, ok := l.ids.Get(networkName); !ok {
		return nil
	}
	l.ids.Release(networkName)
	wake = slices.Collect(maps.Values(l.refused))
	l.refused = nil
	return wake
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
