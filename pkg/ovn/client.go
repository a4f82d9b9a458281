// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovn/nbdb"
)

// connection keeps a client connected to one database. After the connection is
// lost it creates a new client with an empty cache and calls onConnect.
type connection struct {
	address   string
	models    func() (model.ClientDBModel, error)
	watch     func(client.Client) []client.MonitorOption
	onConnect func(client.Client)
	log       *slog.Logger

	timeout  time.Duration // per transaction; 0: transactTimeout
	inFlight chan struct{} // limits the transactions in flight

	mu      sync.RWMutex
	current client.Client
}

const (
	dialTimeout = 10 * time.Second
	// transactTimeout limits a transaction, in case the database hangs.
	transactTimeout = 30 * time.Second
	// maxInFlight is the most transactions in flight.
	maxInFlight = 8
	// checkInterval is how often a connection is checked: libovsdb notifies only
	// those that are waiting at the moment of the loss.
	checkInterval = time.Second
	redialMin     = 100 * time.Millisecond
	redialMax     = 5 * time.Second
)

// run connects and reconnects until ctx ends.
func (c *connection) run(ctx context.Context) {
	wait := redialMin
	for ctx.Err() == nil {
		cl, err := c.dial(ctx)
		if err != nil {
			c.log.Warn("cannot connect to the database", "address", c.address, "error", err, "retry", wait)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, redialMax)
			continue
		}
		wait = redialMin
		c.mu.Lock()
		c.current = cl
		c.mu.Unlock()
		c.log.Info("connected to the database", "address", c.address)
		c.onConnect(cl)
		if waitForLoss(ctx, cl); ctx.Err() == nil {
			c.log.Warn("lost the connection to the database", "address", c.address)
		}
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		// Close waits for a transaction that the database does not read from the
		// socket.
		go cl.Close()
	}
}

// waitForLoss returns when the connection is lost, also if that was before the
// call.
func waitForLoss(ctx context.Context, cl client.Client) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for cl.Cache() != nil { // Connected still returns true after a loss
		select {
		case <-ctx.Done():
			return
		case <-cl.DisconnectNotify():
			return
		case <-tick.C:
		}
	}
}

