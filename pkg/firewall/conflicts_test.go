// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestConflicts(t *testing.T) {
	forward := chain{family: "ip", table: "filter", name: "FORWARD", hook: "forward"}
	dropping := forward
	dropping.drops = true
	for name, tc := range map[string]struct {
		chains           []chain
		kubeProxy, drops string // "": none
	}{
		"nothing":                   {nil, "", ""},
		"chains that accept":        {[]chain{forward, {family: "inet", table: "mine", name: "x"}}, "", ""},
		"a chain that drops":        {[]chain{dropping}, "", "chain FORWARD of table ip filter (hook forward)"},
		"firewalld, one message":    {[]chain{{family: "inet", table: "firewalld", name: "filter_FORWARD", hook: "forward"}, {family: "inet", table: "firewalld", name: "filter_INPUT", hook: "input"}}, "", "firewalld"},
		"kube-proxy, iptables":      {[]chain{{family: "ip6", table: "nat", name: "KUBE-SERVICES"}}, "chain KUBE-SERVICES of table ip6 nat", ""},
		"kube-proxy, nftables":      {[]chain{{family: "ip", table: "kube-proxy", name: "services"}, {family: "ip", table: "kube-proxy", name: "other"}}, "table ip kube-proxy", ""},
		"kubelet's chains stay":     {[]chain{{family: "ip", table: "mangle", name: "KUBE-KUBELET-CANARY"}}, "", ""},
		"the name in another table": {[]chain{{family: "ip", table: "own", name: "KUBE-SERVICES"}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := conflicts(tc.chains, "br-ex")
			for _, part := range []struct {
				got  []string
				want string
			}{{got.KubeProxy, tc.kubeProxy}, {got.Drops, tc.drops}} {
				if part.want == "" && len(part.got) > 0 || part.want != "" && (len(part.got) != 1 || !strings.Contains(part.got[0], part.want)) {
					t.Errorf("%q, want %q", part.got, part.want)
				}
			}
		})
	}
}

// TestKernelConflicts reads other programs' chains from the kernel.
func TestKernelConflicts(t *testing.T) {
	newNetns(t)
	if got, err := ReadConflicts("br-ex"); err != nil || len(got.KubeProxy)+len(got.Drops) > 0 {
		t.Fatalf("a new network namespace: %+v %v", got, err)
	}
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Apply(t.Context(), Diff(Build(Inputs{}), State{})); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadConflicts("br-ex"); err != nil || len(got.KubeProxy)+len(got.Drops) > 0 {
		t.Fatalf("with our table: %+v %v", got, err)
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(`
table ip filter {
	chain INPUT { type filter hook input priority 0; policy accept; }
	chain FORWARD { type filter hook forward priority 0; policy drop; }
}
table ip6 nat {
	chain KUBE-SERVICES { }
}
table netdev own {
	chain x { }
}
`)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ipvsDevice
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
		t.Fatal(err)
	}
	got, err := ReadConflicts("br-ex")
	if err != nil || len(got.Drops) != 1 || !strings.Contains(got.Drops[0], "chain FORWARD of table ip filter") || len(got.KubeProxy) != 2 ||
		!strings.Contains(got.KubeProxy[0], "KUBE-SERVICES of table ip6 nat") || !slices.ContainsFunc(got.KubeProxy, func(s string) bool { return strings.Contains(s, ipvsDevice) }) {
		t.Errorf("%+v %v", got, err)
	}
}

// TestLegacyTables: tables of iptables-legacy are reported per IP family; a kernel without it has none.
func TestLegacyTables(t *testing.T) {
	dir := t.TempDir()
	expect := func(want ...string) {
		t.Helper()
		got, err := legacyTables(dir)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%q, want %q", got[i], want[i])
			}
		}
	}
	write := func(file, names string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(names), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect()
	write("ip_tables_names", "")
	expect()
	write("ip_tables_names", "nat\nfilter\n")
	expect("iptables-legacy has the tables filter, nat, whose rules")
	write("ip6_tables_names", "mangle\n")
	expect("iptables-legacy has", "ip6tables-legacy has the tables mangle, whose rules")
	if err := os.Remove(filepath.Join(dir, "ip6_tables_names")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "ip6_tables_names"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := legacyTables(dir); err == nil {
		t.Errorf("%q from a file that cannot be read", got)
	}
}
