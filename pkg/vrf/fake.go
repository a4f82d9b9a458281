// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Fake implements Target in memory. It behaves like the kernel as far as the
// order of operations matters: a route needs an existing link that is up, a link
// that changes its VRF or goes down loses its routes, and a conflicting route or
// link is an error. It is not safe for concurrent use.
type Fake struct {
	Links   map[string]*FakeLink
	Routes  map[Route]string // → owner: "" is ours
	Rules   map[Rule]string  // → owner
	Sysctls map[string]string
	NoVRF   bool           // kernel without VRF devices
	Fail    func(Op) error // called before each operation
	Foreign []string       // what Conflicts returns
	Log     []string
}

// FakeLink is a link. VRF devices have a table.
type FakeLink struct {
	Table  int
	Alias  string
	Ours   bool // carries Group
	Master string
	MTU    int
	Up     bool
	Addrs  []netip.Prefix
}

// NewFake returns a kernel with the given links, none of them ours.
func NewFake(links ...string) *Fake {
	f := &Fake{Links: map[string]*FakeLink{}, Routes: map[Route]string{}, Rules: map[Rule]string{}, Sysctls: map[string]string{}}
	for _, l := range links {
		f.AddLink(l)
	}
	return f
}

// AddLink adds a link that is not ours and is down.
func (f *Fake) AddLink(name string) *FakeLink {
	f.Links[name] = &FakeLink{MTU: 1500}
	for _, s := range allPortSysctls(name) {
		f.Sysctls[s.Path] = "default"
	}
	return f.Links[name]
}

// DelLink deletes a link with its routes and sysctls.
func (f *Fake) DelLink(name string) {
	delete(f.Links, name)
	f.flush(name)
	maps.DeleteFunc(f.Sysctls, func(path, _ string) bool { return strings.Contains(path, "/conf/"+name+"/") })
	for _, l := range f.Links {
		if l.Master == name {
			l.Master = ""
		}
	}
}

func (f *Fake) flush(dev string) {
	maps.DeleteFunc(f.Routes, func(r Route, _ string) bool { return r.Dev == dev })
}

// Read implements Target.
func (f *Fake) Read(_ context.Context, o Owner) (State, error) {
	st := State{ID: o.ID, Network: o.Network}
	sysctls := func(list []Sysctl) {
		for _, s := range list {
			if v, ok := f.Sysctls[s.Path]; ok {
				st.Sysctls = append(st.Sysctls, Sysctl{s.Path, v})
			}
		}
	}
	for name, l := range f.Links {
		named := slices.Contains(o.Names, name)
		switch {
		case l.Table != 0 && l.Ours && (l.Table == o.Table || named):
			st.Devices = append(st.Devices, Device{Name: name, Table: l.Table, Alias: l.Alias, Up: l.Up})
			sysctls(vrfSysctls(name, true))
		case named:
			st.Foreign = append(st.Foreign, name)
		}
		if l.Table != 0 && !l.Ours && l.Table == o.Table {
			st.Taken = name
		}
	}
	if p, ok := f.Links[o.Port]; ok {
		st.Port = Port{Name: o.Port, Master: p.Master, MTU: p.MTU, Up: p.Up}
		st.Port.Addrs = slices.Clone(p.Addrs)
		sysctls(allPortSysctls(o.Port))
	} else if o.Port != "" {
		st.Absent = append(st.Absent, o.Port)
	}
	if b, ok := f.Links[o.Bridge]; o.Bridge != "" && (!ok || !b.Up) {
		st.Absent = append(st.Absent, o.Bridge)
	} else if o.Bridge != "" && o.ID == network.DefaultID {
		sysctls(bridgeSysctls(o.Bridge, network.LocalGateway))
	}
	for r, owner := range f.Routes {
		if (r.Table == o.Table || o.Port != "" && isShared(r.Table) && r.Dev == o.Port) && owner == "" {
			st.Routes = append(st.Routes, r)
		}
	}
	for r, owner := range f.Rules {
		if r.owner() == o.Table && owner == "" {
			st.Rules = append(st.Rules, r)
		}
	}
	st.normalise()
	return st, nil
}

// Conflicts returns Foreign.
func (f *Fake) Conflicts(context.Context) ([]string, error) { return f.Foreign, nil }

