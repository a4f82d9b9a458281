// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"slices"
	"strconv"

	"bulkhead/pkg/network"
)

// outOfNode filters what local processes send through the external bridge.
func (in Inputs) outOfNode() []Rule {
	if in.Bridge == "" {
		return nil
	}
	bridge := fmt.Sprintf("oifname %q", in.Bridge)
	var rules []Rule
	for _, p := range in.Plan.Masquerade {
		rules = append(rules, rule("masquerade address "+p.String(), bridge, ipOf(p), "saddr", p.String(), "counter name", CounterNotLocal, "drop"))
	}
	rules = append(rules, in.nodeToAdvertised()...)
	// A gateway router treats every packet from the node as an answer to one of its pods. Host-network
	// pods may therefore send there only to node ports and host ports, and as answers. A packet that
	// conntrack cannot assign (a forged reset or ICMP error) is dropped. If a forged packet matches
	// somebody else's connection, only the guard drops it.
	rules = append(rules, rule("forged answers", "jump", chainForged))
	for _, p := range in.Plan.Masquerade {
		for _, g := range in.PodRoots {
			if m, ok := g.match(); ok {
				for _, r := range []struct{ name, state string }{{"forged answers", "ct direction original ct status & dnat == 0"}, {"packets of no connection", "ct state invalid"}} {
					rules = append(rules, rule(r.name+" to "+p.String()+g.suffix(), bridge, ipOf(p), "daddr", p.String(), r.state, m, "counter name", CounterForeign, "drop"))
				}
			}
		}
	}
	// Gateway routers take packets from the node for answers of the node's servers. In local gateway mode
	// VRFs have a route to gateway routers, which is for pods only. The main table has a route to services
	// through the bridge.
	senders := in.tenantsProcesses()
	for _, p := range slices.Concat(in.Plan.ServiceCIDRs, in.Plan.Masquerade) {
		for _, s := range senders {
			rules = append(rules, rule(s.name+" to "+p.String(), bridge, ipOf(p), "daddr", p.String(), s.match, "counter name", CounterForeign, "reject with icmpx type admin-prohibited"))
		}
	}
	rules = append(rules, in.tenantsSources(bridge)...)
	return slices.Concat(rules, in.tenantsRouting(), in.toOwnPorts())
}

// tenantsSources keeps tenants' processes from sending with the address of another host, or of a pod that keeps its
// address: another node would take that for an answer to its pods. Linux lets every process bind any IPv6
// address (IPV6_FREEBIND).
func (in Inputs) tenantsSources(bridge string) (rules []Rule) {
	for _, ip := range families {
		for _, s := range in.tenantsProcesses() {
			rules = append(rules, rule(s.name+" with another's address, "+ip, bridge, "fib saddr type != local", s.mark+" .", ip, "saddr !=",
				"@"+ofFamily(ip, SetProcesses4, SetProcesses6), s.match, "counter name", CounterForeign, "drop"))
		}
	}
	return rules
}

// tenantsNewConnections keeps tenants' processes from taking other networks' connections in conntrack, which does not tell
// networks apart. What leaves a network has its masquerade address, or in local gateway mode its pod's, until conntrack translates
// it, and what arrives for a Service has a client's address: of a connection that conntrack knows already, it translates nothing. A
// process could make one known by a packet to its own network, whose subnet may be that of any host. The rules come first,
// because others accept what is for the process's own network. On a Layer 2 network the node has a masquerade address of its own.
func (in Inputs) tenantsNewConnections() (rules []Rule) {
	for _, s := range in.tenantsProcesses() {
		for _, p := range in.Plan.Masquerade {
			match := []string{ipOf(p), "saddr", p.String()}
			if own, ok := network.FirstOfFamily(in.Plan.MasqueradeFixed(network.MasqueradeNode), p.Addr()); ok {
				match = append(match, ipOf(p), "saddr !=", own.Addr().String())
			}
			rules = append(rules, rule(s.name+" with masquerade address "+p.String(), append(match, s.match, "counter name", CounterForeign, "drop")...))
		}
		rules = append(rules, rule(s.name+" with another's address into a network", "oifname", managementPorts, s.match, "ct direction original",
			"fib saddr type != local fib saddr . oif type != local", "counter name", CounterForeign, "drop"))
	}
	return rules
}

// toOwnPorts keeps tenants' processes from the ports of the agent and the controllers: they would take
// the connections of kubelet's probes, which come from loopback too.
func (in Inputs) toOwnPorts() (rules []Rule) {
	for _, s := range in.tenantsProcesses() {
		rules = append(rules, rule(s.name+" to the agent and the controllers", fmt.Sprintf(`oifname "lo" tcp dport %d-%d`, network.OwnPortFirst, network.OwnPortLast), s.match,
			"counter name", CounterForeign, "reject with icmpx type admin-prohibited"))
	}
	return rules
}

