// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/pkg/ovs/uplink"
	"bulkhead/test/native"
)

var everyKill = flag.Bool("every-kill", os.Getenv("BULKHEAD_FULL") != "", "TestNativeMove kills after each operation, not after a sample of them")

// TestNativeMove moves a configured interface to the bridge and back, with connections over it, and kills the
// process after operations.
func TestNativeMove(t *testing.T) {
	w := newWorld(t)
	w.configure()
	before := describe(w.read().OnUplink)
	if len(before) != 18 {
		t.Fatalf("the interface has\n%s", strings.Join(before, "\n"))
	}
	w.node("link set eth7 mtu 1450")
	mac := w.cmd("ip", "netns", "exec", w.host.NS, "cat", "/sys/class/net/eth7/address")
	v4, v6 := w.connect("192.0.2.7:7777"), w.connect("[2001:db8::7]:7777")
	v4.more(t)
	v6.more(t)
	moved := func() {
		t.Helper()
		s := w.read()
		w.check("on the bridge", s.OnBridge, before)
		w.check("left on the interface", s.OnUplink, nil)
		if got := w.cmd("ip", "netns", "exec", w.host.NS, "cat", "/sys/class/net/br-ex/address"); got != mac {
			t.Fatalf("the bridge's MAC address is %s, the interface's %s", got, mac)
		}
		if got := w.cmd("ip", "netns", "exec", w.host.NS, "cat", "/sys/class/net/br-ex/mtu"); got != "1450\n" {
			t.Fatalf("the bridge's MTU is %s", got)
		}
		if got := w.vsctl("get", "bridge", "br-ex", "fail_mode", "external_ids:bridge-uplink"); got != "standalone\neth7" {
			t.Fatalf("the bridge has fail_mode and uplink %s", got)
		}
		v4.more(t)
		v6.more(t)
	}
	restored := func() {
		t.Helper()
		s := w.read()
		w.check("on the interface", s.OnUplink, before)
		w.check("left on the bridge", s.OnBridge, nil)
		if got := w.vsctl("list-br"); got != "" {
			t.Fatalf("the bridges %s are left", got)
		}
		if err := os.Remove(w.record); err != nil {
			t.Fatal(err)
		}
		v4.more(t)
		v6.more(t)
	}
	moves := w.run(helperInput{Mode: "move"})
	moved()
	moveV4, moveV6 := time.Duration(v4.longest.Swap(0)), time.Duration(v6.longest.Swap(0))
	if again := w.run(helperInput{Mode: "move"}); again != 0 {
		t.Fatalf("a second run does %d operations", again)
	}
	restores := w.run(helperInput{Mode: "restore"})
	restored()
	t.Logf("longest round trip during %d operations to move: IPv4 %v, IPv6 %v; during %d to restore: %v, %v", moves, moveV4, moveV6,
		restores, time.Duration(v4.longest.Load()), time.Duration(v6.longest.Load()))
	if longest := max(moveV4, moveV6, time.Duration(v4.longest.Load()), time.Duration(v6.longest.Load())); longest > 5*time.Second {
		t.Errorf("a connection carried nothing for %v", longest)
	}
	if moves < 20 || restores < 20 {
		t.Fatal("too few operations")
	}
	step := 6
	if *everyKill {
		step = 1
	}
	for i := 1 + rand.IntN(step); i <= max(moves, restores); i += step {
		w.killed = i
		kill := func(mode string, total int) {
			_, stderr, err := w.try(helperInput{Mode: mode, KillAfter: i})
			if i <= total && (err == nil || !strings.Contains(err.Error(), "killed")) {
				t.Fatalf("%s was not killed after %d operations: %v: %s", mode, i, err, stderr)
			}
		}
		kill("move", moves)
		w.run(helperInput{Mode: "move"})
		moved()
		kill("restore", restores)
		if _, stderr, err := w.try(helperInput{Mode: "restore"}); err != nil && !strings.Contains(stderr, uplink.ErrRestored.Error()) {
			t.Fatal(err, stderr)
		}
		restored()
	}
	v4.close(t)
	v6.close(t)
}

// TestNativeRefused: real interfaces that cannot be the uplink.
func TestNativeRefused(t *testing.T) {
	w := newWorld(t)
	w.node("addr add 192.0.2.7/24 dev eth7")
	refused := func(name, configured, want string) {
		t.Helper()
		_, stderr, err := w.try(helperInput{Mode: "move", Configured: configured})
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%s: %v: %s, want %q", name, err, stderr, want)
		}
		if got := w.vsctl("list-br"); strings.Contains(got, "br-ex") {
			t.Fatalf("%s: the bridge was created", name)
		}
		if _, err := os.Stat(w.record); err == nil {
			t.Fatalf("%s: a record was written", name)
		}
	}
	refused("missing", "eth8", "there is no such interface")
	refused("loopback", "lo", "loopback")
	refused("no default route", uplink.Auto, "no default route")
	w.node("link add br0 type bridge")
	w.node("link set eth7 master br0")
	refused("in a bridge", "eth7", "it belongs to br0")
	w.node("link set eth7 nomaster")
	w.vsctl("add-br", "br-other", "--", "set", "bridge", "br-other", "datapath_type=netdev", "--", "add-port", "br-other", "eth7")
	refused("in another OVS bridge", "eth7", "port of the Open vSwitch bridge br-other")
	w.vsctl("del-br", "br-other")
	w.node("addr add 192.0.2.9/24 dev eth7 valid_lft 600 preferred_lft 600")
	refused("a lease", "eth7", "a DHCP client renews it")
	w.node("addr del 192.0.2.9/24 dev eth7")
	var client net.PacketConn
	inNamespace(t, w.host.NS, func() (err error) {
		client, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.7:68")))
		return err
	})
	refused("a DHCP client", "eth7", "a DHCP client has UDP port 68 open there")
	client.Close()
	w.run(helperInput{Mode: "move"})
	if got := w.vsctl("list-ports", "br-ex"); got != "eth7" {
		t.Errorf("the bridge has the ports %s", got)
	}
}

