// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Owner selects one network's state in the kernel.
type Owner struct {
	ID      int
	Network string   // name, for messages
	Table   int      // routes and rules
	Names   []string // possible names of the VRF device
	Port    string   // management port
	Bridge  string   // external bridge, the device of default routes
}

// OwnerOf returns the owner for net on this node.
func OwnerOf(net network.Network, node network.Node, plan network.Plan) Owner {
	o := Owner{ID: net.ID, Network: net.Name, Table: MainTable, Names: DeviceNames(net), Port: net.ManagementPort(), Bridge: node.Bridge}
	if !net.IsDefault() {
		o.Table = plan.VRFTable(net)
	}
	return o
}

// State is one network's desired or actual state in the kernel. Lists are
// sorted and have no duplicates.
type State struct {
	ID      int
	Network string
	Devices []Device // VRF devices: at most one desired, none for the cluster default network
	Port    Port     // zero if there is none
	Sysctls []Sysctl
	Rules   []Rule
	Routes  []Route

	// Only in the actual state:
	Absent  []string // links that the network needs and that do not exist, or a bridge that is down
	Foreign []string // names in Owner.Names of links without our mark
	Taken   string   // a VRF device without our mark that has Owner.Table
}

// Device is a VRF device with our mark.
type Device struct {
	Name  string
	Table int
	Alias string
	Up    bool
}

// Port is the management port. Addrs has no IPv6 link-local addresses.
type Port struct {
	Name   string
	Master string // name of the VRF device or other master
	MTU    int
	Up     bool
	Addrs  []netip.Prefix
}

// Sysctl is a path below /proc/sys and its value.
type Sysctl struct{ Path, Value string }

// device returns the device that the sysctl belongs to: net/ipv4/conf/DEVICE/key.
func (s Sysctl) device() string {
	if part := strings.Split(s.Path, "/"); len(part) == 5 {
		return part[3]
	}
	return ""
}

func (s Sysctl) String() string { return strings.ReplaceAll(s.Path, "/", ".") + "=" + s.Value }

// Route is a route with Protocol. A route with a next hop has the onlink flag.
type Route struct {
	Table       int
	Dst         netip.Prefix
	Unreachable bool
	Via         netip.Addr // invalid: on the device's link
	Src         netip.Addr // source address of the node's own packets; may be zero
	Dev         string
	Metric      int
}

func (r Route) String() string {
	dst := r.Dst.String()
	if r.Dst.Bits() == 0 {
		dst = "default"
		if r.Dst.Addr().Is6() {
			dst = "default (IPv6)"
		}
	}
	if r.Unreachable {
		return fmt.Sprintf("unreachable %s metric %d table %d", dst, r.Metric, r.Table)
	}
	if r.Src.IsValid() {
		dst += " src " + r.Src.String()
	}
	if r.Via.IsValid() {
		dst += " via " + r.Via.String()
	}
	return fmt.Sprintf("%s dev %s metric %d table %d", dst, r.Dev, r.Metric, r.Table)
}

// String renders the state, one object per line, for goldens and bulkheadctl.
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "network %d %s\n", s.ID, s.Network)
	for _, d := range s.Devices {
		fmt.Fprintf(&b, "vrf %s table %d alias %s %s\n", d.Name, d.Table, d.Alias, upDown(d.Up))
	}
	if s.Port.Name != "" {
		master := ""
		if s.Port.Master != "" {
			master = " master " + s.Port.Master
		}
		fmt.Fprintf(&b, "port %s%s mtu %d %s\n", s.Port.Name, master, s.Port.MTU, upDown(s.Port.Up))
		for _, a := range s.Port.Addrs {
			fmt.Fprintf(&b, "  address %s\n", a)
		}
	}
	for _, x := range s.Sysctls {
		fmt.Fprintf(&b, "sysctl %s\n", x)
	}
	for _, x := range s.Rules {
		fmt.Fprintf(&b, "rule %s\n", x)
	}
	for _, x := range s.Routes {
		fmt.Fprintf(&b, "route %s\n", x)
	}
	return b.String()
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// Empty reports whether no object with our mark exists.
func (s State) Empty() bool { return len(s.Devices)+len(s.Rules)+len(s.Routes) == 0 }

// normalise sorts the lists, so that equal states are equal values.
func (s *State) normalise() {
	slices.SortFunc(s.Devices, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Port.Addrs, netip.Prefix.Compare)
	slices.SortFunc(s.Sysctls, func(a, b Sysctl) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(s.Rules, func(a, b Rule) int {
		return cmp.Or(compareBool(a.IPv6, b.IPv6), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Mark, b.Mark), cmp.Compare(a.Mask, b.Mask), a.To.Compare(b.To), cmp.Compare(a.From, b.From),
			cmp.Compare(a.Action, b.Action), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Goto, b.Goto))
	})
	slices.SortFunc(s.Routes, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), a.Dst.Compare(b.Dst), cmp.Compare(a.Metric, b.Metric),
			cmp.Compare(a.Dev, b.Dev), a.Via.Compare(b.Via))
	})
	s.Sysctls, s.Rules, s.Routes = slices.Compact(s.Sysctls), slices.Compact(s.Rules), slices.Compact(s.Routes)
	slices.Sort(s.Absent)
	slices.Sort(s.Foreign)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}
