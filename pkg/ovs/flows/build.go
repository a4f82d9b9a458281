// SPDX-License-Identifier: Apache-2.0

// Package flows reconciles the OpenFlow flows of the external bridge, which
// control the traffic of the node's uplink. A packet passes a constant number of them
// however many networks there are, and none is copied to several networks' gateway routers.
package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Bridge is the external bridge's actual state in Open vSwitch. Port numbers may
// change on a restart, so read them before each use.
type Bridge struct {
	Name    string
	Uplinks []int // OpenFlow ports of the uplink's interfaces; several for a bond
	// Router is the OpenFlow port of the patch port to the uplink router; 0: there is
	// none yet.
	Router int
	// Localnets are the patch ports to Localnet networks on this bridge.
	Localnets []Localnet
}

// Inputs are the inputs besides the bridge.
type Inputs struct {
	// Addresses are the node's. Floating are the bridge's other addresses. Links have the hosts that
	// the node may speak BGP with.
	Addresses []netip.Prefix
	Floating  []netip.Addr
	Links     []netip.Prefix
	// Reserved are the node's addresses on any interface and its routers': an advertised network's flows do not
	// match them, whatever its subnets are.
	Reserved []netip.Addr
	// MAC is the bridge's, and that of the uplink router's port.
	MAC string
	// Masquerade and Services are the address ranges that never appear on the wire, Pods
	// that of the cluster default network's pods.
	Masquerade, Services, Pods []netip.Prefix
	// Mode says whether what leaves a gateway router goes to the uplink router or to the
	// host.
	Mode network.GatewayMode
	// Loose: routers outside the cluster decide which packets pass between advertised
	// networks, and between them and the node. Otherwise the node drops these.
	Loose bool
}

// Hosts are the nodes and routers on the uplink's network, besides this node. Localnet networks
// send nothing from their addresses, and do not receive what is for them.
type Hosts struct {
	MACs      []string
	Addresses []netip.Addr
}

// Tables.
const (
	tableInput        = iota // by the port on which a packet arrives
	tableReplies             // from the wire to the node, tracked
	tableLocalnets           // from Localnet networks
	tableDestinations        // by destination; register 0 says where a packet is from
	tableNetworks            // to gateway routers, by their masquerade addresses
	tableTranslated          // replies from the wire to gateway routers, translated
	tableSource              // from gateway routers to the wire, before their addresses are translated
	tableToWire              // after that
	tableToLocalnets         // to Localnet networks
)

// Conntrack zones. The translations between masquerade addresses and the node's are in
// zone 0, which is the host's own, so that no connection gets a port of the node that the
// host uses.
const (
	// zoneWire has the connections between gateway routers and the wire, and none of
	// the host's: only replies to these are translated in zone 0.
	zoneWire = 64000
	// zoneFragments is where fragments are reassembled; those of Localnet networks in the zone zoneVLANs plus the
	// VLAN, so that nobody completes datagrams of the node, or of another VLAN.
	zoneFragments = 64004
	zoneVLANs     = 59000
)

// markRouted is the mark of connections in zoneWire.
const markRouted = 1

// Values of register 0 in tableDestinations.
const (
	fromWire = iota + 1
	fromNetwork
	fromHost
	fromService  // a network's, that answers a client outside it
	fromNodePort // the same, at one of the node's addresses
)

// Priorities of flows, above the bridge's default flow (priority 0, NORMAL).
const (
	priorityForged        = 210 // drops
	priorityOwn           = 208 // packets within an advertised network, and from outside to its pods
	priorityIsolated      = 207 // drops: packets to other advertised networks
	priorityExternalLocal = 205 // services with external traffic policy Local, in local gateway mode
	priorityFragments     = 202 // the host's to networks
	priorityService       = 200 // services
	priorityHost          = 160 // the host to services
	priorityReassemble    = 155
	priorityNotOnWire     = 150 // drops
	priorityVLAN          = 130 // one VLAN
	priorityTagged        = 125 // the others
	priorityTunnel        = 120
	priorityNeighbour     = 115 // ARP and neighbour discovery
	priorityMalformed     = 112 // drops: neighbour discovery that flows cannot read
	priorityNetwork       = 110
	priorityNode          = 105
	priorityPass          = 100
	priorityDrop          = 10
)

// Neighbour solicitations and advertisements (RFC 4861).
const solicitation, advertisement = 135, 136

