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

// Marks in external_ids. Each of our rows has the first four, so that our rows can
// be queried and others are never changed.
const (
	markOwner   = "k8s.ovn.org/owner"
	markNetwork = network.MarkNetwork
	markUnit    = "k8s.ovn.org/unit" // network and unit
	markID      = "k8s.ovn.org/id"   // unique in its table
	ownerValue  = "bulkhead"

	markNetworkID  = "k8s.ovn.org/network-id" // on routers and switches
	markTopology   = "k8s.ovn.org/topology"
	markRole       = network.MarkRole // also on pods' ports
	markNAD        = "k8s.ovn.org/nad"
	markNode       = network.MarkNode
	markPeer       = "ic-node" // on a route: the node that it leads to
	markNamespace  = network.MarkNamespace
	markPod        = network.MarkPod
	markPodUID     = "pod_uid"
	markService    = "k8s.ovn.org/service"                     // of a load balancer
	markExposed    = "k8s.ovn.org/udn-enabled-default-service" // of a policy: the service that it leads to
	markController = network.MarkController                    // of an imported route
	markEffect     = "k8s.ovn.org/effect"                      // unless it is Neutral
)

// externalPort returns the name of the gateway router's external port. Static MAC
// bindings have no marks: those with this port are ours, even if it does not exist.
func (s Selection) externalPort() string {
	n := network.Network{ID: network.MaxID, Name: s.Network}
	if s.Network == network.DefaultName {
		n.ID = network.DefaultID
	}
	return "rtoe-" + n.GatewayRouter(s.Node)
}

// Effect is what a row does to traffic.
type Effect string

const (
	// Neutral rows let nothing through by themselves: routers, switches, their
	// connections, address translation.
	Neutral Effect = ""
	// Closes: the row restricts traffic. It is inserted before rows that open and
	// deleted after them.
	Closes Effect = "closes"
	// Opens: the row lets traffic through.
	Opens Effect = "opens"
)

// Ref is a column of a row that references other rows.
type Ref struct {
	Table, ID, Column string
	UUID              string // of the row
	// Closes: rows in the column are restricted, e.g. the ports of the port group
	// of locked ports.
	Closes bool
}

// same reports whether r and o are the same column of the same row.
func (r Ref) same(o Ref) bool { return r.UUID == o.UUID && r.Column == o.Column }

func hasRef(refs []Ref, r Ref) bool { return slices.ContainsFunc(refs, r.same) }

func (r Ref) String() string { return fmt.Sprintf("%s %s %s", r.Table, r.ID, r.Column) }

// Row is one row of the northbound database. Model, a pointer to a type of nbdb, has
// its columns. In are the columns of other rows that reference it.
type Row struct {
	Table  string
	ID     string
	In     []Ref
	Model  model.Model
	UUID   string
	Unit   string // value of markUnit
	Effect Effect
	// Stray: the row is another network's, and somebody has added it to a column of the network
	// that is read. In is that column. Model is empty.
	Stray bool
}

// locked reports whether the row is a port in the group of locked ports.
func (r Row) locked() bool {
	return slices.ContainsFunc(r.In, func(ref Ref) bool { return ref.Table == nbdb.PortGroupTable && ref.ID == LockedPortGroup })
}

func (r Row) String() string { return r.Table + " " + r.ID }

// State is a set of rows, in no particular order.
type State []Row

// field returns the field of a model that holds a column.
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

// sameColumn compares a column of two models. Sets are unordered, and an empty set
// or map equals an absent one.
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

// changed returns our columns in which want differs from have.
func changed(want, have Row) []string {
	var out []string
	for _, c := range tables[want.Table].columns {
		if !sameColumn(want.Model, have.Model, c) {
			out = append(out, c)
		}
	}
	return out
}

// externalIDs returns a model's external_ids, nil if its table has none.
func externalIDs(m model.Model) map[string]string {
	f := field(m, "external_ids")
	if !f.IsValid() {
		return nil
	}
	ids, _ := f.Interface().(map[string]string)
	return ids
}

// Dump returns the rows as text, sorted, with our columns: for golden files and for
// operators.
func (s State) Dump() string {
	lines := make([]string, 0, len(s))
	for _, r := range s {
		var b strings.Builder
		fmt.Fprintf(&b, "%s %s", r.Table, r.ID)
		if r.Effect != Neutral {
			fmt.Fprintf(&b, " (%s)", r.Effect)
		}
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
			if k != markOwner && k != markEffect && k != markNetwork && k != markID { // in every row, in the unit, or in the heading
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
