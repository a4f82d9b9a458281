// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestAddressesFillSubnet(t *testing.T) {
	for _, tt := range []struct {
		subnet   string
		excluded []string
		want     int
	}{
		{"10.0.0.0/29", nil, 6},
		{"10.0.0.0/29", []string{"10.0.0.1/32", "10.0.0.2/32"}, 4},
		{"10.0.0.0/28", []string{"10.0.0.8/29"}, 7},
		{"10.0.0.0/28", []string{"10.0.0.0/29"}, 7},
		{"10.0.0.0/28", []string{"10.0.0.0/28"}, 0},
		{"fd00::/125", []string{"fd00::1/128"}, 6},
		{"255.255.255.248/29", nil, 6},
	} {
		var ex []netip.Prefix
		for _, e := range tt.excluded {
			ex = append(ex, netip.MustParsePrefix(e))
		}
		a := NewAddresses(netip.MustParsePrefix(tt.subnet), ex...)
		seen := map[netip.Addr]bool{}
		for {
			p, err := a.Allocate(fmt.Sprint(len(seen)))
			if err != nil {
				break
			}
			if seen[p.Addr()] || !a.Subnet().Contains(p.Addr()) {
				t.Fatalf("%s: %s is allocated twice or outside the subnet", tt.subnet, p)
			}
			seen[p.Addr()] = true
		}
		if len(seen) != tt.want {
			t.Errorf("%s less %v: %d addresses, want %d", tt.subnet, tt.excluded, len(seen), tt.want)
		}
	}
}

// An allocator that is made again, of the addresses that are still held, does not begin with the one that was released last.
// Later reservations, of addresses that somebody chooses, do not move the search.
func TestAddressesRestored(t *testing.T) {
	for _, subnet := range []string{"10.0.0.0/28", "fd00::/124"} {
		prefix := netip.MustParsePrefix(subnet)
		at := func(i int) netip.Addr {
			a := prefix.Addr()
			for range i {
				a = a.Next()
			}
			return a
		}
		a := NewAddresses(prefix)
		for _, i := range []int{9, 4, 5, 6, 7, 8} { // 3 was just released
			if err := a.Reserve("old", at(i)); err != nil {
				t.Fatal(err)
			}
		}
		for step, want := range []int{10, 11, 13, 14} {
			if p, err := a.Allocate("new"); err != nil || p.Addr() != at(want) {
				t.Errorf("%s: got %s, %v; want %s", subnet, p, err, at(want))
			}
			if step == 0 {
				if err := a.Reserve("chosen", at(12)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// After any sequence of Allocate and Release, Allocate fails only if all
// addresses are held.
func TestAddressesChurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAddresses(netip.MustParsePrefix("10.0.0.0/28"), netip.MustParsePrefix("10.0.0.4/30"))
		held := map[string]netip.Addr{}
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "release") {
				for o, addr := range held {
					a.Release(o, addr)
					delete(held, o)
					break
				}
				continue
			}
			o := fmt.Sprint("p", i)
			p, err := a.Allocate(o)
			if err != nil {
				if len(held) != 10 {
					t.Fatalf("Allocate failed with %d of 10 addresses held: %v", len(held), err)
				}
				continue
			}
			for other, addr := range held {
				if addr == p.Addr() {
					t.Fatalf("%s held by %s and %s", addr, other, o)
				}
			}
			held[o] = p.Addr()
		}
	})
}

func TestAddressesReserve(t *testing.T) {
	a := NewAddresses(netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.0.1/32"))
	addr := netip.MustParseAddr("10.0.0.9")
	if err := a.Reserve("p", addr); err != nil {
		t.Fatal(err)
	}
	if err := a.Reserve("p", addr); err != nil {
		t.Errorf("Reserve again for the same owner: %v", err)
	}
	for _, bad := range []string{"10.0.0.9", "10.0.0.1", "10.0.0.0", "10.0.0.255", "10.0.1.5"} {
		if err := a.Reserve("q", netip.MustParseAddr(bad)); err == nil {
			t.Errorf("Reserve %s succeeded", bad)
		}
	}
	a.Release("q", addr)
	if _, held := a.Owner(addr); !held {
		t.Error("another owner's Release freed the address")
	}
}
