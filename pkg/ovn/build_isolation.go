// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// LockedPortGroup is the port group of locked ports: those on the cluster default
// network of pods with another primary network.
const LockedPortGroup = "bulkhead_locked"

// ACLs have four tiers, which OVN evaluates in their order. A "pass" continues in the
// next:
//
//	0  isolation: below
//	1  admin network policies
//	2  network policies, egress firewalls, multicast
//	3  baseline admin network policies
const tierIsolation = 0

// maxACLName is the length of the longest name of an ACL (ovn-nb(5)).
const maxACLName = 63

// Priorities of ACLs in the tier of isolation.
const (
	lockDeny       = 1000
	lockAllow      = 1001
	advertisedDeny = 1050
	advertisedPass = 1100
)

// Priorities of policies of the router that is the gateway of a tenant's pods.
const (
	policyConfine = 1100
	policyExposed = 1101
	policyReplies = 1101
	policyIngress = 1101 // of the cluster default network's router
)

// isolation adds the ACLs of locked ports: only this node's own address on the
// cluster default network, the source of kubelet's probes, can open connections to
// them. Networks that are not advertised need no ACLs between each other: they share no
// router.
func (b *builder) isolation() {
	if !b.net.IsDefault() {
		return
	}
	b.add(Closes, nbdb.PortGroupTable, LockedPortGroup, &nbdb.PortGroup{Name: LockedPortGroup}, nil)
	in, out := "outport == @"+LockedPortGroup, "inport == @"+LockedPortGroup
	b.acl("deny-to", nbdb.ACLDirectionToLport, lockDeny, nbdb.ACLActionDrop, in)
	b.acl("deny-from", nbdb.ACLDirectionFromLport, lockDeny, nbdb.ACLActionDrop, out)
	for _, m := range b.management() {
		ip := m.Addr()
		family, toHost, fromHost := "ip4", fmt.Sprintf("arp.tpa == %s", ip), fmt.Sprintf("arp.spa == %s", ip)
		if ip.Is6() {
			// A solicitation from the pod names its target. An advertisement to
			// the host is matched by the packet's destination, and packets from
			// the host by their source.
			family, toHost, fromHost = "ip6", fmt.Sprintf("(nd && nd.target == %s)", ip), fmt.Sprintf("(nd && ip6.src == %s)", ip)
			toHost = fmt.Sprintf("(%s || (nd_na && ip6.dst == %s))", toHost, ip)
		}
		b.acl("host-neighbour-from-"+family, nbdb.ACLDirectionFromLport, lockAllow, nbdb.ACLActionAllow, out+" && "+toHost)
		b.acl("host-neighbour-to-"+family, nbdb.ACLDirectionToLport, lockAllow, nbdb.ACLActionAllow, in+" && "+fromHost)
		b.acl("host-to-"+family, nbdb.ACLDirectionToLport, lockAllow, nbdb.ACLActionAllowRelated, fmt.Sprintf("%s && %s.src == %s", in, family, ip))
	}
}

// openPorts adds the ACLs that let in what is for ports of a locked port, and ARP, without
// which the pod cannot answer its neighbours on the switch. OVN passes neighbour discovery
// before all ACLs, and replies and related ICMP errors after these.
func (b *builder) openPorts(lsp string, ports []network.OpenPort) {
	in, out := fmt.Sprintf("outport == %q", lsp), fmt.Sprintf("inport == %q", lsp)
	b.acl(lsp+"-arp-to", nbdb.ACLDirectionToLport, lockAllow, nbdb.ACLActionAllow, in+" && arp")
	b.acl(lsp+"-arp-from", nbdb.ACLDirectionFromLport, lockAllow, nbdb.ACLActionAllow, out+" && arp")
	numbers := map[string][]string{}
	for _, p := range ports {
		numbers[p.Protocol] = append(numbers[p.Protocol], strconv.Itoa(int(p.Port)))
	}
	for protocol, list := range numbers {
		match := fmt.Sprintf("%s.dst == {%s}", protocol, strings.Join(list, ", "))
		if protocol == "icmp" {
			match = "(icmp4.type == 8 || icmp6.type == 128)" // echo requests
		}
		b.acl(lsp+"-"+protocol, nbdb.ACLDirectionToLport, lockAllow, nbdb.ACLActionAllowRelated, in+" && "+match)
	}
}

