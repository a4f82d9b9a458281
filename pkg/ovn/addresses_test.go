// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever is allocated, restored, reserved and released, no two pods have one
// address, no pod gets an address that is reserved for another, and a released
// address is free again.
func TestPodAddresses(t *testing.T) {
	const net = "red_net"
	hosts := prefixes("10.0.0.0/28", "fd00::/64")
	rapid.Check(t, func(t *rapid.T) {
		var freed []string
		a := newPodAddresses(quietLog(), func(pods []string) { freed = append(freed, pods...) })
		a.setSubnets(net, hosts)
		has := map[string][]netip.Prefix{}      // by pod
		reserved := map[string][]netip.Prefix{} // by pod
		check := func(pod string, ips []netip.Prefix) {
			for other, all := range has {
				for _, ip := range ips {
					if other != pod && slices.Contains(all, ip) {
						t.Fatalf("%s and %s have %s", pod, other, ip)
					}
				}
			}
			for other, all := range reserved {
				for _, ip := range ips {
					if other != pod && slices.Contains(all, ip) && !slices.Contains(reserved[pod], ip) {
						t.Fatalf("%s has %s, which is reserved for %s", pod, ip, other)
					}
				}
			}
			has[pod] = ips
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			pod := fmt.Sprintf("p%d", rapid.IntRange(0, 15).Draw(t, "pod"))
			i := rapid.IntRange(3, 14).Draw(t, "address")
			ips := prefixes(fmt.Sprintf("10.0.0.%d/28", i), fmt.Sprintf("fd00::%d/64", i))
			switch rapid.SampledFrom([]string{"allocate", "restore", "release", "reserve", "drop", "subnets"}).Draw(t, "what") {
			case "allocate":
				if has[pod] != nil {
					continue
				}
				freed = nil
				if got, err := a.allocate(net, pod, pod); err == nil {
					check(pod, got)
				} else if len(has)+len(reserved) < 12 {
					t.Fatalf("no address with %d in use: %v", len(has)+len(reserved), err)
				}
			case "restore":
				if has[pod] != nil {
					continue
				}
				if got, err := a.restore(net, pod, ips); err == nil {
					check(pod, got)
				}
			case "release":
				a.release(net, pod, has[pod])
				delete(has, pod)
			case "reserve":
				if has[pod] != nil {
					continue
				}
				if reserved[pod] != nil {
					continue
				}
				a.reserveAnnotated(pod, reservation{uid: pod, entries: map[string]reservedIPs{"red/net": {network: net, ips: ips, in: map[string]struct{}{}}}})
				reserved[pod] = ips
			case "drop":
				a.dropReservation(pod)
				delete(reserved, pod)
			case "subnets":
				a.setSubnets(net, prefixes("10.1.0.0/28"))
				a.setSubnets(net, hosts)
				clear(has) // none of them is in the other subnet
				for pod := range reserved {
					if a.reservedFor(pod) != pod {
						t.Fatalf("the reservation of %s is lost", pod)
					}
				}
			}
		}
	})
}

// TestRestoreBeforeFamily: a pod that is older than its network's IPv6 subnet keeps its IPv4 address at a restart.
// Addresses outside of the node's subnets, and two in one subnet, are refused and stay free.
func TestRestoreBeforeFamily(t *testing.T) {
	a := newPodAddresses(quietLog(), func([]string) {})
	a.setSubnets("red_net", prefixes("10.0.0.0/24", "fd00::/64"))
	for _, c := range []struct {
		ips []string
		ok  bool
	}{
		{[]string{"10.0.0.5/24", "10.0.0.6/24"}, false},
		{[]string{"10.0.0.5/24", "fd01::5/64"}, false},
		{[]string{"10.1.0.5/24"}, false},
		{nil, false},
		{[]string{"10.0.0.5/24"}, true},
		{[]string{"fd00::6/64", "10.0.0.6/24"}, true},
		{[]string{"10.0.0.5/24"}, false}, // another pod has it
	} {
		uid := fmt.Sprint(c.ips, c.ok)
		got, err := a.restore("red_net", uid, prefixes(c.ips...))
		if c.ok != (err == nil) || len(got) != len(c.ips) && c.ok {
			t.Errorf("%v: %v, %v", c.ips, got, err)
		}
	}
}

// A pod that found no address is reported when one is free.
func TestPodAddressesWaiting(t *testing.T) {
	var freed []string
	a := newPodAddresses(quietLog(), func(pods []string) { freed = append(freed, pods...) })
	a.setSubnets("n", prefixes("10.0.0.0/29")) // .3 to .6
	var first []netip.Prefix
	for i := range 4 {
		got, err := a.allocate("n", fmt.Sprint(i), fmt.Sprint("ns/p", i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = got
		}
	}
	for i := 4; i < 7; i++ {
		if _, err := a.allocate("n", fmt.Sprint(i), fmt.Sprint("ns/p", i)); err == nil {
			t.Fatal("a fifth address")
		}
	}
	a.stopWaiting("ns/p6") // deleted
	if a.release("n", "0", first); !slices.Equal(freed, []string{"ns/p4", "ns/p5"}) {
		t.Errorf("reported %v", freed)
	}
	if got, err := a.allocate("n", "4", "ns/p4"); err != nil || !slices.Equal(got, first) {
		t.Errorf("got %v, %v; want %v", got, err, first)
	}
	if a.forget("n"); len(a.networks) > 0 {
		t.Errorf("forgotten networks: %v", a.networks)
	}
}
