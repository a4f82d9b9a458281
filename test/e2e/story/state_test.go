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

func TestSplitSets(t *testing.T) {
	lines := func(elements string) []string {
		return strings.Split("link: lo\nnft: \tset services4 {\nnft: \t\ttype ipv4_addr . inet_proto . inet_service\nnft: \t\telements = { "+elements+" }\nnft: \t}\nnft: \tchain a {\nrule: 0", "\n")
	}
	want := []string{"link: lo", "nft: \tset services4 {", "nft: \t\ttype ipv4_addr . inet_proto . inet_service",
		"nft: element of services4: 10.96.0.1 . tcp . 443", "nft: element of services4: 10.96.0.9 . udp . 53", "nft: \t}", "nft: \tchain a {", "rule: 0"}
	for _, elements := range []string{"10.96.0.1 . tcp . 443, 10.96.0.9 . udp . 53", "10.96.0.1 . tcp . 443,\nnft: \t\t\t     10.96.0.9 . udp . 53"} {
		if got := splitSets(lines(elements)); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := splitSets(lines("10.96.0.1 . tcp . 443")); slices.Equal(got, want) || !slices.Contains(got, want[3]) {
		t.Errorf("an element less: %q", got)
	}
	for _, elements := range []string{"tcp . 1 : 10.0.0.1,\nnft: \t\t\t     udp . 1 : 10.0.0.1", "tcp . 1 : 10.0.0.1, udp . 1 : 10.0.0.1"} {
		got := splitSets(strings.Split("nft: \tmap ports {\nnft: \t\telements = { "+elements+" }", "\n"))
		if want := []string{"nft: \tmap ports {", "nft: element of ports: tcp . 1 : 10.0.0.1", "nft: element of ports: udp . 1 : 10.0.0.1"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
