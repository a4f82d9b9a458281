// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"

	"github.com/google/uuid"

	"bulkhead/pkg/network"
)

// Inputs are the inputs of a network's rows besides the network and the node.
type Inputs struct {
	Plan network.Plan
	// PhysicalNetwork is OVN's name of the network behind the external bridge.
	PhysicalNetwork string
	// Peers are the other ready nodes.
	Peers []network.Node
	// Pods are this node's pods on the network.
	Pods []PodPort
}

// PodPort is a pod's interface on a network.
type PodPort struct {
	NADKey         string // network.DefaultName on the cluster default network
	Namespace, Pod string
	UID            string
	IPs            []netip.Prefix
	// Locked means that the pod's primary network is another one: on this network
	// only the node's own address reaches the pod.
	Locked bool
}

// Key is the pod's namespace/name.
func (p PodPort) Key() string { return p.Namespace + "/" + p.Pod }

// Build returns the desired rows of net on node. The error says why the node cannot
// have the network.
func Build(net network.Network, node network.Node, in Inputs) (State, error) {
	return BuildUnits(net, node, in, nil)
}

// BuildUnits is Build for some of the units, or all for nil. Rows of one unit may be
// in columns of another unit's rows, which must then exist. Of peers and pods, in
// needs only those of the units.
func BuildUnits(net network.Network, node network.Node, in Inputs, units []Unit) (State, error) {
	if err := net.CheckSupported(); err != nil {
		return nil, err
	}
	hosts, err := net.HostSubnets(node.ID)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node.Name, err)
	}
	b := &builder{net: net, node: node, in: in, hosts: hosts, space: uuidSpace(net)}
	selected := Selection{Units: units}
	if b.unit = topologyUnit; selected.has(b.unit) {
		b.layer3()
		b.gateway()
		b.isolation()
	}
	for _, peer := range in.Peers {
		if b.unit = peerUnit(peer.Name); selected.has(b.unit) {
			b.peer(peer)
		}
	}
	for _, pod := range in.Pods {
		if b.unit = podUnit(pod.Key()); selected.has(b.unit) {
			b.pod(pod)
		}
	}
	return b.rows, nil
}

// builder collects the rows of one network.
type builder struct {
	net   network.Network
	node  network.Node
	in    Inputs
	hosts []netip.Prefix // of node, one per IP family
	space uuid.UUID      // of the rows' UUIDs
	unit  Unit           // of the rows that are added
	rows  State
}

// masqueradeManagement returns the addresses that the network's pods are SNATed to
// on the management port, of the network's IP families.
func (b *builder) masqueradeManagement() []netip.Prefix {
	return b.filterFamilies(b.in.Plan.MasqueradeManagement(b.net))
}

// filterFamilies returns the prefixes of the network's IP families.
func (b *builder) filterFamilies(ps []netip.Prefix) []netip.Prefix {
	v4, v6 := b.net.Families()
	return network.FilterFamilies(ps, v4, v6)
}

// management returns the node's own addresses on the network.
func (b *builder) management() []netip.Prefix { return mapPrefixes(b.hosts, network.Management) }

// localGateway reports whether pods leave OVN through the kernel instead of the
// gateway router.
func (b *builder) localGateway() bool { return b.node.Mode == network.LocalGateway }

// hasGateway reports whether the network has a gateway router on this node: if it
// is primary and the agent has reported the external bridge.
func (b *builder) hasGateway() bool {
	return (b.net.IsDefault() || b.net.IsPrimary()) && b.node.BridgeMAC != "" && len(b.node.Addresses) > 0
}
