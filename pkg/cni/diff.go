// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Op is one change to a pod's interfaces.
type Op interface {
	fmt.Stringer
	op()
}

type (
	// AddLink creates an interface and its host end, both up, without addresses.
	AddLink struct{ Link Link }
	// DeleteLink deletes an interface by its host end.
	DeleteLink struct{ Name, Host string }
	// SetLink sets the hardware address, MTU or state.
	SetLink struct{ Want, Have Link }
	// AddAddress adds an address to an interface.
	AddAddress struct {
		Link    string
		Address netip.Prefix
	}
	// DeleteAddress deletes an address from an interface.
	DeleteAddress struct {
		Link    string
		Address netip.Prefix
	}
	// AddRoute adds a route via an interface.
	AddRoute struct {
		Link  string
		Route Route
	}
	// DeleteRoute deletes a route via an interface.
	DeleteRoute struct {
		Link  string
		Route Route
	}
)

func (AddLink) op()       {}
func (DeleteLink) op()    {}
func (SetLink) op()       {}
func (AddAddress) op()    {}
func (DeleteAddress) op() {}
func (AddRoute) op()      {}
func (DeleteRoute) op()   {}

func (o AddLink) String() string {
	return fmt.Sprintf("add interface %s (host end %s) mac %s mtu %d", o.Link.Name, o.Link.Host, o.Link.MAC, o.Link.MTU)
}

func (o DeleteLink) String() string {
	return fmt.Sprintf("delete interface %s (host end %s)", o.Name, o.Host)
}

func (o SetLink) String() string {
	s := "set interface " + o.Want.Name
	if o.Want.MAC != o.Have.MAC {
		s += fmt.Sprintf(" mac %s (was %s)", o.Want.MAC, o.Have.MAC)
	}
	if o.Want.MTU != o.Have.MTU {
		s += fmt.Sprintf(" mtu %d (was %d)", o.Want.MTU, o.Have.MTU)
	}
	if o.Want.Up && !o.Have.Up {
		s += " up"
	}
	return s
}

func (o AddAddress) String() string { return fmt.Sprintf("add address %s to %s", o.Address, o.Link) }

func (o DeleteAddress) String() string {
	return fmt.Sprintf("delete address %s from %s", o.Address, o.Link)
}

func (o AddRoute) String() string {
	return fmt.Sprintf("add route %s via %s dev %s", o.Route.Dest, o.Route.Via, o.Link)
}

func (o DeleteRoute) String() string {
	return fmt.Sprintf("delete route %s via %s dev %s", o.Route.Dest, o.Route.Via, o.Link)
}

// Diff returns the operations that turn have into want: first deletions (routes
// before the addresses they need, links last), then links, addresses, routes.
func Diff(want, have State) []Op {
	var deleteRoutes, deleteAddresses, deleteLinks, links, addresses, routes []Op
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if w, ok := want[name]; !ok || have[name].Stale || w.Host != have[name].Host {
			deleteLinks = append(deleteLinks, DeleteLink{Name: name, Host: have[name].Host})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w := want[name]
		h, ok := have[name]
		if !ok || h.Stale || w.Host != h.Host {
			links = append(links, AddLink{w})
			h = Link{}
		} else if w.MAC != h.MAC || w.MTU != h.MTU || w.Up && !h.Up {
			links = append(links, SetLink{Want: w, Have: h})
		}
		for _, r := range h.Routes {
			if !slices.Contains(w.Routes, r) {
				deleteRoutes = append(deleteRoutes, DeleteRoute{name, r})
			}
		}
		for _, a := range h.Addresses {
			if !slices.Contains(w.Addresses, a) {
				deleteAddresses = append(deleteAddresses, DeleteAddress{name, a})
			}
		}
		for _, a := range w.Addresses {
			if !slices.Contains(h.Addresses, a) {
				addresses = append(addresses, AddAddress{name, a})
			}
		}
		for _, r := range w.Routes {
			if !slices.Contains(h.Routes, r) {
				routes = append(routes, AddRoute{name, r})
			}
		}
	}
	return slices.Concat(deleteRoutes, deleteAddresses, deleteLinks, links, addresses, routes)
}
