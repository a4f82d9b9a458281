// SPDX-License-Identifier: Apache-2.0

package uplink

import "slices"

// Diff returns the operations that turn have into want. The order keeps the node's own traffic:
//
//   - the link that takes over has all addresses before the interface changes sides, so that it
//     answers at once; both have them for a moment, which the kernel allows;
//   - it also knows the neighbours: while the interface changes sides, an answer to an ARP request may
//     arrive at the other link, and the next request would be sent a second later;
//   - a route is added on one link before it is deleted from the other;
//   - the addresses are deleted last: with the last IPv4 address of a link the kernel deletes all
//     IPv4 routes by it.
func Diff(want, have State) []Op {
	d := differ{want: want, have: have, owner: Owner{want.Record.Bridge, want.Record.Uplink}}
	phase := PhaseMoving
	if want.Record.Phase == PhaseRestored {
		phase = PhaseRestoring
		d.restore()
	} else {
		d.move()
	}
	if len(d.ops) > 0 {
		begun := want.Record
		begun.Phase, begun.AcceptRA, begun.RA = phase, have.Record.AcceptRA, have.Record.RA
		list := want.OnUplink
		if phase == PhaseMoving {
			begun.AcceptRA, begun.RA = want.Record.AcceptRA, want.Record.RA
			list = want.Record.config().union(want.OnBridge.without(have.OnBridge))
		}
		begun.Addresses, begun.Routes = list.Addresses, list.Routes
		if !same(begun, have.Record) {
			d.ops = slices.Insert(d.ops, 0, Op{Verb: SaveRecord, Owner: d.owner, Record: begun})
		}
	}
	if len(d.ops) > 0 || !same(want.Record, have.Record) || want.Record.BridgeIndex != have.Record.BridgeIndex {
		d.add(Op{Verb: SaveRecord, Record: want.Record})
	}
	return d.ops
}

// same reports whether two records say the same. What the target fills in does not count.
func same(a, b Record) bool {
	return a.Phase == b.Phase && a.Bridge == b.Bridge && a.Uplink == b.Uplink && a.AcceptRA == b.AcceptRA && a.RA == b.RA && a.config().sameKeys(b.config())
}

type differ struct {
	want, have State
	owner      Owner
	ops        []Op
}

func (d *differ) add(op Op) {
	op.Owner = d.owner
	d.ops = append(d.ops, op)
}

func (d *differ) move() {
	want, have := d.want, d.have
	bridge, uplink := d.owner.Bridge, d.owner.Uplink
	if !have.Switch.Exists {
		d.add(Op{Verb: AddBridge, MAC: want.Switch.MAC})
	} else if want.Switch.MAC != have.Switch.MAC {
		d.add(Op{Verb: SetMAC, MAC: want.Switch.MAC}) // before the link is up and gets its link-local address
	}
	if want.BridgeRA != have.BridgeRA {
		d.add(Op{Verb: SetAcceptRA, Link: bridge, Value: want.BridgeRA})
	}
	if !have.BridgeUp {
		d.add(Op{Verb: BridgeUp})
	}
	d.addAddresses(bridge, want.OnBridge, have.OnBridge)
	if !have.OnUplink.sameKeys(want.OnUplink) {
		d.add(Op{Verb: CopyNeighbors, Link: bridge})
	}
	if have.Switch.PortOf != bridge {
		d.add(Op{Verb: AddPort})
	}
	d.addRoutes(bridge, want.OnBridge, have.OnBridge)
	if want.Interface.AcceptRA != have.Interface.AcceptRA {
		d.add(Op{Verb: SetAcceptRA, Link: uplink, Value: want.Interface.AcceptRA})
	}
	d.delete(uplink, want.OnUplink, have.OnUplink)
}

func (d *differ) restore() {
	want, have := d.want, d.have
	bridge, uplink := d.owner.Bridge, d.owner.Uplink
	if want.Interface.AcceptRA != have.Interface.AcceptRA {
		d.add(Op{Verb: SetAcceptRA, Link: uplink, Value: want.Interface.AcceptRA})
	}
	d.addAddresses(uplink, want.OnUplink, have.OnUplink)
	if !have.OnBridge.sameKeys(want.OnBridge) {
		d.add(Op{Verb: CopyNeighbors, Link: uplink})
	}
	d.addRoutes(uplink, want.OnUplink, have.OnUplink)
	d.delete(bridge, want.OnBridge, have.OnBridge)
	if have.Switch.PortOf == bridge && want.Switch.PortOf == "" {
		d.add(Op{Verb: DelPort})
	}
	if have.Switch.Exists && !want.Switch.Exists {
		d.add(Op{Verb: DelBridge})
	}
}

// addAddresses adds addresses so that the kernel lists them in the order of want: it puts a new IPv6
// address before the others of its scope, and an IPv4 address after them.
func (d *differ) addAddresses(link string, want, have Config) {
	add := func(a Address, is4 bool) {
		if a.Prefix.Addr().Is4() == is4 && !have.hasAddress(a) {
			d.add(Op{Verb: AddAddress, Link: link, Address: a})
		}
	}
	for _, a := range want.Addresses {
		add(a, true)
	}
	for _, a := range slices.Backward(want.Addresses) {
		add(a, false)
	}
}

// addRoutes adds routes without a next hop first: the others' next hops may depend on them.
func (d *differ) addRoutes(link string, want, have Config) {
	for _, gateway := range []bool{false, true} {
		for _, r := range want.Routes {
			if r.Gateway == gateway && !have.hasRoute(r) {
				d.add(Op{Verb: AddRoute, Link: link, Route: r})
			}
		}
	}
}

// delete deletes routes and addresses. The last address comes first: with a subnet's first address
// the kernel deletes the others of the subnet.
func (d *differ) delete(link string, want, have Config) {
	for _, r := range have.Routes {
		if !want.hasRoute(r) {
			d.add(Op{Verb: DelRoute, Link: link, Route: r})
		}
	}
	for _, a := range slices.Backward(have.Addresses) {
		if !want.hasAddress(a) {
			d.add(Op{Verb: DelAddress, Link: link, Address: a})
		}
	}
}
