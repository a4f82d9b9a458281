// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovn/nbdb"
	"bulkhead/pkg/ovsdb"
)

// Lookup implements Target.
func (n *NB) Lookup(ctx context.Context, rows State) (State, error) {
	s := n.session()
	if s == nil {
		return nil, ovsdb.ErrNotConnected
	}
	var out State
	for _, r := range rows {
		m := newModel(r.Table)
		setField(m, "_uuid", r.UUID)
		if err := ovsdb.Get(ctx, s.client, m); errors.Is(err, client.ErrNotFound) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("look up %s: %w", r, err)
		}
		out = append(out, Row{Table: r.Table, ID: r.ID, UUID: r.UUID, Unit: r.Unit, Effect: r.Effect, Model: m})
	}
	return out, nil
}

// Read implements Target.
func (n *NB) Read(ctx context.Context, selection Selection) (State, error) {
	s := n.session()
	if s == nil {
		return nil, ovsdb.ErrNotConnected
	}
	marks := []map[string]string{{markNetwork: selection.Network}}
	if selection.Units != nil {
		marks = nil
		for _, u := range selection.Units {
			marks = append(marks, map[string]string{markUnit: u.mark(selection.Network)})
		}
	}
	var out State
	for _, m := range marks {
		for name := range tables {
			if name == nbdb.StaticMACBindingTable {
				continue
			}
			rows, err := s.find(ctx, name, m)
			if err != nil {
				return nil, fmt.Errorf("read %s of network %s: %w", name, selection.Network, err)
			}
			for _, r := range rows {
				if externalIDs(r.Model)[markOwner] == ownerValue {
					out = append(out, r)
				}
			}
		}
	}
	strays, err := s.addReferences(ctx, selection, out)
	if err != nil {
		return nil, err
	}
	out = append(out, strays...)
	if selection.has(topologyUnit) {
		bindings, err := s.macBindings(ctx, selection.externalPort())
		if err != nil {
			return nil, err
		}
		out = append(out, bindings...)
	}
	return out, nil
}

// Networks implements Target.
func (n *NB) Networks(ctx context.Context) ([]string, error) {
	s := n.session()
	if s == nil {
		return nil, ovsdb.ErrNotConnected
	}
	seen := map[string]struct{}{}
	for name, t := range tables {
		if len(t.contains) == 0 {
			continue // rows of the other tables need a router, a switch or a port group
		}
		rows, err := s.find(ctx, name, map[string]string{markOwner: ownerValue})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		for _, r := range rows {
			seen[externalIDs(r.Model)[markNetwork]] = struct{}{}
		}
	}
	out := make([]string, 0, len(seen))
	for name := range seen {
		out = append(out, name)
	}
	slices.Sort(out)
	return out, nil
}

// session is one connection to the database.
type session struct{ client client.Client }

// find returns the rows of a table whose external_ids hold the marks, by index.
// libovsdb uses the first index that has the model's values, and looks up an
// absent mark as "", under which it indexes rows without marks. So the other marks
// get a value that no row has.
func (s *session) find(ctx context.Context, table string, marks map[string]string) ([]Row, error) {
	const unused = "\x00"
	ids := map[string]string{markUnit: unused, markNetwork: unused, markOwner: unused}
	for k, v := range marks {
		ids[k] = v
	}
	m := newModel(table)
	setField(m, "external_ids", ids)
	return s.list(ctx, table, m)
}

func (s *session) list(ctx context.Context, table string, m model.Model) ([]Row, error) {
	found := reflect.New(reflect.SliceOf(reflect.TypeOf(m)))
	if err := s.client.Where(m).List(ctx, found.Interface()); err != nil && !errors.Is(err, client.ErrNotFound) {
		return nil, err
	}
	var out []Row
	for i := range found.Elem().Len() {
		r := Row{Table: table, Model: found.Elem().Index(i).Interface()}
		ids := externalIDs(r.Model)
		r.ID, r.Unit, r.Effect = ids[markID], ids[markUnit], Effect(ids[markEffect])
		r.UUID = field(r.Model, "_uuid").String()
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Row) int { return strings.Compare(a.UUID, b.UUID) })
	return out, nil
}

// addReferences sets In of the network's rows: the columns of its topology that
// reference them. With all units selected it returns the strays.
func (s *session) addReferences(ctx context.Context, selection Selection, rows State) (strays State, err error) {
	network := selection.Network
	byUUID, read := make(map[string]*Row, len(rows)), map[string]bool{}
	for i := range rows {
		byUUID[rows[i].UUID], read[rows[i].Table] = &rows[i], true
	}
	for name, t := range tables {
		// A column may have thousands of members, such as a router's static routes: those of tables of
		// which no row has been read are skipped, unless strays are asked for.
		columns := slices.DeleteFunc(slices.Clone(t.contains), func(column string) bool {
			return selection.Units != nil && !read[memberTable(name, column)]
		})
		if len(columns) == 0 || len(rows) == 0 {
			continue
		}
		containers, err := s.find(ctx, name, map[string]string{markUnit: topologyUnit.mark(network)})
		if err != nil {
			return nil, fmt.Errorf("read %s of network %s: %w", name, network, err)
		}
		for _, c := range containers {
			for _, column := range columns {
				members, _ := field(c.Model, column).Interface().([]string)
				for _, id := range members {
					closes := c.Effect == Closes && isWeak(name, column)
					ref := Ref{Table: name, ID: c.ID, Column: column, UUID: c.UUID, Closes: closes}
					if r := byUUID[id]; r != nil {
						r.In = append(r.In, ref)
					} else if selection.Units == nil {
						strays = append(strays, s.stray(id, network, ref)...)
					}
				}
			}
		}
	}
	return strays, nil
}

// stray returns a row that the column references if it is ours and of another network. Other
// clients may add their own rows to ours.
func (s *session) stray(id, network string, in Ref) []Row {
	table := memberTable(in.Table, in.Column)
	rows := s.client.Cache()
	if rows == nil {
		return nil // the connection is lost, and the network is read again
	}
	m := rows.Table(table).Row(id)
	if !isStray(m, network) {
		return nil
	}
	return []Row{{Table: table, ID: externalIDs(m)[markID], UUID: id, Model: newModel(table), In: []Ref{in}, Unit: topologyUnit.mark(network), Stray: true}}
}

// macBindings returns the static MAC bindings of one of our ports.
func (s *session) macBindings(ctx context.Context, port string) ([]Row, error) {
	rows, err := s.list(ctx, nbdb.StaticMACBindingTable, &nbdb.StaticMACBinding{LogicalPort: port})
	if err != nil {
		return nil, fmt.Errorf("read MAC bindings of port %s: %w", port, err)
	}
	for i, r := range rows {
		rows[i].ID = macBindingID(port, r.Model.(*nbdb.StaticMACBinding).IP)
	}
	return rows, nil
}
