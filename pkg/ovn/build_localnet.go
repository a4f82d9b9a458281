// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"

	"bulkhead/pkg/ovn/nbdb"
)

// A Localnet network in one zone:
//
//	pods ── switch ── bridge of the physical network
//
// Each node has its own switch. The physical network connects them, nothing is
// tunnelled.

// localnet adds the switch and its port to the physical network. The network's
// mutable settings are in columns and not in the rows' ids: a change of them updates
// the port, and pods stay connected.
func (b *builder) localnet() {
	sw := b.net.LocalnetSwitch()
	b.logicalSwitch(sw, nil)
	port := &nbdb.LogicalSwitchPort{
		Type: "localnet", Addresses: []string{"unknown"},
		Options: map[string]string{"network_name": cmp.Or(b.net.PhysicalNetworkName, b.net.Name)},
	}
	if b.net.VLAN != 0 {
		// northd copies tag_request to tag, but leaves tag when tag_request is
		// removed. So both are ours.
		port.Tag, port.TagRequest = ptr(b.net.VLAN), ptr(b.net.VLAN)
	}
	b.switchPort(sw, b.net.LocalnetPort(), port)
}