// tagged matches packets with a VLAN tag.
const tagged = ",vlan_tci=0x1000/0x1000"

// ErrNoUplink: the bridge has no uplink, or none with an OpenFlow port.
var ErrNoUplink = errors.New("no uplink")

// Build returns the flows that belong to no network. The node's own traffic passes
// between uplink and bridge port, and does not depend on conntrack, apart from fragments, which
// are reassembled. Localnet networks are on the wire, in their VLANs. Packets from all other
// ports, i.e. the patch ports of gateway routers, are dropped unless BuildNetwork's flows let
// them pass. Without an uplink Build returns ErrNoUplink with the flows that drop.
func Build(bridge Bridge, in Inputs, hosts Hosts) (State, error) {
	b := newBuilder(bridge, in, CookieBase)
	b.add(tableInput, priorityDrop, "", "drop")
	b.fromHost()
	for _, port := range b.uplinks {
		b.fromUplink(port)
	}
	if len(b.uplinks) == 0 {
		sortFlows(b.out)
		remedy := "add the node's network interface to it"
		if len(bridge.Uplinks) > 0 {
			remedy = "the interface that is its uplink has no OpenFlow port: does it exist, and is ovs-vswitchd running?"
		}
		return b.out, fmt.Errorf("bridge %s: %w: %s", bridge.Name, ErrNoUplink, remedy)
	}
	b.add(tableInput, priorityPass, "in_port=LOCAL", b.toWire)
	b.nodeVLANs()
	if b.routed() {
		b.uplinkRouter()
		b.destinations()
		b.replies()
	}
	b.localnets(hosts)
	sortFlows(b.out)
	return b.out, nil
}

type builder struct {
	bridge  Bridge
	in      Inputs
	cookie  uint64
	uplinks []int
	uplink  string // the action that sends to the uplink
	toWire  string // the actions that send to the uplink and to untagged Localnet networks
	out     State
}

func newBuilder(bridge Bridge, in Inputs, cookie uint64) *builder {
	b := &builder{bridge: bridge, in: in, cookie: cookie, uplinks: slices.Sorted(slices.Values(bridge.Uplinks))}
	b.uplinks = slices.DeleteFunc(b.uplinks, func(port int) bool { return port <= 0 })
	switch len(b.uplinks) {
	case 0:
	case 1:
		b.uplink = fmt.Sprintf("output:%d", b.uplinks[0])
	default: // a bond: use the first member that is up
		members := strings.Trim(strings.ReplaceAll(fmt.Sprint(b.uplinks), " ", ","), "[]")
		b.uplink = "bundle(eth_src,0,active_backup,ofport,members:" + members + ")"
	}
	b.toWire = join(b.uplink, b.toLocalnets(0))
	return b
}

func (b *builder) add(table, priority int, match, actions string) {
	b.out = append(b.out, Flow{Cookie: b.cookie, Table: table, Priority: priority, Match: match, Actions: actions})
}

// routed reports whether gateway routers have a way out: the uplink router exists.
func (b *builder) routed() bool { return b.bridge.Router > 0 && b.in.MAC != "" && len(b.uplinks) > 0 }

// local reports whether the host forwards what leaves gateway routers.
func (b *builder) local() bool { return b.in.Mode == network.LocalGateway }

// origin returns the match of register 0 for a value.
func origin(from int) string { return fmt.Sprintf("reg0=%#x", from) }

// toDestinations returns the actions that continue in tableDestinations.
func toDestinations(from int) string {
	return fmt.Sprintf("load:%#x->NXM_NX_REG0[],%s", from, resubmit(tableDestinations))
}

// reassemble returns the action that continues in a table with the datagram of a fragment.
func reassemble(table, zone int) string { return fmt.Sprintf("ct(table=%d,zone=%d)", table, zone) }

// fromHost adds the flows for packets from the host to networks. What has no way there
// and must not appear on the wire is dropped.
func (b *builder) fromHost() {
	b.dropNotOnWire(tableInput, "in_port=LOCAL")
	for _, p := range b.in.Services {
		b.add(tableInput, priorityNotOnWire, matchIP("in_port=LOCAL", anywhere, p), "drop")
	}
	if !b.routed() {
		return
	}
	for _, p := range b.in.Masquerade {
		b.add(tableInput, priorityService, matchIP("in_port=LOCAL", anywhere, p), resubmit(tableNetworks))
		b.add(tableInput, priorityForged, matchIP("in_port=LOCAL", p, p), "drop")
		b.add(tableInput, priorityFragments, join(matchIP("in_port=LOCAL", anywhere, p), "nw_frag=yes"), reassemble(tableNetworks, zoneFragments))
	}
	for _, ip := range []string{"ip", "ipv6"} {
		// Only a datagram's first fragment has the ports by which services are found.
		b.add(tableInput, priorityNetwork, ip+",in_port=LOCAL,nw_frag=yes", fmt.Sprintf("load:%#x->NXM_NX_REG0[],%s", fromHost, reassemble(tableDestinations, zoneFragments)))
		b.add(tableInput, priorityNode, ip+",in_port=LOCAL", toDestinations(fromHost))
	}
}

