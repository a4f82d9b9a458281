// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	libovsdb "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovn/nbdb"
	"bulkhead/pkg/ovsdb"
)

// NB is the client of a zone's northbound database.
type NB struct {
	conn         *ovsdb.Connection
	transactions atomic.Int64
}

// NewNB returns a client of the database at address ("unix:PATH"). It calls
// onConnect after each connect, and changed with the network and unit of each of
// our rows that is changed or deleted, by us or others. It calls changed with the whole
// network when another network's row enters one of its rows.
func NewNB(address string, log *slog.Logger, onConnect func(), changed func(network string, u Unit, deleted bool)) *NB {
	n := &NB{conn: ovsdb.New()}
	n.conn.Database, n.conn.Address, n.conn.Log = "OVN northbound", address, log
	n.conn.Models, n.conn.Monitors = nbModel, watchColumns
	n.conn.OnConnect = func(c client.Client) {
		report := func(m model.Model, deleted bool) {
			if ids := externalIDs(m); ids[markOwner] == ownerValue {
				network, u := parseUnitMark(ids[markUnit])
				changed(network, u, deleted)
			}
		}
		ovsdb.AddEventHandler(c, &cache.EventHandlerFuncs{
			UpdateFunc: func(table string, old, m model.Model) {
				if slices.ContainsFunc(tables[table].columns, func(column string) bool { return !sameColumn(old, m, column) }) {
					report(old, false)
				}
				left, stray := movedMembers(c, table, old, m)
				for _, member := range left {
					report(member, false)
				}
				if ids := externalIDs(m); stray && ids[markOwner] == ownerValue {
					changed(ids[markNetwork], wholeNetwork, false)
				}
			},
			DeleteFunc: func(_ string, m model.Model) { report(m, true) },
		})
		onConnect()
	}
	return n
}

// watchColumns returns the monitors of the columns that we use.
func watchColumns() []client.MonitorOption {
	global := &nbdb.NBGlobal{}
	out := []client.MonitorOption{client.WithTable(global, &global.Name)}
	for name, t := range tables {
		m := newModel(name)
		var fields []any
		for _, column := range slices.Concat(t.columns, t.contains) {
			fields = append(fields, field(m, column).Addr().Interface())
		}
		if p, ok := m.(*nbdb.LogicalSwitchPort); ok {
			fields = append(fields, &p.Up) // see portUp
		}
		out = append(out, client.WithTable(m, fields...))
	}
	return out
}

// movedMembers compares the references to rows in two versions of a row. left are the rows
// that it no longer references and that still exist. stray tells whether one of another
// network has entered.
func movedMembers(c client.Client, table string, old, m model.Model) (left []model.Model, stray bool) {
	rows := c.Cache()
	if rows == nil {
		return nil, false
	}
	for _, column := range tables[table].contains {
		before, _ := field(old, column).Interface().([]string)
		after, _ := field(m, column).Interface().([]string)
		gone, come := differences(before, after)
		members := rows.Table(memberTable(table, column))
		for _, id := range gone {
			if row := members.Row(id); row != nil {
				left = append(left, row)
			}
		}
		for _, id := range come {
			stray = stray || isStray(members.Row(id), externalIDs(m)[markNetwork])
		}
	}
	return left, stray
}

// differences returns the elements of each of two sets that the other lacks. A switch may have thousands of ports, and
// the client changes few places of a set at an update: only elements at different places are looked up.
func differences(before, after []string) (gone, come []string) {
	same := min(len(before), len(after))
	for i := range same {
		if before[i] != after[i] {
			gone, come = append(gone, before[i]), append(come, after[i])
		}
	}
	gone, come = append(gone, before[same:]...), append(come, after[same:]...)
	moved := make(map[string]bool, len(come))
	for _, id := range come {
		moved[id] = false
	}
	gone = slices.DeleteFunc(gone, func(id string) bool {
		_, moves := moved[id]
		if moves {
			moved[id] = true
		}
		return moves
	})
	return gone, slices.DeleteFunc(come, func(id string) bool { return moved[id] })
}

// isStray reports whether a row, which may be nil, is ours and of another network.
func isStray(m model.Model, network string) bool {
	if m == nil {
		return false
	}
	ids := externalIDs(m)
	return ids[markOwner] == ownerValue && ids[markNetwork] != network
}

