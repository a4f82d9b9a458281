// SPDX-License-Identifier: Apache-2.0

// Package flows reconciles the OpenFlow flows of the external bridge, which
// control the traffic of the node's uplink. Their number does not depend on the
// number of networks, and they never flood a packet to the networks' patch ports.
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
	priorityService   = 200 // between tenants and the cluster default network's services
	priorityNotOnWire = 150 // drops
	priorityTunnel    = 120
	priorityNeighbour = 115 // ARP and neighbour discovery
	priorityGateway   = 110
	priorityPass      = 100
	priorityDrop      = 10
)

// Build returns the desired flows. The node's own traffic passes between uplink and
// bridge port. The cluster default network's gateway router shares the node's addresses:
// connections that it opens are tracked, so that replies find it. Packets from all other
// ports, i.e. the tenants' patch ports, are dropped. Without an uplink Build returns
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
		b.add(priorityPass, inPort(port), "LOCAL")
	}
	switch len(b.uplinks) {
	case 0:
		sortFlows(b.out)
		return b.out, fmt.Errorf("bridge %s: %w", bridge.Name, ErrNoUplink)
	case 1:
		b.toWire = fmt.Sprintf("output:%d", b.uplinks[0])
	default: // a bond: use the first member that is up
		members := strings.Trim(strings.ReplaceAll(fmt.Sprint(b.uplinks), " ", ","), "[]")
		b.toWire = "bundle(eth_src,0,active_backup,ofport,members:" + members + ")"
	}
	b.add(priorityPass, "in_port=LOCAL", b.toWire)
	if bridge.Gateway > 0 && in.MAC != "" {
		b.gateway()
	}
	sortFlows(b.out)
	return b.out, nil
}

type builder struct {
	bridge  Bridge
	in      Inputs
	uplinks []int
	toWire  string // the action that sends to the uplink
	out     State
}

func (b *builder) add(priority int, match, actions string) {
	b.out = append(b.out, Flow{Cookie: CookieBase, Priority: priority, Match: match, Actions: actions})
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

// matchIP returns the match of packets on a port between two prefixes of one IP family, of
// which one may be anywhere, as ovs-ofctl prints it.
func matchIP(port string, src, dst netip.Prefix) string {
	protocol, field := "ip", "nw_"
	if src.Addr().Is6() || dst.Addr().Is6() {
		protocol, field = "ipv6", "ipv6_"
	}
	match := protocol + "," + port
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