// Tables implements Target.
func (f *Fake) Tables(context.Context) ([]int, error) {
	var out []int
	for r, owner := range f.Routes {
		if owner == "" {
			out = append(out, r.Table)
		}
	}
	for r, owner := range f.Rules {
		if owner == "" {
			out = append(out, r.owner())
		}
	}
	for _, l := range f.Links {
		if l.Table != 0 && l.Ours {
			out = append(out, l.Table)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// HasIPv6 returns true.
func (f *Fake) HasIPv6() bool { return true }

// DeviceIndex returns the index of our VRF device with that table, or 0. The
// fake's indexes equal the tables.
func (f *Fake) DeviceIndex(table int) int {
	for _, l := range f.Links {
		if l.Table == table && l.Ours {
			return table
		}
	}
	return 0
}

// Do implements Target.
func (f *Fake) Do(_ context.Context, op Op) error {
	if f.Fail != nil {
		if err := f.Fail(op); err != nil {
			return err
		}
	}
	f.Log = append(f.Log, op.String())
	switch op.Verb {
	case AddRoute:
		return f.addRoute(op.Route)
	case DelRoute:
		if f.Routes[op.Route] == "" {
			delete(f.Routes, op.Route)
		}
	case AddRule:
		if _, ok := f.Rules[op.Rule]; !ok {
			f.Rules[op.Rule] = ""
		}
	case DelRule:
		if f.Rules[op.Rule] == "" {
			delete(f.Rules, op.Rule)
		}
	case AddDevice:
		if f.NoVRF {
			return ErrNoVRF
		}
		if l, ok := f.Links[op.Device.Name]; ok {
			if l.Ours && l.Table == op.Device.Table {
				return nil
			}
			return errors.New("another link has that name")
		}
		l := f.AddLink(op.Device.Name)
		l.Table, l.Ours = op.Device.Table, true
	case DelDevice:
		if l, ok := f.Links[op.Device.Name]; ok && l.Ours {
			f.DelLink(op.Device.Name)
		}
	case SetSysctl:
		if _, ok := f.Sysctls[op.Sysctl.Path]; !ok {
			return errors.New("no such file")
		}
		f.Sysctls[op.Sysctl.Path] = op.Sysctl.Value
	default:
		return f.changeLink(op)
	}
	return nil
}

func (f *Fake) addRoute(r Route) error {
	for have, owner := range f.Routes {
		if have.Table == r.Table && have.Dst == r.Dst && have.Metric == r.Metric && have.Unreachable == r.Unreachable {
			if have == r && owner == "" {
				return nil
			}
			return errors.New("a conflicting route exists")
		}
	}
	if !r.Unreachable {
		if l, ok := f.Links[r.Dev]; !ok || !l.Up {
			return fmt.Errorf("link %s is absent or down", r.Dev)
		} else if r.Src.IsValid() && !slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == r.Src }) {
			return fmt.Errorf("link %s does not have the route's source address %s", r.Dev, r.Src)
		}
	}
	f.Routes[r] = ""
	return nil
}

func (f *Fake) changeLink(op Op) error {
	name := op.Port.Name
	if op.Verb == SetAlias || op.Verb == DeviceUp {
		name = op.Device.Name
	}
	l, ok := f.Links[name]
	if !ok {
		if op.Verb == PortDown || op.Verb == DelAddr || op.Verb == SetMaster && op.Port.Master == "" {
			return nil
		}
		return fmt.Errorf("link %s does not exist", name)
	}
	switch op.Verb {
	case SetAlias:
		l.Alias = op.Device.Alias
	case DeviceUp, PortUp:
		l.Up = true
	case PortDown:
		l.Up = false
		f.flush(name)
	case SetMTU:
		l.MTU = op.Port.MTU
	case SetMaster:
		if m, ok := f.Links[op.Port.Master]; op.Port.Master != "" && (!ok || m.Table == 0) {
			return fmt.Errorf("VRF %s does not exist", op.Port.Master)
		}
		if l.Master != op.Port.Master {
			f.flush(name)
			l.Addrs = slices.DeleteFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr().Is6() })
		}
		l.Master = op.Port.Master
	case AddAddr:
		if !slices.Contains(l.Addrs, op.Addr) {
			l.Addrs = append(l.Addrs, op.Addr)
		}
	case DelAddr:
		l.Addrs = slices.DeleteFunc(l.Addrs, func(a netip.Prefix) bool { return a == op.Addr })
		maps.DeleteFunc(f.Routes, func(r Route, _ string) bool { return r.Dev == name && r.Src.IsValid() && r.Src == op.Addr.Addr() })
	default:
		return fmt.Errorf("unknown operation %d", op.Verb)
	}
	return nil
}

// List returns the links like Kernel.Links, with indexes in the order of names.
func (f *Fake) List(context.Context) ([]Link, error) {
	var out []Link
	for i, name := range slices.Sorted(maps.Keys(f.Links)) {
		l := f.Links[name]
		x := Link{Index: i + 2, Name: name, Type: "device"}
		if l.Table != 0 {
			x.Type = "vrf"
			if l.Ours {
				x.Table = l.Table
			}
		}
		out = append(out, x)
	}
	return out, nil
}