// fromUplink adds the flows for packets from the wire.
func (b *builder) fromUplink(port int) {
	from := inPort(port)
	b.dropNotOnWire(tableInput, from)
	b.add(tableInput, priorityPass, from, join("LOCAL", b.toLocalnets(0)))
	if !b.routed() {
		return
	}
	for _, n := range neighbours {
		b.add(tableInput, priorityNeighbour, fmt.Sprintf(n, from), join("LOCAL", outputs([]int{b.bridge.Router}), b.toLocalnets(0)))
	}
	// The overlay's packets are the node's: they skip the lookups, except fragments, of
	// which only the first has a port.
	for _, udp := range []string{"udp", "udp6"} {
		b.add(tableInput, priorityTunnel, fmt.Sprintf("%s,%s,nw_frag=no,tp_dst=%d", udp, from, network.TunnelPort), "LOCAL")
	}
	b.toNode(from)
}

// toNode adds the flows for packets from outside to the node's MAC address.
func (b *builder) toNode(from string) {
	for _, ip := range []string{"ip", "ipv6"} {
		match := fmt.Sprintf("%s,%s,dl_dst=%s", ip, from, b.in.MAC)
		b.add(tableInput, priorityNetwork, match+",nw_frag=yes", fmt.Sprintf("load:%#x->NXM_NX_REG0[],%s", fromWire, reassemble(tableDestinations, zoneFragments)))
		b.add(tableInput, priorityNode, match, toDestinations(fromWire))
	}
}

// neighbours match ARP and neighbour discovery on a port.
var neighbours = []string{"arp,%s", fmt.Sprintf("icmp6,%%s,icmp_type=%d", solicitation), fmt.Sprintf("icmp6,%%s,icmp_type=%d", advertisement)}

// uplinkRouter adds the flows for packets from the uplink router, which has found their
// next hop. Its answers to ARP and neighbour discovery are dropped: the host answers.
func (b *builder) uplinkRouter() {
	from := inPort(b.bridge.Router)
	b.add(tableInput, priorityNeighbour, "arp,"+from+",arp_op=1", b.toWire)
	b.add(tableInput, priorityNeighbour, fmt.Sprintf("icmp6,%s,icmp_type=%d", from, solicitation), b.toWire)
	for _, p := range b.in.Masquerade {
		b.add(tableInput, priorityNetwork, matchIP(from, p, anywhere), resubmit(tableSource))
		b.add(tableInput, priorityNode, matchIP(from, anywhere, p), resubmit(tableNetworks)) // its own ICMP errors
	}
	for _, p := range b.in.Masquerade { // conntrack translates no packet that it takes for invalid
		b.add(tableToWire, priorityNetwork, matchIP("", p, anywhere), "drop")
	}
	for _, ip := range []string{"ip", "ipv6"} {
		b.add(tableToWire, priorityPass, ip, fmt.Sprintf("ct(commit,zone=%d,exec(load:%#x->NXM_NX_CT_MARK[])),%s", zoneWire, markRouted, b.toWire))
	}
}

// linkOnly are destinations that no packet is routed to.
var linkOnly = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10")}

