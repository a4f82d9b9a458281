// SPDX-License-Identifier: Apache-2.0

package uplink

import "fmt"

// Verb is what an Op does.
type Verb int

const (
	SaveRecord Verb = iota + 1
	AddBridge
	SetMAC
	SetAcceptRA
	BridgeUp
	AddAddress
	CopyNeighbors // from the other link to Link
	AddPort
	AddRoute
	DelRoute
	DelAddress
	DelPort
	DelBridge
)

// Op is one change. Adding what exists and deleting what is missing succeeds.
type Op struct {
	Verb    Verb
	Owner   Owner
	Link    string // of addresses, routes and sysctls
	Record  Record
	MAC     string // of the bridge
	Address Address
	Route   Route
	Value   int // of accept_ra
}

func (o Op) String() string {
	switch o.Verb {
	case SaveRecord:
		return fmt.Sprintf("record that %s is %s, with %d addresses and %d routes", o.Record.Uplink, o.Record.Phase, len(o.Record.Addresses), len(o.Record.Routes))
	case AddBridge:
		return fmt.Sprintf("add bridge %s with MAC address %s", o.Owner.Bridge, o.MAC)
	case SetMAC:
		return fmt.Sprintf("set MAC address of bridge %s to %s", o.Owner.Bridge, o.MAC)
	case SetAcceptRA:
		return fmt.Sprintf("set accept_ra of %s to %d", o.Link, o.Value)
	case BridgeUp:
		return "set " + o.Owner.Bridge + " up"
	case AddAddress:
		return fmt.Sprintf("add address %s to %s", o.Address, o.Link)
	case DelAddress:
		return fmt.Sprintf("delete address %s from %s", o.Address, o.Link)
	case CopyNeighbors:
		return "copy neighbours to " + o.Link
	case AddPort:
		return fmt.Sprintf("add %s to bridge %s", o.Owner.Uplink, o.Owner.Bridge)
	case AddRoute:
		return fmt.Sprintf("add route %s dev %s", o.Route, o.Link)
	case DelRoute:
		return fmt.Sprintf("delete route %s dev %s", o.Route, o.Link)
	case DelPort:
		return fmt.Sprintf("remove %s from bridge %s", o.Owner.Uplink, o.Owner.Bridge)
	case DelBridge:
		return "delete bridge " + o.Owner.Bridge
	default:
		return fmt.Sprintf("unknown operation %d", o.Verb)
	}
}
