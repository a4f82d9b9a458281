// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovs/vsdb"
)

// Client is this node's Open vSwitch database: a cache that the server keeps
// current, and transactions. It survives restarts of the server. Everything
// is read from the cache, by index; nothing is executed.
type Client struct {
	db     *connection
	log    *slog.Logger
	change *notifier
}

// Connect connects to the database at address ("unix:/…" or "tcp:…") and
// fills the cache. It retries until ctx ends, as Open vSwitch may start later
// than the agent.
func Connect(ctx context.Context, address string, log *slog.Logger) (*Client, error) {
	c := &Client{log: log, change: newNotifier()}
	c.db = &connection{address: address, log: log, found: c.follow}
	c.db.open()
	for {
		_, err := c.db.session(ctx)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			c.Close()
			return nil, fmt.Errorf("connect to the Open vSwitch database %s: %w", address, err)
		}
	}
}

// watched are the columns that are read. Statistics and status columns change
// every few seconds on every interface: they are not asked for.
func watched() []client.MonitorOption {
	o, b, p, i := &vsdb.OpenvSwitch{}, &vsdb.Bridge{}, &vsdb.Port{}, &vsdb.Interface{}
	return []client.MonitorOption{
		client.WithTable(o, &o.Bridges, &o.ExternalIDs, &o.CurCfg, &o.NextCfg),
		client.WithTable(b, &b.Name, &b.Ports, &b.FailMode, &b.DatapathType, &b.ExternalIDs),
		client.WithTable(p, &p.Name, &p.Interfaces, &p.ExternalIDs, &p.Protected),
		client.WithTable(i, &i.Name, &i.Type, &i.MAC, &i.MTURequest, &i.ExternalIDs, &i.Ofport, &i.Error),
	}
}

// follow has a new connection's changes told. Anything may have changed while
// there was none.
func (c *Client) follow(cl client.Client) {
	if rows := cl.Cache(); rows != nil { // else it is lost again already
		rows.AddEventHandler(&cache.EventHandlerFuncs{
			AddFunc:    func(table string, row model.Model) { c.changed(row) },
			UpdateFunc: func(table string, _, row model.Model) { c.changed(row) },
			DeleteFunc: func(table string, row model.Model) { c.changed(row) },
		})
	}
	c.change.notifyAll()
}

// Close disconnects.
func (c *Client) Close() { c.db.close() }

// changed wakes who waits for the row: interfaces, ports and bridges by name,
// and who waits for anything.
func (c *Client) changed(row model.Model) {
	switch r := row.(type) {
	case *vsdb.Interface:
		c.change.notify(r.Name)
	case *vsdb.Port:
		c.change.notify(r.Name)
	case *vsdb.Bridge:
		c.change.notify(r.Name)
	}
	c.change.notify(anything)
}

// await returns when done says so. done is asked once, and again after every
// change of a row of that name; an error of its own ends the wait.
func (c *Client) await(ctx context.Context, name string, done func() (bool, error)) error {
	for {
		changed, stop := c.change.wait(name) // before asking, so that no change is missed
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

// indexedKeys are the external_ids of interfaces that are looked up.
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

// anything is the notifier's key for every change.
const anything = ""

// notifier wakes waiters by key. It holds nothing for keys nobody waits for.
type notifier struct {
	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{}
}

func newNotifier() *notifier {
	return &notifier{waiters: map[string]map[chan struct{}]struct{}{}}
}

// wait gives a channel that gets a value when key is notified next.
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
		default: // it has not taken the last one yet
		}
	}
}

// notifyAll wakes every waiter.
func (n *notifier) notifyAll() {
	n.mu.Lock()
	keys := sortedKeys(n.waiters)
	n.mu.Unlock()
	for _, key := range keys {
		n.notify(key)
	}
}
