// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovs/vsdb"
	"bulkhead/pkg/ovsdb"
)

// Client accesses this node's Open vSwitch database. It reads from a cache, by
// index, which the server updates, and writes in transactions. It reconnects
// after a restart of the server. It executes no programs.
type Client struct {
	db     *ovsdb.Connection
	log    *slog.Logger
	change *notifier
	onRow  atomic.Pointer[func(name string)] // see watchRows
	stop   context.CancelFunc
	done   chan struct{} // closed when db does not run any more
}

// Connect connects to the database at address ("unix:/…" or "tcp:…") and fills
// the cache. It retries until ctx ends, because Open vSwitch may start after the
// agent.
func Connect(ctx context.Context, address string, log *slog.Logger) (*Client, error) {
	c := newClient(address, log)
	c.start()
	for {
		_, err := c.db.Wait(ctx, nil)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			c.Close()
			return nil, fmt.Errorf("connect to the Open vSwitch database %s: %w", address, err)
		}
	}
}

func newClient(address string, log *slog.Logger) *Client {
	c := &Client{log: log, change: newNotifier(), db: ovsdb.New()}
	c.db.Database, c.db.Address, c.db.Log = "Open vSwitch", address, log
	c.db.Models, c.db.Monitors, c.db.OnConnect = databaseModel, monitoredColumns, c.handleConnect
	return c
}

// start connects in the background; Close ends it.
func (c *Client) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.done = cancel, make(chan struct{})
	go func() {
		defer close(c.done)
		c.db.Run(ctx)
	}()
}

// monitoredColumns returns the columns that the package reads. It leaves out
// statistics and status columns, which change every few seconds on every
// interface.
func monitoredColumns() []client.MonitorOption {
	o, b, p, i := &vsdb.OpenvSwitch{}, &vsdb.Bridge{}, &vsdb.Port{}, &vsdb.Interface{}
	return []client.MonitorOption{
		client.WithTable(o, &o.Bridges, &o.ExternalIDs, &o.CurCfg, &o.NextCfg),
		client.WithTable(b, &b.Name, &b.Ports, &b.FailMode, &b.DatapathType, &b.ExternalIDs, &b.OtherConfig),
		client.WithTable(p, &p.Name, &p.Interfaces, &p.ExternalIDs, &p.Protected),
		client.WithTable(i, &i.Name, &i.Type, &i.MAC, &i.MTURequest, &i.ExternalIDs, &i.Ofport, &i.Error),
	}
}

// handleConnect adds event handlers to a new connection's cache and notifies all
// waiters: any row may have changed while there was no connection.
func (c *Client) handleConnect(cl client.Client) {
	ovsdb.AddEventHandler(cl, &cache.EventHandlerFuncs{
		AddFunc:    func(table string, row model.Model) { c.notifyRow(row) },
		UpdateFunc: func(table string, _, row model.Model) { c.notifyRow(row) },
		DeleteFunc: func(table string, row model.Model) { c.notifyRow(row) },
	})
	c.change.notifyAll()
	c.callOnRow(anyRow)
}

// watchRows calls f with the name of each interface, port and bridge that changes, and with
// anyRow for other rows and when all may have changed. There is one watcher.
func (c *Client) watchRows(f func(name string)) { c.onRow.Store(&f) }

func (c *Client) callOnRow(name string) {
	if f := c.onRow.Load(); f != nil {
		(*f)(name)
	}
}

// Close disconnects.
func (c *Client) Close() {
	c.stop()
	<-c.done
}

// notifyRow notifies waiters for the row's name (interfaces, ports and bridges)
// and waiters for any row.
func (c *Client) notifyRow(row model.Model) {
	name := anyRow
	switch r := row.(type) {
	case *vsdb.Interface:
		name = r.Name
	case *vsdb.Port:
		name = r.Name
	case *vsdb.Bridge:
		name = r.Name
	}
	if name != anyRow {
		c.change.notify(name)
	}
	c.change.notify(anyRow)
	c.callOnRow(name)
}

// await waits until done returns true or an error. It calls done at once and
// after each change of a row with that name.
func (c *Client) await(ctx context.Context, name string, done func() (bool, error)) error {
	for {
		changed, stop := c.change.wait(name) // before done, so that no change is missed
		ok, err := done()
		if ok || err != nil {
			stop()
			return err
		}
		select {
		case <-changed:
			stop()
		case <-ctx.Done():
			stop()
			return ctx.Err()
		}
	}
}

// indexedKeys lists the external_ids keys of interfaces with an index.
var indexedKeys = []string{KeyOwner, KeySandbox, KeyLSP}

func databaseModel() (model.ClientDBModel, error) {
	m, err := model.NewClientDBModel("Open_vSwitch", map[string]model.Model{
		vsdb.OpenvSwitchTable: &vsdb.OpenvSwitch{}, vsdb.BridgeTable: &vsdb.Bridge{},
		vsdb.PortTable: &vsdb.Port{}, vsdb.InterfaceTable: &vsdb.Interface{},
	})
	if err != nil {
		return m, fmt.Errorf("model of the Open vSwitch database: %w", err)
	}
	var indexes []model.ClientIndex
	for _, k := range indexedKeys {
		indexes = append(indexes, model.ClientIndex{Columns: []model.ColumnKey{{Column: "external_ids", Key: k}}})
	}
	m.SetIndexes(map[string][]model.ClientIndex{vsdb.InterfaceTable: indexes})
	return m, nil
}

// anyRow is the notifier's key for every change.
const anyRow = ""

// notifier notifies waiters by key.
type notifier struct {
	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{} // only keys with waiters
}

func newNotifier() *notifier {
	return &notifier{waiters: map[string]map[chan struct{}]struct{}{}}
}

// wait returns a channel that receives a value when key is notified, and a
// function that ends the wait.
func (n *notifier) wait(key string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiters[key] == nil {
		n.waiters[key] = map[chan struct{}]struct{}{}
	}
	n.waiters[key][ch] = struct{}{}
	return ch, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.waiters[key], ch)
		if len(n.waiters[key]) == 0 {
			delete(n.waiters, key)
		}
	}
}

func (n *notifier) notify(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ch := range n.waiters[key] {
		select {
		case ch <- struct{}{}:
		default: // the waiter has not read the previous notification yet
		}
	}
}

// notifyAll notifies all waiters.
func (n *notifier) notifyAll() {
	n.mu.Lock()
	keys := sortedKeys(n.waiters)
	n.mu.Unlock()
	for _, key := range keys {
		n.notify(key)
	}
}
