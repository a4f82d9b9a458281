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
	"strings"
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

// connection keeps a client of one database alive: when the connection is
// lost a new client takes its place, with nothing left of the old one's
// cache, and lost and found are told.
type connection struct {
	address string
	models  func() (model.ClientDBModel, error)
	watch   func(client.Client) []client.MonitorOption
	found   func(client.Client)
	log     *slog.Logger

	timeout time.Duration // of a transaction; 0: transactTimeout
	sending chan struct{} // as many transactions may be under way

	mu      sync.RWMutex
	current client.Client
}

const (
	dialTimeout = 10 * time.Second
	// transactTimeout bounds a transaction: a database that hangs holds nobody up for ever.
	transactTimeout = 30 * time.Second
	// maxSending is how many transactions are under way at once.
	maxSending = 8
	// lookAfter is how often a connection is looked at: libovsdb tells of a loss
	// only who is waiting for it at that moment.
	lookAfter   = time.Second
	redialAfter = 100 * time.Millisecond
	redialMax   = 5 * time.Second
)

// run connects, and connects again, until ctx ends.
func (c *connection) run(ctx context.Context) {
	wait := redialAfter
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
		wait = redialAfter
		c.mu.Lock()
		c.current = cl
		c.mu.Unlock()
		c.log.Info("connected to the database", "address", c.address)
		c.found(cl)
		if awaitLoss(ctx, cl); ctx.Err() == nil {
			c.log.Warn("connection to the database lost", "address", c.address)
		}
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		// A transaction that the database does not take from the socket holds the
		// client: closing it would wait for that.
		go cl.Close()
	}
}

// awaitLoss returns when the connection is lost, even if it was before the call.
func awaitLoss(ctx context.Context, cl client.Client) {
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	for cl.Cache() != nil { // Connected goes on saying yes
		select {
		case <-ctx.Done():
			return
		case <-cl.DisconnectNotify():
			return
		case <-tick.C:
		}
	}
}

// transact makes one transaction within its time. libovsdb writes to the socket
// without a deadline, and a database that hangs does not empty it: such a
// transaction is left behind until the database goes on or is gone.
func (c *connection) transact(ctx context.Context, cl client.Client, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.timeout, transactTimeout), errHangs)
	defer cancel()
	select {
	case c.sending <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type reply struct {
		results []ovsdb.OperationResult
		err     error
	}
	done := make(chan reply, 1)
	go func() {
		defer func() { <-c.sending }()
		results, err := cl.Transact(ctx, ops...)
		done <- reply{results, err}
	}()
	select {
	case r := <-done:
		if r.err != nil && errors.Is(context.Cause(ctx), errHangs) {
			return nil, errHangs
		}
		return r.results, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

var errHangs = errors.New("the database does not answer: is ovsdb-server stopped?")

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
	quiet := logr.Discard() // what matters comes back as an error
	cl, err := client.NewOVSDBClient(models, client.WithEndpoint(c.address), client.WithLogger(&quiet))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
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

// NB is a zone's northbound database.
type NB struct {
	conn         connection
	transactions atomic.Int64
}

// NewNB is the database at that address ("unix:PATH"). found is called after
// each connect, lost with the network and part of each row of ours that goes.
func NewNB(address string, log *slog.Logger, found func(), lost func(network string, part Part)) *NB {
	n := &NB{}
	n.conn = connection{address: address, models: nbModel, log: log, sending: make(chan struct{}, maxSending)}
	n.conn.watch = func(c client.Client) []client.MonitorOption {
		out := []client.MonitorOption{client.WithTable(&nbdb.NBGlobal{})}
		for _, m := range nbModels {
			out = append(out, client.WithTable(m))
		}
		return out
	}
	n.conn.found = func(c client.Client) {
		onEvents(c, &cache.EventHandlerFuncs{DeleteFunc: func(_ string, m model.Model) {
			if ids := externalIDs(m); ids[markOwner] == ownerValue {
				lost(ids[markNetwork], Part(ids[markPart]))
			}
		}})
		found()
	}
	return n
}

// onEvents has a connection's events handled. One that is lost by now has no
// cache any more, and no events.
func onEvents(c client.Client, h *cache.EventHandlerFuncs) {
	if rows := c.Cache(); rows != nil {
		rows.AddEventHandler(h)
	}
}

// Run keeps the connection until ctx ends.
func (n *NB) Run(ctx context.Context) { n.conn.run(ctx) }

// Connected tells whether the database can be reached.
func (n *NB) Connected() bool { return n.conn.client() != nil }

// Transactions is how many transactions were made.
func (n *NB) Transactions() int64 { return n.transactions.Load() }

func (n *NB) session() *session {
	if c := n.conn.client(); c != nil {
		return &session{c}
	}
	return nil
}

// nbModels are the tables that we write, as models.
var nbModels = map[string]model.Model{
	nbdb.PortGroupTable: &nbdb.PortGroup{}, nbdb.ACLTable: &nbdb.ACL{},
	nbdb.LogicalSwitchTable: &nbdb.LogicalSwitch{}, nbdb.LogicalSwitchPortTable: &nbdb.LogicalSwitchPort{},
	nbdb.LogicalRouterTable: &nbdb.LogicalRouter{}, nbdb.LogicalRouterPortTable: &nbdb.LogicalRouterPort{},
	nbdb.GatewayChassisTable: &nbdb.GatewayChassis{}, nbdb.NATTable: &nbdb.NAT{},
	nbdb.StaticMACBindingTable: &nbdb.StaticMACBinding{}, nbdb.LogicalRouterStaticRouteTable: &nbdb.LogicalRouterStaticRoute{},
}

// newModel is an empty model of a table.
func newModel(table string) model.Model {
	return reflect.New(reflect.TypeOf(nbModels[table]).Elem()).Interface()
}

// nbModel is the client's model, with the indexes that make every read cost
// what it returns and not what the database holds.
func nbModel() (model.ClientDBModel, error) {
	all := map[string]model.Model{nbdb.NBGlobalTable: &nbdb.NBGlobal{}}
	indexes := map[string][]model.ClientIndex{}
	for name, m := range nbModels {
		all[name] = m
		if name == nbdb.StaticMACBindingTable {
			indexes[name] = []model.ClientIndex{{Columns: []model.ColumnKey{{Column: "logical_port"}}}}
			continue
		}
		mark := func(keys ...string) model.ClientIndex {
			var i model.ClientIndex
			for _, k := range keys {
				i.Columns = append(i.Columns, model.ColumnKey{Column: "external_ids", Key: k})
			}
			return i
		}
		indexes[name] = []model.ClientIndex{mark(markID), mark(markNetwork, markPart), mark(markOwner)}
	}
	db, err := model.NewClientDBModel("OVN_Northbound", all)
	if err != nil {
		return db, err
	}
	db.SetIndexes(indexes)
	return db, nil
}

// session is the database during one connection.
type session struct{ client client.Client }

// find are the rows of a table whose external_ids hold the marks, by index.
// libovsdb takes the first index that knows the model's values, and to it a
// mark that is absent is the empty one of others' rows: so the marks that are
// not asked for get a value that no row has.
func (s *session) find(ctx context.Context, table string, marks map[string]string) ([]Row, error) {
	const nobody = "\x00"
	ids := map[string]string{markID: nobody, markNetwork: nobody, markPart: nobody, markOwner: nobody}
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
		r.ID = externalIDs(r.Model)[markID]
		r.UUID = field(r.Model, "_uuid").String()
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Row) int { return strings.Compare(a.UUID, b.UUID) })
	return out, nil
}

