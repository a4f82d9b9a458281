// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"

	"bulkhead/pkg/ovn/nbdb"
)

// LockedPortGroup holds the cluster default network's ports of pods whose
// primary network is another one.
const LockedPortGroup = "bulkhead_locked"

const (
	lockDeny  = 1000
	lockAllow = 1001
)

// isolation closes the cluster default network's ports of tenants' pods: only
// this node's own address on the network, where kubelet's probes come from,
// can open connections to them. Networks need no rules between each other:
// they share no router.
func (b *builder) isolation() {
	if !b.net.IsDefault() {
		return
	}
	b.add(nbdb.PortGroupTable, LockedPortGroup, &nbdb.PortGroup{Name: LockedPortGroup}, nil)
	in, out := "outport == @"+LockedPortGroup, "inport == @"+LockedPortGroup
	b.acl("deny-to", nbdb.ACLDirectionToLport, lockDeny, nbdb.ACLActionDrop, in)
	b.acl("deny-from", nbdb.ACLDirectionFromLport, lockDeny, nbdb.ACLActionDrop, out)
	for _, m := range b.management() {
		ip := m.Addr()
		family, toHost, fromHost := "ip4", fmt.Sprintf("arp.tpa == %s", ip), fmt.Sprintf("arp.spa == %s", ip)
		if ip.Is6() {
			// A solicitation names its target; of an advertisement and of a
			// solicitation from the host only the packet's source is known.
			family, toHost, fromHost = "ip6", fmt.Sprintf("(nd && nd.target == %s)", ip), fmt.Sprintf("(nd && ip6.src == %s)", ip)
			toHost = fmt.Sprintf("(%s || (nd_na && ip6.dst == %s))", toHost, ip)
		}
		b.acl("host-neighbour-from-"+family, nbdb.ACLDirectionFromLport, lockAllow, nbdb.ACLActionAllow, out+" && "+toHost)
		b.acl("host-neighbour-to-"+family, nbdb.ACLDirectionToLport, lockAllow, nbdb.ACLActionAllow, in+" && "+fromHost)
		b.acl("host-to-"+family, nbdb.ACLDirectionToLport, lockAllow, nbdb.ACLActionAllowRelated, fmt.Sprintf("%s && %s.src == %s", in, family, ip))
	}
}

// acl adds a rule to the locked port group.
func (b *builder) acl(name, direction string, priority int, action, match string) {
	id := "locked-" + name
	b.add(nbdb.ACLTable, id, &nbdb.ACL{
		Name: ptr(id), Direction: direction, Priority: priority, Action: action, Match: match,
	}, []Ref{{nbdb.PortGroupTable, LockedPortGroup, "acls"}})
}
