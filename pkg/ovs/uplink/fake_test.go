// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Fake implements Target in memory. It behaves like the kernel and Open vSwitch as far as the order of
// operations matters: a route needs a link that is up and a next hop that another route leads to, and with
// a subnet's first address its others go, with the last IPv4 address all IPv4 routes through the link. It
// is not safe for concurrent use.
type Fake struct {
	Saved     Record
	Interface Interface
	SwitchRow Switch
	Uplink    Config
	Bridge    Config
	Index     int // of the bridge's link
	BridgeUp  bool
	BridgeRA  int
	Default   []string
	Fail      func(Op) error // called before each operation
	Log       []string

	links int // indexes that were given
}

// Lock implements Target.
func (f *Fake) Lock(context.Context) (func(), error) { return func() {}, nil }

// Record implements Target.
func (f *Fake) Record(context.Context) (Record, error) { return f.Saved, nil }

// Switch implements Target.
func (f *Fake) Switch(_ context.Context, _, uplink string) (Switch, error) {
	sw := f.SwitchRow
	if uplink == "" {
		sw.PortOf, sw.Added = "", false
	}
	return sw, nil
}

// Defaults implements Target.
func (f *Fake) Defaults(context.Context) ([]string, error) { return f.Default, nil }

// Read implements Target.
func (f *Fake) Read(context.Context, Owner) (State, error) {
	st := State{Interface: f.Interface, OnUplink: f.Uplink, LinkIndex: f.Index, BridgeRA: -1}
	if f.Index != 0 {
		st.OnBridge, st.BridgeUp, st.BridgeRA = f.Bridge, f.BridgeUp, f.BridgeRA
	}
	return st, nil
}

// Do implements Target.
func (f *Fake) Do(_ context.Context, op Op) error {
	if f.Fail != nil {
		if err := f.Fail(op); err != nil {
			return err
		}
	}
	f.Log = append(f.Log, op.String())
	link, exists := &f.Uplink, f.Interface.Exists
	if op.Link == op.Owner.Bridge {
		link, exists = &f.Bridge, f.Index != 0
	}
	switch op.Verb {
	case SaveRecord:
		f.Saved = op.Record
		f.Saved.BridgeIndex = f.Index
		return nil
	case AddBridge:
		f.SwitchRow.Exists, f.SwitchRow.Created, f.SwitchRow.MAC = true, true, op.MAC
		f.NewLink()
		return nil
	case SetMAC:
		f.SwitchRow.MAC, f.Bridge, f.BridgeUp = op.MAC, Config{}, false
		return nil
	case AddPort:
		if !f.SwitchRow.Exists {
			return errors.New("no bridge")
		}
		f.SwitchRow.PortOf, f.SwitchRow.Uplink, f.SwitchRow.Added = op.Owner.Bridge, op.Owner.Uplink, true
		return nil
	case DelPort:
		f.SwitchRow.PortOf, f.SwitchRow.Uplink, f.SwitchRow.Added = "", "", false
		return nil
	case DelBridge:
		f.SwitchRow, f.Index, f.Bridge = Switch{}, 0, Config{}
		return nil
	}
	if !exists && op.Verb != BridgeUp || op.Verb == BridgeUp && f.Index == 0 {
		return fmt.Errorf("link %s does not exist", op.Link)
	}
	switch op.Verb {
	case BridgeUp:
		f.BridgeUp = true
	case SetAcceptRA:
		if op.Link == op.Owner.Bridge {
			f.BridgeRA = op.Value
		} else {
			f.Interface.AcceptRA, f.Interface.RA = op.Value, op.Value == 2
		}
	case AddAddress:
		if !link.hasAddress(op.Address) {
			link.Addresses = append(slices.Clone(link.Addresses), op.Address)
		}
	case DelAddress:
		link.delAddress(op.Address)
	case AddRoute:
		if op.Link == op.Owner.Bridge && !f.BridgeUp {
			return errors.New("the link is down")
		}
		if op.Route.Gateway && len(link.Addresses) == 0 {
			return errors.New("the next hop is unreachable")
		}
		if !link.hasRoute(op.Route) {
			link.Routes = append(slices.Clone(link.Routes), op.Route)
		}
	case DelRoute:
		link.Routes = slices.DeleteFunc(slices.Clone(link.Routes), func(r Route) bool { return r.key() == op.Route.key() })
	case CopyNeighbors:
	default:
		return fmt.Errorf("unknown operation %d", op.Verb)
	}
	return nil
}

// NewLink gives the bridge a link that has nothing.
func (f *Fake) NewLink() {
	f.links++
	f.Index, f.Bridge, f.BridgeUp, f.BridgeRA = f.links, Config{}, false, 1
}

func (c *Config) delAddress(a Address) {
	i := slices.IndexFunc(c.Addresses, func(o Address) bool { return o.key() == a.key() })
	if i < 0 {
		return
	}
	inSubnet := func(o Address) bool { return !o.is6() && o.Prefix.Masked() == a.Prefix.Masked() }
	first := !slices.ContainsFunc(c.Addresses[:i], inSubnet)
	c.Addresses = slices.DeleteFunc(slices.Clone(c.Addresses), func(o Address) bool {
		return o.key() == a.key() || first && inSubnet(o)
	})
	if !slices.ContainsFunc(c.Addresses, func(o Address) bool { return !o.is6() }) {
		c.Routes = slices.DeleteFunc(slices.Clone(c.Routes), func(r Route) bool { return r.Message[0] == familyIPv4 })
	}
}

const familyIPv4 = 2 // AF_INET
