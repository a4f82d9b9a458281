// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// interest knows which sources an event of a pod or of a network concerns, and
// which pod is behind an address of the cluster default network. It is kept by
// hand, as an index of the cache would hold the endpoints and pods of every
// namespace, tenant's or not.
//
// Nothing is lost between an event and a reconcile that run at the same time:
// the reconcile says what it is interested in before it reads, and the event
// asks after the cache was changed.
type dependencyIndex struct {
	mu           sync.Mutex
	byDependency map[dependency]map[Source]struct{}
	bySource     map[Source][]dependency
	podsByAddr   map[netip.Addr][]PodRef // one, or more while somebody claims another's address
}

// subject is a pod, a namespace (without a pod's name), or an address.
type dependency struct {
	PodRef
	addr netip.Addr
}

// set replaces what s is interested in; nothing forgets s.
func (i *dependencyIndex) set(s Source, deps []dependency) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if slices.Equal(i.bySource[s], deps) {
		return
	}
	for _, x := range i.bySource[s] {
		delete(i.byDependency[x], s)
		if len(i.byDependency[x]) == 0 {
			delete(i.byDependency, x)
		}
	}
	delete(i.bySource, s)
	i.addLocked(s, deps)
}

// add is set without forgetting.
func (i *dependencyIndex) add(s Source, x dependency) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.byDependency[x][s]; !ok {
		i.addLocked(s, []dependency{x})
	}
}

func (i *dependencyIndex) addLocked(s Source, deps []dependency) {
	if len(deps) == 0 {
		return
	}
	if i.byDependency == nil {
		i.byDependency, i.bySource = map[dependency]map[Source]struct{}{}, map[Source][]dependency{}
	}
	for _, x := range deps {
		if i.byDependency[x] == nil {
			i.byDependency[x] = map[Source]struct{}{}
		}
		i.byDependency[x][s] = struct{}{}
	}
	i.bySource[s] = append(i.bySource[s], deps...)
}

// has tells whether s is interested in anything.
func (i *dependencyIndex) has(s Source) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.bySource[s]) > 0
}

// in are the sources that are interested in x.
func (i *dependencyIndex) sources(x dependency) []Source {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]Source, 0, len(i.byDependency[x]))
	for s := range i.byDependency[x] {
		out = append(out, s)
	}
	return out
}

// learn notes that a pod has addresses on the cluster default network, and
// forget that it has not any more.
func (i *dependencyIndex) addPod(pod PodRef, addrs []netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, a := range addrs {
		if i.podsByAddr == nil {
			i.podsByAddr = map[netip.Addr][]PodRef{}
		}
		if !slices.Contains(i.podsByAddr[a], pod) {
			i.podsByAddr[a] = append(i.podsByAddr[a], pod)
		}
	}
}

func (i *dependencyIndex) removePod(pod PodRef, addrs []netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, a := range addrs {
		remaining := slices.DeleteFunc(i.podsByAddr[a], func(p PodRef) bool { return p == pod })
		if len(remaining) == 0 {
			delete(i.podsByAddr, a)
		} else {
			i.podsByAddr[a] = remaining
		}
	}
}

// behind are the pods that have the address: normally one. Where several claim
// it, those of the namespace are believed first.
func (i *dependencyIndex) podsAt(a netip.Addr, namespace string) []PodRef {
	i.mu.Lock()
	out := slices.Clone(i.podsByAddr[a])
	i.mu.Unlock()
	foreign := func(p PodRef) int {
		if p.Namespace == namespace {
			return 0
		}
		return 1
	}
	slices.SortFunc(out, func(a, b PodRef) int {
		return cmp.Or(foreign(a)-foreign(b), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}
