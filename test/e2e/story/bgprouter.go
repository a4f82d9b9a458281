// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"net/netip"
	"strings"
)

// bgpRouter is a router outside the cluster: an FRR that accepts sessions from all hosts on its link.
type bgpRouter struct {
	name       string
	run        string // command before FRR's daemons
	asn, nodes int    // autonomous system numbers
	link       []netip.Prefix
	networks   []netip.Prefix // that it announces
}

func (r bgpRouter) dir() string { return "/var/run/frr/" + r.name }

// start returns a script that starts the router, again if it has been killed.
func (r bgpRouter) start() string {
	var listen, families strings.Builder
	for i, f := range []string{"ipv4", "ipv6"} {
		is4 := i == 0
		fmt.Fprintf(&families, " address-family %s unicast\n  neighbor nodes activate\n", f)
		if r.asn == r.nodes { // it passes routes of one node on to the others: RFC 4456
			families.WriteString("  neighbor nodes route-reflector-client\n")
		}
		for _, p := range r.networks {
			if p.Addr().Is4() == is4 {
				fmt.Fprintf(&families, "  network %s\n", p)
			}
		}
		families.WriteString(" exit-address-family\n")
		for _, p := range r.link {
			if p.Addr().Is4() == is4 {
				fmt.Fprintf(&listen, " bgp listen range %s peer-group nodes\n", p.Masked())
			}
		}
	}
	return fmt.Sprintf(`set -e
mkdir -p /etc/frr/%[1]s %[2]s
cat > /etc/frr/%[1]s/bgpd.conf <<END
router bgp %[3]d
 bgp router-id 10.99.0.1
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor nodes peer-group
 neighbor nodes remote-as %[4]d
%[5]s%[6]sEND
chown -R frr:frr /etc/frr %[2]s /var/run/frr
for d in zebra bgpd; do
  [ -e %[2]s/$d.pid ] && kill -0 "$(cat %[2]s/$d.pid)" 2>/dev/null && continue
  rm -f %[2]s/$d.pid
  options="-A 127.0.0.1"; [ $d = zebra ] || options="$options -p 179 -f /etc/frr/%[1]s/bgpd.conf"
  %[7]s /usr/lib/frr/$d -d -N %[1]s $options -i %[2]s/$d.pid
done
`, r.name, r.dir(), r.asn, r.nodes, listen.String(), families.String(), r.run)
}

// stop returns a script that kills the router, what runs in its directory, and its routes.
func (r bgpRouter) stop() string {
	return fmt.Sprintf(`for p in %[2]s/*.pid; do [ ! -e "$p" ] || kill -KILL "$(cat "$p")" 2>/dev/null; done
%[3]s ip route flush proto bgp 2>/dev/null; %[3]s ip -6 route flush proto bgp 2>/dev/null
rm -rf /etc/frr/%[1]s %[2]s
`, r.name, r.dir(), r.run)
}