// forgedChain keeps host-network pods from sending with the address of an outside host to which another pod has sent, or
// with a gateway router's address. With the former, conntrack would send a packet for the node to that pod's gateway
// router, as an answer. With the latter, it would take a packet for the outside host for the pod's own. The rules see the
// interface before conntrack has translated the address. Sockets in a VRF have an address there.
func (in Inputs) forgedChain() Chain {
	rules := []Rule{rule("in a VRF", `meta oifkind "vrf" return`), rule("in a network", "oifname", managementPorts, "return")}
	for _, p := range in.Plan.Masquerade {
		for _, g := range in.PodRoots {
			if m, ok := g.match(); ok {
				rules = append(rules,
					rule("answers of others to "+p.String()+g.suffix(), ipOf(p), "daddr", p.String(), "fib saddr type != local", m, "counter name", CounterForeign, "drop"),
					rule("masquerade address "+p.String()+g.suffix(), ipOf(p), "saddr", p.String(), m, "counter name", CounterForeign, "drop"))
			}
		}
	}
	return Chain{Name: chainForged, Rules: rules}
}

// fragments drops what host-network pods send in fragments, which only raw sockets do that write IP headers themselves:
// the kernel divides others' packets later. To assemble the fragments, Linux before 6.9 takes them away from
// their socket (CVE-2024-26921), and no rule or program after that knows who sends.
func (in Inputs) fragments() (rules []Rule) {
	for _, g := range in.PodRoots {
		if m, ok := g.match(); ok {
			for _, fragment := range []string{"ip frag-off & 0x3fff != 0", "exthdr frag exists"} {
				rules = append(rules, rule("fragments of pods, "+fragment+g.suffix(), fragment, m, "counter name", CounterForeign, "drop"))
			}
		}
	}
	return rules
}

// processes are local processes, with what matches their packets.
type processes struct{ name, mark, match string }

// tenantsProcesses match by the packet's mark and, if nft can match sockets, by the socket's. A process with CAP_NET_RAW
// can give a packet another mark than its socket has. While a connection is being set up, and after it has ended, its
// packets have no full socket, but still carry the socket's mark.
func (in Inputs) tenantsProcesses() []processes {
	marks := fmt.Sprintf("mark %#x-%#x", network.FirstPacketMark, network.LastPacketMark)
	out := []processes{{"tenants' processes", "meta mark", "meta " + marks}}
	if len(in.PodRoots) > 0 {
		out = append(out, processes{"tenants' sockets", "socket mark", "socket " + marks})
	}
	return out
}

// routing matches BGP (RFC 4271), also of a server, and BFD (RFC 5881, RFC 5883). A BFD packet without
// discriminator that says "down" ends the session that its source address belongs to (RFC 5880).
var routing = []string{"tcp dport " + bgpPort, "tcp sport " + bgpPort, fmt.Sprintf("udp dport { %d, %d, %d }", network.BFDPort, network.BFDEchoPort, network.BFDMultiPort)}

var bgpPort = strconv.Itoa(network.BGPPort)

// tenantsRouting keeps tenants' processes from posing as the node's routing daemon: their packets have
// the node's address, which routers and other nodes have as their neighbour's.
func (in Inputs) tenantsRouting() (rules []Rule) {
	for _, match := range routing {
		for _, s := range in.tenantsProcesses() {
			rules = append(rules, rule(s.name+", "+match, `oifname != "lo" oifname !=`, managementPorts, match, s.match, "counter name", CounterForeign, "reject with icmpx type admin-prohibited"))
		}
	}
	return rules
}

// tenantsNeighbours keeps tenants' processes from posing as the IP stack of another host, or as a router: a raw socket writes
// neighbour discovery (RFC 4861). The kernel's own has no mark. Nor do they answer DHCP clients, for which a process needs no
// capability. Both hold for the hosts on the node's links and for the pods of the process's network: OVN passes neighbour discovery
// before all policies, and the node's port has no port security, because hosts outside send through it.
func (in Inputs) tenantsNeighbours() (rules []Rule) {
	for _, s := range in.tenantsProcesses() {
		for _, m := range []struct{ name, match string }{{"neighbour discovery", "icmpv6 type 133-137"}, {"answers to DHCP clients", "udp dport { 68, 546 }"}} {
			rules = append(rules, rule(s.name+", "+m.name, `oifname != "lo"`, m.match, s.match, "counter name", CounterForeign, "drop"))
		}
	}
	return rules
}

// networkElements adds the elements by which networks' packets and processes are told apart.
func (in Inputs) networkElements(sets map[string][]string) {
	for _, n := range in.Networks {
		sets[SetOwn] = append(sets[SetOwn], fmt.Sprintf("%s . %#08x", n.ManagementPort(), n.PacketMark()))
		hosts, _ := n.HostSubnets(in.NodeID) // without one the node has no address there
		for _, h := range hosts {
			set := ofFamily(ipOf(h), SetProcesses4, SetProcesses6)
			sets[set] = append(sets[set], fmt.Sprintf("%#08x . %s", n.PacketMark(), n.ManagementIn(h).Addr()))
		}
		for _, p := range in.Plan.MasqueradeManagement(n) {
			set := ofFamily(ipOf(p), SetSources4, SetSources6)
			sets[set] = append(sets[set], fmt.Sprintf("%s . %s", n.ManagementPort(), p.Addr()))
		}
	}
}
