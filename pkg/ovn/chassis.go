// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/google/uuid"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	libovsdb "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/batch"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/sbdb"
	"bulkhead/pkg/ovsdb"
)

// Chassis is the remote chassis of another node in this zone's southbound
// database: ovn-controller creates tunnels to it.
type Chassis struct {
	Name, Node string
	EncapIPs   []netip.Addr
}

// ChassisOp is one change to the southbound database.
type ChassisOp struct {
	Verb    Verb // Insert, Update or Delete
	Chassis Chassis
}

func (o ChassisOp) String() string {
	verb := map[Verb]string{Insert: "insert", Update: "update", Delete: "delete"}[o.Verb]
	return fmt.Sprintf("%s remote chassis %s of node %s at %v", verb, o.Chassis.Name, o.Chassis.Node, o.Chassis.EncapIPs)
}

// BuildChassis returns the desired remote chassis: those of this node's peers.
func BuildChassis(node network.Node, peers []network.Node) []Chassis {
	var out []Chassis
	for _, p := range peers {
		if p.Chassis == node.Chassis {
			continue // a copied chassis id must not make this node remote to itself
		}
		ips := slices.Clone(p.EncapIPs)
		slices.SortFunc(ips, netip.Addr.Compare)
		out = append(out, Chassis{Name: p.Chassis, Node: p.Name, EncapIPs: ips})
	}
	return out
}

// DiffChassis returns the operations that turn have into want. Deletions come
// first, so that an address can move from one chassis to another.
func DiffChassis(want, have []Chassis) []ChassisOp {
	wanted, present := map[string]Chassis{}, map[string]Chassis{}
	for _, c := range want {
		wanted[c.Name] = c
	}
	var ops []ChassisOp
	for _, c := range have {
		present[c.Name] = c
		if _, ok := wanted[c.Name]; !ok {
			ops = append(ops, ChassisOp{Delete, c})
		}
	}
	for _, c := range want {
		h, ok := present[c.Name]
		switch {
		case !ok:
			ops = append(ops, ChassisOp{Insert, c})
		case h.Node != c.Node || !slices.Equal(h.EncapIPs, c.EncapIPs):
			ops = append(ops, ChassisOp{Update, c})
		}
	}
	slices.SortStableFunc(ops, func(a, b ChassisOp) int {
		first := func(o ChassisOp) int {
			if o.Verb == Delete {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Chassis.Name, b.Chassis.Name))
	})
	return ops
}

// SB is the client of a zone's southbound database, of which it owns only remote
// chassis.
type SB struct{ conn *ovsdb.Connection }

// NewSB returns a client of the database at address. It calls onConnect after each
// connect, and onDelete when one of our remote chassis is deleted.
func NewSB(address string, log *slog.Logger, onConnect, onDelete func()) *SB {
	s := &SB{conn: ovsdb.New()}
	s.conn.Database, s.conn.Address, s.conn.Log = "OVN southbound", address, log
	s.conn.Models = func() (model.ClientDBModel, error) {
		m, err := model.NewClientDBModel("OVN_Southbound", map[string]model.Model{
			sbdb.ChassisTable: &sbdb.Chassis{}, sbdb.EncapTable: &sbdb.Encap{},
		})
		if err != nil {
			return m, err
		}
		m.SetIndexes(map[string][]model.ClientIndex{sbdb.ChassisTable: {{Columns: []model.ColumnKey{{Column: "external_ids", Key: markOwner}}}}})
		return m, nil
	}
	s.conn.Monitors = func() []client.MonitorOption {
		return []client.MonitorOption{client.WithTable(&sbdb.Chassis{}), client.WithTable(&sbdb.Encap{})}
	}
	s.conn.OnConnect = func(c client.Client) {
		ovsdb.AddEventHandler(c, &cache.EventHandlerFuncs{DeleteFunc: func(_ string, m model.Model) {
			if ch, ok := m.(*sbdb.Chassis); ok && ch.ExternalIDs[markOwner] == ownerValue {
				onDelete()
			}
		}})
		onConnect()
	}
	return s
}

// Run connects and reconnects until ctx ends.
func (s *SB) Run(ctx context.Context) { s.conn.Run(ctx) }

// Connected reports whether there is a connection.
func (s *SB) Connected() bool { return s.conn.Client() != nil }

