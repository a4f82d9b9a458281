// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// ledger is what reconcilers of different networks must agree on before it is
// in the API: who has which network id, which network a namespace has as its
// primary one, and which deletions wait for pods. It is rebuilt from the NADs
// whenever this process becomes the leader.
type ledger struct {
	mu      sync.Mutex
	max     int
	ids     *ipam.IDs
	primary map[string]Owner              // by namespace
	held    map[Owner]map[string]struct{} // the same by owner
	waiting map[string]Owner              // NAD key → whose deletion its pods hold up
}

func newLedger(maxNetworks int) *ledger {
	return &ledger{
		max: maxNetworks, ids: ipam.NewIDs(1, network.MaxID),
		primary: map[string]Owner{}, held: map[Owner]map[string]struct{}{}, waiting: map[string]Owner{},
	}
}

// restoreID takes over an id that a NAD carries. The error says who has it.
func (l *ledger) restoreID(networkName string, id int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids.Reserve(networkName, id)
}

// id gives the owner's network an id, or the one it has.
func (l *ledger) id(o Owner) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := o.Network()
	if id, ok := l.ids.Get(name); ok {
		return id, nil
	}
	if l.ids.Len() >= l.max {
		return 0, fmt.Errorf("the cluster has %d networks, as many as it may have: delete one, or raise max-networks", l.max)
	}
	return l.ids.Allocate(name)
}

// hasID is the id that the owner's network has, 0 for none.
func (l *ledger) hasID(o Owner) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, _ := l.ids.Get(o.Network())
	return id
}

func (l *ledger) releaseID(o Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids.Release(o.Network())
}

// claim makes o's network the namespace's primary one, or says whose is.
func (l *ledger) claim(namespace string, o Owner) (holder Owner, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder, taken := l.primary[namespace]; taken {
		return holder, holder == o
	}
	l.primary[namespace] = o
	if l.held[o] == nil {
		l.held[o] = map[string]struct{}{}
	}
	l.held[o][namespace] = struct{}{}
	return o, true
}

// keep gives up o's claims on all namespaces but those in use, and returns
// the namespaces that are free now.
func (l *ledger) keep(o Owner, inUse ...map[string]NAD) (freed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ns := range maps.Clone(l.held[o]) {
		if slices.ContainsFunc(inUse, func(m map[string]NAD) bool { _, ok := m[ns]; return ok }) {
			continue
		}
		delete(l.held[o], ns)
		delete(l.primary, ns)
		freed = append(freed, ns)
	}
	if len(l.held[o]) == 0 {
		delete(l.held, o)
	}
	return freed
}

// wait notes that the NAD's pods hold up what o wants to do.
func (l *ledger) wait(nadKey string, o Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[nadKey] = o
}

func (l *ledger) done(nadKey string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, nadKey)
}

// waiter is who waits for pods to leave the NAD.
func (l *ledger) waiter(nadKey string) (Owner, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.waiting[nadKey]
	return o, ok
}
