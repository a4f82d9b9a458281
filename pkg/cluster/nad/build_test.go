// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

var key = Key{"red", "net"}

func conf(name string) network.NetConf {
	return network.NetConf{
		CNIVersion: network.CNIVersion, Type: network.CNIType, Name: name, NetAttachDefName: key.String(),
		Topology: "layer2", Subnets: "10.1.0.0/16",
	}
}

// The operations for each combination of a NAD's inputs and actual state.
func TestBuild(t *testing.T) {
	fresh := func() *NAD { return &NAD{Key: key, UID: "u"} }
	marked := func() *NAD {
		return &NAD{Key: key, UID: "u", ID: "7", Network: "blue", Finalizers: []string{"other", network.FinalizerNAD}}
	}
	deleted := func(n *NAD) *NAD { n.Deleting = true; return n }
	for _, c := range []struct {
		name string
		in   Inputs
		want string // operations
	}{
		{"new", Inputs{NAD: fresh(), Ours: true, Conf: conf("blue"), ID: 7},
			"assign network id 7 to NetworkAttachmentDefinition red/net"},
		{"up to date", Inputs{NAD: marked(), Ours: true, Conf: conf("blue"), ID: 7}, ""},
		{"another plugin's", Inputs{NAD: fresh()}, ""},
		{"became another plugin's", Inputs{NAD: marked()}, "release NetworkAttachmentDefinition red/net"},
		{"became another plugin's, in use", Inputs{NAD: marked(), Users: []string{"red/p"}},
			"warn about NetworkAttachmentDefinition red/net: network in use by the following pods: [red/p]: the network is removed once they are deleted"},
		{"invalid", Inputs{NAD: fresh(), Ours: true, Error: "bad subnet"}, "warn about NetworkAttachmentDefinition red/net: bad subnet"},
		{"invalid with a forged id", Inputs{NAD: &NAD{Key: key, ID: "7", Network: "blue"}, Ours: true, Error: "bad name"},
			"release NetworkAttachmentDefinition red/net, warn about NetworkAttachmentDefinition red/net: bad name"},
		{"became invalid", Inputs{NAD: marked(), Ours: true, ID: 7, Error: "bad subnet"},
			"warn about NetworkAttachmentDefinition red/net: bad subnet"},
		{"renamed", Inputs{NAD: marked(), Ours: true, Conf: conf("green"), ID: 8},
			"assign network id 8 to NetworkAttachmentDefinition red/net"},
		{"deleted", Inputs{NAD: deleted(marked()), Ours: true}, "release NetworkAttachmentDefinition red/net"},
		{"deleted in use", Inputs{NAD: deleted(marked()), Ours: true, Users: []string{"red/p"}},
			"warn about NetworkAttachmentDefinition red/net: network in use by the following pods: [red/p]: the network is removed once they are deleted"},
		{"deleted, never ours", Inputs{NAD: deleted(fresh()), Ours: true}, ""},
	} {
		have := Have(*c.in.NAD)
		var ops []string
		for _, op := range Diff(*c.in.NAD, Build(c.in, have), have, Build(c.in, have).Problem != "") {
			ops = append(ops, op.String())
		}
		if got := strings.Join(ops, ", "); got != c.want {
			t.Errorf("%s: operations %q, want %q", c.name, got, c.want)
		}
		if ops := Diff(*c.in.NAD, Build(c.in, have), have, false); slices.ContainsFunc(ops, func(o Op) bool { return o.Kind == Warn }) {
			t.Errorf("%s: a second event for the same problem", c.name)
		}
	}
}

// Errors of Check name the configuration's key and the remedy.
func TestCheck(t *testing.T) {
	cfg, err := config.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*network.NetConf)
		want   string
	}{
		{"valid", func(*network.NetConf) {}, ""},
		{"without netAttachDefName", func(c *network.NetConf) { c.NetAttachDefName = "" }, ""},
		{"name of a UDN", func(c *network.NetConf) { c.Name = "red_net" }, `choose a name without "_"`},
		{"name of a CUDN", func(c *network.NetConf) { c.Name = "cluster_udn_red" }, `choose a name without "_"`},
		{"netAttachDefName of another NAD", func(c *network.NetConf) { c.NetAttachDefName = "blue/net" }, `write "red/net"`},
		{"default", func(c *network.NetConf) { c.Name = "default" }, "choose another"},
		{"topology", func(c *network.NetConf) { c.Topology = "ring" }, "use layer3, layer2 or localnet"},
		{"overlap", func(c *network.NetConf) { c.Subnets = "10.244.1.0/24" }, "cluster-subnets"},
		{"mtu over the underlay's", func(c *network.NetConf) { c.MTU = 9000 }, "mtu 9000 is more than 1400"},
	} {
		nc := conf("blue")
		c.change(&nc)
		_, err := Check(key, nc, cfg.Plan)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestSameNetwork(t *testing.T) {
	a, b := conf("blue"), conf("blue")
	b.NetAttachDefName, b.CNIVersion = "blue/net", "0.3.1"
	if !SameNetwork(a, b) {
		t.Error("two NADs of one network differ")
	}
	if b.Subnets = "10.2.0.0/16"; SameNetwork(a, b) {
		t.Error("NADs with different subnets are one network")
	}
}

// From any actual state and any inputs, one run reaches the desired state, the
// next writes nothing, and other finalizers stay.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "7", "nonsense"})
		n := NAD{Key: key, UID: "u", ID: text.Draw(t, "id"), Network: rapid.SampledFrom([]string{"", "blue", "green"}).Draw(t, "network"), Finalizers: []string{"other"}}
		if rapid.Bool().Draw(t, "finalizer") {
			n.Finalizers = append(n.Finalizers, network.FinalizerNAD)
		}
		f := NewFake()
		f.NADs[key] = n
		if rapid.Bool().Draw(t, "deleting") {
			f.Delete(key)
		}
		in := Inputs{Ours: rapid.Bool().Draw(t, "ours"), Conf: conf("blue"), Error: rapid.SampledFrom([]string{"", "bad"}).Draw(t, "error")}
		if in.Error == "" || rapid.Bool().Draw(t, "has an id") {
			in.ID = 7
		}
		if f.NADs[key].Deleting && rapid.Bool().Draw(t, "in use") {
			in.Users = []string{"red/p"}
		}
		step := func() State {
			cur := f.NADs[key]
			in.NAD = &cur
			want := Build(in, Have(cur))
			if err := f.Apply(context.Background(), Diff(cur, want, Have(cur), want.Problem != "")); err != nil {
				t.Fatal(err)
			}
			return want
		}
		want := step()
		writes := f.Writes
		if again := step(); again != want || f.Writes != writes {
			t.Fatalf("the second run: want %+v after %+v, %d writes", again, want, f.Writes-writes)
		}
		after := f.NADs[key]
		if got := Have(after); got.ID != want.ID || got.Network != want.Network || got.Finalizer != want.Finalizer {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		if !slices.Contains(after.Finalizers, "other") {
			t.Fatal("another finalizer was removed")
		}
		if in.Ours && in.Error == "" && !after.Deleting && (after.ID != "7" || after.Network != "blue" || !slices.Contains(after.Finalizers, network.FinalizerNAD)) {
			t.Fatalf("a valid NAD is %+v", after)
		}
	})
}
