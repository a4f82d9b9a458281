// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
)

// Addresses allocates single addresses of one subnet. A released address is
// not allocated again before the search has wrapped around, so that a new pod
// does not inherit a deleted pod's connections. What a former allocator released is
// not known. The search starts after the highest address that was reserved before the
// first is allocated: the former one has been there, unless it had wrapped around.
type Addresses struct {
	subnet   netip.Prefix
	excluded []netip.Prefix
	owner    map[netip.Addr]string
	next     netip.Addr
	started  bool // an address was allocated
	lowest   bool
}

// NewAddresses returns an allocator of subnet. The network address, the IPv4
// broadcast address and those in excluded are never allocated.
func NewAddresses(subnet netip.Prefix, excluded ...netip.Prefix) *Addresses {
	subnet = subnet.Masked()
	return &Addresses{subnet: subnet, excluded: excluded, owner: map[netip.Addr]string{}, next: subnet.Addr().Next()}
}

// AllocateLowest makes the allocator assign the lowest free address, also if it was just released: tests compare states.
func (a *Addresses) AllocateLowest() { a.lowest = true }

// Subnet returns the prefix that addresses are allocated from.
func (a *Addresses) Subnet() netip.Prefix { return a.subnet }

// Exclude replaces the prefixes that are never allocated. An owner that already
// holds such an address keeps it.
func (a *Addresses) Exclude(excluded ...netip.Prefix) { a.excluded = excluded }

// Reserve records that owner holds addr, as found in the API. Reserving an
// address again for its owner is a no-op.
func (a *Addresses) Reserve(owner string, addr netip.Addr) error {
	if !a.subnet.Contains(addr) {
		return fmt.Errorf("reserve %s for %s: outside %s", addr, owner, a.subnet)
	}
	if other, ok := a.owner[addr]; ok && other != owner {
		return fmt.Errorf("reserve %s for %s: %s holds it", addr, owner, other)
	}
	if !a.usable(addr) {
		return fmt.Errorf("reserve %s for %s: the address is excluded", addr, owner)
	}
	a.owner[addr] = owner
	if !a.started && !addr.Less(a.next) {
		a.next = addr.Next()
	}
	return nil
}

// Allocate assigns a free address to owner.
func (a *Addresses) Allocate(owner string) (netip.Prefix, error) {
	// Each step skips a held address, an excluded range, the broadcast
	// address or the end of the subnet: this many cover the whole subnet.
	candidate := a.next
	if a.lowest {
		candidate = a.subnet.Addr().Next()
	}
	for steps := len(a.owner) + 2*len(a.excluded) + 4; steps > 0; steps-- {
		if !candidate.IsValid() || !a.subnet.Contains(candidate) {
			candidate = a.subnet.Addr().Next()
			continue
		}
		if e, ok := a.excludedBy(candidate); ok {
			candidate = lastAddr(e).Next()
			continue
		}
		if _, held := a.owner[candidate]; !held && a.usable(candidate) {
			a.owner[candidate] = owner
			a.next, a.started = candidate.Next(), true
			return netip.PrefixFrom(candidate, a.subnet.Bits()), nil
		}
		candidate = candidate.Next()
	}
	return netip.Prefix{}, fmt.Errorf("allocate an address of %s for %s: %w", a.subnet, owner, ErrExhausted)
}

// Release frees addr if owner holds it.
func (a *Addresses) Release(owner string, addr netip.Addr) {
	if a.owner[addr] == owner {
		delete(a.owner, addr)
	}
}

// Owner returns the owner that holds addr.
func (a *Addresses) Owner(addr netip.Addr) (string, bool) { o, ok := a.owner[addr]; return o, ok }

// Len returns the number of held addresses.
func (a *Addresses) Len() int { return len(a.owner) }

func (a *Addresses) excludedBy(addr netip.Addr) (netip.Prefix, bool) {
	for _, e := range a.excluded {
		if e.Contains(addr) {
			return e, true
		}
	}
	return netip.Prefix{}, false
}

func (a *Addresses) usable(addr netip.Addr) bool {
	if addr == a.subnet.Addr() || addr.Is4() && addr == lastAddr(a.subnet) {
		return false
	}
	_, excluded := a.excludedBy(addr)
	return !excluded
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
