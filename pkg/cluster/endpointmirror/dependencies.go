// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// dependencyIndex is an index of sources by the pods, namespaces and addresses
// that their mirrors depend on, and of pods by their address on the cluster
// default network. An index of the cache would also hold the endpoints and pods
// of namespaces without a primary network.
//
// A reconcile misses no concurrent event: the reconcile adds its dependencies
// before it reads the cache, and the event handler reads the index after the
// cache has changed.
type dependencyIndex struct {
	mu           sync.Mutex
	byDependency map[dependency]map[Source]struct{}
	bySource     map[Source][]dependency
	podsByAddr   map[netip.Addr][]PodRef // normally one, as only a wrong annotation repeats an address
}

// dependency is a pod, a namespace (without a pod's name), or an address.
type dependency struct {
	PodRef
	addr netip.Addr
}

// set replaces the dependencies of s. No dependencies removes s.
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

// add adds a dependency of s.
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

// has reports whether s has dependencies.
func (i *dependencyIndex) has(s Source) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.bySource[s]) > 0
}

// sources returns the sources that depend on x.
func (i *dependencyIndex) sources(x dependency) []Source {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]Source, 0, len(i.byDependency[x]))
	for s := range i.byDependency[x] {
		out = append(out, s)
	}
	return out
}

// addPod adds a pod with its addresses on the cluster default network.
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

// removePod removes a pod with its addresses on the cluster default network.
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

// podsAt returns the pods with an address, normally one. If there are several,
// those in the given namespace come first.
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
