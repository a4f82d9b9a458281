// SPDX-License-Identifier: Apache-2.0

package network

// A packet's mark (fwmark) is shared with other programs of the node: kube-proxy has
// 0x4000 and 0x8000, OVS's IPsec has 0x1. Bulkhead's part is the upper half, which holds
// one number. Everything that reads the part masks it, and everything that writes it
// leaves the lower half as it is.
//
//	number         mark                   meaning
//	0              0x00000000             none
//	0x0001–0x2710  0x00010000–0x27100000  network, by id (MaxID is 0x2710)
//	0x2711         0x27110000             processes of a deleted pod whose network is gone
//	0x2712–0x3fff  up to 0x3fff0000       never given
//	0x4000–0x7fff  0x40000000–0x7fff0000  reserved for egress IP, one number per address
//	0x8000         0x80000000             replies to pods of ingress namespaces
//	0x8001–0xa710  0x80010000–0xa7100000  what those pods send to a service, by the id of its network
//	0xa711–0xbfff  up to 0xbfff0000       reserved for services
//	0xc001         0xc0010000             kubelet's sockets
//	0xc002         0xc0020000             forwarded for pods out of the node, in local gateway mode
//	0xc003–0xffff  up to 0xffff0000       free
//
// The highest two bits are the kind, so that one rule matches all of a kind.
const (
	// MarkMask selects Bulkhead's part of a mark.
	MarkMask uint32 = 0xffff0000
	// MarkBits is the size of a network's number, and MarkShift its place.
	MarkBits  = 14
	MarkShift = 16

	MarkKindEgressIP uint32 = 0x40000000
	MarkKindService  uint32 = 0x80000000
	MarkKindOther    uint32 = 0xc0000000

	// KubeletMark is the mark of kubelet's sockets.
	KubeletMark = MarkKindOther | 1<<MarkShift
	// NoNetworkMark is the mark of a tenant's processes whose network is gone. It is refused where
	// networks' marks are, and leads into no network.
	NoNetworkMark = (MaxID + 1) << MarkShift
	// OutMark is the mark of packets that the node forwards for pods out of the node, in local
	// gateway mode. nftables sets it; only forwarded packets use it (see RuleOut).
	OutMark = MarkKindOther | 2<<MarkShift
)

// PodLinkGroup is the link group of the host's ends of pods' interfaces. nftables drops what the host's IP
// stack gets from them: Open vSwitch takes it before, unless they are not on the bridge.
const PodLinkGroup uint32 = 0x6268

// Every network's id has a number, and so has NoNetworkMark: this does not compile otherwise.
const _ = uint(1<<MarkBits - 2 - MaxID)

// Priorities of policy rules. Others' rules are the kernel's own for VRF devices (1000), and
// those for the tables main (32766) and default (32767).
//
//	priority   rules
//	900–902    forwarded packets to services use the main table, and those with OutMark use it
//	           except its default routes
//	903        forwarded packets from the external bridge use AdvertisedTable
//	2000–4900  packets with a network's mark use its table
//	4901       packets to a network's masquerade address use MasqueradeTable
//	4902–4999  free for networks
//	5000–5999  reserved for egress services
//	6000–6999  reserved for egress IP
//
// The mark comes first: a tenant's process that sends to another network's masquerade address
// must not use that network's routes. RuleOut comes before the kernel's rule, which leads packets of
// pods to their network's table.
const (
	RuleOut           = 900
	FirstRule         = 2000
	LastRule          = 4901
	RuleEgressService = 5000
	RuleEgressIP      = 6000
)

// Routing tables that all networks share.
const (
	// AdvertisedTable has the routes to this node's pods of advertised networks, in local gateway
	// mode: packets from outside are for the pods' own addresses.
	AdvertisedTable = 99998
	// MasqueradeTable has the routes to all networks' masquerade addresses.
	MasqueradeTable = 99999
)

// PacketMark is the skb mark (fwmark) by which rules send packets into n's VRF.
func (n Network) PacketMark() uint32 { return PacketMark(n.ID) }

// FirstPacketMark and LastPacketMark are the range of marks with a network's number, and
// NoNetworkMark, whatever bits other programs have set.
const (
	FirstPacketMark uint32 = 1 << MarkShift
	LastPacketMark  uint32 = NoNetworkMark | ^MarkMask
)

// PacketMark returns the skb mark of the network with the given id.
func PacketMark(id int) uint32 { return uint32(id) << MarkShift }

// IngressMark is the mark of what pods of ingress namespaces send to n's services: of host-network
// pods' sockets, and of packets that the node forwards for others.
func (n Network) IngressMark() uint32 { return MarkKindService | n.PacketMark() }

// NetworkOfPacketMark returns the id of the network with the given mark. It ignores the
// bits of other programs.
func NetworkOfPacketMark(mark uint32) (id int, ok bool) {
	id = int(mark >> MarkShift)
	return id, id >= 1 && id <= MaxID
}
