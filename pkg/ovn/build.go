// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"

	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/network"
)

// Inputs is what a network's rows follow from, beside the network and the node.
type Inputs struct {
	Plan network.Plan
	// PhysicalNetwork is OVN's name of what is behind the external bridge.
	PhysicalNetwork string
	// Peers are the other nodes that are ready.
	Peers []network.Node
	// Pods are those of this node on the network.
	Pods []PodPort
}

// PodPort is a pod's interface on a network.
type PodPort struct {
	NADKey         string // network.DefaultName on the cluster default network
	Namespace, Pod string
	UID            string
	IPs            []netip.Prefix
	// Locked: the pod's primary network is another one, so that of this one
	// only the node's own address is reachable.
	Locked bool
}

// Build is the rows of net on node: every part. An error says why the node
// cannot have the network.
func Build(net network.Network, node network.Node, in Inputs) (State, error) {
	return BuildParts(net, node, in, AllParts)
}

// BuildParts is Build for some of the parts. Rows of one part may be listed by
// rows of another, which then must be there.
func BuildParts(net network.Network, node network.Node, in Inputs, parts []Part) (State, error) {
	if err := net.Carried(); err != nil {
		return nil, err
	}
	hosts, err := net.HostSubnets(node.ID)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node.Name, err)
	}
	b := &builder{net: net, node: node, in: in, hosts: hosts}
	for _, part := range parts {
		b.part = part
		switch part {
		case PartTopology:
			b.layer3()
			b.gateway()
			b.isolation()
		case PartPeers:
			b.peers()
		case PartPods:
			b.pods()
		}
	}
	return b.rows, nil
}

// builder collects the rows of one network.
type builder struct {
	net   network.Network
	node  network.Node
	in    Inputs
	hosts []netip.Prefix // of node, one a family
	part  Part
	rows  State
}

// add adds a row with our marks in its external_ids, and extra ones in pairs.
func (b *builder) add(table, id string, m model.Model, in []Ref, extra ...string) {
	if f := field(m, "external_ids"); f.IsValid() {
		ids := f.Interface().(map[string]string)
		if ids == nil {
			ids = map[string]string{}
		}
		ids[markOwner], ids[markNetwork], ids[markPart], ids[markID] = ownerValue, b.net.Name, string(b.part), id
		for i := 0; i+1 < len(extra); i += 2 {
			ids[extra[i]] = extra[i+1]
		}
		setField(m, "external_ids", ids)
	}
	b.rows = append(b.rows, Row{Table: table, ID: id, Model: m, In: in})
}

// masqueradeManagement are the addresses that stand for the network's pods on
// the management port, of the network's families.
func (b *builder) masqueradeManagement() []netip.Prefix {
	return b.ofFamilies(b.in.Plan.MasqueradeManagement(b.net))
}

// ofFamilies keeps what has a family that the network has.
func (b *builder) ofFamilies(ps []netip.Prefix) []netip.Prefix {
	v4, v6 := b.net.Families()
	var out []netip.Prefix
	for _, p := range ps {
		if p.Addr().Is4() && v4 || p.Addr().Is6() && v6 {
			out = append(out, p)
		}
	}
	return out
}

// management are the node's own addresses on the network.
func (b *builder) management() []netip.Prefix { return mapPrefixes(b.hosts, network.Management) }

// localGateway tells whether the kernel, not the gateway router, is the way out.
func (b *builder) localGateway() bool { return b.node.Mode == network.LocalGateway }

// hasGateway tells whether the network has a way out of OVN on this node:
// primary networks, once the agent has reported the external bridge.
func (b *builder) hasGateway() bool {
	return (b.net.IsDefault() || b.net.IsPrimary()) && b.node.BridgeMAC != "" && len(b.node.Addresses) > 0
}

func mapPrefixes(ps []netip.Prefix, f func(netip.Prefix) netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(ps))
	for i, p := range ps {
		out[i] = f(p)
	}
	return out
}

// familyOf is the address among ps of p's family.
func familyOf(ps []netip.Prefix, p netip.Addr) (netip.Addr, bool) {
	for _, x := range ps {
		if x.Addr().Is4() == p.Is4() {
			return x.Addr(), true
		}
	}
	return netip.Addr{}, false
}

func prefixStrings(ps []netip.Prefix) []string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.String()
	}
	return out
}

// addressLine is a logical switch port's "MAC address address".
func addressLine(mac string, ps []netip.Prefix) string {
	for _, p := range ps {
		mac += " " + p.Addr().String()
	}
	return mac
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// defaultRoute is the family's 0.0.0.0/0 or ::/0.
func defaultRoute(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ptr[T any](v T) *T { return &v }
