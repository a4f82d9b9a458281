// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"

	libovsdb "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovn/nbdb"
)

// table describes a table of the northbound database that we write.
type table struct {
	// columns are the columns that the builder sets. OVN writes the others, or they
	// reference other rows.
	columns []string
	// root: rows need no references. Of other tables the database deletes rows that
	// nothing references.
	root bool
	// contains are the sets of references to rows of the other tables: those rows
	// enter and leave them one by one.
	contains []string
	// rank orders changes: a table has a higher rank than those that contain its
	// rows.
	rank int
	// required: the rows are in a column that may not be empty, so the row that has the column
	// is deleted before them.
	required bool
}

var nbSchema = nbdb.Schema()

// tables are the tables that we write.
var tables = readSchema(nbSchema, map[string][]string{
	nbdb.CoppTable:                     {"name", "meters", "external_ids"},
	nbdb.MeterTable:                    {"name", "unit", "fair", "external_ids"},
	nbdb.MeterBandTable:                {"action", "rate", "burst_size", "external_ids"},
	nbdb.AddressSetTable:               {"name", "addresses", "external_ids"},
	nbdb.PortGroupTable:                {"name", "external_ids"},
	nbdb.ACLTable:                      {"name", "priority", "direction", "match", "action", "tier", "options", "external_ids"},
	nbdb.LogicalSwitchTable:            {"name", "other_config", "copp", "external_ids"},
	nbdb.LogicalRouterTable:            {"name", "options", "copp", "external_ids"},
	nbdb.LogicalRouterPortTable:        {"name", "mac", "networks", "peer", "ipv6_ra_configs", "options", "external_ids"},
	nbdb.GatewayChassisTable:           {"name", "chassis_name", "priority", "external_ids"},
	nbdb.LogicalSwitchPortTable:        {"name", "type", "enabled", "tag", "tag_request", "options", "addresses", "port_security", "dhcpv4_options", "dhcpv6_options", "external_ids"},
	nbdb.DHCPOptionsTable:              {"cidr", "options", "external_ids"},
	nbdb.NATTable:                      {"type", "external_ip", "logical_ip", "match", "logical_port", "exempted_ext_ips", "external_port_range", "priority", "options", "external_ids"},
	nbdb.StaticMACBindingTable:         {"logical_port", "ip", "mac", "override_dynamic_mac"},
	nbdb.LoadBalancerTable:             {"name", "protocol", "vips", "options", "external_ids"},
	nbdb.LogicalRouterPolicyTable:      {"priority", "match", "action", "nexthops", "external_ids"},
	nbdb.LogicalRouterStaticRouteTable: {"ip_prefix", "policy", "nexthop", "output_port", "options", "external_ids"},
})

// readSchema completes the description of tables from the database's schema.
func readSchema(schema libovsdb.DatabaseSchema, columns map[string][]string) map[string]table {
	out := map[string]table{}
	within := map[string][]string{} // by table: those that contain its rows
	required := map[string]bool{}
	for name := range columns {
		t := table{columns: columns[name], root: schema.Tables[name].IsRoot}
		for column, c := range schema.Tables[name].Columns {
			if c.TypeObj == nil || c.TypeObj.Max() == 1 || c.TypeObj.Key == nil || c.TypeObj.Key.Type != libovsdb.TypeUUID {
				continue
			}
			ref, err := c.TypeObj.Key.RefTable()
			if _, ours := columns[ref]; err == nil && ours {
				t.contains = append(t.contains, column)
				within[ref] = append(within[ref], name)
				required[ref] = required[ref] || c.TypeObj.Min() > 0
			}
		}
		slices.Sort(t.contains)
		out[name] = t
	}
	var rank func(name string) int
	rank = func(name string) int {
		r := 0
		for _, container := range within[name] {
			r = max(r, rank(container)+1)
		}
		return r
	}
	for name, t := range out {
		t.rank, t.required = rank(name), required[name]
		out[name] = t
	}
	return out
}

// isWeak reports whether a column's references are weak: they do not keep the row
// from being deleted.
func isWeak(table, column string) bool {
	kind, err := nbSchema.Tables[table].Columns[column].TypeObj.Key.RefType()
	return err == nil && kind == libovsdb.Weak
}

// memberTable returns the table of the rows that a column references.
func memberTable(table, column string) string {
	ref, _ := nbSchema.Tables[table].Columns[column].TypeObj.Key.RefTable() // readSchema has seen it
	return ref
}
