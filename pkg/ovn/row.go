// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// Marks in external_ids. Every row that we make carries the first four, so
// that what is ours is a query and rows of others are never touched.
const (
	markOwner   = "k8s.ovn.org/owner"
	markNetwork = "k8s.ovn.org/network"
	markPart    = "k8s.ovn.org/part"
	markID      = "k8s.ovn.org/id" // unique in its table
	ownerValue  = "bulkhead"

	markTopology  = "k8s.ovn.org/topology"
	markRole      = "k8s.ovn.org/role"
	markNAD       = "k8s.ovn.org/nad"
	markNode      = "k8s.ovn.org/node"
	markPeer      = "ic-node" // of a route, the node that it leads to
	markNamespace = "namespace"
	markPod       = "pod_name"
	markPodUID    = "pod_uid"
)

// Part is the share of a network's rows that one kind of event changes, so
// that an event reads and compares no more than it has to.
type Part string

const (
	PartTopology Part = "topology" // routers, switches, the node's own ports, isolation
	PartPeers    Part = "peers"    // what other nodes add: remote ports and routes
	PartPods     Part = "pods"     // logical ports of pods
)

// AllParts is a whole network.
var AllParts = []Part{PartTopology, PartPeers, PartPods}

// Owner names rows: the parts of one network on one node.
type Owner struct {
	Network string
	Node    string
	Parts   []Part
}

// externalPort is the gateway router's port to the outside. Static MAC
// bindings bear no marks: ours are those on this port, there or not.
func (o Owner) externalPort() string {
	n := network.Network{ID: network.MaxID, Name: o.Network}
	if o.Network == network.DefaultName {
		n.ID = network.DefaultID
	}
	return "rtoe-" + n.GatewayRouter(o.Node)
}

// Ref is a column of a row that refers to other rows.
type Ref struct {
	Table, ID, Column string
}

func (r Ref) String() string { return fmt.Sprintf("%s %s %s", r.Table, r.ID, r.Column) }

// Row is one row of the northbound database. What it says is in Model, a
// pointer to a type of nbdb; In are the columns of other rows that list it.
type Row struct {
	Table string
	ID    string
	In    []Ref
	Model model.Model
	UUID  string // of a row that was read
}

func (r Row) String() string { return r.Table + " " + r.ID }

// State is rows, in no particular order.
type State []Row

// table is what we need to know of a table.
type table struct {
	// rank orders changes: low is isolation and what contains other rows.
	rank int
	// columns are those that we own in our rows. OVN itself, or other rows,
	// write the rest.
	columns []string
	// contains are the columns that list rows of other tables.
	contains []string
}

var tables = map[string]table{
	nbdb.PortGroupTable:                {0, []string{"name", "external_ids"}, []string{"ports", "acls"}},
	nbdb.ACLTable:                      {1, []string{"name", "priority", "direction", "match", "action", "tier", "external_ids"}, nil},
	nbdb.LogicalSwitchTable:            {2, []string{"name", "other_config", "external_ids"}, []string{"ports"}},
	nbdb.LogicalRouterTable:            {3, []string{"name", "options", "external_ids"}, []string{"ports", "static_routes", "nat"}},
	nbdb.LogicalRouterPortTable:        {4, []string{"name", "mac", "networks", "options", "external_ids"}, []string{"gateway_chassis"}},
	nbdb.GatewayChassisTable:           {5, []string{"name", "chassis_name", "priority", "external_ids"}, nil},
	nbdb.LogicalSwitchPortTable:        {6, []string{"name", "type", "options", "addresses", "port_security", "external_ids"}, nil},
	nbdb.NATTable:                      {7, []string{"type", "external_ip", "logical_ip", "match", "logical_port", "priority", "options", "external_ids"}, nil},
	nbdb.StaticMACBindingTable:         {8, []string{"logical_port", "ip", "mac", "override_dynamic_mac"}, nil},
	nbdb.LogicalRouterStaticRouteTable: {9, []string{"ip_prefix", "policy", "nexthop", "output_port", "options", "external_ids"}, nil},
}

// isolation tells whether a table's rows close rather than open.
func isolation(t string) bool { return t == nbdb.PortGroupTable || t == nbdb.ACLTable }

// isRoot tells whether rows of the table live without another one listing them.
func isRoot(t string) bool {
	switch t {
	case nbdb.PortGroupTable, nbdb.LogicalSwitchTable, nbdb.LogicalRouterTable, nbdb.StaticMACBindingTable:
		return true
	}
	return false
}

// field is the field of a model that a column is kept in.
func field(m model.Model, column string) reflect.Value {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("ovsdb") == column {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func setField(m model.Model, column string, v any) { field(m, column).Set(reflect.ValueOf(v)) }

// sameColumn compares a column of two models: sets without order, empty and
// absent alike.
func sameColumn(a, b model.Model, column string) bool {
	x, y := field(a, column), field(b, column)
	switch x.Kind() {
	case reflect.Map:
		return x.Len() == 0 && y.Len() == 0 || reflect.DeepEqual(x.Interface(), y.Interface())
	case reflect.Slice:
		p, okP := x.Interface().([]string)
		q, okQ := y.Interface().([]string)
		if !okP || !okQ {
			return reflect.DeepEqual(x.Interface(), y.Interface())
		}
		return slices.Equal(sorted(p), sorted(q))
	default:
		return reflect.DeepEqual(x.Interface(), y.Interface())
	}
}

func sorted(s []string) []string {
	out := slices.Clone(s)
	slices.Sort(out)
	return out
}

// changed are the columns we own in which want differs from have.
func changed(want, have Row) []string {
	var out []string
	for _, c := range tables[want.Table].columns {
		if !sameColumn(want.Model, have.Model, c) {
			out = append(out, c)
		}
	}
	return out
}

// externalIDs are a model's marks.
func externalIDs(m model.Model) map[string]string {
	f := field(m, "external_ids")
	if !f.IsValid() {
		return nil
	}
	ids, _ := f.Interface().(map[string]string)
	return ids
}

// Dump prints a state one row a line, sorted, with the columns that are ours:
// for goldens and for operators.
func (s State) Dump() string {
	lines := make([]string, 0, len(s))
	for _, r := range s {
		var b strings.Builder
		fmt.Fprintf(&b, "%s %s", r.Table, r.ID)
		for _, c := range tables[r.Table].columns {
			if text := columnText(field(r.Model, c)); text != "" && c != "name" {
				fmt.Fprintf(&b, "\n    %s: %s", c, text)
			}
		}
		in := make([]string, len(r.In))
		for i, ref := range r.In {
			in[i] = ref.String()
		}
		slices.Sort(in)
		for _, ref := range in {
			fmt.Fprintf(&b, "\n    in %s", ref)
		}
		lines = append(lines, b.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func columnText(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case string:
		return x
	case []string:
		return strings.Join(sorted(x), ", ")
	case map[string]string:
		pairs := make([]string, 0, len(x))
		for k, val := range x {
			if k != markOwner && k != markID { // equal on every row, or the row's heading
				pairs = append(pairs, k+"="+val)
			}
		}
		return strings.Join(sorted(pairs), " ")
	case int:
		if x == 0 {
			return ""
		}
	}
	return fmt.Sprint(v.Interface())
}

// weak tells whether a column's references keep the row they name alive.
func weak(ref Ref) bool { return ref.Table == nbdb.PortGroupTable && ref.Column == "ports" }
