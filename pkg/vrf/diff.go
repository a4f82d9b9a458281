// SPDX-License-Identifier: Apache-2.0

package vrf

import "slices"

// Diff returns the operations that turn have into want. Between two operations
// the network may be less reachable, but never less isolated, than in have and
// want:
//
//  1. remove unwanted reachability: routes, addresses, the port;
//  2. add isolation: VRF device, down, unreachable routes, the device up, rules;
//  3. add reachability: the port into the VRF, addresses, routes;
//  4. remove unwanted isolation: rules, VRF device and, last, the unreachable
//     routes, because sockets bound to the device use its table as long as it
//     exists.
//
// Diff skips operations that need an absent link; Waiting names the link.
func Diff(want, have State) []Op {
	d := differ{want: want, have: have}
	d.removeReachability()
	d.addIsolation()
	d.addReachability()
	d.removeIsolation()
	return d.ops
}

// Waiting lists the links that must appear before Diff is complete.
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
	// portFlaps: the port loses its routes and IPv6 addresses, because the
	// kernel sets it down and up when its VRF changes.
	portFlaps bool
}

func (d *differ) add(ops ...Op) { d.ops = append(d.ops, ops...) }

func (d *differ) absent(dev string) bool { return slices.Contains(d.have.Absent, dev) }

func (d *differ) removeReachability() {
	for _, r := range d.have.Routes {
		if !r.Unreachable && !slices.Contains(d.want.Routes, r) {
			d.add(Op{Verb: DelRoute, Route: r})
		}
	}
	port := d.have.Port
	if port.Name == "" || d.absent(port.Name) {
		return
	}
	removed := d.want.Port.Name == ""
	inside := slices.ContainsFunc(d.have.Devices, func(x Device) bool { return x.Name == port.Master })
	if removed && !inside {
		return // a link with only the name of a management port is not ours
	}
	for _, a := range port.Addrs {
		if !slices.Contains(d.want.Port.Addrs, a) {
			d.add(Op{Verb: DelAddr, Port: Port{Name: port.Name}, Addr: a})
		}
	}
	// The port must not be up outside its VRF, not even while it moves into it.
	// A VRF device's table cannot change: it needs a new device.
	recreated := slices.ContainsFunc(d.have.Devices, func(x Device) bool { return x.Name == port.Master && d.mustRecreate(x) })
	d.portFlaps = recreated || !removed && port.Master != d.want.Port.Master
	if (removed || d.portFlaps) && port.Up {
		d.add(Op{Verb: PortDown, Port: Port{Name: port.Name}})
	}
	if removed {
		d.add(Op{Verb: SetMaster, Port: Port{Name: port.Name}})
	}
}

func (d *differ) mustRecreate(have Device) bool {
	return slices.ContainsFunc(d.want.Devices, func(w Device) bool { return w.Name == have.Name && w.Table != have.Table })
}

// addIsolation adds no route to the table before the VRF device exists: FRR would take the table
// for one of the default VRF's, share it with the VRF, and free it with that while it is
// still in use. Until then the shared rules refuse the network's packets, by their mark.
func (d *differ) addIsolation() {
	var up []Op
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
			up = append(up, Op{Verb: DeviceUp, Device: w})
		}
	}
	for _, r := range d.want.Routes {
		if r.Unreachable && !slices.Contains(d.have.Routes, r) {
			d.add(Op{Verb: AddRoute, Route: r})
		}
	}
	d.add(up...)
	for _, r := range d.want.Rules {
		if !slices.Contains(d.have.Rules, r) {
			d.add(Op{Verb: AddRule, Rule: r})
		}
	}
}

// sysctls sets the sysctls of one device. created: the device did not exist
// when the actual state was read.
func (d *differ) sysctls(dev string, created bool) {
	for _, s := range d.want.Sysctls {
		if s.device() == dev && (created || !slices.Contains(d.have.Sysctls, s)) {
			d.add(Op{Verb: SetSysctl, Sysctl: s})
		}
	}
}

func (d *differ) addReachability() {
	want, have := d.want.Port, d.have.Port
	if want.Name != "" && !d.absent(want.Name) {
		d.sysctls(want.Name, have.Name != want.Name)
		if want.MTU != 0 && have.MTU != want.MTU {
			d.add(Op{Verb: SetMTU, Port: Port{Name: want.Name, MTU: want.MTU}})
		}
		if d.portFlaps || have.Master != want.Master {
			d.add(Op{Verb: SetMaster, Port: Port{Name: want.Name, Master: want.Master}})
		}
		for _, a := range want.Addrs {
			if d.portFlaps || !slices.Contains(have.Addrs, a) {
				d.add(Op{Verb: AddAddr, Port: Port{Name: want.Name}, Addr: a})
			}
		}
		if d.portFlaps || !have.Up {
			d.add(Op{Verb: PortUp, Port: Port{Name: want.Name}})
		}
	}
	for _, s := range d.want.Sysctls {
		if dev := s.device(); dev != want.Name && !d.isDevice(dev) && !d.absent(dev) && !slices.Contains(d.have.Sysctls, s) {
			d.add(Op{Verb: SetSysctl, Sysctl: s}) // the external bridge's
		}
	}
	for _, r := range d.want.Routes {
		if r.Unreachable || d.absent(r.Dev) {
			continue
		}
		lost := r.Dev == want.Name && (d.portFlaps || !have.Up)
		if lost || !slices.Contains(d.have.Routes, r) {
			d.add(Op{Verb: AddRoute, Route: r})
		}
	}
}

// isDevice reports whether dev is the network's VRF device.
func (d *differ) isDevice(dev string) bool {
	return slices.ContainsFunc(d.want.Devices, func(w Device) bool { return w.Name == dev })
}

func (d *differ) removeIsolation() {
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