// destinations adds the flows of tableDestinations that belong to no network.
func (b *builder) destinations() {
	const table = tableDestinations
	b.add(table, priorityPass, origin(fromHost), b.toWire)
	b.add(table, priorityPass, origin(fromWire), "LOCAL")
	toNode := setMAC(b.in.MAC) + ",LOCAL"
	out := toNode // the host forwards
	if !b.local() {
		out = setMAC(b.in.MAC) + "," + outputs([]int{b.bridge.Router})
	}
	for _, p := range b.in.Services { // the host would forward it, and the answers would not come back
		b.add(table, priorityNotOnWire, matchIP(origin(fromWire), anywhere, p), "drop")
	}
	for _, own := range b.in.Addresses {
		b.add(table, priorityNode, matchIP(origin(fromWire), anywhere, single(own.Addr())), fmt.Sprintf("ct(table=%d,zone=%d)", tableReplies, zoneWire))
	}
	for _, from := range []int{fromNetwork, fromService} {
		b.add(table, priorityPass, origin(from), out)
		for _, own := range b.in.Addresses {
			b.add(table, priorityNode, matchIP(origin(from), anywhere, single(own.Addr())), toNode)
		}
		for _, a := range b.in.Floating { // the uplink router would ask for them on the wire, where nothing answers
			b.add(table, priorityNode, matchIP(origin(from), anywhere, single(a)), toNode)
		}
		for _, udp := range []string{"udp", "udp6"} { // nodes would take them for the overlay's own
			b.add(table, priorityForged, fmt.Sprintf("%s,%s,tp_dst=%d", udp, origin(from), network.TunnelPort), "drop")
		}
		// Outside, pods have the node's address. For routers and nodes on its link it may be a BGP
		// peer's, and for any router a multihop BFD peer's.
		for _, link := range b.in.Links {
			b.add(table, priorityForged, matchTransport("tcp", origin(from), anywhere, link, fmt.Sprintf("tp_dst=%d", network.BGPPort)), "drop")
		}
		for _, p := range b.in.Masquerade {
			b.add(table, priorityForged, matchTransport("udp", origin(from), p, anywhere, fmt.Sprintf("tp_dst=%d", network.BFDMultiPort)), "drop")
		}
		for _, p := range slices.Concat(b.in.Pods, b.in.Services, linkOnly) {
			b.add(table, priorityNotOnWire, matchIP(origin(from), anywhere, p), "drop")
		}
	}
	for _, p := range b.in.Masquerade {
		b.add(table, priorityNotOnWire, matchIP(origin(fromNetwork), anywhere, p), "drop")
		b.add(table, priorityNotOnWire, matchIP(origin(fromService), anywhere, p), resubmit(tableNetworks))
		if !b.local() { // the client is another network's, and has sent to the node's address
			b.add(table, priorityNotOnWire, matchIP(origin(fromNodePort), anywhere, p), resubmit(tableNetworks))
		}
	}
}

// replies adds the flows for replies to connections of gateway routers.
func (b *builder) replies() {
	for _, state := range []string{"+est+trk", "+rel+trk"} {
		for _, ip := range []string{"ip", "ipv6"} {
			b.add(tableReplies, priorityNetwork, fmt.Sprintf("ct_state=%s,ct_mark=%#x,%s", state, markRouted, ip), fmt.Sprintf("ct(table=%d,nat)", tableTranslated))
		}
	}
	b.add(tableReplies, priorityPass, "", "LOCAL")
	for _, p := range b.in.Masquerade {
		b.add(tableTranslated, priorityNetwork, matchIP("", anywhere, p), resubmit(tableNetworks))
	}
	b.add(tableTranslated, priorityPass, "", "LOCAL")
}

// nodeVLANs lets the packets of the node's own VLAN devices pass. A tag of VLAN 0 has only a
// priority (IEEE 802.1Q): the packet is as one without a tag.
func (b *builder) nodeVLANs() {
	b.add(tableInput, priorityTagged, "in_port=LOCAL"+tagged, b.uplink)
	for _, port := range b.uplinks {
		b.add(tableInput, priorityTagged, inPort(port)+tagged, "LOCAL")
		b.add(tableInput, priorityVLAN, inPort(port)+",dl_vlan=0", "strip_vlan,resubmit(,0)")
	}
}

// dropNotOnWire drops packets from and to masquerade addresses, which mean something
// inside one node only.
func (b *builder) dropNotOnWire(table int, port string) {
	for _, p := range b.in.Masquerade {
		b.add(table, priorityNotOnWire, matchIP(port, p, anywhere), "drop")
		b.add(table, priorityNotOnWire, matchIP(port, anywhere, p), "drop")
	}
}

// dropForged drops a port's datagrams to the overlay's port, which nodes would take for the
// overlay's own. Fragments arrive here reassembled.
func (b *builder) dropForged(table int) {
	for _, udp := range []string{"udp", "udp6"} {
		b.add(table, priorityForged, fmt.Sprintf("%s,tp_dst=%d", udp, network.TunnelPort), "drop")
	}
}
