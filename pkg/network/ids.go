// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Plan is the cluster-wide address plan. Addresses and identifiers of networks
// are derived from it. Each list has at most one prefix per IP family.
type Plan struct {
	ClusterSubnets []Subnet       // of the cluster default network
	ServiceCIDRs   []netip.Prefix // of Kubernetes services
	Join           []netip.Prefix // of the cluster default network
	Transit        []netip.Prefix // of every network: used inside OVN only
	Masquerade     []netip.Prefix // node-local, two addresses per network
	UDNJoin        []netip.Prefix // of primary networks without join subnets of their own
	VRFTableBase   int            // VRF table = base + network id
	UnderlayMTU    int            // of the network between nodes
	ClusterMTU     int            // of networks with an overlay, unless they have their own
}

// Bases that a network's id is added to. OVN datapath keys are 24 bits wide,
// and northd allocates from 1 upwards, so Bulkhead uses the end of the range.
const (
	conntrackMarkBase    = 3
	switchKeyBase        = 16711683
	transitRouterKeyBase = 16744451
	masqueradeOffset     = 10
)

// GatewayMAC is the MAC address of every gateway router's external port: no two of these
// ports are on one link.
const GatewayMAC = "0a:58:00:00:00:01"

// MaxPortKey is the highest OVN port key; higher ones are those of multicast groups.
const MaxPortKey = 1<<15 - 1

// TunnelPort is the UDP port of OVN's Geneve tunnels.
const TunnelPort = 6081

// OwnPortFirst and OwnPortLast are the range of the TCP ports of /healthz and /metrics in deploy/install.yaml. Tenants'
// host-network pods neither take nor reach them on the node.
const (
	OwnPortFirst = 9408
	OwnPortLast  = 9418
)

// BGPPort is the TCP port of BGP (RFC 4271).
const BGPPort = 179

// The UDP ports of BFD between neighbours, of its echo packets (RFC 5881), and over several hops (RFC 5883).
const (
	BFDPort      = 3784
	BFDEchoPort  = 3785
	BFDMultiPort = 4784
)

// ConntrackMark is the ct_mark of connections from n that leave the node.
func (n Network) ConntrackMark() uint32 { return conntrackMarkBase + uint32(n.ID) }

// TunnelKey is the OVN datapath key of n's transit switch (Layer 3) or switch
// (Layer 2). It is derived, not stored, and so the same in every zone.
func (n Network) TunnelKey() int { return switchKeyBase + n.ID }

// TransitRouterKey is the OVN datapath key of a Layer 2 network's router.
func (n Network) TransitRouterKey() int { return transitRouterKeyBase + n.ID }

// ManagementPrefix begins the names of all networks' management ports.
const ManagementPrefix = "ovn-k8s-mp"

// ManagementPort is the node's interface on n; at most 15 characters.
func (n Network) ManagementPort() string { return ManagementPrefix + strconv.Itoa(n.ID) }

// ManagementPortID returns the id of the network whose management port has that name.
func ManagementPortID(name string) (id int, ok bool) {
	rest, ok := strings.CutPrefix(name, ManagementPrefix)
	id, err := strconv.Atoi(rest)
	return id, ok && err == nil && id >= 0 && id <= MaxID
}

// reservedLinkNames are valid names of ClusterUserDefinedNetworks that a VRF
// device must not have.
var reservedLinkNames = []string{"default", "lo", "all", "main", "local", "eth0", "br-int", "br-ex", "ovs-system"}

// VRF is the name of n's VRF device: the ClusterUserDefinedNetwork's name if it
// is a valid interface name that nothing else uses, so that operators recognise
// the device; otherwise a name derived from the id.
func (n Network) VRF() string {
	name, ok := CutCUDN(n.Name)
	if ok && name != "" && len(name) <= 15 && !slices.Contains(reservedLinkNames, name) && !looksLikeSystemLink(name) {
		return name
	}
	return n.FallbackVRF()
}

// FallbackVRF is the name of n's VRF device that depends on the id alone.
func (n Network) FallbackVRF() string { return fallbackPrefix + strconv.Itoa(n.ID) + fallbackSuffix }

const fallbackPrefix, fallbackSuffix = "mp", "-udn-vrf"

// IsFallbackVRF reports whether a name is FallbackVRF of some network, which need not exist.
func IsFallbackVRF(name string) bool {
	id, ok := strings.CutPrefix(name, fallbackPrefix)
	id, suffixed := strings.CutSuffix(id, fallbackSuffix)
	return ok && suffixed && id != "" && strings.Trim(id, "0123456789") == ""
}

