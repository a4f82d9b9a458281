// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

// HostPort is a port of the node that belongs to a pod.
type HostPort struct {
	Port            // of the node, at one of its addresses or at loopback
	To   netip.Addr // masquerade address at which the gateway router of the pod's network has the port
}

// matchesSockets reports whether rules may match the socket that a packet belongs to.
func (in Inputs) matchesSockets() bool { return in.Mark != 0 || len(in.PodRoots) > 0 }

// hostPortElements returns the elements of MapHostPorts4 and MapHostPorts6. If several
// have the same address and port, the first gets it.
func (in Inputs) hostPortElements() (v4, v6 []string) {
	seen := map[Port]bool{}
	for _, p := range in.HostPorts {
		if seen[p.Port] {
			continue
		}
		seen[p.Port] = true
		element := fmt.Sprintf("%s . %s . %d : %s", p.Addr, p.Protocol, p.Port.Port, p.To)
		if p.Addr.Is6() {
			v6 = append(v6, element)
		} else {
			v4 = append(v4, element)
		}
	}
	return v4, v6
}

// notOfTenants matches packets for, or of, sockets that no tenant has.
var notOfTenants = fmt.Sprintf("socket mark != %#x-%#x", network.FirstPacketMark, network.LastPacketMark)

// toHostPorts redirects packets for host ports to the gateway router of the pod's network: with local, packets that local
// processes send, otherwise packets that arrive. A packet that arrives for a server of the node itself is not redirected,
// whatever port a pod has asked for. Servers with networks' marks, those of tenants' host-network pods, do not count. For
// packets of local processes no such check is needed: Inputs.HostPorts has no port of a server of the node. Packets from
// loopback addresses are not redirected: their senders would get no answer from another interface.
func (in Inputs) toHostPorts(local bool) []Rule {
	if in.Bridge == "" || !in.matchesSockets() {
		return nil
	}
	var rules []Rule
	for _, f := range []struct{ ip, loopback, ports string }{{"ip", "127.0.0.0/8", MapHostPorts4}, {"ip6", "::1", MapHostPorts6}} {
		from := f.ip + " saddr != " + f.loopback
		if !local {
			for _, wildcard := range []string{"0", "1"} { // matches any socket
				rules = append(rules, rule("the node's servers, "+f.ip+", "+wildcard, from, "meta l4proto { tcp, udp } socket wildcard", wildcard, notOfTenants, "accept"))
			}
		}
		rules = append(rules, rule("host ports, "+f.ip, from, "meta l4proto { tcp, udp, sctp } dnat", f.ip, "to", f.ip, "daddr . meta l4proto . th dport map @"+f.ports))
	}
	return rules
}

// fromHostPorts gives packets that have been redirected to a gateway router the node's address, so that
// the answers return to the node. In local gateway mode all packets that leave a gateway router go to the node anyway.
func (in Inputs) fromHostPorts() []Rule {
	if in.Bridge == "" || in.Mode == network.LocalGateway || !in.matchesSockets() {
		return nil
	}
	var rules []Rule
	for _, p := range in.Plan.Masquerade {
		rules = append(rules, rule("to host ports "+p.String(), fmt.Sprintf("oifname %q", in.Bridge), ipOf(p), "daddr", p.String(), "ct status dnat masquerade"))
	}
	return rules
}
