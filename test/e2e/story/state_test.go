// SPDX-License-Identifier: Apache-2.0

package story

import (
	"slices"
	"strings"
	"testing"
)

func TestDatabaseRows(t *testing.T) {
	const socket = "/var/run/ovn/ovnnb_db.sock"
	named := `{"rows":[{"_uuid":["uuid","u1"],"name":"a"}]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},`
	counted := `{"rows":[{"_uuid":["uuid","u2"]},{"_uuid":["uuid","u3"]}]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]},{"rows":[]}`
	got, err := databaseRows(socket+" ["+named+counted+"]", false)
	if err != nil || !slices.Contains(got, "row of Logical_Switch: a") || !slices.Contains(got, "rows of Logical_Router_Static_Route: 2") || !slices.Contains(got, "rows of ACL: 0") || len(got) != 8 {
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