// lookup is the UUID of a row of ours.
func (s *session) lookup(ctx context.Context, table, id string) (string, error) {
	rows, err := s.find(ctx, table, map[string]string{markID: id})
	if err != nil {
		return "", err
	}
	if len(rows) == 0 {
		return "", client.ErrNotFound
	}
	return rows[0].UUID, nil
}

// listed is, for each row that a row of the network lists, where.
func (s *session) listed(ctx context.Context, network string) (map[string][]Ref, error) {
	out := map[string][]Ref{}
	marks := map[string]string{markNetwork: network, markPart: string(PartTopology)}
	for name, t := range tables {
		if len(t.contains) == 0 {
			continue
		}
		rows, err := s.find(ctx, name, marks)
		if err != nil {
			return nil, fmt.Errorf("read %s of network %s: %w", name, network, err)
		}
		for _, r := range rows {
			for _, column := range t.contains {
				members, _ := field(r.Model, column).Interface().([]string)
				for _, id := range members {
					out[id] = append(out[id], Ref{name, r.ID, column})
				}
			}
		}
	}
	return out, nil
}

// macBindings are the static MAC bindings on a port of ours.
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

// encode are columns of a row as the database wants them, empty ones included.
func (s *session) encode(r Row, columns []string) (ovsdb.Row, error) {
	schema := s.client.Schema()
	t := schema.Table(r.Table)
	if t == nil {
		return nil, fmt.Errorf("encode %s: the database has no such table", r)
	}
	out := ovsdb.Row{}
	for _, c := range columns {
		v, err := ovsdb.NativeToOvs(t.Column(c), field(r.Model, c).Interface())
		if err != nil {
			return nil, fmt.Errorf("encode %s of %s: %w", c, r, err)
		}
		out[c] = v
	}
	return out, nil
}

// Networks implements Target.
func (n *NB) Networks(ctx context.Context) ([]string, error) {
	s := n.session()
	if s == nil {
		return nil, errNotConnected
	}
	seen := map[string]struct{}{}
	for name, t := range tables {
		if len(t.contains) == 0 {
			continue // what is left of a network hangs on a router, a switch or a group
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

// SetName gives the zone its name: the node's.
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
		return fmt.Errorf("name the zone: %w", err)
	}
	n.transactions.Add(1)
	if _, err := ovsdb.CheckOperationResults(results, []ovsdb.Operation{op}); err != nil {
		return fmt.Errorf("name the zone: %w", err)
	}
	return nil
}
