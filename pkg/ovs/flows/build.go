// SPDX-License-Identifier: Apache-2.0

// Package flows reconciles the OpenFlow flows of the external bridge, which
// control the traffic of the node's uplink. Their number does not depend on the
// number of networks, and they never flood a packet to the networks' patch ports.
package flows

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Cookies mark flows as ours. Each of our flows has CookieMark in the bits of
// CookieMask; the other bits contain the id of its network, if any.
const (
	CookieMark = uint64(0xb01c) << 48
	CookieMask = uint64(0xffff) << 48
	// CookieBase is the cookie of flows that belong to no network.
	CookieBase = CookieMark | 1<<32
)

// Cookie returns the cookie of a network's flows.
func Cookie(n network.Network) uint64 { return CookieMark | uint64(n.ID) }

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
}

// Priorities of flows, above the bridge's default flow (priority 0, NORMAL).
const (
	priorityPass = 100
	priorityDrop = 10
)

// Build returns the desired flows: the node's own traffic passes between uplink
// and bridge port, and packets from all other ports, i.e. the networks' patch
// ports, are dropped. Networks have no external connectivity yet, so they add no
// flows. Without an uplink Build returns ErrNoUplink with the flow that drops.
func Build(bridge Bridge, _ []network.Network) (State, error) {
	s := State{{Cookie: CookieBase, Priority: priorityDrop, Actions: "drop"}}
	uplinks := slices.Clone(bridge.Uplinks)
	slices.Sort(uplinks)
	for _, port := range uplinks {
		if port <= 0 {
			return nil, fmt.Errorf("uplink of bridge %s has no OpenFlow port yet", bridge.Name)
		}
		s = append(s, Flow{Cookie: CookieBase, Priority: priorityPass, Match: fmt.Sprintf("in_port=%d", port), Actions: "LOCAL"})
	}
	switch len(uplinks) {
	case 0:
		return s, fmt.Errorf("bridge %s: %w", bridge.Name, ErrNoUplink)
	case 1:
		s = append(s, Flow{Cookie: CookieBase, Priority: priorityPass, Match: "in_port=LOCAL", Actions: fmt.Sprintf("output:%d", uplinks[0])})
	default: // a bond: use the first member that is up
		members := strings.Trim(strings.ReplaceAll(fmt.Sprint(uplinks), " ", ","), "[]")
		s = append(s, Flow{Cookie: CookieBase, Priority: priorityPass, Match: "in_port=LOCAL",
			Actions: "bundle(eth_src,0,active_backup,ofport,members:" + members + ")"})
	}
	sortFlows(s)
	return s, nil
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
