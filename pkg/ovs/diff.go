// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"fmt"
	"maps"
	"strings"
)

// Op is one change to the database.
type Op interface {
	fmt.Stringer
	op()
}

type (
	// SetChassis sets a key of the Open_vSwitch row's external_ids.
	SetChassis struct{ Key, Old, New string }
	// AddBridge creates a bridge.
	AddBridge struct{ Bridge Bridge }
	// AddPort creates a port and its interface.
	AddPort struct{ Port Port }
	// SetPort changes an existing port.
	SetPort struct{ Want, Have Port }
	// DeletePort deletes a port and its interface.
	DeletePort struct{ Port Port }
)

func (SetChassis) op() {}
func (AddBridge) op()  {}
func (AddPort) op()    {}
func (SetPort) op()    {}
func (DeletePort) op() {}

func (o SetChassis) String() string {
	if o.Old == "" {
		return fmt.Sprintf("set Open_vSwitch external_ids:%s=%s", o.Key, o.New)
	}
	return fmt.Sprintf("set Open_vSwitch external_ids:%s=%s (was %s)", o.Key, o.New, o.Old)
}

func (o AddBridge) String() string { return "add bridge " + o.Bridge.Name + " fail_mode=secure" }

func (o AddPort) String() string {
	return fmt.Sprintf("add port %s to %s%s", o.Port.Name, o.Port.Bridge, o.Port.details())
}

func (o SetPort) String() string {
	var changes []string
	if o.Want.MAC != o.Have.MAC {
		changes = append(changes, fmt.Sprintf("mac=%s (was %s)", o.Want.MAC, o.Have.MAC))
	}
	if o.Want.MTU != o.Have.MTU {
		changes = append(changes, fmt.Sprintf("mtu_request=%d (was %d)", o.Want.MTU, o.Have.MTU))
	}
	set, drop := o.ids()
	for _, k := range sortedKeys(set) {
		changes = append(changes, fmt.Sprintf("external_ids:%s=%s", k, set[k]))
	}
	for _, k := range sortedKeys(drop) {
		if _, replaced := set[k]; !replaced {
			changes = append(changes, "no external_ids:"+k)
		}
	}
	return fmt.Sprintf("set port %s %s", o.Want.Name, strings.Join(changes, " "))
}

func (o DeletePort) String() string {
	return fmt.Sprintf("delete port %s from %s%s", o.Port.Name, o.Port.Bridge, o.Port.details())
}

func (p Port) details() string {
	var b strings.Builder
	for _, k := range []string{KeyNetwork, KeyPod, KeyLSP} {
		if v := p.ExternalIDs[k]; v != "" {
			fmt.Fprintf(&b, " %s=%s", strings.TrimPrefix(k, "k8s.ovn.org/"), v)
		}
	}
	return b.String()
}

// ids returns the external_ids to set, and those to delete with their actual
// values. Keys of others, like ovn-controller's, are in neither and stay.
func (o SetPort) ids() (set, drop map[string]string) {
	set, drop = map[string]string{}, map[string]string{}
	for k, v := range o.Want.ExternalIDs {
		if old, ok := o.Have.ExternalIDs[k]; !ok || old != v {
			set[k] = v
			if ok {
				drop[k] = old
			}
		}
	}
	for k, v := range o.Have.ExternalIDs {
		if _, wanted := o.Want.ExternalIDs[k]; !wanted {
			drop[k] = v
		}
	}
	return set, drop
}

// Diff returns the operations that turn have into want. It deletes unwanted ports
// first, so that their names and logical ports are free for new ports.
func Diff(want, have State) []Op {
	var ops []Op
	for _, name := range sortedKeys(have.Ports) {
		h := have.Ports[name]
		if w, ok := want.Ports[name]; !ok || !sameKind(w, h) {
			ops = append(ops, DeletePort{h})
		}
	}
	for _, k := range sortedKeys(want.Chassis) {
		if old := have.Chassis[k]; old != want.Chassis[k] {
			ops = append(ops, SetChassis{Key: k, Old: old, New: want.Chassis[k]})
		}
	}
	if want.Bridge != nil && have.Bridge == nil {
		ops = append(ops, AddBridge{*want.Bridge})
	}
	for _, name := range sortedKeys(want.Ports) {
		w := want.Ports[name]
		h, ok := have.Ports[name]
		switch {
		case !ok || !sameKind(w, h):
			ops = append(ops, AddPort{w})
		case w.MAC != h.MAC || w.MTU != h.MTU || !maps.Equal(w.ExternalIDs, h.ExternalIDs):
			ops = append(ops, SetPort{Want: w, Have: h})
		}
	}
	return ops
}

// sameKind reports whether SetPort can turn one port into the other.
func sameKind(a, b Port) bool { return a.Bridge == b.Bridge && a.Internal == b.Internal }
