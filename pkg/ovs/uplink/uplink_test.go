// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/vrf"
)

var discard = slog.New(slog.DiscardHandler)

func address(prefix string) Address {
	return Address{Prefix: netip.MustParsePrefix(prefix), Valid: Forever, Preferred: Forever}
}

// route returns a route of the family; with a gateway it needs an address of the link.
func route(family uint8, metric uint32, gateway bool) Route {
	m := routeHeader{family: family, table: unix.RT_TABLE_MAIN, protocol: unix.RTPROT_STATIC, kind: unix.RTN_UNICAST}.bytes()
	m = appendAttribute(m, unix.RTA_PRIORITY, native.AppendUint32(nil, metric))
	return Route{Text: fmt.Sprintf("family %d metric %d", family, metric), Message: m, Gateway: gateway}
}

func advertised() Route {
	r := route(unix.AF_INET6, defaultRAMetric, false)
	r.Message[5], r.RA, r.Expires = protocolRA, true, 600
	return r
}

// randomNode returns a node with a random configuration of eth7, and perhaps an adopted bridge that has
// something itself.
func randomNode(r *rand.Rand) *Fake {
	f := &Fake{Saved: Record{AcceptRA: -1}, BridgeRA: -1, Default: []string{"eth7"},
		Interface: Interface{Exists: true, MAC: "02:00:00:00:00:07", Ethernet: true, AcceptRA: r.IntN(3), RA: true}}
	for i := range 1 + r.IntN(4) {
		f.Uplink.Addresses = append(f.Uplink.Addresses, address(fmt.Sprintf("192.0.%d.%d/24", r.IntN(2), 7+i)))
	}
	for i := range r.IntN(3) {
		a := address(fmt.Sprintf("2001:db8:%d::7/64", i))
		if r.IntN(2) == 0 {
			a.Valid, a.Preferred = 900, 800
		}
		f.Uplink.Addresses = append(f.Uplink.Addresses, a)
	}
	for i := range r.IntN(4) {
		f.Uplink.Routes = append(f.Uplink.Routes, route(uint8([]int{unix.AF_INET, unix.AF_INET6}[r.IntN(2)]), uint32(i), r.IntN(2) == 0))
	}
	if r.IntN(2) == 0 {
		f.Uplink.Routes = append(f.Uplink.Routes, advertised())
	}
	if r.IntN(3) == 0 {
		f.SwitchRow.Exists = true
		f.NewLink()
		f.BridgeUp = r.IntN(2) == 0
		f.Bridge.Addresses = []Address{address("203.0.113.1/24")}
	}
	return f
}

// checkNothingLost fails if something is on neither link.
func checkNothingLost(t *testing.T, f *Fake, all Config, after string) {
	t.Helper()
	has := f.Uplink.union(f.Bridge)
	for _, a := range all.Addresses {
		if !has.hasAddress(a) {
			t.Fatalf("after %q no link has address %s", after, a)
		}
	}
	for _, r := range all.Routes {
		if !has.hasRoute(r) && !has.hasRoute(r.moved()) {
			t.Fatalf("after %q no link has route %s", after, r)
		}
	}
}

func sync(f *Fake) error {
	_, err := Sync(context.Background(), f, "br-ex", "eth7", discard)
	return err
}

func restore(f *Fake) error {
	_, err := Restore(context.Background(), f, "br-ex", discard)
	return err
}

// crashAfter makes the operation after n more fail, as if the process had been killed.
func crashAfter(f *Fake, n int) {
	f.Fail = func(Op) error {
		if n == 0 {
			return errors.New("crash")
		}
		n--
		return nil
	}
}

