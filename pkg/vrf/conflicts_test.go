// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"bytes"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bulkhead/pkg/network"
)

// TestConflicts: each rule that may take packets of a network is named, and rules that other
// programs usually have are not.
func TestConflicts(t *testing.T) {
	l3mdev := kernelRule{Rule: Rule{Priority: 1000}, L3mdev: true}
	rule := func(priority int, change func(*kernelRule)) kernelRule {
		r := kernelRule{Rule: Rule{Priority: priority, Table: 200}}
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		rule kernelRule
		want string // part of the only message; "": none
	}{
		"the kernel's, for the local table": {rule(0, func(r *kernelRule) { r.Table = 255 }), ""},
		"the kernel's, for the main table":  {rule(32766, func(r *kernelRule) { r.Table = 254 }), ""},
		"all packets":                       {rule(100, func(r *kernelRule) {}), "ip rule 100 from all lookup 200: give"},
		"all packets, IPv6":                 {rule(100, func(r *kernelRule) { r.IPv6 = true }), "ip -6 rule 100 from all lookup 200"},
		"all packets, after ours":           {rule(5210, func(r *kernelRule) {}), ""},
		"to a pod's address":                {rule(512, func(r *kernelRule) { r.To = netip.MustParsePrefix("10.20.0.3/32") }), "to 10.20.0.3/32 lookup 200"},
		"from an address":                   {rule(1536, func(r *kernelRule) { r.Source = netip.MustParsePrefix("10.20.0.3/32") }), "from 10.20.0.3/32 lookup 200"},
		"from a device of others":           {rule(100, func(r *kernelRule) { r.From = "wg0" }), ""},
		"from the bridge":                   {rule(100, func(r *kernelRule) { r.From = "br-ex" }), "iif br-ex"},
		"from a VRF device":                 {rule(100, func(r *kernelRule) { r.Out = "red" }), "oif red"},
		"a mark of others":                  {rule(100, func(r *kernelRule) { r.Mark, r.Mask = 0x80, 0x80 }), ""},
		"no mark of others":                 {rule(100, func(r *kernelRule) { r.Mark, r.Mask, r.Not = 0xca6c, ^uint32(0), true }), "not from all fwmark 0xca6c"},
		"no mark of others, after ours":     {rule(32764, func(r *kernelRule) { r.Mark, r.Mask, r.Not = 0xca6c, ^uint32(0), true }), ""},
		"no mark at all":                    {rule(100, func(r *kernelRule) { r.Mask = ^uint32(0) }), "fwmark 0x0/0xffffffff"},
		"no mark at all, after VRF devices": {rule(1500, func(r *kernelRule) { r.Mask = ^uint32(0) }), ""},
		"a mark of a network":               {rule(5210, func(r *kernelRule) { r.Mark, r.Mask = 0x80000, 0xff0000 }), "use other bits than 0xffff0000"},
		"a goto":                            {rule(100, func(r *kernelRule) { r.Action, r.Goto, r.Table = Goto, 5000, 0 }), "goto 5000"},
		"the end of a goto":                 {rule(100, func(r *kernelRule) { r.Action, r.Table = Nop, 0 }), ""},
		"refused":                           {rule(100, func(r *kernelRule) { r.Action, r.Table = Unreachable, 0 }), "ip rule 100 from all: give"},
	} {
		t.Run(name, func(t *testing.T) {
			f := foreign{rules: []kernelRule{l3mdev, tc.rule}, own: []string{"lo", "br-ex", "red"}, haveVRF: true}
			got := f.conflicts()
			switch {
			case tc.want == "" && len(got) > 0:
				t.Errorf("reported: %q", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)):
				t.Errorf("%q, want one with %q", got, tc.want)
			}
		})
	}

	t.Run("many rules are one message", func(t *testing.T) {
		f := foreign{}
		for i := range 100 {
			f.rules = append(f.rules, rule(899-i, func(*kernelRule) {}))
		}
		if got := f.conflicts(); len(got) != 1 || !strings.Contains(got[0], "ip rule 800 ") || !strings.Contains(got[0], "and 97 more") || len(got[0]) > 500 {
			t.Errorf("%q", got)
		}
	})
	t.Run("no rule for VRF devices", func(t *testing.T) {
		late := l3mdev
		late.Priority = 32767
		v6 := l3mdev
		v6.IPv6 = true
		for _, rules := range [][]kernelRule{nil, {v6}, {late, v6}} {
			f := foreign{rules: rules, ipv6: len(rules) > 0, haveVRF: true}
			if got := f.conflicts(); len(got) != 1 || !strings.Contains(got[0], "run ip rule add l3mdev priority 1000") {
				t.Errorf("%v: %q", rules, got)
			}
		}
		if got := (foreign{}).conflicts(); len(got) > 0 {
			t.Errorf("a node without networks: %q", got)
		}
	})
	t.Run("a VRF device with a shared table", func(t *testing.T) {
		f := foreign{vrfs: []cachedDevice{{"mgmt", 10}, {"other", network.MasqueradeTable}}}
		if got := f.conflicts(); len(got) != 1 || !strings.Contains(got[0], "VRF device other has table 99999") {
			t.Errorf("%q", got)
		}
	})
}