// looksLikeSystemLink reports whether name begins like names that the kernel,
// systemd, OVS or Bulkhead assign to links.
func looksLikeSystemLink(name string) bool {
	for _, p := range []string{"eth", "en", "wl", "ww", "bond", "veth", "ovn-", "ovs", "br", "genev", "vxlan", "docker", "cni", "virbr", "tun", "tap", "mp"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// VRFTable is the routing table of n's VRF: stable across restarts.
func (p Plan) VRFTable(n Network) int { return p.VRFTableBase + n.ID }

// ErrNoHostSubnet says that a network's CIDRs are too small for a node's id: the node
// does not have the network.
var ErrNoHostSubnet = errors.New("no host subnet")

// HasNode reports whether n's CIDRs have a host subnet for the node with the given id.
func (n Network) HasNode(nodeID int) bool {
	_, err := n.HostSubnets(nodeID)
	return !errors.Is(err, ErrNoHostSubnet)
}

// HostSubnets returns the subnets of n on the node with the given id, one per
// IP family. On Layer 3 it is the id-th host subnet, counted across the CIDRs
// of the IP family in order, so that CIDRs can be appended. On Layer 2 it is
// the whole CIDR. Errors name the CIDRs that are exhausted and the remedy; they wrap
// ErrNoHostSubnet.
func (n Network) HostSubnets(nodeID int) ([]netip.Prefix, error) {
	if nodeID < 1 {
		return nil, fmt.Errorf("node has no id yet")
	}
	var out []netip.Prefix
	for _, is4 := range []bool{true, false} {
		index, subnets := uint64(nodeID-1), n.subnetsOf(is4)
		var found netip.Prefix
		for _, s := range subnets {
			if n.Topology != Layer3 {
				found = s.CIDR
				break
			}
			count := hostSubnetCount(s)
			if index < count {
				found = nthSubnet(s, index)
				break
			}
			index -= count
		}
		if found.IsValid() {
			out = append(out, found)
		} else if len(subnets) > 0 {
			if n.IsDefault() {
				return nil, fmt.Errorf("cluster-subnets %v hold %w for node id %d: remove nodes, then delete this Node and restart its kubelet", subnets, ErrNoHostSubnet, nodeID)
			}
			return nil, fmt.Errorf("subnets %v of network %s hold %w for node id %d: append a CIDR to subnets or remove nodes", subnets, n.Name, ErrNoHostSubnet, nodeID)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("network %s has no subnets", n.Name)
	}
	return out, nil
}

// NodeOf returns the id of the node whose host subnet contains a, 0 if there is
// none. It is the inverse of HostSubnets.
func (n Network) NodeOf(a netip.Addr) int {
	if n.Topology != Layer3 {
		return 0
	}
	before := uint64(0)
	for _, s := range n.subnetsOf(a.Is4()) {
		count := hostSubnetCount(s)
		if !s.CIDR.Contains(a) {
			before = min(before+count, MaxNodeID)
			continue
		}
		inside := new(big.Int).SetBytes(a.AsSlice())
		inside.Sub(inside, new(big.Int).SetBytes(s.CIDR.Masked().Addr().AsSlice()))
		inside.Rsh(inside, uint(a.BitLen()-s.HostLen))
		if !inside.IsUint64() || inside.Uint64() >= min(count, MaxNodeID) || before+inside.Uint64() >= MaxNodeID {
			return 0
		}
		return int(before+inside.Uint64()) + 1
	}
	return 0
}

func (n Network) subnetsOf(is4 bool) []Subnet {
	var out []Subnet
	for _, s := range n.Subnets {
		if s.CIDR.Addr().Is4() == is4 {
			out = append(out, s)
		}
	}
	return out
}

// HostCapacity is the number of nodes that n's subnets have a host subnet for,
// the lower one of the two IP families. On Layer 2 and Localnet, whose
// subnets are not divided, it is MaxNodeID.
func (n Network) HostCapacity() uint64 {
	if n.Topology != Layer3 {
		return MaxNodeID
	}
	var total [2]uint64
	var seen [2]bool
	for _, s := range n.Subnets {
		i := 0
		if !s.CIDR.Addr().Is4() {
			i = 1
		}
		seen[i] = true
		total[i] = min(total[i]+hostSubnetCount(s), MaxNodeID)
	}
	switch {
	case seen[0] && seen[1]:
		return min(total[0], total[1])
	case seen[0]:
		return total[0]
	default:
		return total[1]
	}
}

func hostSubnetCount(s Subnet) uint64 {
	bits := s.HostLen - s.CIDR.Bits()
	if bits < 0 {
		return 0
	}
	return uint64(1) << min(bits, 32) // more than any number of nodes
}

func nthSubnet(s Subnet, index uint64) netip.Prefix {
	shift := uint(s.CIDR.Addr().BitLen() - s.HostLen)
	add := new(big.Int).Lsh(new(big.Int).SetUint64(index), shift)
	return netip.PrefixFrom(addBig(s.CIDR.Masked().Addr(), add), s.HostLen)
}

// NthAddr returns the address at index in p. ok is false if p does not contain it.
func NthAddr(p netip.Prefix, index uint64) (netip.Addr, bool) {
	a := addBig(p.Masked().Addr(), new(big.Int).SetUint64(index))
	return a, a.IsValid() && p.Contains(a)
}

func addBig(a netip.Addr, n *big.Int) netip.Addr {
	sum := new(big.Int).Add(new(big.Int).SetBytes(a.AsSlice()), n)
	b := sum.Bytes()
	size := a.BitLen() / 8
	if len(b) > size {
		return netip.Addr{}
	}
	out, _ := netip.AddrFromSlice(append(make([]byte, size-len(b)), b...))
	return out
}

// Gateway is the network's router in a host subnet: .1.
func Gateway(host netip.Prefix) netip.Prefix { return nthIn(host, 1) }

// Management is the node's management port in a host subnet: .2.
func Management(host netip.Prefix) netip.Prefix { return nthIn(host, 2) }

func nthIn(p netip.Prefix, n uint64) netip.Prefix {
	a, _ := NthAddr(p, n)
	return netip.PrefixFrom(a, p.Bits())
}

// JoinRouter are the cluster router's addresses on the join switch: .1.
func (n Network) JoinRouter() []netip.Prefix { return mapPrefixes(n.JoinSubnets, 1) }

// JoinGateway are the addresses of a node's gateway router on the join
// switch: base + 1 + node id, so that node 1 does not take the router's .1.
func (n Network) JoinGateway(nodeID int) []netip.Prefix {
	return mapPrefixes(n.JoinSubnets, uint64(nodeID)+1)
}

// TransitAddr is the address of a node's router on a Layer 3 network's transit switch: base +
// 1 + node id. It is an IPv6 address if the network has IPv6, also as next hop of IPv4 packets:
// OVN's cost is that of one IP family. ok is false if the network has no transit subnet.
func (n Network) TransitAddr(nodeID int) (a netip.Prefix, ok bool) {
	if len(n.Transit) == 0 {
		return a, false
	}
	p, isV6 := FirstOfFamily(n.Transit, netip.IPv6Unspecified())
	if !isV6 {
		p = n.Transit[0]
	}
	return nthIn(p, uint64(nodeID)+1), true
}

func mapPrefixes(ps []netip.Prefix, index uint64) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ps))
	for _, p := range ps {
		out = append(out, nthIn(p, index))
	}
	return out
}

