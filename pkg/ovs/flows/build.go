// SPDX-License-Identifier: Apache-2.0

// Package flows keeps the OpenFlow rules of the external bridge: who may talk
// to whom across the node's uplink. Their number does not grow with the number
// of networks, and no packet is ever flooded to the networks' patch ports.
package flows

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Cookies mark flows as ours. Every flow of ours has CookieMark in the bits of
// CookieMask; the rest names the network it serves, or none.
const (
	CookieMark = uint64(0xb01c) << 48
	CookieMask = uint64(0xffff) << 48
	// CookieBase is of the flows that belong to no network.
	CookieBase = CookieMark | 1<<32
)

// Cookie is of a network's own flows.
func Cookie(n network.Network) uint64 { return CookieMark | uint64(n.ID) }

// Flow is one OpenFlow rule, in the words that ovs-ofctl prints.
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

// key is what OpenFlow knows a rule by: two with the same key are one.
func (f Flow) key() string {
	return fmt.Sprintf("table=%d,priority=%d,%s", f.Table, f.Priority, f.Match)
}

// State is a bridge's flows of ours, in order.
type State []Flow

// Bridge is the external bridge as Open vSwitch has it now. Port numbers
// change when it restarts: read them anew each time.
type Bridge struct {
	Name    string
	Uplinks []int // OpenFlow ports of the interfaces of the node's uplink; several are a bond
}

// Priorities. The bridge's default flow (priority 0, NORMAL) stays below.
const (
	priorityPass = 100
	priorityDrop = 10
)

// Build is what the external bridge does: the node's own traffic passes
// between uplink and bridge port, and what comes from any other port, which
// are the networks' patch ports, is dropped. The node's networks have no way to
// the outside yet, so that nothing follows from them. Without an uplink
// (ErrNoUplink) the flows drop all the same.
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
	default: // a bond: the first member that is up
		members := strings.Trim(strings.ReplaceAll(fmt.Sprint(uplinks), " ", ","), "[]")
		s = append(s, Flow{Cookie: CookieBase, Priority: priorityPass, Match: "in_port=LOCAL",
			Actions: "bundle(eth_src,0,active_backup,ofport,members:" + members + ")"})
	}
	sortFlows(s)
	return s, nil
}

// ErrNoUplink says that the bridge has no port to the outside.
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