// TestKernelConflicts reads rules of others from the kernel.
func TestKernelConflicts(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addBridge(t)
	if got, err := k.Conflicts(t.Context()); err != nil || len(got) > 0 {
		t.Fatalf("a new network namespace: %q %v", got, err)
	}
	reconcileKernel(t, k, network.Network{Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: testPlan().ClusterSubnets}, false)
	if got, err := k.Conflicts(t.Context()); err != nil || len(got) > 0 {
		t.Fatalf("with our rules: %q %v", got, err)
	}
	add := func(family int, change func(*netlink.Rule)) {
		t.Helper()
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table = family, 300, 77
		change(r)
		if err := netlink.RuleAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	mask := uint32(0xff0000)
	add(netlink.FAMILY_V4, func(r *netlink.Rule) { r.Src = ipNet(netip.MustParsePrefix("10.1.0.0/16")); r.OifName = "br-ex" })
	add(netlink.FAMILY_V4, func(r *netlink.Rule) { r.Priority, r.Table = 50, 255 })
	add(netlink.FAMILY_V4, func(r *netlink.Rule) { r.Mark, r.Mask = 0x80000, &mask })
	add(netlink.FAMILY_V6, func(r *netlink.Rule) { r.Dst = ipNet(netip.MustParsePrefix("fd01::/64")); r.Invert = true })
	add(netlink.FAMILY_V6, func(r *netlink.Rule) { r.IifName = "wg0" })
	got, err := k.Conflicts(t.Context())
	if err != nil || len(got) != 2 {
		t.Fatalf("%q %v", got, err)
	}
	for _, want := range []string{
		"ip rule 300 from 10.1.0.0/16 oif br-ex lookup 77; ip -6 rule 300 not from all to fd01::/64 lookup 77: give",
		"ip rule 300 from all fwmark 0x80000/0xff0000 lookup 77: let",
	} {
		if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no message has %q: %q", want, got)
		}
	}
}

func addForeignVRF(t *testing.T, name string, table uint32) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	vrf := &netlink.Vrf{LinkAttrs: attrs, Table: table}
	if err := netlink.LinkAdd(vrf); err != nil {
		t.Fatal(err)
	}
	return vrf
}

// A network whose table belongs to a VRF device that is not ours is not configured, until that device is
// gone; the event says which network. The kernel's rule for VRF devices is missed when it is gone.
func TestKernelTakenTable(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	if !hasVRF(t) {
		t.Skipf("SKIP: %v", ErrNoVRF)
	}
	addBridge(t)
	addVeth(t, "ovn-k8s-mp7", "peer7")
	changes := make(chan Change, 1000)
	go func() {
		_ = k.Watch(t.Context(), TableRange{TableBase: 100000, MaxID: network.MaxID}, func(c Change) { changes <- c })
	}()
	changed := func(what string) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case c := <-changes:
				if c == (Change{ID: 7, Links: true}) {
					return
				}
			case <-deadline:
				t.Fatalf("%s: no event", what)
			}
		}
	}
	other := addForeignVRF(t, "mgmt", 100007)
	changed("the device was created")
	blue := testNet(7, "cluster_udn_blue", "10.20.0.0/16/24")
	in := Inputs{Plan: testPlan(), IPv6: true}
	r, err := Reconcile(t.Context(), k, blue, testNode(), in)
	if err == nil || !strings.Contains(err.Error(), "table 100007 belongs to the VRF device mgmt") || len(r.Ops) > 0 {
		t.Errorf("%v, operations %v", err, r.Ops)
	}
	if err := netlink.LinkDel(other); err != nil {
		t.Fatal(err)
	}
	changed("the device was deleted")
	reconcileKernel(t, k, blue, true)
	if r := reconcileKernel(t, k, blue, true); len(r.Ops) > 0 || r.Have.Empty() {
		t.Errorf("%v", r.Ops)
	}
	if got, err := k.Conflicts(t.Context()); err != nil || len(got) > 0 {
		t.Fatalf("%q %v", got, err)
	}
	for _, ip := range []string{"ip", "ip -6"} {
		if out, err := exec.Command("sh", "-c", ip+" rule del l3mdev").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got, err := k.Conflicts(t.Context()); err != nil || !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "run "+ip+" rule add l3mdev") }) {
			t.Errorf("%s: %q %v", ip, got, err)
		}
	}
}

// Whatever the message, parseRule returns, and only messages with our protocol are ours.
func FuzzParseRule(f *testing.F) {
	f.Add([]byte{2, 24, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 1, 5, 0, 21, 0, Protocol, 0, 0, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		m = m[:len(m)&^3] // netlink aligns messages, and the library's parser counts on it
		r, isOurs := parseRule(m)
		if isOurs && !bytes.Contains(m, []byte{Protocol}) {
			t.Errorf("ours without our protocol: %s", r)
		}
		_ = foreign{rules: []kernelRule{r}, own: []string{"lo"}}.conflicts()
	})
}
