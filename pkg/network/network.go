// SPDX-License-Identifier: Apache-2.0

// Package network is Bulkhead's domain: what a network and a node are, how a
// NetworkAttachmentDefinition describes a network, and every identifier and
// address that follows from a network's id and a node's id. It is pure: plain
// values in, plain values out, no clients, no clock, no state.
package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Topology is the shape of a network in OVN, spelled as in NAD JSON.
type Topology string

const (
	Layer3   Topology = "layer3"
	Layer2   Topology = "layer2"
	Localnet Topology = "localnet"
)

// Role is what a network is to a pod attached to it.
type Role string

const (
	// RolePrimary: the pod's default gateway and services are on this network.
	RolePrimary Role = "primary"
	// RoleSecondary: an additional interface.
	RoleSecondary Role = "secondary"
	// RoleInfrastructureLocked: the cluster default network of a pod whose
	// primary network is another one; only kubelet's probes pass.
	RoleInfrastructureLocked Role = "infrastructure-locked"
)

// DefaultName is the name of the cluster default network, whose id is 0.
const (
	DefaultName = "default"
	DefaultID   = 0
	// MaxID is the largest network id; the masquerade subnet must hold two
	// addresses for each (Plan.Validate checks it).
	MaxID = 10000
	// MaxNodeID is the largest node id.
	MaxNodeID = 4094
)

// TransportNoOverlay is the transport, spelled as in NAD JSON, of networks
// whose packets travel between nodes as they are; "" is Geneve.
const TransportNoOverlay = "no-overlay"

// Subnet is one CIDR of a network. On Layer 3 it is cut into one subnet of
// length HostLen for each node; HostLen is 0 on other topologies.
type Subnet struct {
	CIDR    netip.Prefix
	HostLen int
}

func (s Subnet) String() string {
	if s.HostLen == 0 {
		return s.CIDR.String()
	}
	return fmt.Sprintf("%s/%d", s.CIDR, s.HostLen)
}

// Network is one network as every part of Bulkhead sees it. The zero id is
// the cluster default network. Values are compared and shared: never modify
// the slices of a Network that another part holds.
type Network struct {
	ID       int
	Name     string
	Topology Topology
	Role     Role
	MTU      int

	Subnets     []Subnet
	JoinSubnets []netip.Prefix // gateway routers' addresses; primary networks only
	Transit     []netip.Prefix // transit switch (Layer 3) or transit router (Layer 2)

	ExcludeSubnets        []netip.Prefix
	ReservedSubnets       []netip.Prefix
	InfrastructureSubnets []netip.Prefix
	DefaultGatewayIPs     []netip.Addr
	PhysicalNetworkName   string
	VLAN                  int
	PersistentIPs         bool
	Transport             string // "" is Geneve, "no-overlay"
	OutboundSNAT          string // no-overlay: "enabled" or "disabled"
}

// IsDefault tells whether n is the cluster default network.
func (n Network) IsDefault() bool { return n.ID == DefaultID }

// IsPrimary tells whether n is a tenant's primary network.
func (n Network) IsPrimary() bool { return n.Role == RolePrimary && !n.IsDefault() }

// Carried says why nodes do not build n, nil where they do. Its NADs are there
// all the same, and its pods are told.
func (n Network) Carried() error {
	switch {
	case n.IsDefault():
		return nil
	case n.Topology != Layer3 || n.Role != RolePrimary:
		return fmt.Errorf("network %s: nodes do not carry topology %s with role %s in this version: use layer3 and primary", n.Name, n.Topology, n.Role)
	case n.Transport != "":
		return fmt.Errorf("network %s: nodes do not carry transport %s in this version: use Geneve", n.Name, n.Transport)
	}
	return nil
}

// CIDRs are the network's subnets, in order, without their host lengths.
func (n Network) CIDRs() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(n.Subnets))
	for _, s := range n.Subnets {
		out = append(out, s.CIDR)
	}
	return out
}

// Families tells which address families the network's subnets use.
func (n Network) Families() (v4, v6 bool) {
	for _, s := range n.Subnets {
		if s.CIDR.Addr().Is4() {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// Contains tells whether addr lies inside one of the network's subnets.
func (n Network) Contains(addr netip.Addr) bool {
	addr = addr.Unmap()
	return slices.ContainsFunc(n.Subnets, func(s Subnet) bool { return s.CIDR.Contains(addr) })
}

// UDNName is the network name of a UserDefinedNetwork. "_" cannot occur in a
// Kubernetes name, so no tenant can pick another's network name.
func UDNName(namespace, name string) string { return namespace + "_" + name }

// CUDNName is the network name of a ClusterUserDefinedNetwork.
func CUDNName(name string) string { return "cluster_udn_" + name }

// IsUDNName tells whether name could be UDNName's or CUDNName's. No other NAD
// may carry such a name: its pods would be in the tenant's network.
func IsUDNName(name string) bool {
	if rest, ok := strings.CutPrefix(name, "cluster_udn_"); ok {
		return isKubernetesName(rest)
	}
	namespace, rest, ok := strings.Cut(name, "_")
	return ok && isKubernetesName(namespace) && isKubernetesName(rest)
}

// isKubernetesName is generous: what it takes for a name need not be one.
func isKubernetesName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// NADKey names a NetworkAttachmentDefinition as pod annotations do.
func NADKey(namespace, name string) string { return namespace + "/" + name }

// GatewayMode is how traffic leaves the node for the outside.
type GatewayMode string

const (
	// SharedGateway: OVN's gateway router sends it to the external bridge.
	SharedGateway GatewayMode = "shared"
	// LocalGateway: the kernel routes it.
	LocalGateway GatewayMode = "local"
)

// Node is one node as every part of Bulkhead sees it. ID is 0 until the
// cluster role has given it one; Chassis is empty until the node's agent has
// reported. Such a node is not yet part of any network.
type Node struct {
	Name      string
	ID        int
	Chassis   string         // OVN chassis id (OVS external_ids:system-id)
	EncapIPs  []netip.Addr   // geneve end points
	Addresses []netip.Prefix // the external bridge's addresses, with their subnets
	NextHops  []netip.Addr   // the node's default gateways
	BridgeMAC string         // the external bridge's
	Bridge    string         // the external bridge's name
	Mode      GatewayMode
}

// Ready tells whether the node can carry networks.
func (n Node) Ready() bool { return n.ID > 0 && n.Chassis != "" && len(n.EncapIPs) > 0 }
