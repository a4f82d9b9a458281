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
// onConnect after each connect, and onDelete with the network and unit of each of
// our rows that is deleted.
func NewNB(address string, log *slog.Logger, onConnect func(), onDelete func(network string, u Unit)) *NB {
	n := &NB{}
	n.conn = connection{address: address, models: nbModel, log: log, inFlight: make(chan struct{}, maxInFlight)}
	n.conn.watch = func(c client.Client) []client.MonitorOption {
		out := []client.MonitorOption{client.WithTable(&nbdb.NBGlobal{})}
		for _, m := range nbModels {
			out = append(out, client.WithTable(m))
		}
		return out
	}
	n.conn.onConnect = func(c client.Client) {
		addEventHandler(c, &cache.EventHandlerFuncs{DeleteFunc: func(_ string, m model.Model) {
			if ids := externalIDs(m); ids[markOwner] == ownerValue {
				onDelete(parseUnitMark(ids[markUnit]))
			}
		}})
		onConnect()
	}
	return n
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
		r.ID = externalIDs(r.Model)[markID]
		r.UUID = field(r.Model, "_uuid").String()
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Row) int { return strings.Compare(a.UUID, b.UUID) })
	return out, nil
}

// addReferences sets In of the network's rows: the columns of its topology that
// reference them.
func (s *session) addReferences(ctx context.Context, network string, rows State) error {
	byUUID := make(map[string]*Row, len(rows))
	for i := range rows {
		byUUID[rows[i].UUID] = &rows[i]
	}
	for name, t := range tables {
		if len(t.contains) == 0 || len(rows) == 0 {
			continue
		}
		containers, err := s.find(ctx, name, map[string]string{markUnit: topologyUnit.mark(network)})
		if err != nil {
			return fmt.Errorf("read %s of network %s: %w", name, network, err)
		}
		for _, c := range containers {
			for _, column := range t.contains {
				members, _ := field(c.Model, column).Interface().([]string)
				for _, id := range members {
					if r := byUUID[id]; r != nil {
						r.In = append(r.In, Ref{Table: name, ID: c.ID, Column: column, UUID: c.UUID})
					}
				}
			}
		}
	}
	return nil
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

// encode encodes columns of a row for the database, including empty ones.
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
