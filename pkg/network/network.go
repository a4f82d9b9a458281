// SPDX-License-Identifier: Apache-2.0

// Package network defines networks and nodes, parses
// NetworkAttachmentDefinitions and annotations, and derives all identifiers and
// addresses from network ids and node ids. It has no I/O, clock or global state.
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

// Role is the role of a network for a pod attached to it.
type Role string

const (
	// RolePrimary: the pod reaches its default gateway and services through
	// this network.
	RolePrimary Role = "primary"
	// RoleSecondary: the pod has an additional interface on this network.
	RoleSecondary Role = "secondary"
	// RoleInfrastructureLocked: the cluster default network, for a pod with
	// another primary network, for probes and open ports.
	RoleInfrastructureLocked Role = "infrastructure-locked"
)

// DefaultName and DefaultID are the name and id of the cluster default network.
const (
	DefaultName = "default"
	DefaultID   = 0
	// MaxID is the largest network id. The masquerade subnet must have two
	// addresses per network (Plan.Validate checks this).
	MaxID = 10000
	// MaxNodeID is the largest node id.
	MaxNodeID = 4094
)

// Subnet is one CIDR of a network. On Layer 3 each node has a host subnet of
// length HostLen in it. HostLen is 0 on other topologies.
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

// Network is one network. Networks are compared and shared: never modify the
// slices of a Network.
type Network struct {
	ID   int
	Name string
	// OwnerUID is the UID of the UserDefinedNetwork or ClusterUserDefinedNetwork;
	// "" for hand-written NADs, and where it is not needed.
	OwnerUID string
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
	Transport             string // "" (Geneve) or TransportNoOverlay
	OutboundSNAT          string // "enabled" or "disabled"; TransportNoOverlay only
	// AdvertisedVRFs is AnnotationAdvertisedVRFs.
	AdvertisedVRFs string
}

// IsDefault reports whether n is the cluster default network.
func (n Network) IsDefault() bool { return n.ID == DefaultID }

// IsPrimary reports whether n is a tenant's primary network.
func (n Network) IsPrimary() bool { return n.Role == RolePrimary && !n.IsDefault() }

// Advertised reports whether routers outside the cluster know the addresses of the network's
// pods, which then keep them on the way out. A network without an overlay always counts
// as advertised: its packets leave that way, or not at all.
func (n Network) Advertised() bool {
	return n.Transport == TransportNoOverlay || n.AdvertisedVRFs != ""
}

// Values of AdvertisedVRFs, as of spec.targetVRF of RouteAdvertisements. Any other is the name of a VRF
// that the administrator has on the nodes.
const (
	VRFDefault = "default" // the node's
	VRFAuto    = "auto"    // the network's own
)

// Announced reports whether BGP announces the network's pods in the nodes' default VRF: what arrives
// for their addresses is theirs. Of networks with overlapping subnets only one is announced.
func (n Network) Announced() bool {
	return n.advertisedInto(VRFDefault) || n.IsDefault() && n.Transport == TransportNoOverlay
}

// LeavesThroughVRF reports whether BGP announces the network's pods in VRFs, the network's own or others, and not
// in the nodes' default VRF: its packets leave and enter the nodes through interfaces in those VRFs.
func (n Network) LeavesThroughVRF() bool { return n.AdvertisedVRFs != "" && !n.Announced() }

// OtherVRFs returns the names of the VRFs, other than the nodes' default one, into which BGP announces the
// network's pods; own is the name of the network's own.
func (n Network) OtherVRFs(own string) []string {
	var out []string
	for _, name := range strings.Split(n.AdvertisedVRFs, ",") {
		switch name {
		case "", VRFDefault:
		case VRFAuto:
			out = append(out, own)
		default:
			out = append(out, name)
		}
	}
	return out
}

func (n Network) advertisedInto(vrf string) bool {
	return slices.Contains(strings.Split(n.AdvertisedVRFs, ","), vrf)
}