// TestProperties: a move and a restore reach their state, a second run does nothing, a crash after any operation and
// a restart converge, and at no time does the node lack an address or a route.
func TestProperties(t *testing.T) {
	for seed := range uint64(100) {
		node := randomNode(rand.New(rand.NewPCG(seed, 1)))
		adopted, all, foreign := node.SwitchRow.Exists, node.Uplink, node.Bridge
		acceptRA := node.Interface.AcceptRA
		toMove := run2(t, node, all, sync)
		checkMoved(t, node, all, foreign)
		if node.Saved.AcceptRA != acceptRA {
			t.Fatalf("seed %d: the record says that accept_ra was %d instead of %d", seed, node.Saved.AcceptRA, acceptRA)
		}
		toRestore := run2(t, node, all, restore)
		checkRestored(t, node, all, foreign, adopted, acceptRA)
		for n := range max(toMove, toRestore) {
			f := randomNode(rand.New(rand.NewPCG(seed, 1)))
			crashAfter(f, n)
			if err := sync(f); n < toMove && err == nil {
				t.Fatalf("seed %d: no crash after %d of %d operations", seed, n, toMove)
			}
			checkNothingLost(t, f, all, fmt.Sprint("crash after ", n))
			f.Fail = nil
			run2(t, f, all, sync)
			checkMoved(t, f, all, foreign)
			crashAfter(f, n)
			_ = restore(f)
			checkNothingLost(t, f, all, fmt.Sprint("crash after ", n))
			f.Fail = nil
			// The agent completes the restore as well as bulkheadctl.
			if err := []func(*Fake) error{sync, restore}[n%2](f); n%2 == 0 && f.Saved.Phase == PhaseMoved {
				err = restore(f) // the crash was before the first operation
				if err != nil {
					t.Fatal(err)
				}
			} else if err != nil && !errors.Is(err, ErrRestored) {
				t.Fatal(err)
			}
			checkRestored(t, f, all, foreign, adopted, acceptRA)
			if t.Failed() {
				t.Fatalf("seed %d, crash after %d operations:\n%s", seed, n, strings.Join(f.Log, "\n"))
			}
		}
	}
}

// run2 runs twice and returns the number of the first run's operations. It checks each operation.
func run2(t *testing.T, f *Fake, all Config, do func(*Fake) error) int {
	t.Helper()
	f.Log = nil
	f.Fail = func(op Op) error { checkNothingLost(t, f, all, op.String()); return nil }
	if err := do(f); err != nil {
		t.Fatalf("%v:\n%s", err, strings.Join(f.Log, "\n"))
	}
	f.Fail = nil
	n := len(f.Log)
	if err := do(f); err != nil && !errors.Is(err, ErrRestored) {
		t.Fatal(err)
	}
	if len(f.Log) > n {
		t.Fatalf("a second run does:\n%s\nafter:\n%s", strings.Join(f.Log[n:], "\n"), strings.Join(f.Log[:n], "\n"))
	}
	return n
}

func checkMoved(t *testing.T, f *Fake, all, foreign Config) {
	t.Helper()
	if want := foreign.union(all.moved()); !f.Bridge.sameKeys(want) || !f.Uplink.empty() || f.SwitchRow.PortOf != "br-ex" || f.Saved.Phase != PhaseMoved {
		t.Errorf("bridge %v, uplink %v, want %v on the bridge; %+v; record %+v", f.Bridge, f.Uplink, want, f.SwitchRow, f.Saved)
	}
}

func checkRestored(t *testing.T, f *Fake, all, foreign Config, adopted bool, acceptRA int) {
	t.Helper()
	if !f.Uplink.sameKeys(all.moved()) || !f.Bridge.sameKeys(foreign) || f.SwitchRow.PortOf != "" || f.SwitchRow.Exists != adopted || f.Saved.Phase != PhaseRestored {
		t.Errorf("uplink %v, want %v; bridge %v, want %v; %+v; record %+v", f.Uplink, all, f.Bridge, foreign, f.SwitchRow, f.Saved)
	}
	if f.Interface.AcceptRA != acceptRA {
		t.Errorf("accept_ra is %d, want %d", f.Interface.AcceptRA, acceptRA)
	}
}