// EgressPorts are the source ports of networks' connections at the node's address and at
// masquerade addresses. Node ports and the ports of most servers are below: a
// packet from a node port is a service's answer.
const EgressPorts = "32768-60999"

// MasqueradeGateway are the node-local addresses that n's gateway router
// masquerades pods with: base + 10 + 2 × id − 1.
func (p Plan) MasqueradeGateway(n Network) []netip.Prefix {
	return mapPrefixes(p.Masquerade, masqueradeOffset+2*uint64(n.ID)-1)
}

// MasqueradeManagement are the node-local addresses that n's pods are
// masqueraded with on the management port: base + 10 + 2 × id.
func (p Plan) MasqueradeManagement(n Network) []netip.Prefix {
	return mapPrefixes(p.Masquerade, masqueradeOffset+2*uint64(n.ID))
}

// Offsets of the masquerade addresses that all networks share. Others below
// masqueradeOffset are reserved.
const (
	MasqueradeNextHop = 4 // dummy next hop on the external bridge
	MasqueradeHairpin = 5
	MasqueradeNode    = 6 // the node's own processes, to pods of a Layer 2 network
	// MasqueradeLoopback has the host ports that only the node's loopback address has.
	MasqueradeLoopback = 7
)

// MasqueradeFixed returns the masquerade addresses at one of these offsets.
func (p Plan) MasqueradeFixed(offset uint64) []netip.Prefix {
	return mapPrefixes(p.Masquerade, offset)
}

// NodeSource returns the source address of the node's own packets to n's pods through the management
// port, whose subnet is host. On a Layer 2 network that port has the same address on every node, so the source
// is a masquerade address, which the gateway router translates; it is zero if the plan has none.
func (p Plan) NodeSource(n Network, host netip.Prefix) netip.Addr {
	if n.Topology != Layer2 {
		return n.ManagementIn(host).Addr()
	}
	a, _ := FirstOfFamily(p.MasqueradeFixed(MasqueradeNode), host)
	return a.Addr()
}

// MAC derives a MAC address from an IP address: 0a:58 and the four bytes of an
// IPv4 address, or four bytes of the hash of an IPv6 address.
func MAC(a netip.Addr) string {
	var b [4]byte
	if a = a.Unmap(); a.Is4() {
		b = a.As4()
	} else {
		h := sha256.Sum256(a.AsSlice())
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(h[:4]))
	}
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// MACOf returns the MAC address of an interface with the given addresses. It is
// derived from the first IPv4 address, if there is one.
func MACOf(addrs []netip.Prefix) string {
	if len(addrs) == 0 {
		return ""
	}
	if p, ok := FirstOfFamily(addrs, netip.IPv4Unspecified()); ok {
		return MAC(p.Addr())
	}
	return MAC(addrs[0].Addr())
}

// LinkLocal returns the IPv6 link-local address of an interface with the given
// MAC address (RFC 4291, appendix A). It is invalid if mac is no Ethernet address.
func LinkLocal(mac string) netip.Addr {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: hw[0] ^ 2, 9: hw[1], 10: hw[2], 11: 0xff, 12: 0xfe, 13: hw[3], 14: hw[4], 15: hw[5]})
}
