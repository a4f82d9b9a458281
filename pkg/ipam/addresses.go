// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
)

// Addresses hands out single addresses of one subnet. An address that was
// given back is not handed out again before the search has gone round, so
// that a new pod does not at once inherit a dead pod's connections.
type Addresses struct {
	subnet   netip.Prefix
	excluded []netip.Prefix
	owner    map[netip.Addr]string
	next     netip.Addr
}

// NewAddresses makes an allocator of subnet. The network and (IPv4) broadcast
// addresses and those in excluded are never handed out.
func NewAddresses(subnet netip.Prefix, excluded ...netip.Prefix) *Addresses {
	subnet = subnet.Masked()
	return &Addresses{subnet: subnet, excluded: excluded, owner: map[netip.Addr]string{}, next: subnet.Addr().Next()}
}

// Subnet is the prefix that addresses come from.
func (a *Addresses) Subnet() netip.Prefix { return a.subnet }

// Exclude replaces what is never handed out. Who holds such an address keeps
// it.
func (a *Addresses) Exclude(excluded ...netip.Prefix) { a.excluded = excluded }

// Reserve records that owner holds addr, as found in the API. Reserving twice
// for one owner is no error.
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
	return nil
}

// Allocate gives owner a free address.
func (a *Addresses) Allocate(owner string) (netip.Prefix, error) {
	// Each step passes a held address, an excluded range, the broadcast
	// address or the subnet's end; once round is enough.
	candidate := a.next
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
			a.next = candidate.Next()
			return netip.PrefixFrom(candidate, a.subnet.Bits()), nil
		}
		candidate = candidate.Next()
	}
	return netip.Prefix{}, fmt.Errorf("allocate an address of %s for %s: %w", a.subnet, owner, ErrExhausted)
}

// Release gives addr back if owner holds it.
func (a *Addresses) Release(owner string, addr netip.Addr) {
	if a.owner[addr] == owner {
		delete(a.owner, addr)
	}
}

// Owner is who holds addr.
func (a *Addresses) Owner(addr netip.Addr) (string, bool) { o, ok := a.owner[addr]; return o, ok }

// Len is how many addresses are held.
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