// TestNewLink: after the bridge's link was lost the record gives back what it had last, and not what
// somebody had deleted before.
func TestNewLink(t *testing.T) {
	f := randomNode(rand.New(rand.NewPCG(2, 1)))
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	f.Bridge.delAddress(f.Bridge.Addresses[len(f.Bridge.Addresses)-1])
	f.Bridge.Addresses = append(f.Bridge.Addresses, address("198.51.100.7/24"))
	if err := sync(f); err != nil { // an event of the bridge
		t.Fatal(err)
	}
	want := f.Bridge.lasting()
	f.NewLink()
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	if !f.Bridge.sameKeys(want) || !f.BridgeUp {
		t.Errorf("the bridge has %v, want %v", f.Bridge, want)
	}
	f.Uplink.Addresses = []Address{address("198.51.100.8/24")} // the operating system's
	f.SwitchRow.PortOf, f.SwitchRow.Added = "", false          // the start of Open vSwitch removes transient ports
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	if want = want.union(Config{Addresses: []Address{address("198.51.100.8/24")}}); !f.Bridge.sameKeys(want) || f.SwitchRow.PortOf != "br-ex" {
		t.Errorf("the bridge has %v, want %v; %+v", f.Bridge, want, f.SwitchRow)
	}
}

// TestRestoreWithoutBridge: the record gives back what a bridge had that somebody deleted.
func TestRestoreWithoutBridge(t *testing.T) {
	f := randomNode(rand.New(rand.NewPCG(2, 1)))
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	want := f.Bridge.lasting()
	f.SwitchRow, f.Index, f.Bridge = Switch{}, 0, Config{}
	if err := restore(f); err != nil {
		t.Fatal(err)
	}
	if !f.Uplink.sameKeys(want) || f.Saved.Phase != PhaseRestored {
		t.Errorf("the uplink has %v, want %v; record %+v", f.Uplink, want, f.Saved)
	}
}

// TestReboot: of a record from an earlier boot nothing is put on the links, and the bridge has the MAC address of the
// interface that is there now, until the next boot.
func TestReboot(t *testing.T) {
	f := randomNode(rand.New(rand.NewPCG(3, 1)))
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	f.Saved.BootID = "first"
	f.Saved = f.Saved.inBoot("second")
	f.NewLink()
	f.SwitchRow.PortOf, f.SwitchRow.Added = "", false
	f.Uplink = Config{Addresses: []Address{address("198.51.100.8/24")}}
	f.Interface.MAC = "02:00:00:00:00:08"
	f.Fail = func(op Op) error {
		if (op.Verb == BridgeUp || op.Verb == AddPort) && f.SwitchRow.MAC != f.Interface.MAC {
			t.Errorf("the bridge has the MAC address %s before %q", f.SwitchRow.MAC, op)
		}
		return nil
	}
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	f.Fail, f.Interface.MAC, f.SwitchRow.PortOf = nil, "02:00:00:00:00:09", "" // somebody removes the port
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	if f.SwitchRow.MAC != "02:00:00:00:00:08" {
		t.Errorf("the bridge has the MAC address %s, the interface had 02:00:00:00:00:08 after the reboot", f.SwitchRow.MAC)
	}
	if !f.Bridge.sameKeys(Config{Addresses: []Address{address("198.51.100.8/24")}}) {
		t.Errorf("the bridge has %v", f.Bridge)
	}
	kept := Record{Phase: PhaseRestored, Uplink: "eth7", BootID: "first"}.inBoot("second")
	if kept.Phase != PhaseRestored || kept.Uplink != "eth7" {
		t.Errorf("a restore is forgotten after a reboot: %+v", kept)
	}
}

