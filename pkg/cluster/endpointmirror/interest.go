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
type interest struct {
	mu   sync.Mutex
	by   map[subject]map[Source]struct{}
	of   map[Source][]subject
	pods map[netip.Addr][]PodRef // one, or more while somebody claims another's address
}

// subject is a pod, a namespace (without a pod's name), or an address.
type subject struct {
	PodRef
	addr netip.Addr
}

// set replaces what s is interested in; nothing forgets s.
func (i *interest) set(s Source, subjects []subject) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if slices.Equal(i.of[s], subjects) {
		return
	}
	for _, x := range i.of[s] {
		delete(i.by[x], s)
		if len(i.by[x]) == 0 {
			delete(i.by, x)
		}
	}
	delete(i.of, s)
	i.addLocked(s, subjects)
}

// add is set without forgetting.
func (i *interest) add(s Source, x subject) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.by[x][s]; !ok {
		i.addLocked(s, []subject{x})
	}
}

func (i *interest) addLocked(s Source, subjects []subject) {
	if len(subjects) == 0 {
		return
	}
	if i.by == nil {
		i.by, i.of = map[subject]map[Source]struct{}{}, map[Source][]subject{}
	}
	for _, x := range subjects {
		if i.by[x] == nil {
			i.by[x] = map[Source]struct{}{}
		}
		i.by[x][s] = struct{}{}
	}
	i.of[s] = append(i.of[s], subjects...)
}

// has tells whether s is interested in anything.
func (i *interest) has(s Source) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.of[s]) > 0
}

// in are the sources that are interested in x.
func (i *interest) in(x subject) []Source {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]Source, 0, len(i.by[x]))
	for s := range i.by[x] {
		out = append(out, s)
	}
	return out
}

// learn notes that a pod has addresses on the cluster default network, and
// forget that it has not any more.
func (i *interest) learn(pod PodRef, addrs []netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, a := range addrs {
		if i.pods == nil {
			i.pods = map[netip.Addr][]PodRef{}
		}
		if !slices.Contains(i.pods[a], pod) {
			i.pods[a] = append(i.pods[a], pod)
		}
	}
}

func (i *interest) forget(pod PodRef, addrs []netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, a := range addrs {
		left := slices.DeleteFunc(i.pods[a], func(p PodRef) bool { return p == pod })
		if len(left) == 0 {
			delete(i.pods, a)
		} else {
			i.pods[a] = left
		}
	}
}

// behind are the pods that have the address: normally one. Where several claim
// it, those of the namespace are believed first.
func (i *interest) behind(a netip.Addr, namespace string) []PodRef {
	i.mu.Lock()
	out := slices.Clone(i.pods[a])
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