// CIDRs are the CIDRs of the network's subnets, in order.
func (n Network) CIDRs() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(n.Subnets))
	for _, s := range n.Subnets {
		out = append(out, s.CIDR)
	}
	return out
}

// Families reports which IP families the network's subnets have.
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

// Contains reports whether addr is inside one of the network's subnets.
func (n Network) Contains(addr netip.Addr) bool {
	addr = addr.Unmap()
	return slices.ContainsFunc(n.Subnets, func(s Subnet) bool { return s.CIDR.Contains(addr) })
}

// UDNName is the network name of a UserDefinedNetwork. Kubernetes names contain
// no "_", so no tenant can choose the network name of another tenant.
func UDNName(namespace, name string) string { return namespace + "_" + name }

// CUDNName is the network name of a ClusterUserDefinedNetwork.
func CUDNName(name string) string { return cudnPrefix + name }

const cudnPrefix = "cluster_udn_"

// CutCUDN returns the name of the ClusterUserDefinedNetwork whose network has that name.
func CutCUDN(name string) (cudn string, ok bool) { return strings.CutPrefix(name, cudnPrefix) }

// IsUDNName reports whether name has the format of UDNName or CUDNName. A
// hand-written NAD must not have such a name: its pods would join the tenant's
// network.
func IsUDNName(name string) bool {
	if rest, ok := CutCUDN(name); ok {
		return isKubernetesName(rest)
	}
	namespace, rest, ok := strings.Cut(name, "_")
	return ok && isKubernetesName(namespace) && isKubernetesName(rest)
}

// isKubernetesName reports whether s consists of the characters of Kubernetes
// names. It also accepts some strings that are not valid names.
func isKubernetesName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// NADKey is the key of a NetworkAttachmentDefinition in pod annotations.
func NADKey(namespace, name string) string { return namespace + "/" + name }

// GatewayMode is how a node routes traffic to destinations outside the cluster.
type GatewayMode string

const (
	// SharedGateway: OVN's gateway router sends it through the external bridge.
	SharedGateway GatewayMode = "shared"
	// LocalGateway: the kernel routes it.
	LocalGateway GatewayMode = "local"
)

// Node is one node. ID is 0 until the cluster controller has assigned one, and
// Chassis is empty until the node's agent has reported it. Until then the node
// is not part of any network.
type Node struct {
	Name      string
	ID        int
	Chassis   string         // OVN chassis id (OVS external_ids:system-id)
	EncapIPs  []netip.Addr   // Geneve tunnel endpoints
	Addresses []netip.Prefix // the external bridge's addresses, with their subnets
	NextHops  []netip.Addr   // the node's default gateways
	BridgeMAC string         // of the external bridge
	MTU       int            // of the external bridge, through which the node reaches others; 0: unknown
	Bridge    string         // name of the external bridge
	Mode      GatewayMode
}

// Links returns what the node reaches without a router: the subnets of its addresses, and next hops
// outside these. Link-local addresses are not among them.
func (n Node) Links() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range n.Addresses {
		if !p.IsSingleIP() {
			out = append(out, p.Masked())
		}
	}
	for _, hop := range n.NextHops {
		if !hop.IsLinkLocalUnicast() && !slices.ContainsFunc(out, func(p netip.Prefix) bool { return p.Contains(hop) }) {
			out = append(out, netip.PrefixFrom(hop, hop.BitLen()))
		}
	}
	return out
}

// Reserved returns the node's addresses and its routers': no network's pod has them, whatever its subnets are.
func (n Node) Reserved() []netip.Addr {
	out := slices.Concat(n.EncapIPs, n.NextHops)
	for _, p := range n.Addresses {
		out = append(out, p.Addr())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// HasAddress reports whether a is among the node's Addresses.
func (n Node) HasAddress(a netip.Addr) bool {
	return slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// Ready reports whether the node can be part of networks.
func (n Node) Ready() bool { return n.ID > 0 && n.Chassis != "" && len(n.EncapIPs) > 0 }
