// SPDX-License-Identifier: Apache-2.0

// Package uplink moves the node's physical interface, the uplink, into the external bridge:
// it creates the bridge if there is none, adds the interface to it, and moves the
// interface's addresses and routes to the bridge's link. Restoring does the reverse.
//
// Build returns the desired state or the reason why the interface is refused, Diff the
// operations, and Apply runs them until one fails. What is about to be moved is written to a file, the
// record, before the first change. An address is added to one link before it is deleted from
// the other, and so is a route: after a crash the links and the record together still have
// everything.
package uplink

import (
	"fmt"
	"net/netip"
	"slices"
)

// Phase is how far a move or its reverse is.
type Phase string

const (
	PhaseNone      Phase = "" // there is no record
	PhaseMoving    Phase = "moving"
	PhaseMoved     Phase = "moved"
	PhaseRestoring Phase = "restoring"
	PhaseRestored  Phase = "restored" // bulkheadctl restore-uplink is done: the agent does nothing
)

// Record is what the file says.
type Record struct {
	Phase  Phase  `json:"phase"`
	Bridge string `json:"bridge"`
	Uplink string `json:"uplink"`
	// BootID identifies the boot in which the record was written. After a reboot the
	// operating system has configured the uplink again, so the lists do not count any more.
	BootID string `json:"bootID"`
	// BridgeIndex is the index of the bridge's link. With another index the link is a new one, which
	// has lost what the record lists.
	BridgeIndex int `json:"bridgeIndex"`
	// AcceptRA is the uplink's sysctl accept_ra before the move; -1: it has none. RA: the kernel
	// processed router advertisements.
	AcceptRA int  `json:"acceptRA"`
	RA       bool `json:"ra"`
	// Addresses and Routes are what the bridge has to have, or, for the phase restoring, the uplink. Of an
	// adopted bridge they are only those that were moved.
	Addresses []Address `json:"addresses,omitempty"`
	Routes    []Route   `json:"routes,omitempty"`
}

// Forever is the lifetime of a permanent address.
const Forever = ^uint32(0)

// Address is an address of a link, with everything that the kernel stores with it.
type Address struct {
	Prefix    netip.Prefix `json:"prefix"`
	Peer      netip.Prefix `json:"peer,omitzero"`
	Broadcast netip.Addr   `json:"broadcast,omitzero"`
	Label     string       `json:"label,omitempty"` // the suffix of an IPv4 label, such as ":1"
	Scope     uint8        `json:"scope"`
	Flags     uint32       `json:"flags"`
	Valid     uint32       `json:"valid"` // seconds
	Preferred uint32       `json:"preferred"`
	Metric    uint32       `json:"metric,omitempty"` // of the route that the kernel adds for the prefix
	Proto     uint8        `json:"proto,omitempty"`
	// Temporary is an IPv6 privacy address, Tentative one that is not checked for duplicates
	// yet, Failed one that another host has. They cannot be set.
	Temporary, Tentative, Failed bool `json:",omitempty"`
}

func (a Address) String() string {
	s := a.Prefix.String()
	if a.Peer.IsValid() {
		s += " peer " + a.Peer.String()
	}
	if a.Valid != Forever {
		s += fmt.Sprintf(" valid %ds", a.Valid)
	}
	return s
}

func (a Address) is6() bool { return a.Prefix.Addr().Is6() }

// addressKey identifies an address of a link.
type addressKey struct{ prefix, peer netip.Prefix }

func (a Address) key() addressKey { return addressKey{a.Prefix, a.Peer} }

// moved returns the address as the other link gets it.
func (a Address) moved() Address {
	if a.Temporary {
		// The kernel does not let us add a privacy address. Connections go on with a deprecated one.
		a.Preferred, a.Temporary = 0, false
	}
	a.Tentative = false
	return a
}

