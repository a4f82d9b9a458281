// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"

	"bulkhead/pkg/ovn/nbdb"
)

// LockedPortGroup is the port group of locked ports: those on the cluster default
// network of pods with another primary network.
const LockedPortGroup = "bulkhead_locked"

const (
	lockDeny  = 1000
	lockAllow = 1001
)

// isolation adds the ACLs of locked ports: only this node's own address on the
// cluster default network, the source of kubelet's probes, can open connections to
// them. Networks need no ACLs between each other: they share no router.
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

// acl adds an ACL to the locked port group.
func (b *builder) acl(name, direction string, priority int, action, match string) {
	id := "locked-" + name
	effect := Opens
	if action == nbdb.ACLActionDrop {
		effect = Closes
	}
	b.add(effect, nbdb.ACLTable, id, &nbdb.ACL{
		Name: ptr(id), Direction: direction, Priority: priority, Action: action, Match: match,
	}, []Ref{b.ref(nbdb.PortGroupTable, LockedPortGroup, "acls")})
}
