// SPDX-License-Identifier: Apache-2.0

// Package flows reconciles the OpenFlow flows of the external bridge, which
// control the traffic of the node's uplink. Their number does not depend on the
// number of networks with gateway routers, to whose patch ports they never flood a packet.
package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Cookies mark flows as ours. Each of our flows has CookieMark in the bits of
// CookieMask.
const (
	CookieMark = uint64(0xb01c) << 48
	CookieMask = uint64(0xffff) << 48
	// CookieBase is the cookie of flows that belong to no tenant's network.
	CookieBase = CookieMark | 1<<32
)

// Flow is one OpenFlow flow, in the format of ovs-ofctl.
type Flow struct {
	Cookie   uint64
	Table    int
	Priority int
	Match    string // "" matches everything
	Actions  string
}

func (f Flow) String() string {
	s := fmt.Sprintf("cookie=%#x, table=%d, priority=%d", f.Cookie, f.Table, f.Priority)
	if f.Match != "" {
		s += "," + f.Match
	}
	return s + " actions=" + f.Actions
}

// key identifies a flow in OpenFlow: two flows with the same key are the same.
func (f Flow) key() string {
	return fmt.Sprintf("table=%d,priority=%d,%s", f.Table, f.Priority, f.Match)
}

// State is a bridge's flows with our cookie, sorted.
type State []Flow

// Bridge is the external bridge's actual state in Open vSwitch. Port numbers may
// change on a restart, so read them before each use.
type Bridge struct {
	Name    string
	Uplinks []int // OpenFlow ports of the uplink's interfaces; several for a bond
	// Gateway is the OpenFlow port of the patch port to the cluster default network's
	// gateway router; 0: there is none yet.
	Gateway int
	// Localnets are the patch ports to Localnet networks on this bridge.
	Localnets []Localnet
}

// Inputs are Build's inputs besides the bridge.
type Inputs struct {
	// Addresses are the node's, which the gateway router has too.
	Addresses []netip.Prefix
	// MAC is the bridge's, and that of the gateway router's port.
	MAC string
	// Masquerade and Services are the address ranges that never appear on the wire.
	Masquerade, Services []netip.Prefix
}

// Priorities of flows, above the bridge's default flow (priority 0, NORMAL).
const (
	priorityForged    = 210 // drops
	priorityService   = 200 // between tenants and the cluster default network's services
	priorityNotOnWire = 150 // drops
	priorityVLAN      = 130 // one VLAN
	priorityTagged    = 125 // the others
	priorityTunnel    = 120
	priorityNeighbour = 115 // ARP and neighbour discovery
	priorityGateway   = 110
	priorityPass      = 100
	priorityDrop      = 10
)

// tagged matches packets with a VLAN tag.
const tagged = ",vlan_tci=0x1000/0x1000"

// Build returns the desired flows. The node's own traffic passes between uplink and
// bridge port. The cluster default network's gateway router shares the node's addresses:
// connections that it opens are tracked, so that replies find it. Localnet networks are on
// the wire, in their VLANs. Packets from all other ports, i.e. the patch ports of tenants'
// gateway routers, are dropped. Without an uplink Build returns
// ErrNoUplink with the flows that drop.
func Build(bridge Bridge, in Inputs) (State, error) {
	b := builder{bridge: bridge, in: in}
	b.add(priorityDrop, "", "drop")
	b.dropNotOnWire("in_port=LOCAL")
	b.uplinks = slices.Sorted(slices.Values(bridge.Uplinks))
	for _, port := range b.uplinks {
		if port <= 0 {
			return nil, fmt.Errorf("uplink of bridge %s has no OpenFlow port yet", bridge.Name)
		}
		b.dropNotOnWire(inPort(port))
		b.add(priorityPass, inPort(port), join("LOCAL", b.untagged()))
	}
	switch len(b.uplinks) {
	case 0:
		sortFlows(b.out)
		return b.out, fmt.Errorf("bridge %s: %w", bridge.Name, ErrNoUplink)
	case 1:
		b.uplink = fmt.Sprintf("output:%d", b.uplinks[0])
	default: // a bond: use the first member that is up
		members := strings.Trim(strings.ReplaceAll(fmt.Sprint(b.uplinks), " ", ","), "[]")
		b.uplink = "bundle(eth_src,0,active_backup,ofport,members:" + members + ")"
	}
	b.toWire = join(b.uplink, b.untagged())
	b.add(priorityPass, "in_port=LOCAL", b.toWire)
	b.nodeVLANs()
	if b.hasGateway() {
		b.gateway()
	}
	b.localnets()
	sortFlows(b.out)
	return b.out, nil
}

type builder struct {
	bridge  Bridge
	in      Inputs
	uplinks []int
	uplink  string // the action that sends to the uplink
	toWire  string // the actions that send to the uplink and to untagged Localnet networks
	table   int    // add's
	out     State
}

func (b *builder) add(priority int, match, actions string) {
	b.out = append(b.out, Flow{Cookie: CookieBase, Table: b.table, Priority: priority, Match: match, Actions: actions})
}

// nodeVLANs lets the packets of the node's own VLAN devices pass. A tag of VLAN 0 has only a
// priority (IEEE 802.1Q): the packet is as one without a tag.
func (b *builder) nodeVLANs() {
	b.add(priorityTagged, "in_port=LOCAL"+tagged, b.uplink)
	for _, port := range b.uplinks {
		b.add(priorityTagged, inPort(port)+tagged, "LOCAL")
		b.add(priorityVLAN, inPort(port)+",dl_vlan=0", "strip_vlan,resubmit(,0)")
	}
}

// hasGateway reports whether the cluster default network's gateway router is on the bridge.
func (b *builder) hasGateway() bool { return b.bridge.Gateway > 0 && b.in.MAC != "" }

// untagged are the actions that send to untagged Localnet networks.
func (b *builder) untagged() string {
	var ports []int
	for _, l := range b.bridge.Localnets {
		if l.VLAN == 0 {
			ports = append(ports, l.Port)
		}
	}
	return outputs(ports)
}

// join joins the parts of a match or actions that are not empty.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ",")
}

// dropNotOnWire drops a port's packets from and to masquerade addresses, which mean
// something inside one node only.
func (b *builder) dropNotOnWire(port string) {
	for _, p := range b.in.Masquerade {
		b.add(priorityNotOnWire, matchIP(port, p, anywhere), "drop")
		b.add(priorityNotOnWire, matchIP(port, anywhere, p), "drop")
	}
}

func inPort(port int) string { return fmt.Sprintf("in_port=%d", port) }

// anywhere is a source or destination that a match leaves open.
var anywhere netip.Prefix

// matchIP returns the match of packets on a port ("": any) between two prefixes of one IP
// family, of which one may be anywhere, as ovs-ofctl prints it.
func matchIP(port string, src, dst netip.Prefix) string {
	protocol, field := "ip", "nw_"
	if src.Addr().Is6() || dst.Addr().Is6() {
		protocol, field = "ipv6", "ipv6_"
	}
	match := join(protocol, port)
	if src != anywhere {
		match += "," + field + "src=" + prefixText(src)
	}
	if dst != anywhere {
		match += "," + field + "dst=" + prefixText(dst)
	}
	return match
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Masked().String()
}

// ErrNoUplink: the bridge has no uplink.
var ErrNoUplink = errors.New("no uplink: add the node's network interface to it")

func sortFlows(s State) {
	slices.SortFunc(s, func(a, b Flow) int {
		if a.Table != b.Table {
			return a.Table - b.Table
		}
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		return strings.Compare(a.Match, b.Match)
	})
}