// Route is a route through a link. Message is the kernel's route message in a normal form in which the
// link's index is a placeholder, so that a route is the same on either link, and attributes survive
// that this package knows nothing of.
type Route struct {
	Text    string `json:"text"` // for people
	Message []byte `json:"message"`
	Expires uint32 `json:"expires,omitempty"` // in seconds; 0: never
	Gateway bool   `json:"gateway,omitempty"` // it has a next hop, which another route must lead to
	RA      bool   `json:"ra,omitempty"`      // the kernel made it from a router advertisement
	// NextHopID is that of the route's next hop object; 0: none. The route moves as one with that next
	// hop, and the kernel deletes it only by the id.
	NextHopID uint32 `json:"nextHopID,omitempty"`
}

func (r Route) String() string { return r.Text }

func (r Route) key() string { return string(r.Message) }

// Config is what a link has that moves with it. Addresses are in the kernel's order, in which
// the first one of a subnet is the primary one.
type Config struct {
	Addresses []Address
	Routes    []Route
}

func (c Config) empty() bool { return len(c.Addresses)+len(c.Routes) == 0 }

func (c Config) hasAddress(a Address) bool {
	return slices.ContainsFunc(c.Addresses, func(o Address) bool { return o.key() == a.key() })
}

func (c Config) hasRoute(r Route) bool {
	return slices.ContainsFunc(c.Routes, func(o Route) bool { return o.key() == r.key() })
}

// union returns c, and what only other has.
func (c Config) union(other Config) Config {
	out := Config{slices.Clone(c.Addresses), slices.Clone(c.Routes)}
	for _, a := range other.Addresses {
		if !out.hasAddress(a) {
			out.Addresses = append(out.Addresses, a)
		}
	}
	for _, r := range other.Routes {
		if !out.hasRoute(r) {
			out.Routes = append(out.Routes, r)
		}
	}
	return out
}

// moved returns c as the other link gets it.
func (c Config) moved() Config {
	var out Config
	for _, a := range c.Addresses {
		if !a.Failed {
			out.Addresses = append(out.Addresses, a.moved())
		}
	}
	for _, r := range c.Routes {
		out.Routes = append(out.Routes, r.moved())
	}
	return out
}

// without returns c without what other has.
func (c Config) without(other Config) Config {
	return Config{
		slices.DeleteFunc(slices.Clone(c.Addresses), other.hasAddress),
		slices.DeleteFunc(slices.Clone(c.Routes), other.hasRoute),
	}
}

// lasting returns c without routes that routers advertise: the kernel adds those again.
func (c Config) lasting() Config {
	return Config{c.Addresses, slices.DeleteFunc(slices.Clone(c.Routes), func(r Route) bool { return r.RA })}
}

// sameKeys reports whether both have the same addresses and routes.
func (c Config) sameKeys(other Config) bool {
	return c.without(other).empty() && other.without(c).empty()
}

// Interface is the uplink as the kernel sees it.
type Interface struct {
	Exists   bool
	Kind     string // such as vlan or bond; "" or "device" for a physical one
	MAC      string
	Ethernet bool
	Loopback bool
	Wireless bool
	Master   string // the name of its bridge, bond or VRF; "" for none and for Open vSwitch
	AcceptRA int    // sysctl accept_ra; -1: no IPv6
	RA       bool   // the kernel processes router advertisements
	// DHCP describes a DHCP client that uses the interface; "": none was found.
	DHCP string
}

// Switch is what Open vSwitch has.
type Switch struct {
	Exists  bool // the external bridge
	Created bool // with our mark: the agent created it
	// MAC is the MAC address that Open vSwitch gives a bridge with our mark.
	MAC string
	// Uplink is the port that external_ids:bridge-uplink of the bridge names.
	Uplink string
	// Others are the bridge's other ports that may be an uplink: neither patch nor internal.
	Others []string
	// PortOf is the bridge of which the uplink is a port; "": none.
	PortOf string
	Added  bool // with our mark: the agent added that port
}

// State is the actual or the desired state.
type State struct {
	Record    Record
	Interface Interface
	Switch    Switch
	LinkIndex int // of the bridge's link; 0: there is none
	BridgeUp  bool
	BridgeRA  int    // sysctl accept_ra of the bridge; -1: no IPv6, or no bridge
	OnUplink  Config // not link-local, and without what the kernel adds by itself
	OnBridge  Config // likewise, and without routes of ours
}
