// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// podAddresses allocates the addresses of this node's pods on the networks whose
// addresses the zone allocates. Owners of addresses are the pods' UIDs. It is safe
// for concurrent use.
type podAddresses struct {
	log *slog.Logger
	// freed is called with the pods that waited for an address of a network.
	freed func(pods []string)
	// lowest: see ipam.Addresses.AllocateLowest.
	lowest bool

	mu           sync.Mutex
	networks     map[string]*nodeAddresses
	reservations map[string]reservation // by pod
	last         int                    // number of the last reservation
}

// nodeAddresses is this node's addresses on one network.
type nodeAddresses struct {
	hosts    []netip.Prefix            // the node's subnets, one per IP family
	pools    []*ipam.Addresses         // one per subnet
	assigned map[string][]netip.Prefix // by UID
	waiting  map[string]struct{}       // pods that wait for a free address
}

// reservation is the addresses in the annotation of a pod that existed at the start,
// but could not be restored: the NAD is broken or deleted, or another pod has the
// address. The pod may still use them, so no other pod gets them.
type reservation struct {
	uid     string
	entries map[string]reservedIPs // by key in the annotation
	number  int                    // increases; if two pods have the same address, the first keeps it
}

type reservedIPs struct {
	network string // "" if no NAD tells: then every network with a matching subnet
	ips     []netip.Prefix
	in      map[string]struct{} // networks in which they are reserved
}

func newPodAddresses(log *slog.Logger, freed func(pods []string)) *podAddresses {
	return &podAddresses{log: log, freed: freed, networks: map[string]*nodeAddresses{}, reservations: map[string]reservation{}}
}

// setSubnets sets the node's subnets on a network. If they have changed, the pods
// keep those of their addresses that are in the new subnets.
func (a *podAddresses) setSubnets(name string, hosts []netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.networks[name]
	if before != nil && slices.Equal(before.hosts, hosts) {
		return
	}
	n := &nodeAddresses{hosts: hosts, assigned: map[string][]netip.Prefix{}, waiting: map[string]struct{}{}}
	for _, h := range hosts {
		pool := ipam.NewAddresses(h, single(network.Gateway(h).Addr()), single(network.Management(h).Addr()))
		if a.lowest {
			pool.AllocateLowest()
		}
		n.pools = append(n.pools, pool)
	}
	a.networks[name] = n
	if before != nil {
		n.waiting = before.waiting
		for _, uid := range slices.Sorted(maps.Keys(before.assigned)) {
			if err := n.reserveEach(uid, before.assigned[uid]); err != nil {
				a.log.Warn("pod's addresses no longer belong to the node's subnet", "network", name, "uid", uid, "error", err)
			}
		}
	}
	a.reserveAgain(name, n)
}

// reserveAgain repeats the reservations on a network whose addresses have become
// free: first the addresses known to be of the network, then those that may be.
func (a *podAddresses) reserveAgain(name string, n *nodeAddresses) {
	for _, of := range []string{name, ""} {
		for _, r := range a.reservationsInOrder() {
			for _, e := range r.entries {
				if e.network == of {
					e.reserve(r.uid, name, n)
				}
			}
		}
	}
}

// forget drops a network that this node has no more.
func (a *podAddresses) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.networks, name)
}

// allocate allocates one address per subnet of the network, or none. Without a free
// address, the pod waits for one.
func (a *podAddresses) allocate(name, uid, pod string) ([]netip.Prefix, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.networks[name]
	var out []netip.Prefix
	for _, p := range n.pools {
		ip, err := p.Allocate(uid)
		if err != nil {
			n.free(uid, out)
			n.waiting[pod] = struct{}{}
			return nil, err
		}
		out = append(out, ip)
	}
	n.assigned[uid] = append(n.assigned[uid], out...)
	return out, nil
}

// restore allocates these addresses, one per subnet of the network, or none.
func (a *podAddresses) restore(name, uid string, ips []netip.Prefix) ([]netip.Prefix, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.networks[name].reserve(uid, ips)
}

// release frees a pod's addresses on a network.
func (a *podAddresses) release(name, uid string, ips []netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.networks[name]
	if n == nil {
		return
	}
	n.assigned[uid] = slices.DeleteFunc(n.assigned[uid], func(p netip.Prefix) bool { return slices.Contains(ips, p) })
	if len(n.assigned[uid]) == 0 {
		delete(n.assigned, uid)
	}
	n.free(uid, ips)
	a.reserveAgain(name, n)
	a.notifyWaiting(n)
}

// stopWaiting forgets that a deleted pod waits for an address.
func (a *podAddresses) stopWaiting(pod string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.networks {
		delete(n.waiting, pod)
	}
}

// notifyWaiting reports the pods that wait for an address.
func (a *podAddresses) notifyWaiting(n *nodeAddresses) {
	if len(n.waiting) > 0 {
		a.freed(slices.Sorted(maps.Keys(n.waiting)))
		clear(n.waiting)
	}
}