// ReadChassis returns our remote chassis.
func (s *SB) ReadChassis(ctx context.Context) ([]Chassis, error) {
	c := s.conn.Client()
	if c == nil {
		return nil, ovsdb.ErrNotConnected
	}
	rows, err := ownChassis(ctx, c)
	if err != nil {
		return nil, err
	}
	var out []Chassis
	for _, r := range rows {
		ch := Chassis{Name: r.Name, Node: r.Hostname}
		if r.OtherConfig["is-remote"] != "true" {
			ch.Node = "" // a reinstalled node's ovn-controller has overwritten it: make it remote again
		}
		for _, id := range r.Encaps {
			e := &sbdb.Encap{UUID: id}
			if err := ovsdb.Get(ctx, c, e); errors.Is(err, client.ErrNotFound) {
				continue
			} else if err != nil {
				return nil, fmt.Errorf("read an encapsulation of chassis %s: %w", r.Name, err)
			}
			if ip, err := netip.ParseAddr(e.IP); err == nil {
				ch.EncapIPs = append(ch.EncapIPs, ip)
			}
		}
		slices.SortFunc(ch.EncapIPs, netip.Addr.Compare)
		out = append(out, ch)
	}
	slices.SortFunc(out, func(a, b Chassis) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func ownChassis(ctx context.Context, c client.Client) ([]*sbdb.Chassis, error) {
	var rows []*sbdb.Chassis
	err := c.Where(&sbdb.Chassis{ExternalIDs: map[string]string{markOwner: ownerValue}}).List(ctx, &rows)
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		return nil, fmt.Errorf("read chassis: %w", err)
	}
	return rows, nil
}

// ApplyChassis runs the operations in one transaction, because chassis may exchange addresses, which
// the database's unique index allows within one alone. If it fails, each runs in its own. The error
// names each failed op.
func (s *SB) ApplyChassis(ctx context.Context, ops []ChassisOp) error {
	c := s.conn.Client()
	if c == nil && len(ops) > 0 {
		return ovsdb.ErrNotConnected
	}
	return batch.Apply(ops, len(ops), func(ops []ChassisOp) error { return s.applyChassis(ctx, c, ops) }, s.conn.Fatal(ctx))
}

func (s *SB) applyChassis(ctx context.Context, c client.Client, chassisOps []ChassisOp) error {
	rows, err := ownChassis(ctx, c)
	if err != nil {
		return err
	}
	uuids := map[string]string{}
	for _, r := range rows {
		uuids[r.Name] = r.UUID
	}
	var ops []libovsdb.Operation
	for _, op := range chassisOps {
		id, exists := uuids[op.Chassis.Name]
		if exists && op.Verb != Update {
			ops = append(ops, libovsdb.Operation{Op: libovsdb.OperationDelete, Table: sbdb.ChassisTable, Where: ovsdb.ByUUID(id)})
		}
		if op.Verb == Delete || op.Verb == Update && !exists {
			continue
		}
		encaps, row, err := chassisRow(c, op.Chassis)
		if err != nil {
			return err
		}
		ops = append(ops, encaps...)
		if op.Verb == Update {
			ops = append(ops, libovsdb.Operation{Op: libovsdb.OperationUpdate, Table: sbdb.ChassisTable, Row: row, Where: ovsdb.ByUUID(id)})
		} else {
			ops = append(ops, libovsdb.Operation{Op: libovsdb.OperationInsert, Table: sbdb.ChassisTable, Row: row, UUID: uuid.NewString()})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, err = s.conn.Transact(ctx, c, ops...)
	return err
}

// chassisRow returns the row of a chassis and the operations that insert its
// encaps. The database garbage-collects the previous encaps.
func chassisRow(c client.Client, ch Chassis) ([]libovsdb.Operation, libovsdb.Row, error) {
	var ops []libovsdb.Operation
	var encaps []string
	for _, ip := range ch.EncapIPs {
		id := uuid.NewString()
		op, err := c.Create(&sbdb.Encap{ChassisName: ch.Name, IP: ip.String(), Type: sbdb.EncapTypeGeneve, Options: map[string]string{"csum": "true"}})
		if err != nil {
			return nil, nil, fmt.Errorf("encode encap %s: %w", ip, err)
		}
		op[0].UUID, op[0].UUIDName = id, ""
		ops, encaps = append(ops, op...), append(encaps, id)
	}
	op, err := c.Create(&sbdb.Chassis{
		Name: ch.Name, Hostname: ch.Node, Encaps: encaps,
		OtherConfig: map[string]string{"is-remote": "true"},
		ExternalIDs: map[string]string{markOwner: ownerValue, markNode: ch.Node},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("encode chassis %s: %w", ch.Name, err)
	}
	return ops, op[0].Row, nil
}
