// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestHostPortRoutes(t *testing.T) {
	plan := Plan{Masquerade: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17"), netip.MustParsePrefix("fd69::/112")}}
	dual := Network{ID: 3, Subnets: []Subnet{{CIDR: netip.MustParsePrefix("10.20.0.0/16")}, {CIDR: netip.MustParsePrefix("fd20::/64")}}}
	v4 := Network{ID: 3, Subnets: dual.Subnets[:1]}
	node := []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("192.0.2.99/32"), netip.MustParsePrefix("2001:db8::10/64")}
	for _, c := range []struct {
		host string
		net  Network
		want string
	}{
		{"", dual, "[{192.0.2.10 169.254.0.15} {192.0.2.99 169.254.0.15} {2001:db8::10 fd69::f} {127.0.0.1 169.254.0.15} {::1 fd69::f}]"},
		{"", v4, "[{192.0.2.10 169.254.0.15} {192.0.2.99 169.254.0.15} {127.0.0.1 169.254.0.15}]"},
		{"0.0.0.0", dual, "[{192.0.2.10 169.254.0.15} {192.0.2.99 169.254.0.15} {127.0.0.1 169.254.0.15}]"},
		{"::", dual, "[{2001:db8::10 fd69::f} {::1 fd69::f}]"},
		{"192.0.2.10", dual, "[{192.0.2.10 169.254.0.15}]"},
		{"192.0.2.99", dual, "[]"},
		{"198.51.100.1", dual, "[]"},
		{"127.0.0.1", dual, "[{127.0.0.1 169.254.0.7}]"},
		{"::1", dual, "[{::1 fd69::7}]"},
		{"::1", v4, "[]"},
	} {
		p := HostPort{Protocol: "tcp", Port: 80, PodPort: 8080}
		if c.host != "" {
			p.Host = netip.MustParseAddr(c.host)
		}
		if got := fmt.Sprint(p.Routes(plan, c.net, node)); got != c.want {
			t.Errorf("host address %q: %s, want %s", c.host, got, c.want)
		}
	}
}