func TestChoose(t *testing.T) {
	for name, x := range map[string]struct {
		configured string
		rec        Record
		sw         Switch
		defaults   []string
		want, err  string
	}{
		"named":               {configured: "eth1", defaults: []string{"eth0"}, want: "eth1"},
		"default route":       {configured: Auto, defaults: []string{"eth0", "eth1"}, want: "eth0"},
		"moved before":        {configured: Auto, rec: Record{Phase: PhaseMoved, Bridge: "br-ex", Uplink: "eth1"}, defaults: []string{"br-ex"}, want: "eth1"},
		"named by the bridge": {configured: Auto, sw: Switch{Exists: true, Uplink: "eth2"}, defaults: []string{"eth0"}, want: "eth2"},
		"an operator's":       {configured: Auto, sw: Switch{Exists: true, Others: []string{"eth2"}}, defaults: []string{"br-ex"}, want: "eth2"},
		"bridge without":      {configured: Auto, sw: Switch{Exists: true}, defaults: []string{"br-ex"}, err: "leads to bridge br-ex, which has no uplink"},
		"no default route":    {configured: Auto, err: "no default route"},
		"another one now":     {configured: "eth0", rec: Record{Phase: PhaseMoved, Bridge: "br-ex", Uplink: "eth1"}, err: "run bulkheadctl restore-uplink"},
		"another bridge now":  {configured: Auto, rec: Record{Phase: PhaseMoving, Bridge: "br0", Uplink: "eth1"}, err: "interface eth1 is in bridge br0"},
		"restored":            {configured: "eth0", rec: Record{Phase: PhaseRestored}, err: "delete the record"},
	} {
		o, err := Choose("br-ex", x.configured, x.rec, x.sw, x.defaults)
		if x.err == "" && (err != nil || o.Uplink != x.want) || x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}

func TestRefused(t *testing.T) {
	good := State{Interface: Interface{Exists: true, Ethernet: true, AcceptRA: 1, RA: true}, OnUplink: Config{Addresses: []Address{address("192.0.2.7/24")}}}
	leased := func(prefix string) func(*State) {
		return func(s *State) {
			a := address(prefix)
			a.Valid = 300
			s.OnUplink.Addresses = []Address{a}
		}
	}
	for name, x := range map[string]struct {
		uplink string
		change func(*State)
		want   string // "": accepted
	}{
		"good":               {"eth7", func(*State) {}, ""},
		"bond":               {"bond0", func(s *State) { s.Interface.Kind = "bond" }, ""},
		"VLAN":               {"eth0.100", func(s *State) { s.Interface.Kind = "vlan" }, ""},
		"missing":            {"eth7", func(s *State) { s.Interface.Exists = false }, "no such interface"},
		"the bridge":         {"br-ex", func(*State) {}, "the external bridge itself"},
		"bond's slave":       {"eth7", func(s *State) { s.Interface.Master = "bond0" }, "use bond0 as the uplink"},
		"wireless":           {"wlan0", func(s *State) { s.Interface.Wireless = true }, "wireless"},
		"no Ethernet":        {"ppp0", func(s *State) { s.Interface.Ethernet = false }, "no Ethernet interface"},
		"another uplink":     {"eth7", func(s *State) { s.Switch = Switch{Exists: true, Uplink: "eth1"} }, "already has the uplink eth1"},
		"other ports":        {"eth7", func(s *State) { s.Switch = Switch{Exists: true, Others: []string{"eth1", "tap0"}} }, "port eth1, tap0"},
		"OVS port":           {"eth7", func(s *State) { s.Switch.PortOf = "br-int" }, "port of the Open vSwitch bridge br-int"},
		"VRF":                {"red", func(s *State) { s.Interface.Kind = "vrf" }, "a network of Bulkhead"},
		"management port":    {"ovn-k8s-mp7", func(s *State) { s.Interface.Kind = "openvswitch" }, "a network of Bulkhead"},
		"OVS's own":          {"br-int", func(s *State) { s.Interface.Kind = "openvswitch" }, "type openvswitch"},
		"lease":              {"eth7", leased("192.0.2.7/24"), "a DHCP client renews it: configure the address statically"},
		"DHCPv6 lease":       {"eth7", leased("2001:db8::7/128"), "a DHCPv6 client renews it"},
		"kernel's SLAAC":     {"eth7", leased("2001:db8::7/64"), ""},
		"a daemon's SLAAC":   {"eth7", func(s *State) { leased("2001:db8::7/64")(s); s.Interface.RA = false }, "a program such as NetworkManager"},
		"client":             {"eth7", func(s *State) { s.Interface.DHCP = "a DHCP client has UDP port 68 open there" }, "a DHCP client has UDP port 68"},
		"lease, when begun":  {"eth7", func(s *State) { leased("192.0.2.7/24")(s); s.Record.Phase = PhaseMoving }, ""},
		"duplicate stays up": {"eth7", func(s *State) { s.OnUplink.Addresses[0].Failed = true }, ""},
	} {
		s := good
		s.OnUplink.Addresses = slices.Clone(good.OnUplink.Addresses)
		x.change(&s)
		_, err := Build(Owner{"br-ex", x.uplink}, s)
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}

// TestMoved: a privacy address moves as a deprecated one, and one that another host has stays.
func TestMoved(t *testing.T) {
	private, failed := address("2001:db8::1234/64"), address("2001:db8::9/64")
	private.Temporary, private.Valid, private.Preferred, failed.Failed = true, 600, 300, true
	f := randomNode(rand.New(rand.NewPCG(4, 1)))
	f.Uplink = Config{Addresses: []Address{private, failed}}
	if err := sync(f); err != nil {
		t.Fatal(err)
	}
	if len(f.Uplink.Addresses) != 1 || !f.Uplink.Addresses[0].Failed {
		t.Errorf("the uplink has %v", f.Uplink)
	}
	i := slices.IndexFunc(f.Bridge.Addresses, func(a Address) bool { return a.key() == private.key() })
	if i < 0 || f.Bridge.Addresses[i].Preferred != 0 || f.Bridge.Addresses[i].Valid != 600 {
		t.Errorf("the bridge has %v", f.Bridge)
	}
}

// Routes with pkg/vrf's mark stay with the bridge, and those of routing daemons are theirs.
func TestOwnProtocol(t *testing.T) {
	if protocolOwn != vrf.Protocol {
		t.Errorf("routes of ours have protocol %d, not %d", vrf.Protocol, protocolOwn)
	}
	r := route(unix.AF_INET, 1, false)
	m := appendAttribute(slices.Clone(r.Message), unix.RTA_OIF, native.AppendUint32(nil, 5))
	if got := parseRoutes(m, 5); len(got) != 1 {
		t.Errorf("a route through the link: %v", got)
	}
	if got := parseRoutes(m, 6); len(got) != 0 {
		t.Errorf("a route by another link: %v", got)
	}
	for _, protocol := range append([]uint8{vrf.Protocol}, daemons...) {
		m[5] = protocol
		if got := parseRoutes(m, 5); len(got) != 0 {
			t.Errorf("a route of protocol %d: %v", protocol, got)
		}
	}
}

// FuzzMessages: nothing that the kernel may send makes the parsers fail.
func FuzzMessages(f *testing.F) {
	f.Add(addressMessage(address("192.0.2.7/24"), 5, "eth7"), 5)
	f.Add(routeMessage(advertised(), 5), 5)
	f.Fuzz(func(t *testing.T, m []byte, index int) {
		for _, r := range parseRoutes(m, index) {
			if again := parseRoutes(routeMessage(r.Route, 7), 7); len(again) != 1 || again[0].key() != r.key() {
				t.Errorf("%x is read back as %v", r.Message, again)
			}
		}
		if a, _, ok := parseAddress(m, "eth7"); ok {
			_ = addressMessage(a, 1, "br-ex")
		}
	})
}

func TestDHCPClient(t *testing.T) {
	c := Config{Addresses: []Address{address("192.0.2.7/24")}}
	for name, x := range map[string]struct {
		device int
		local  string
		packet bool
		want   bool
	}{
		"bound to the interface":                 {5, "0.0.0.0", false, true},
		"bound to another":                       {6, "192.0.2.7", true, false},
		"bound to the address":                   {0, "192.0.2.7", false, true},
		"bound to another address":               {0, "192.0.2.9", true, false},
		"dhclient on the interface":              {0, "0.0.0.0", true, true},
		"dhclient, perhaps on another interface": {0, "0.0.0.0", false, false},
	} {
		if got := isClientOf(5, c, x.device, netip.MustParseAddr(x.local), x.packet); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