// transact runs one transaction within c.timeout. libovsdb writes to the socket
// without a deadline, which blocks if the database hangs: the goroutine of such a
// transaction ends only when the database continues or closes the connection.
func (c *connection) transact(ctx context.Context, cl client.Client, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.timeout, transactTimeout), errUnresponsive)
	defer cancel()
	select {
	case c.inFlight <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type reply struct {
		results []ovsdb.OperationResult
		err     error
	}
	done := make(chan reply, 1)
	go func() {
		defer func() { <-c.inFlight }()
		results, err := cl.Transact(ctx, ops...)
		done <- reply{results, err}
	}()
	select {
	case r := <-done:
		if r.err != nil && errors.Is(context.Cause(ctx), errUnresponsive) {
			return nil, errUnresponsive
		}
		return r.results, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

var errUnresponsive = errors.New("the database does not answer: is ovsdb-server stopped?")

func (c *connection) client() client.Client {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.current
}

func (c *connection) dial(ctx context.Context) (client.Client, error) {
	models, err := c.models()
	if err != nil {
		return nil, fmt.Errorf("database model: %w", err)
	}
	quiet := logr.Discard() // libovsdb also returns its errors
	cl, err := client.NewOVSDBClient(models, client.WithEndpoint(c.address), client.WithLogger(&quiet))
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := cl.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := cl.Monitor(ctx, cl.NewMonitor(c.watch(cl)...)); err != nil {
		cl.Close()
		return nil, fmt.Errorf("monitor: %w", err)
	}
	return cl, nil
}

// NB is the client of a zone's northbound database.
type NB struct {
	conn         connection
	transactions atomic.Int64
}

// NewNB returns a client of the database at address ("unix:PATH"). It calls
// onConnect after each connect, and changed with the network and unit of each of
// our rows that is changed or deleted, by us or others.
func NewNB(address string, log *slog.Logger, onConnect func(), changed func(network string, u Unit, deleted bool)) *NB {
	n := &NB{}
	n.conn = connection{address: address, models: nbModel, watch: watchColumns, log: log, inFlight: make(chan struct{}, maxInFlight)}
	n.conn.onConnect = func(c client.Client) {
		report := func(m model.Model, deleted bool) {
			if ids := externalIDs(m); ids[markOwner] == ownerValue {
				network, u := parseUnitMark(ids[markUnit])
				changed(network, u, deleted)
			}
		}
		addEventHandler(c, &cache.EventHandlerFuncs{
			UpdateFunc: func(table string, old, m model.Model) {
				if slices.ContainsFunc(tables[table].columns, func(column string) bool { return !sameColumn(old, m, column) }) {
					report(old, false)
				}
				for _, port := range removedPorts(c, old, m) {
					report(port, false)
				}
			},
			DeleteFunc: func(_ string, m model.Model) { report(m, true) },
		})
		onConnect()
	}
	return n
}

// watchColumns returns the monitors of the columns that we use.
func watchColumns(client.Client) []client.MonitorOption {
	global := &nbdb.NBGlobal{}
	out := []client.MonitorOption{client.WithTable(global, &global.Name)}
	for name, t := range tables {
		m := newModel(name)
		var fields []any
		for _, column := range slices.Concat(t.columns, t.contains) {
			fields = append(fields, field(m, column).Addr().Interface())
		}
		out = append(out, client.WithTable(m, fields...))
	}
	return out
}

// removedPorts returns the ports that were removed from a port group, but not
// deleted.
func removedPorts(c client.Client, old, m model.Model) []model.Model {
	before, ok := old.(*nbdb.PortGroup)
	after, _ := m.(*nbdb.PortGroup)
	rows := c.Cache()
	if !ok || rows == nil {
		return nil
	}
	var out []model.Model
	for _, id := range before.Ports {
		if slices.Contains(after.Ports, id) {
			continue
		}
		if port := rows.Table(nbdb.LogicalSwitchPortTable).Row(id); port != nil {
			out = append(out, port)
		}
	}
	return out
}

// addEventHandler adds a handler of the connection's events. A lost connection has
// no cache and no events.
func addEventHandler(c client.Client, h *cache.EventHandlerFuncs) {
	if rows := c.Cache(); rows != nil {
		rows.AddEventHandler(h)
	}
}

// Run connects and reconnects until ctx ends.
func (n *NB) Run(ctx context.Context) { n.conn.run(ctx) }

// Connected reports whether there is a connection.
func (n *NB) Connected() bool { return n.conn.client() != nil }

// Transactions returns the number of transactions so far.
func (n *NB) Transactions() int64 { return n.transactions.Load() }

func (n *NB) session() *session {
	if c := n.conn.client(); c != nil {
		return &session{c}
	}
	return nil
}

// nbModels are the models of the tables that we write.
var nbModels = map[string]model.Model{
	nbdb.PortGroupTable: &nbdb.PortGroup{}, nbdb.ACLTable: &nbdb.ACL{},
	nbdb.LogicalSwitchTable: &nbdb.LogicalSwitch{}, nbdb.LogicalSwitchPortTable: &nbdb.LogicalSwitchPort{},
	nbdb.LogicalRouterTable: &nbdb.LogicalRouter{}, nbdb.LogicalRouterPortTable: &nbdb.LogicalRouterPort{},
	nbdb.GatewayChassisTable: &nbdb.GatewayChassis{}, nbdb.NATTable: &nbdb.NAT{},
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
		indexes[name] = []model.ClientIndex{mark(markUnit), mark(markNetwork), mark(markOwner)}
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
		return errNotConnected
	}
	var rows []*nbdb.NBGlobal
	if err := s.client.List(ctx, &rows); err != nil {
		return fmt.Errorf("read NB_Global: %w", err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("NB_Global is empty: is ovn-northd running?")
	}
	if rows[0].Name == name {
		return nil
	}
	op := ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: nbdb.NBGlobalTable, Row: ovsdb.Row{"name": name}, Where: byUUID(rows[0].UUID)}
	results, err := n.conn.transact(ctx, s.client, op)
	if err != nil {
		return fmt.Errorf("set the name of NB_Global: %w", err)
	}
	n.transactions.Add(1)
	if _, err := ovsdb.CheckOperationResults(results, []ovsdb.Operation{op}); err != nil {
		return fmt.Errorf("set the name of NB_Global: %w", err)
	}
	return nil
}