// TestNativeKept: what the operating system configures on the interface later moves too, a port that somebody
// removes comes back, and so does everything when Open vSwitch has lost the bridge's link.
func TestNativeKept(t *testing.T) {
	w := newWorld(t)
	w.configure()
	before := describe(w.read().OnUplink)
	keeper := w.helper(helperInput{Mode: "keep"})
	var output strings.Builder
	keeper.Stderr = &output
	must(t, keeper.Start)
	defer func() {
		native.Kill(keeper)
		if t.Failed() {
			t.Log(output.String())
		}
	}()
	settled := func(name string, want []string) {
		t.Helper()
		if err := native.Eventually(name, func() error {
			s := w.read()
			if d := describe(s.OnBridge); !slices.Equal(d, want) || len(describe(s.OnUplink)) > 0 {
				return fmt.Errorf("the bridge has\n%s\nthe interface\n%s", strings.Join(d, "\n"), strings.Join(describe(s.OnUplink), "\n"))
			}
			if got := w.vsctl("list-ports", "br-ex"); got != "eth7" {
				return fmt.Errorf("the bridge has the ports %q", got)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	settled("the first move", before)
	w.node("addr add 192.168.5.7/24 dev eth7")
	w.node("route add 10.9.0.0/16 via 192.168.5.1 dev eth7")
	all := append(slices.Clone(before), "address 192.168.5.7/24 invalid Prefix invalid IP0 0 0 true",
		"route 02100000fe03000100000000080001000a09000008000400ffffffff08000500c0a8050108000f00fe000000")
	slices.Sort(all)
	settled("a new address", all)
	w.vsctl("del-port", "br-ex", "eth7")
	settled("the removed port", all)
	w.node("addr del 198.51.100.7 peer 198.51.100.9/32 dev br-ex")
	all = slices.DeleteFunc(all, func(s string) bool { return strings.Contains(s, "198.51.100.7") })
	settled("an address that somebody deletes", all)
	if err := native.Eventually("the record without the deleted address", func() error {
		b, err := os.ReadFile(w.record)
		if err == nil && strings.Contains(string(b), "198.51.100.7") {
			err = errors.New("it is still there")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	native.Kill(w.vswitchd)
	w.startSwitch()
	settled("after a restart of Open vSwitch", all)
	native.Kill(w.vswitchd)
	w.node("link del br-ex")
	w.vsctl("--no-wait", "set", "bridge", "br-ex", "other_config:hwaddr=02:00:00:00:00:99") // as after a reboot of a machine's copy
	w.startSwitch()
	lasting := slices.DeleteFunc(all, func(s string) bool { return strings.HasPrefix(s, "advertised") })
	settled("a new link of the bridge", lasting)
	mac := func(link string) string {
		return w.cmd("ip", "netns", "exec", w.host.NS, "cat", "/sys/class/net/"+link+"/address")
	}
	if bridge, eth7 := mac("br-ex"), mac("eth7"); bridge != eth7 {
		t.Errorf("the bridge's MAC address is %s, the interface's %s", bridge, eth7)
	}
}

// TestNativeAdopted: a bridge that is there is used, and stays with what it had after the restore.
func TestNativeAdopted(t *testing.T) {
	w := newWorld(t)
	w.configure()
	before := describe(w.read().OnUplink)
	w.vsctl("add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev")
	w.node("addr add 192.168.9.1/24 dev br-ex")
	own := "address 192.168.9.1/24 invalid Prefix invalid IP0 0 0 true"
	w.run(helperInput{Mode: "move", Configured: uplink.Auto})
	s := w.read()
	both := append(slices.Clone(before), own)
	slices.Sort(both)
	w.check("on the bridge", s.OnBridge, both)
	w.check("left on the interface", s.OnUplink, nil)
	w.run(helperInput{Mode: "restore"})
	s = w.read()
	w.check("on the interface", s.OnUplink, before)
	w.check("on the bridge", s.OnBridge, []string{own})
	if got := w.vsctl("list-br", "--", "list-ports", "br-ex", "--", "get", "bridge", "br-ex", "external_ids"); got != "br-ex\n{}" {
		t.Errorf("the bridge is %q", got)
	}
}
