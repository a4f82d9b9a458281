// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// Auto is the configuration that chooses the interface of the default route.
const Auto = config.UplinkAuto

// Owner names the two links.
type Owner struct{ Bridge, Uplink string }

// ErrRestored is wrapped by the error of Choose after a restore.
var ErrRestored = errors.New("bulkheadctl restore-uplink has given the interface back: to move it again, delete the record, " + DefaultRecord)

// Choose returns the interface to move. configured is an interface or Auto; defaults are the
// interfaces of the main table's default routes, best first.
func Choose(bridge, configured string, rec Record, sw Switch, defaults []string) (Owner, error) {
	o := Owner{Bridge: bridge, Uplink: configured}
	switch rec.Phase {
	case PhaseRestored:
		return o, ErrRestored
	case PhaseNone:
	default:
		if rec.Bridge != bridge || configured != Auto && configured != rec.Uplink {
			return o, fmt.Errorf("interface %s is in bridge %s: run bulkheadctl restore-uplink before you configure another interface or bridge", rec.Uplink, rec.Bridge)
		}
		o.Uplink = rec.Uplink
		return o, nil
	}
	if configured != Auto {
		return o, nil
	}
	switch {
	case sw.Uplink != "":
		o.Uplink = sw.Uplink
	case len(sw.Others) == 1:
		o.Uplink = sw.Others[0]
	case len(defaults) > 0 && defaults[0] != bridge:
		o.Uplink = defaults[0]
	case len(defaults) > 0:
		return o, fmt.Errorf("the default route leads to bridge %s, which has no uplink: set uplink to an interface", bridge)
	default:
		return o, errors.New("there is no default route whose interface could be the uplink: set uplink to an interface")
	}
	return o, nil
}

// Build returns the state in which the interface is in the bridge and the bridge has its addresses
// and routes, or the reason why the interface is refused.
func Build(o Owner, have State) (State, error) {
	if have.Record.Phase == PhaseRestoring {
		return BuildRestored(o, have), nil
	}
	if err := check(o, have); err != nil {
		return State{}, err
	}
	rec := have.Record
	if rec.Phase != PhaseMoving { // what was begun is completed
		if err := checkLifetimes(o, have); err != nil {
			return State{}, err
		}
	}
	if rec.Phase != PhaseMoving && rec.Phase != PhaseMoved {
		rec = Record{AcceptRA: have.Interface.AcceptRA, RA: have.Interface.RA}
	}
	rec.Bridge, rec.Uplink = o.Bridge, o.Uplink
	want := have
	want.Switch.Created = have.Switch.Created || !have.Switch.Exists
	want.Switch.Added = have.Switch.Added || have.Switch.PortOf == ""
	want.Switch.Exists, want.Switch.PortOf, want.BridgeUp = true, o.Bridge, true
	moved := have.OnUplink.moved()
	// A new link of the bridge has lost what the record lists: somebody deleted it, or Open vSwitch did.
	unfinished := rec.Phase != PhaseMoved || rec.BridgeIndex != have.LinkIndex
	if unfinished {
		moved = moved.union(rec.config())
	}
	if !have.Switch.Exists || have.Switch.Created && unfinished && have.OnBridge.empty() {
		// After a reboot the interface may be another one, or the disk another machine's copy. A bridge in use keeps its
		// address: the userspace datapath sets the link down to change it, and the kernel deletes routes.
		want.Switch.MAC = have.Interface.MAC
	}
	want.OnUplink = Config{Addresses: slices.DeleteFunc(slices.Clone(have.OnUplink.Addresses), func(a Address) bool { return !a.Failed })}
	want.OnBridge = have.OnBridge.union(moved)
	recorded := want.OnBridge
	if !want.Switch.Created {
		recorded = want.OnBridge.without(want.OnBridge.without(rec.config().union(moved)))
	}
	recorded = recorded.lasting()
	rec.Phase, rec.BridgeIndex, rec.Addresses, rec.Routes = PhaseMoved, have.LinkIndex, recorded.Addresses, recorded.Routes
	want.Record = rec
	if have.Interface.AcceptRA >= 0 {
		// What the uplink still receives must not configure it again.
		want.Interface.AcceptRA, want.Interface.RA = 0, false
	}
	if rec.AcceptRA >= 0 && unfinished && want.Switch.Created {
		want.BridgeRA = 0
		if rec.RA {
			want.BridgeRA = 2 // with 1 the kernel ignores advertisements where it forwards packets
		}
	}
	return want, nil
}

