// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{
		"blue": "", "l2-network": "", "Tenant.1": "", "0": "", "shop_net": "", "cluster_udn_red": "", "cluster_udn_ext": "", strings.Repeat("a", 63): "",
		"a\x00b": "letters, digits", "a\nb": "letters, digits", "a b": "letters, digits", "a/b": "letters, digits", "é": "letters, digits", `a"b`: "letters, digits",
		"a,b": "letters, digits", "-a": "letters, digits", "a-": "letters, digits", ".": "letters, digits", "": "letters, digits",
		"ext_good_net": "letters, digits", "Tenant_Blue": "letters, digits", strings.Repeat("a", 64): "1 to 63",
		"ext": "gateways", "GR": "gateways", "ext_net": "another namespace",
	} {
		err := checkName(name)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
		if err != nil && strings.ContainsRune(err.Error(), 0) {
			t.Errorf("%q: the message contains a NUL", name)
		}
	}
}

// No two networks share the name of an OVN object, whatever the names of the
// networks and nodes.
func FuzzNamesDisjoint(f *testing.F) {
	f.Add("blue", "shop_net", "node1", "node2")
	f.Add("ext", "good", "node1", "good")
	f.Add("ext_good", "good", "node1", "node1")
	f.Add("ext_net", "net", "node1", "node1")
	f.Add("a", "a_b", "b", "join")
	f.Add("cluster_udn_a", "udn_a", "n", "n")
	f.Fuzz(func(t *testing.T, a, b, x, y string) {
		if checkName(a) != nil || checkName(b) != nil || a == b || a == DefaultName || b == DefaultName {
			return
		}
		for _, node := range []string{x, y} {
			if strings.Trim(node, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || node == "" || CheckNodeName(node) != nil {
				return
			}
		}
		names := func(name, node string) map[string]bool {
			n := Network{ID: 1, Name: name, Topology: Layer3}
			if name == "" {
				n.ID, n.Name = DefaultID, DefaultName
			}
			out := map[string]bool{}
			for _, s := range []string{n.NodeSwitch(node), n.ExternalSwitch(node), n.TransitSwitch()} {
				if out["switch "+s] {
					t.Errorf("network %q has two switches %q", name, s)
				}
				out["switch "+s] = true
			}
			out["router "+n.ClusterRouter()], out["router "+n.GatewayRouter(node)] = true, true
			return out
		}
		for _, other := range []string{b, ""} {
			for s := range names(a, x) {
				if names(other, y)[s] || names(other, x)[s] {
					t.Errorf("networks %q and %q on nodes %q and %q share %s", a, other, x, y, s)
				}
			}
		}
	})
}
