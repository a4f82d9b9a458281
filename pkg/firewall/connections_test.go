// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// What tenants' processes open with masquerade addresses, or with another's address into their network, is dropped before
// any rule accepts it.
func TestTenantsNewConnections(t *testing.T) {
	for name, roots := range map[string][]Cgroup{"sockets cannot be matched": nil, "sockets can be matched": {{"kubepods.slice", 9}}} {
		rules := outputRules(t, Inputs{Bridge: "br-ex", Plan: plan, PodRoots: roots})
		accepting := slices.IndexFunc(rules, func(text string) bool { return strings.Contains(text, "goto") })
		for _, text := range []string{
			"ip saddr 169.254.0.0/17 ip saddr != 169.254.0.6 %s 0x10000-0x2711ffff counter name foreign_socket drop",
			"ip6 saddr fd69::/112 ip6 saddr != fd69::6 %s 0x10000-0x2711ffff counter name foreign_socket drop",
			`oifname "ovn-k8s-mp*" %s 0x10000-0x2711ffff ct direction original fib saddr type != local fib saddr . oif type != local counter name foreign_socket drop`,
		} {
			for match, want := range map[string]bool{"meta mark": true, "socket mark": roots != nil} {
				text := fmt.Sprintf(text, match)
				if i := slices.Index(rules, text); (i >= 0) != want || i > accepting {
					t.Errorf("%s: rule %q is number %d of %q, want it before %d: %t", name, text, i, rules, accepting, want)
				}
			}
		}
	}
}

// TestKernelNewConnections: a tenant's process makes no connection known to conntrack in the name of another network or of a host
// outside, by a packet to its own network. With the node's addresses it reaches the network; processes outside the
// tenants have any address.
func TestKernelNewConnections(t *testing.T) {
	target, host, outside, enter := newNode(t)
	pods, podsID := podRoot(t)
	enter(host)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ovn-k8s-mp7", TxQLen: -1}, PeerName: "red", PeerNamespace: netlink.NsFd(int(outside))}); err != nil {
		t.Fatal(err)
	}
	runScript(t, host, `
ip link set ovn-k8s-mp7 up
ip addr add 10.20.1.2/24 dev ovn-k8s-mp7
ip addr add 169.254.0.6/32 dev ovn-k8s-mp7
ip addr add fd20:0:0:1::2/64 dev ovn-k8s-mp7 nodad
ip addr add fd69::6/128 dev ovn-k8s-mp7 nodad
`)
	runScript(t, outside, `sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.red.rp_filter=0
ip link set red up
ip addr add 10.20.1.9/24 dev red
ip addr add fd20:0:0:1::9/64 dev red nodad`)
	enter(outside)
	received := newReceiver()
	to := []string{"10.20.1.9", "fd20:0:0:1::9"}
	for _, a := range to {
		received.listen(t, netip.AddrPortFrom(netip.MustParseAddr(a), 53).String())
	}
	enter(host)
	in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Plan: plan, Node: nodeAddresses, NodeID: 2, PodRoots: []Cgroup{{pods, podsID}},
		Networks: []network.Network{{ID: 7, Name: "red", Topology: network.Layer3, Subnets: []network.Subnet{
			{CIDR: netip.MustParsePrefix("10.20.0.0/16"), HostLen: 24}, {CIDR: netip.MustParsePrefix("fd20::/48"), HostLen: 64}}}}}
	reconcileAndRead(t, target, in)
	id := 0
	for family, sources := range [][]struct {
		from    string
		refused bool
	}{
		{{"10.20.1.2", false}, {"192.0.2.10", false}, {"169.254.0.6", false}, {"169.254.0.12", true}, {"169.254.0.9", true}, {"198.51.100.9", true}, {"10.20.1.3", true}, {"10.21.1.2", true}},
		{{"fd20:0:0:1::2", false}, {"2001:db8::10", false}, {"fd69::6", false}, {"fd69::c", true}, {"fd69::9", true}, {"2001:db8:1::9", true}, {"fd20:0:0:1::3", true}, {"fd21:0:0:1::2", true}},
	} {
		for _, s := range sources {
			for _, tenant := range []bool{true, false} {
				id++
				a := attack.Attempt{ID: id, Socket: "udp", Src: s.from, SrcPort: 40000, To: to[family], Port: 53, How: []string{"transparent"}}
				if tenant {
					a.How = append([]string{fmt.Sprintf("mark=%#x", network.PacketMark(7))}, a.How...)
				}
				control := attack.Attempt{ID: 1000 + id, Socket: "udp", Src: []string{"10.20.1.2", "fd20:0:0:1::2"}[family], To: to[family], Port: 53}
				var err error
				for deadline := time.Now().Add(20 * time.Second); !received.has(string(control.Token())) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					err = a.Do()
					if err := control.Do(); err != nil {
						t.Fatal(err)
					}
				}
				if got, want := received.has(string(a.Token())), !(tenant && s.refused); got != want || !received.has(string(control.Token())) {
					t.Errorf("from %s, by a tenant's process: %t, arrives: %t, want %t (%v); a control arrives: %t", s.from, tenant, got, want, err, received.has(string(control.Token())))
				}
			}
		}
	}
}
