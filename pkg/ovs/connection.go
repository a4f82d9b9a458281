// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// connection keeps a client of the database alive: when the connection is lost
// a new client takes its place, with nothing left of the old one's cache.
// libovsdb's own way of connecting again holds readers and writers up for as
// long as the database is away, and tells them that it is connected.
type connection struct {
	address string
	found   func(client.Client) // called after each connect
	log     *slog.Logger
	timeout time.Duration // of a transaction; 0: transactTimeout
	sending chan struct{} // as many transactions may be under way
	stop    context.CancelFunc
	ended   chan struct{}

	mu      sync.Mutex
	current client.Client // nil: not connected
	latest  client.Client
	err     error         // why it is not connected
	changed chan struct{} // closed with each change of current
}

const (
	dialTimeout = 10 * time.Second
	// transactTimeout bounds a transaction: a database that hangs holds nobody up for ever.
	transactTimeout = 30 * time.Second
	// reconnectTimeout is how long a reader or writer waits for a connection: a
	// restart of the database is no failure.
	reconnectTimeout = 5 * time.Second
	// maxSending is how many transactions are under way at once.
	maxSending = 8
	// lookAfter is how often a connection is looked at: libovsdb tells of a loss
	// only who is waiting for it at that moment.
	lookAfter   = time.Second
	redialAfter = 100 * time.Millisecond
	redialMax   = 2 * time.Second
)

var (
	errHangs        = errors.New("the Open vSwitch database does not answer: is ovsdb-server stopped?")
	errNotConnected = errors.New("not connected to the Open vSwitch database: is ovsdb-server running?")
)

// open begins to connect; close ends it.
func (c *connection) open() {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.ended = cancel, make(chan struct{})
	c.sending, c.changed = make(chan struct{}, maxSending), make(chan struct{})
	go func() {
		defer close(c.ended)
		c.run(ctx)
	}()
}

func (c *connection) close() {
	c.stop()
	<-c.ended
}

// run connects, and connects again, until ctx ends.
func (c *connection) run(ctx context.Context) {
	wait := redialAfter
	for ctx.Err() == nil {
		cl, err := c.dial(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			c.set(nil, err)
			c.log.Warn("cannot connect to the Open vSwitch database", "address", c.address, "error", err, "retry", wait)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, redialMax)
			continue
		}
		wait = redialAfter
		c.set(cl, nil)
		c.log.Info("connected to the Open vSwitch database", "address", c.address)
		c.found(cl)
		if awaitLoss(ctx, cl); ctx.Err() == nil {
			c.log.Warn("connection to the Open vSwitch database lost", "address", c.address)
		}
		c.set(nil, errors.New("connection lost"))
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

func (c *connection) set(cl client.Client, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.err = cl, err
	if cl != nil {
		c.latest = cl
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *connection) dial(ctx context.Context) (client.Client, error) {
	models, err := databaseModel()
	if err != nil {
		return nil, err
	}
	quiet := logr.Discard() // what matters comes back as an error
	cl, err := client.NewOVSDBClient(models, client.WithEndpoint(c.address), client.WithLogger(&quiet))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errHangs)
	defer cancel()
	if err := cl.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect: %w", whyEnded(ctx, err))
	}
	if _, err := cl.Monitor(ctx, cl.NewMonitor(watched()...)); err != nil {
		cl.Close()
		return nil, fmt.Errorf("monitor: %w", whyEnded(ctx, err))
	}
	return cl, nil
}

// whyEnded is errHangs where that is what ended ctx, and else err.
func whyEnded(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errHangs) {
		return errHangs
	}
	return err
}

// session is the client of the present connection. It waits for one as long as
// a restart of the database may take.
func (c *connection) session(ctx context.Context) (client.Client, error) { return c.after(ctx, nil) }

// after is session, but of another connection than the one that was lost.
func (c *connection) after(ctx context.Context, lost client.Client) (client.Client, error) {
	late := time.NewTimer(reconnectTimeout)
	defer late.Stop()
	for {
		c.mu.Lock()
		current, err, changed := c.current, c.err, c.changed
		c.mu.Unlock()
		if current != nil && current != lost {
			return current, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.Join(errNotConnected, ctx.Err(), err)
		case <-late.C:
			return nil, errors.Join(errNotConnected, err)
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
		if r.err != nil {
			return nil, whyEnded(ctx, r.err)
		}
		return r.results, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// wasLost tells whether a transaction failed because the connection was lost.
func wasLost(err error) bool {
	for _, loss := range []error{client.ErrNotConnected, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, loss) {
			return true
		}
	}
	return false
}

// Get reads one row.
func (c *connection) Get(ctx context.Context, row model.Model) error {
	cl, err := c.session(ctx)
	if err != nil {
		return err
	}
	return cl.Get(ctx, row)
}

// List reads a table.
func (c *connection) List(ctx context.Context, rows any) error {
	cl, err := c.session(ctx)
	if err != nil {
		return err
	}
	return cl.List(ctx, rows)
}

// Transact makes one transaction.
func (c *connection) Transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	cl, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	return c.transact(ctx, cl, ops...)
}

// Where and Create work operations out; that does not need a connection.
func (c *connection) Where(rows ...model.Model) client.ConditionalAPI {
	return c.mapper().Where(rows...)
}

func (c *connection) Create(rows ...model.Model) ([]ovsdb.Operation, error) {
	return c.mapper().Create(rows...)
}

func (c *connection) mapper() client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}
