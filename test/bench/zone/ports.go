// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovn/sbdb"
	"bulkhead/pkg/ovs/vsdb"
	"bulkhead/pkg/ovsdb"
	"bulkhead/test/native"
)

// binding is when each step of a port's binding was done.
type binding struct {
	row       time.Time // northd has written the southbound row
	numbered  time.Time // Open vSwitch has given the interface its OpenFlow port
	claimed   time.Time // ovn-controller has claimed the port
	installed time.Time // its flows are installed: the port is up
}

// bindings watches the steps of all ports through connections of its own. A program that
// is started for each port, as ovn-sbctl, reads all ports first, which takes longer with
// more of them.
type bindings struct {
	cancel  context.CancelFunc
	clients []client.Client

	mu    sync.Mutex
	ports map[string]*binding
}

// watchBindings connects to a host's southbound and Open vSwitch databases.
func watchBindings(ctx context.Context, h *native.Host) (*bindings, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &bindings{cancel: cancel, ports: map[string]*binding{}}
	p, i := &sbdb.PortBinding{}, &vsdb.Interface{}
	for _, db := range []struct {
		name, socket string
		models       map[string]model.Model
		columns      client.MonitorOption
	}{
		{"OVN_Southbound", "sb", map[string]model.Model{sbdb.PortBindingTable: p}, client.WithTable(p, &p.LogicalPort, &p.Chassis, &p.Up)},
		{"Open_vSwitch", "ovs", map[string]model.Model{vsdb.InterfaceTable: i}, client.WithTable(i, &i.ExternalIDs, &i.Ofport)},
	} {
		conn := ovsdb.New()
		conn.Database, conn.Address = db.name, h.Sock(db.socket)
		conn.Models = func() (model.ClientDBModel, error) { return model.NewClientDBModel(db.name, db.models) }
		conn.Monitors = func() []client.MonitorOption { return []client.MonitorOption{db.columns} }
		cl, err := conn.Dial(ctx)
		if err != nil {
			w.close()
			return nil, fmt.Errorf("watch ports in the database %s: %w", db.name, err)
		}
		w.clients = append(w.clients, cl)
		ovsdb.AddEventHandler(cl, &cache.EventHandlerFuncs{
			AddFunc:    func(_ string, row model.Model) { w.note(row) },
			UpdateFunc: func(_ string, _, row model.Model) { w.note(row) },
		})
	}
	return w, nil
}

func (w *bindings) close() {
	w.cancel()
	for _, cl := range w.clients {
		cl.Close()
	}
}

// note records the steps that a row shows to be done.
func (w *bindings) note(row model.Model) {
	now := time.Now()
	done := func(t *time.Time, yes bool) {
		if yes && t.IsZero() {
			*t = now
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r := row.(type) {
	case *sbdb.PortBinding:
		b := w.port(r.LogicalPort)
		done(&b.row, true)
		done(&b.claimed, r.Chassis != nil)
		done(&b.installed, r.Up != nil && *r.Up)
	case *vsdb.Interface:
		if lsp := r.ExternalIDs["iface-id"]; lsp != "" {
			done(&w.port(lsp).numbered, r.Ofport != nil && *r.Ofport > 0)
		}
	}
}

func (w *bindings) port(lsp string) *binding {
	if w.ports[lsp] == nil {
		w.ports[lsp] = &binding{}
	}
	return w.ports[lsp]
}

// get returns a port's steps, and an error until all are done.
func (w *bindings) get(lsp string) (binding, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := *w.port(lsp)
	for _, s := range []struct {
		at      time.Time
		missing string
	}{
		{b.row, "northd has not written its row"}, {b.numbered, "its interface has no OpenFlow port"},
		{b.claimed, "ovn-controller has not claimed it"}, {b.installed, "its flows are not installed"},
	} {
		if s.at.IsZero() {
			return b, errors.New(s.missing)
		}
	}
	return b, nil
}
