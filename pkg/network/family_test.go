// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestFamilies(t *testing.T) {
	list := pfx("10.0.0.0/8", "fd00::/8", "192.0.2.1/32")
	for _, c := range []struct {
		v4, v6 bool
		want   []netip.Prefix
	}{
		{true, true, list},
		{true, false, pfx("10.0.0.0/8", "192.0.2.1/32")},
		{false, true, pfx("fd00::/8")},
		{false, false, nil},
	} {
		if got := FilterFamilies(list, c.v4, c.v6); !slices.Equal(got, c.want) {
			t.Errorf("FilterFamilies IPv4 %v, IPv6 %v: %v, want %v", c.v4, c.v6, got, c.want)
		}
	}
	if got := FilterFamilies([]netip.Addr{{}, netip.IPv6Unspecified()}, true, true); len(got) != 1 {
		t.Errorf("FilterFamilies with an invalid address: %v, want only ::", got)
	}
	if got, ok := FirstOfFamily(list, netip.IPv6Unspecified()); !ok || got != list[1] {
		t.Errorf("FirstOfFamily IPv6: %v, %v, want %v", got, ok, list[1])
	}
	if got, ok := FirstOfFamily(list[:1], netip.IPv6Unspecified()); ok || got.IsValid() {
		t.Errorf("FirstOfFamily without an IPv6 prefix: %v, %v, want none", got, ok)
	}
	if a, b, ok := DuplicateFamily(list); !ok || a != list[0] || b != list[2] {
		t.Errorf("DuplicateFamily: %v, %v, %v, want %v and %v", a, b, ok, list[0], list[2])
	}
	if a, b, ok := DuplicateFamily(list[:2]); ok || a.IsValid() || b.IsValid() {
		t.Errorf("DuplicateFamily with one prefix per family: %v, %v, %v, want none", a, b, ok)
	}
	if !SameFamily(list[0], list[2].Addr()) || SameFamily(list[0], list[1]) {
		t.Error("SameFamily: 10.0.0.0/8 has the family of 192.0.2.1, not of fd00::/8")
	}
}

func TestWithout(t *testing.T) {
	for _, c := range []struct{ list, except, want string }{
		{"10.0.0.0/8 fd00::/8", "", "10.0.0.0/8 fd00::/8"},
		{"10.0.0.0/8 fd00::/8", "192.0.2.1 ::ffff:10.0.0.1 2001:db8::1", "10.0.0.0/8 fd00::/8"},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.0/32 10.0.0.2/31"},
		{"10.0.0.4/30 10.0.0.0/30", "10.0.0.3 10.0.0.4", "10.0.0.5/32 10.0.0.6/31 10.0.0.0/31 10.0.0.2/32"},
		{"10.0.0.7/32", "10.0.0.7", ""},
		{"10.0.0.0/22", "10.0.1.0", "10.0.0.0/24 10.0.1.1/32 10.0.1.2/31 10.0.1.4/30 10.0.1.8/29 10.0.1.16/28 10.0.1.32/27 10.0.1.64/26 10.0.1.128/25 10.0.2.0/23"},
		{"fd00::4/126", "fd00::6", "fd00::4/127 fd00::7/128"},
	} {
		var except []netip.Addr
		for _, text := range strings.Fields(c.except) {
			except = append(except, netip.MustParseAddr(text))
		}
		if got := Without(pfx(strings.Fields(c.list)...), except); !slices.Equal(got, pfx(strings.Fields(c.want)...)) {
			t.Errorf("Without(%s, %s): %v, want %s", c.list, c.except, got, c.want)
		}
	}
}