// Run connects and reconnects until ctx ends.
func (n *NB) Run(ctx context.Context) { n.conn.Run(ctx) }

// Connected reports whether there is a connection.
func (n *NB) Connected() bool { return n.conn.Client() != nil }

// Transactions returns the number of transactions so far.
func (n *NB) Transactions() int64 { return n.transactions.Load() }

func (n *NB) session() *session {
	if c := n.conn.Client(); c != nil {
		return &session{c}
	}
	return nil
}

// nbModels are the models of the tables that we write.
var nbModels = map[string]model.Model{
	nbdb.AddressSetTable: &nbdb.AddressSet{}, nbdb.DHCPOptionsTable: &nbdb.DHCPOptions{},
	nbdb.PortGroupTable: &nbdb.PortGroup{}, nbdb.ACLTable: &nbdb.ACL{},
	nbdb.LogicalSwitchTable: &nbdb.LogicalSwitch{}, nbdb.LogicalSwitchPortTable: &nbdb.LogicalSwitchPort{},
	nbdb.LogicalRouterTable: &nbdb.LogicalRouter{}, nbdb.LogicalRouterPortTable: &nbdb.LogicalRouterPort{},
	nbdb.LogicalRouterPolicyTable: &nbdb.LogicalRouterPolicy{}, nbdb.LoadBalancerTable: &nbdb.LoadBalancer{},
	nbdb.GatewayChassisTable: &nbdb.GatewayChassis{}, nbdb.NATTable: &nbdb.NAT{},
	nbdb.CoppTable: &nbdb.Copp{}, nbdb.MeterTable: &nbdb.Meter{}, nbdb.MeterBandTable: &nbdb.MeterBand{},
	nbdb.StaticMACBindingTable: &nbdb.StaticMACBinding{}, nbdb.LogicalRouterStaticRouteTable: &nbdb.LogicalRouterStaticRoute{},
}

// newModel returns an empty model of a table.
func newModel(table string) model.Model {
	return reflect.New(reflect.TypeOf(nbModels[table]).Elem()).Interface()
}

// nbModel returns the client's database model. Its indexes make the cost of a read
// depend on the rows returned, not on the size of the database.
func nbModel() (model.ClientDBModel, error) {
	all := map[string]model.Model{nbdb.NBGlobalTable: &nbdb.NBGlobal{}}
	indexes := map[string][]model.ClientIndex{}
	for name, m := range nbModels {
		all[name] = m
		if name == nbdb.StaticMACBindingTable {
			indexes[name] = []model.ClientIndex{{Columns: []model.ColumnKey{{Column: "logical_port"}}}}
			continue
		}
		mark := func(key string) model.ClientIndex {
			return model.ClientIndex{Columns: []model.ColumnKey{{Column: "external_ids", Key: key}}}
		}
		indexes[name] = []model.ClientIndex{mark(markUnit), mark(markNetwork)}
		if len(tables[name].contains) > 0 { // see Networks; an index of all rows costs memory
			indexes[name] = append(indexes[name], mark(markOwner))
		}
	}
	db, err := model.NewClientDBModel("OVN_Northbound", all)
	if err != nil {
		return db, err
	}
	db.SetIndexes(indexes)
	return db, nil
}

// SetName sets the zone's name, which is the node's.
func (n *NB) SetName(ctx context.Context, name string) error {
	s := n.session()
	if s == nil {
		return ovsdb.ErrNotConnected
	}
	var rows []*nbdb.NBGlobal
	if err := ovsdb.List(ctx, s.client, &rows); err != nil {
		return fmt.Errorf("read NB_Global: %w", err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("NB_Global is empty: is ovn-northd running?")
	}
	if rows[0].Name == name {
		return nil
	}
	op := libovsdb.Operation{Op: libovsdb.OperationUpdate, Table: nbdb.NBGlobalTable, Row: libovsdb.Row{"name": name}, Where: ovsdb.ByUUID(rows[0].UUID)}
	if _, err := n.conn.Transact(ctx, s.client, op); err != nil {
		return fmt.Errorf("set the name of NB_Global: %w", err)
	}
	n.transactions.Add(1)
	return nil
}