// acl adds an ACL to the locked port group.
func (b *builder) acl(name, direction string, priority int, action, match string) {
	id := "locked-" + name
	effect := Opens
	if action == nbdb.ACLActionDrop {
		effect = Closes
	}
	b.add(effect, nbdb.ACLTable, id, &nbdb.ACL{
		Name: ptr(id[:min(len(id), maxACLName)]), Tier: tierIsolation, Direction: direction, Priority: priority, Action: action, Match: match,
	}, []Ref{b.ref(nbdb.PortGroupTable, LockedPortGroup, "acls")})
}

// isolateAdvertised adds the ACLs between advertised networks. Packets within the
// network pass on to the other tiers. The ACLs are in a port group that has the
// router's port on the switch of the pods, and so apply to all ports of the switch.
func (b *builder) isolateAdvertised() {
	if len(b.advertisedGroups()) == 0 {
		return
	}
	id := b.advertisedGroup()
	b.add(Closes, nbdb.PortGroupTable, id, &nbdb.PortGroup{Name: b.symbol(nbdb.PortGroupTable, id)}, nil)
	for _, host := range b.hosts {
		a := host.Addr()
		ip, any := ipKeyword(a), "$"+setName(setAdvertised, a)
		own := "{" + strings.Join(prefixStrings(network.FilterFamilies(b.net.CIDRs(), a.Is4(), a.Is6())), ", ") + "}"
		for _, rule := range []struct {
			effect       Effect
			name, action string
			priority     int
			addresses    string
		}{
			{Opens, "pass", nbdb.ACLActionPass, advertisedPass, own},
			{Closes, "deny", nbdb.ACLActionDrop, advertisedDeny, any},
		} {
			b.add(rule.effect, nbdb.ACLTable, id+"-"+rule.name+"-"+ip, &nbdb.ACL{
				Tier: tierIsolation, Direction: nbdb.ACLDirectionFromLport, Priority: rule.priority, Action: rule.action,
				Match: fmt.Sprintf("%s.src == %s && %s.dst == %s", ip, rule.addresses, ip, rule.addresses),
				// A service's address is not a pod's, but its backend's is.
				Options: map[string]string{"apply-after-lb": "true"},
			}, []Ref{b.ref(nbdb.PortGroupTable, id, "acls")})
		}
	}
}

func (b *builder) advertisedGroup() string { return b.net.Prefix() + "advertised" }

// advertisedGroups returns the port group of isolateAdvertised, if it is needed. The addresses that a network reaches
// in its own VRF are not those of networks in the nodes' default VRF; the node's firewall keeps it from these.
func (b *builder) advertisedGroups() []Ref {
	if !b.advertised() || b.net.LeavesThroughVRF() || b.in.BGP.Loose {
		return nil
	}
	group := b.ref(nbdb.PortGroupTable, b.advertisedGroup(), "ports")
	group.Closes = true
	return []Ref{group}
}

// confine drops what the pods of a tenant send to addresses that other networks of
// the cluster have: services (packets to the network's own services have an
// endpoint's address here), pods of the cluster default network, and routers. What
// stands behind the router then does not matter.
func (b *builder) confine() {
	if b.net.IsDefault() {
		return
	}
	p := b.in.Plan
	others := slices.Concat(network.Network{Subnets: p.ClusterSubnets}.CIDRs(), p.ServiceCIDRs, p.Join, p.Transit, p.Masquerade)
	for _, host := range b.hosts {
		var never []string
		for _, o := range others {
			if network.SameFamily(o, host) && !slices.ContainsFunc(slices.Concat(b.net.CIDRs(), b.net.JoinSubnets), o.Overlaps) {
				never = append(never, o.String())
			}
		}
		ip := ipKeyword(host.Addr())
		b.policy(Closes, "confine "+ip, policyConfine, fmt.Sprintf("%s.dst == {%s}", ip, strings.Join(never, ", ")), nbdb.LogicalRouterPolicyActionDrop, nil)
	}
}

// policy adds a policy for packets from pods to the router that is their gateway.
func (b *builder) policy(effect Effect, name string, priority int, match, action string, nexthops []string, extra ...string) {
	router := b.podRouter()
	b.add(effect, nbdb.LogicalRouterPolicyTable, router+" "+name, &nbdb.LogicalRouterPolicy{
		Priority: priority, Match: fmt.Sprintf("inport == %q && %s", b.toPods(), match), Action: action, Nexthops: nexthops,
	}, []Ref{b.ref(nbdb.LogicalRouterTable, router, "policies")}, extra...)
}