// reserveAnnotated replaces a pod's reservation. It reports whether this is the
// first one.
func (a *podAddresses) reserveAnnotated(pod string, r reservation) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, already := a.reservations[pod]
	if len(r.entries) == 0 {
		a.releaseReservation(pod)
		return false
	}
	if r.number = was.number; !already {
		a.last++
		r.number = a.last
	}
	a.reservations[pod] = r // before releasing the former, so that no other pod gets its addresses
	for _, e := range was.entries {
		a.releaseReserved(was.uid, e)
	}
	for _, e := range r.entries {
		for name, n := range a.networks {
			if e.network == "" || e.network == name {
				e.reserve(r.uid, name, n)
			}
		}
	}
	return !already
}

func (a *podAddresses) reservationsInOrder() []reservation {
	return slices.SortedFunc(maps.Values(a.reservations), func(x, y reservation) int { return cmp.Compare(x.number, y.number) })
}

// dropRestored drops the reservations of addresses that are now restored: those of
// the keys of the pod's annotation.
func (a *podAddresses) dropRestored(pod string, restored func(key string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.reservations[pod]
	if !ok {
		return
	}
	for key, e := range r.entries {
		if restored(key) {
			delete(r.entries, key) // first, so that it is not reserved again
			a.releaseReserved(r.uid, e)
		}
	}
	if len(r.entries) == 0 {
		delete(a.reservations, pod)
	}
}

// dropReservation drops a pod's reservation.
func (a *podAddresses) dropReservation(pod string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseReservation(pod)
}

// reservedFor returns the UID of the pod that has a reservation, "" for none.
func (a *podAddresses) reservedFor(pod string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reservations[pod].uid
}

func (a *podAddresses) releaseReservation(pod string) {
	r := a.reservations[pod]
	delete(a.reservations, pod)
	for _, e := range r.entries {
		a.releaseReserved(r.uid, e)
	}
}

// releaseReserved frees reserved addresses that the pod has not been assigned.
func (a *podAddresses) releaseReserved(uid string, e reservedIPs) {
	for name := range e.in {
		n := a.networks[name]
		if n == nil {
			continue
		}
		assigned := func(ip netip.Prefix) bool {
			return slices.ContainsFunc(n.assigned[uid], func(p netip.Prefix) bool { return p.Addr() == ip.Addr() })
		}
		if free := slices.DeleteFunc(slices.Clone(e.ips), assigned); len(free) > 0 {
			n.free(uid, free)
			a.reserveAgain(name, n)
			a.notifyWaiting(n)
		}
	}
}

// reserve reserves the addresses that no other pod has.
func (e reservedIPs) reserve(uid, name string, n *nodeAddresses) {
	for _, ip := range e.ips {
		for _, p := range n.pools {
			if p.Subnet().Contains(ip.Addr()) && p.Reserve(uid, ip.Addr()) == nil {
				e.in[name] = struct{}{}
			}
		}
	}
}

// reserve allocates these addresses, at most one per subnet, or none. A pod that is older than a subnet of
// the other IP family has no address in it.
func (n *nodeAddresses) reserve(uid string, ips []netip.Prefix) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, p := range n.pools {
		i := slices.IndexFunc(ips, func(ip netip.Prefix) bool { return p.Subnet().Contains(ip.Addr()) })
		if i < 0 {
			continue
		}
		if err := p.Reserve(uid, ips[i].Addr()); err != nil {
			n.free(uid, out)
			return nil, err
		}
		out = append(out, netip.PrefixFrom(ips[i].Addr(), p.Subnet().Bits()))
	}
	if len(out) == 0 || len(out) != len(ips) {
		n.free(uid, out)
		return nil, fmt.Errorf("%v are not one address per subnet of %v", ips, n.hosts)
	}
	n.assigned[uid] = append(n.assigned[uid], out...)
	return out, nil
}

// reserveEach allocates those of the addresses that it can. The error names the
// others.
func (n *nodeAddresses) reserveEach(uid string, ips []netip.Prefix) error {
	var errs []error
	for _, ip := range ips {
		i := slices.IndexFunc(n.pools, func(p *ipam.Addresses) bool { return p.Subnet().Contains(ip.Addr()) })
		if i < 0 {
			errs = append(errs, fmt.Errorf("%s is not in %v", ip, n.hosts))
		} else if err := n.pools[i].Reserve(uid, ip.Addr()); err != nil {
			errs = append(errs, err)
		} else {
			n.assigned[uid] = append(n.assigned[uid], ip)
		}
	}
	return errors.Join(errs...)
}

// free returns addresses to the pools.
func (n *nodeAddresses) free(uid string, ips []netip.Prefix) {
	for _, ip := range ips {
		for _, p := range n.pools {
			p.Release(uid, ip.Addr())
		}
	}
}
