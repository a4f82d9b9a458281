// SPDX-License-Identifier: Apache-2.0

package story

import (
	"slices"
	"strings"
	"testing"
)

func TestDatabaseRows(t *testing.T) {
	const socket = "/var/run/ovn/ovnnb_db.sock"
	tables := databaseTables[2]
	named := `{"rows":[{"_uuid":["uuid","u1"],"name":"a"}]},` + strings.Repeat(`{"rows":[]},`, len(tables.named)-1)
	counted := `{"rows":[{"_uuid":["uuid","u2"]},{"_uuid":["uuid","u3"]}]}` + strings.Repeat(`,{"rows":[]}`, len(tables.counted)-1)
	got, err := databaseRows(socket+" ["+named+counted+"]", false)
	if err != nil || !slices.Contains(got, "row of Logical_Switch: a") || !slices.Contains(got, "rows of Logical_Router_Static_Route: 2") || !slices.Contains(got, "rows of ACL: 0") || len(got) != 1+len(tables.counted) {
		t.Errorf("without ids: %q, %v", got, err)
	}
	got, err = databaseRows(socket+" ["+named+counted+"]", true)
	want := []string{"row of Logical_Switch: u1 a", "row of Logical_Router_Static_Route: u2", "row of Logical_Router_Static_Route: u3"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("with ids: %q, %v, want %q", got, err, want)
	}
	for name, reply := range map[string]string{
		"no answer":        socket + " ",
		"an error":         socket + " [" + named + strings.Replace(counted, `{"rows":[]}`, `{"error":"timed out"}`, 1) + "]",
		"too few results":  socket + " [" + strings.TrimSuffix(named, ",") + "]",
		"another database": "/var/run/other.sock []",
	} {
		if rows, err := databaseRows(reply, false); err == nil {
			t.Errorf("%s: %q without an error", name, rows)
		}
	}
	if lines := strings.Split(databaseQueries(), "\n"); len(lines) != len(databaseTables) {
		t.Errorf("%d queries for %d databases", len(lines), len(databaseTables))
	}
}

func TestNFTLines(t *testing.T) {
	parse := func(elements string) []string {
		return nftLines(strings.Split("link: lo\nnft: table inet bulkhead {\nnft: \tmap ports {\nnft: \t\ttype inet_proto . inet_service : ipv4_addr\nnft: \t\telements = { "+elements+" }\nnft: \t}\nnft: \tchain a {\nnft: \t\taccept\nnft: \t}\nrule: 0", "\n"))
	}
	want := []string{"link: lo", "nft: table inet bulkhead, : table inet bulkhead {", "nft: table inet bulkhead, map ports: map ports {",
		"nft: table inet bulkhead, map ports: type inet_proto . inet_service : ipv4_addr",
		"nft: table inet bulkhead, map ports: element tcp . 1 : 10.0.0.1", "nft: table inet bulkhead, map ports: element udp . 1 : 10.0.0.1",
		"nft: table inet bulkhead, map ports: }", "nft: table inet bulkhead, chain a: chain a {", "nft: table inet bulkhead, chain a: accept", "nft: table inet bulkhead, chain a: }", "rule: 0"}
	for _, elements := range []string{"tcp . 1 : 10.0.0.1,\nnft: \t\t\t     udp . 1 : 10.0.0.1", "tcp . 1 : 10.0.0.1, udp . 1 : 10.0.0.1"} {
		if got := parse(elements); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := parse("tcp . 1 : 10.0.0.1"); slices.Equal(got, want) || !slices.Contains(got, want[4]) {
		t.Errorf("an element less: %q", got)
	}
}

func TestDifference(t *testing.T) {
	before, after := snapshot{"a", "b", "b", "c"}, snapshot{"a", "a", "b", "d"}
	if got, want := difference(before, after), []string{"gone: b", "gone: c", "new:  a", "new:  d"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if d := difference(before, before); len(d) > 0 {
		t.Errorf("%q", d)
	}
}
