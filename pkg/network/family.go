// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"
)

// IP is an address, or a prefix, whose IP family is that of its address.
type IP interface{ netip.Addr | netip.Prefix }

func addrOf[T IP](x T) netip.Addr {
	switch x := any(x).(type) {
	case netip.Addr:
		return x
	case netip.Prefix:
		return x.Addr()
	}
	return netip.Addr{}
}

// SameFamily reports whether a and b have the same IP family.
func SameFamily[A, B IP](a A, b B) bool { return addrOf(a).Is4() == addrOf(b).Is4() }

// FilterFamilies returns the IPv4 items of list if v4 is set, and the IPv6
// items if v6 is set, in their order.
func FilterFamilies[T IP](list []T, v4, v6 bool) []T {
	var out []T
	for _, x := range list {
		if a := addrOf(x); a.Is4() && v4 || a.Is6() && v6 {
			out = append(out, x)
		}
	}
	return out
}

// FirstOfFamily returns the first item of list that has the IP family of like.
func FirstOfFamily[T, L IP](list []T, like L) (first T, ok bool) {
	for _, x := range list {
		if SameFamily(x, like) {
			return x, true
		}
	}
	return first, false
}

// DuplicateFamily returns the first two items of list that have the same IP
// family. ok is false if there is at most one item per IP family.
func DuplicateFamily[T IP](list []T) (first, second T, ok bool) {
	for i, x := range list {
		if first, ok := FirstOfFamily(list[:i], x); ok {
			return first, x, true
		}
	}
	return first, second, false
}

// Without returns prefixes that together have the addresses of list, except for these.
func Without(list []netip.Prefix, except []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		if !slices.ContainsFunc(except, p.Contains) {
			out = append(out, p)
		} else if !p.IsSingleIP() {
			low, high := halves(p)
			out = append(out, Without([]netip.Prefix{low, high}, except)...)
		}
	}
	return out
}

// halves divides a prefix of more than one address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	low = netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)
	bytes := low.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	return low, netip.PrefixFrom(upper, p.Bits()+1)
}
