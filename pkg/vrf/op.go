// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"fmt"
	"net/netip"
)

// Verb is what an Op does.
type Verb int

const (
	AddRoute Verb = iota + 1
	DelRoute
	AddRule
	DelRule
	AddDevice // adds a VRF device with its table and group, down
	DelDevice
	SetAlias
	DeviceUp
	SetSysctl
	SetMTU
	SetMaster // sets Port.Master; "" releases the port from its VRF
	AddAddr
	DelAddr
	PortUp
	PortDown
)

// Op is one change to the kernel. Fields that the verb does not need are zero.
// Adding an existing object and deleting a missing one succeeds.
type Op struct {
	Verb   Verb
	Device Device
	Port   Port
	Addr   netip.Prefix
	Sysctl Sysctl
	Rule   Rule
	Route  Route
}

func (o Op) String() string {
	switch o.Verb {
	case AddRoute:
		return "add route " + o.Route.String()
	case DelRoute:
		return "delete route " + o.Route.String()
	case AddRule:
		return "add rule " + o.Rule.String()
	case DelRule:
		return "delete rule " + o.Rule.String()
	case AddDevice:
		return fmt.Sprintf("add VRF %s table %d", o.Device.Name, o.Device.Table)
	case DelDevice:
		return "delete VRF " + o.Device.Name
	case SetAlias:
		return fmt.Sprintf("set alias of %s to %s", o.Device.Name, o.Device.Alias)
	case DeviceUp:
		return "set VRF " + o.Device.Name + " up"
	case SetSysctl:
		return "set sysctl " + o.Sysctl.String()
	case SetMTU:
		return fmt.Sprintf("set MTU of %s to %d", o.Port.Name, o.Port.MTU)
	case SetMaster:
		if o.Port.Master == "" {
			return "release " + o.Port.Name + " from its VRF"
		}
		return fmt.Sprintf("put %s into VRF %s", o.Port.Name, o.Port.Master)
	case AddAddr:
		return fmt.Sprintf("add address %s to %s", o.Addr, o.Port.Name)
	case DelAddr:
		return fmt.Sprintf("delete address %s from %s", o.Addr, o.Port.Name)
	case PortUp:
		return "set " + o.Port.Name + " up"
	case PortDown:
		return "set " + o.Port.Name + " down"
	default:
		return fmt.Sprintf("unknown operation %d", o.Verb)
	}
}

// opens reports whether the operation makes a network reachable.
func (o Op) opens() bool {
	switch o.Verb {
	case AddRoute:
		return !o.Route.Unreachable
	case SetMaster:
		return o.Port.Master != ""
	case AddAddr, PortUp, DeviceUp:
		return true
	}
	return false
}

// needs returns the link that must exist, and be in its VRF, before the
// operation; "" if the operation deletes something or needs no link.
func (o Op) needs() string {
	switch o.Verb {
	case SetAlias, DeviceUp:
		return o.Device.Name
	case AddAddr, PortUp:
		return o.Port.Name
	case AddRoute:
		return o.Route.Dev
	case SetSysctl:
		return o.Sysctl.device()
	}
	return ""
}