// BuildRestored returns the state in which the uplink has its addresses and routes itself. The bridge
// stays if the agent did not create it, and keeps what it had before.
func BuildRestored(o Owner, have State) State {
	want, rec := have, have.Record
	want.Record = Record{Phase: PhaseRestored, Bridge: o.Bridge, Uplink: o.Uplink, AcceptRA: -1}
	begun := rec.Phase == PhaseMoving || rec.Phase == PhaseRestoring
	lost := rec.Phase == PhaseMoved && rec.BridgeIndex != have.LinkIndex
	if !have.Switch.Created && !have.Switch.Added && !begun && !lost {
		return want // somebody else put the interface into the bridge
	}
	back := have.OnBridge
	if have.Switch.Exists && !have.Switch.Created {
		recorded := rec.config()
		back.Addresses = slices.DeleteFunc(slices.Clone(back.Addresses), func(a Address) bool { return !recorded.hasAddress(a) })
		back.Routes = slices.DeleteFunc(slices.Clone(back.Routes), func(r Route) bool { return !r.RA && !recorded.hasRoute(r) })
	}
	want.OnBridge = have.OnBridge.without(back)
	want.OnUplink = have.OnUplink.union(back.moved())
	if begun || lost {
		want.OnUplink = want.OnUplink.union(rec.config())
	}
	if rec.AcceptRA >= 0 && have.Interface.AcceptRA >= 0 {
		want.Interface.AcceptRA = rec.AcceptRA
	}
	if have.Switch.Added || have.Switch.Created {
		want.Switch.PortOf, want.Switch.Added = "", false
	}
	if have.Switch.Created {
		want.Switch.Exists, want.Switch.Created, want.BridgeUp, want.LinkIndex, want.OnBridge = false, false, false, 0, Config{}
	}
	return want
}

func (r Record) config() Config { return Config{r.Addresses, r.Routes} }

// check returns why the interface cannot be the bridge's uplink.
func check(o Owner, have State) error {
	i, name := have.Interface, o.Uplink
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("interface %s: "+format, append([]any{name}, args...)...)
	}
	switch {
	case name == o.Bridge:
		return refuse("it is the external bridge itself: set uplink to the physical interface")
	case !i.Exists:
		return refuse("there is no such interface: set uplink to an interface of this node")
	case i.Loopback:
		return refuse("it is a loopback interface")
	case i.Kind == "vrf", strings.HasPrefix(name, network.ManagementPrefix):
		return refuse("it belongs to a network of Bulkhead")
	case have.Switch.PortOf != "" && have.Switch.PortOf != o.Bridge:
		return refuse("it is a port of the Open vSwitch bridge %s: remove it there, or set external-bridge to that bridge", have.Switch.PortOf)
	case slices.Contains([]string{"openvswitch", "geneve", "vxlan", "wireguard", "tun"}, i.Kind):
		return refuse("an interface of type %s cannot be an uplink", i.Kind)
	case i.Master != "":
		return refuse("it belongs to %s: use %s as the uplink, or release the interface", i.Master, i.Master)
	case i.Wireless:
		return refuse("it is wireless, and access points accept frames of one MAC address only: use a wired interface")
	case !i.Ethernet:
		return refuse("it is no Ethernet interface")
	case have.Switch.Uplink != "" && have.Switch.Uplink != name:
		return refuse("bridge %s already has the uplink %s: see external_ids:bridge-uplink", o.Bridge, have.Switch.Uplink)
	case len(have.Switch.Others) > 0 && have.Switch.Uplink == "":
		return refuse("bridge %s already has the port %s: remove it, or name the uplink in external_ids:bridge-uplink", o.Bridge, strings.Join(have.Switch.Others, ", "))
	}
	return nil
}

// checkLifetimes refuses addresses that a program of the operating system must renew. After the move
// it would renew them on the wrong interface, and the node would lose them later.
func checkLifetimes(o Owner, have State) error {
	const remedy = "configure the address statically, or make the bridge %s by hand and let the client run on it (docs/install.md)"
	for _, a := range have.OnUplink.Addresses {
		if a.Valid == Forever || a.Temporary {
			continue
		}
		switch {
		case !a.is6():
			return fmt.Errorf("interface %s: address %s has a lifetime of %d seconds, so a DHCP client renews it: "+remedy, o.Uplink, a.Prefix, a.Valid, o.Bridge)
		case a.Prefix.IsSingleIP():
			return fmt.Errorf("interface %s: address %s has a lifetime of %d seconds, so a DHCPv6 client renews it: "+remedy, o.Uplink, a.Prefix, a.Valid, o.Bridge)
		case !have.Interface.RA:
			return fmt.Errorf("interface %s: address %s has a lifetime of %d seconds, but the kernel does not process router advertisements there: a program such as NetworkManager or systemd-networkd does. Set accept_ra to 2 and let the kernel do it, or "+
				remedy, o.Uplink, a.Prefix, a.Valid, o.Bridge)
		}
	}
	if have.Interface.DHCP != "" && !have.OnUplink.empty() {
		return fmt.Errorf("interface %s: %s: "+remedy, o.Uplink, have.Interface.DHCP, o.Bridge)
	}
	return nil
}
