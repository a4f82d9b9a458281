// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/ovs/vsdb"
)

// Client is this node's Open vSwitch database: a cache that the server keeps
// current, and transactions. It survives restarts of the server. Everything
// is read from the cache, by index; nothing is executed.
type Client struct {
	db     client.Client
	log    *slog.Logger
	change *notifier
}

// Connect connects to the database at address ("unix:/…" or "tcp:…") and
// fills the cache. It retries until ctx ends, as Open vSwitch may start later
// than the agent.
func Connect(ctx context.Context, address string, log *slog.Logger) (*Client, error) {
	types, err := databaseModel()
	if err != nil {
		return nil, err
	}
	quiet := logr.Discard()
	forever := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	db, err := client.NewOVSDBClient(types, client.WithEndpoint(address), client.WithLogger(&quiet),
		client.WithReconnect(5*time.Second, forever))
	if err != nil {
		return nil, fmt.Errorf("make client of the Open vSwitch database %s: %w", address, err)
	}
	c := &Client{db: db, log: log, change: newNotifier()}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if err = c.start(ctx); err == nil {
			return c, nil
		}
		log.Info("waiting for the Open vSwitch database", "address", address, "error", err)
		select {
		case <-ctx.Done():
			db.Close()
			return nil, fmt.Errorf("connect to the Open vSwitch database %s: %w", address, errors.Join(ctx.Err(), err))
		case <-time.After(wait):
		}
	}
}

func (c *Client) start(ctx context.Context) error {
	if !c.db.Connected() {
		if err := c.db.Connect(ctx); err != nil && !errors.Is(err, client.ErrAlreadyConnected) {
			return err
		}
	}
	c.db.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(table string, row model.Model) { c.changed(row) },
		UpdateFunc: func(table string, _, row model.Model) { c.changed(row) },
		DeleteFunc: func(table string, row model.Model) { c.changed(row) },
	})
	o, b, p, i := &vsdb.OpenvSwitch{}, &vsdb.Bridge{}, &vsdb.Port{}, &vsdb.Interface{}
	// Statistics and status columns change every few seconds on every
	// interface: they are not asked for.
	_, err := c.db.Monitor(ctx, c.db.NewMonitor(
		client.WithTable(o, &o.Bridges, &o.ExternalIDs, &o.CurCfg, &o.NextCfg),
		client.WithTable(b, &b.Name, &b.Ports, &b.FailMode, &b.DatapathType, &b.ExternalIDs),
		client.WithTable(p, &p.Name, &p.Interfaces, &p.ExternalIDs, &p.Protected),
		client.WithTable(i, &i.Name, &i.Type, &i.MAC, &i.MTURequest, &i.ExternalIDs, &i.Ofport, &i.Error)))
	if err != nil {
		return fmt.Errorf("monitor: %w", err)
	}
	return nil
}

// Close disconnects.
func (c *Client) Close() { c.db.Close() }

// Connected tells whether the database answers at the moment.
func (c *Client) Connected() bool { return c.db.Connected() }

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
