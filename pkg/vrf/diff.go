// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"slices"
	"strings"
)

// Diff is what turns have into want, in an order that is at worst too closed
// between any two steps:
//
//  1. reachability that is not wanted goes: routes, addresses, the port;
//  2. isolation comes: unreachable routes, VRF device, rules;
//  3. reachability that is wanted comes: the port into the VRF, addresses, routes;
//  4. isolation that is not wanted goes: rules, VRF device and, last, the
//     unreachable routes, because sockets bound to the device follow its table
//     for as long as it exists.
//
// What needs a link that is absent is left out; Waiting names it.
func Diff(want, have State) []Op {
	d := differ{want: want, have: have}
	d.reachGoes()
	d.isolationComes()
	d.reachComes()
	d.isolationGoes()
	return d.ops
}

// Waiting are the links that must appear before Diff can do all that is wanted.
func Waiting(want, have State) []string {
	var out []string
	for _, a := range have.Absent {
		needed := a == want.Port.Name || slices.ContainsFunc(want.Routes, func(r Route) bool { return r.Dev == a })
		if needed {
			out = append(out, a)
		}
	}
	return out
}

type differ struct {
	want, have State
	ops        []Op
	// recycled tells that the port will lose routes and IPv6 addresses on the
	// way, because the kernel takes it down and up when it changes VRF.
	recycled bool
}

func (d *differ) add(ops ...Op) { d.ops = append(d.ops, ops...) }

func (d *differ) absent(dev string) bool { return slices.Contains(d.have.Absent, dev) }

func (d *differ) reachGoes() {
	for _, r := range d.have.Routes {
		if !r.Unreachable && !slices.Contains(d.want.Routes, r) {
			d.add(Op{Verb: DelRoute, Route: r})
		}
	}
	port := d.have.Port
	if port.Name == "" || d.absent(port.Name) {
		return
	}
	gone := d.want.Port.Name == ""
	inside := slices.ContainsFunc(d.have.Devices, func(x Device) bool { return x.Name == port.Master })
	if gone && !inside {
		return // its name alone does not make it ours
	}
	for _, a := range port.Addrs {
		if !slices.Contains(d.want.Port.Addrs, a) {
			d.add(Op{Verb: DelAddr, Port: Port{Name: port.Name}, Addr: a})
		}
	}
	// The port must not be seen outside its VRF, on the way into it either. A
	// VRF's table cannot change: then the device is made anew.
	remade := slices.ContainsFunc(d.have.Devices, func(x Device) bool { return x.Name == port.Master && d.mustRemake(x) })
	d.recycled = remade || !gone && port.Master != d.want.Port.Master
	if (gone || d.recycled) && port.Up {
		d.add(Op{Verb: PortDown, Port: Port{Name: port.Name}})
	}
	if gone {
		d.add(Op{Verb: SetMaster, Port: Port{Name: port.Name}})
	}
}

func (d *differ) mustRemake(have Device) bool {
	return slices.ContainsFunc(d.want.Devices, func(w Device) bool { return w.Name == have.Name && w.Table != have.Table })
}

func (d *differ) isolationComes() {
	for _, r := range d.want.Routes {
		if r.Unreachable && !slices.Contains(d.have.Routes, r) {
			d.add(Op{Verb: AddRoute, Route: r})
		}
	}
	for _, w := range d.want.Devices {
		i := slices.IndexFunc(d.have.Devices, func(h Device) bool { return h.Name == w.Name })
		have := Device{}
		if i >= 0 {
			have = d.have.Devices[i]
			if have.Table != w.Table {
				d.add(Op{Verb: DelDevice, Device: have})
				have = Device{}
			}
		}
		if have.Name == "" {
			d.add(Op{Verb: AddDevice, Device: w})
		}
		if have.Alias != w.Alias {
			d.add(Op{Verb: SetAlias, Device: w})
		}
		d.sysctls(w.Name, have.Name == "")
		if !have.Up {
			d.add(Op{Verb: DeviceUp, Device: w})
		}
	}
	for _, r := range d.want.Rules {
		if !slices.Contains(d.have.Rules, r) {
			d.add(Op{Verb: AddRule, Rule: r})
		}
	}
}

// sysctls sets those of one device; anew tells that the device was not there
// when they were read.
func (d *differ) sysctls(dev string, anew bool) {
	for _, s := range d.want.Sysctls {
		if strings.Contains(s.Path, "/conf/"+dev+"/") && (anew || !slices.Contains(d.have.Sysctls, s)) {
			d.add(Op{Verb: SetSysctl, Sysctl: s})
		}
	}
}

func (d *differ) reachComes() {
	want, have := d.want.Port, d.have.Port
	if want.Name != "" && !d.absent(want.Name) {
		d.sysctls(want.Name, have.Name != want.Name)
		if want.MTU != 0 && have.MTU != want.MTU {
			d.add(Op{Verb: SetMTU, Port: Port{Name: want.Name, MTU: want.MTU}})
		}
		if d.recycled || have.Master != want.Master {
			d.add(Op{Verb: SetMaster, Port: Port{Name: want.Name, Master: want.Master}})
		}
		for _, a := range want.Addrs {
			if d.recycled || !slices.Contains(have.Addrs, a) {
				d.add(Op{Verb: AddAddr, Port: Port{Name: want.Name}, Addr: a})
			}
		}
		if d.recycled || !have.Up {
			d.add(Op{Verb: PortUp, Port: Port{Name: want.Name}})
		}
	}
	for _, r := range d.want.Routes {
		if r.Unreachable || d.absent(r.Dev) {
			continue
		}
		lost := r.Dev == want.Name && (d.recycled || !have.Up)
		if lost || !slices.Contains(d.have.Routes, r) {
			d.add(Op{Verb: AddRoute, Route: r})
		}
	}
}

func (d *differ) isolationGoes() {
	for _, r := range d.have.Rules {
		if !slices.Contains(d.want.Rules, r) {
			d.add(Op{Verb: DelRule, Rule: r})
		}
	}
	for _, h := range d.have.Devices {
		if !slices.ContainsFunc(d.want.Devices, func(w Device) bool { return w.Name == h.Name }) {
			d.add(Op{Verb: DelDevice, Device: h})
		}
	}
	for _, r := range d.have.Routes {
		if r.Unreachable && !slices.Contains(d.want.Routes, r) {
			d.add(Op{Verb: DelRoute, Route: r})
		}
	}
}
