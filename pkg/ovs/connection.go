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

// connection maintains a connection to the database. When the connection is
// lost, it replaces the client, so that no stale cache remains. It does not use
// libovsdb's reconnect, which blocks readers and writers while the database is
// down and reports that it is connected.
type connection struct {
	address   string
	onConnect func(client.Client) // called after each connect
	log       *slog.Logger
	timeout   time.Duration // of a transaction; 0: transactTimeout
	slots     chan struct{} // semaphore of running transactions
	stop      context.CancelFunc
	done      chan struct{}

	mu      sync.Mutex
	current client.Client // nil if not connected
	latest  client.Client // current, or the last one if not connected
	err     error         // why current is nil
	changed chan struct{} // closed and replaced when current changes
}

const (
	dialTimeout = 10 * time.Second
	// transactTimeout bounds a transaction: an unresponsive database must not
	// block callers forever.
	transactTimeout = 30 * time.Second
	// reconnectTimeout is how long readers and writers wait for a connection, so
	// that they do not fail during a restart of the database.
	reconnectTimeout = 5 * time.Second
	// maxTransactions bounds the number of concurrent transactions.
	maxTransactions = 8
	// checkInterval is how often a connection is checked: libovsdb reports a
	// loss only to callers that wait for it at that moment.
	checkInterval  = time.Second
	minRedialDelay = 100 * time.Millisecond
	maxRedialDelay = 2 * time.Second
)

var (
	errUnresponsive = errors.New("the Open vSwitch database does not answer: is ovsdb-server stopped?")
	errNotConnected = errors.New("not connected to the Open vSwitch database: is ovsdb-server running?")
)

// open starts to connect in the background; close stops it.
func (c *connection) open() {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.done = cancel, make(chan struct{})
	c.slots, c.changed = make(chan struct{}, maxTransactions), make(chan struct{})
	go func() {
		defer close(c.done)
		c.run(ctx)
	}()
}

func (c *connection) close() {
	c.stop()
	<-c.done
}

// run connects and reconnects until ctx ends.
func (c *connection) run(ctx context.Context) {
	wait := minRedialDelay
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
			wait = min(2*wait, maxRedialDelay)
			continue
		}
		wait = minRedialDelay
		c.set(cl, nil)
		c.log.Info("connected to the Open vSwitch database", "address", c.address)
		c.onConnect(cl)
		if waitForLoss(ctx, cl); ctx.Err() == nil {
			c.log.Warn("connection to the Open vSwitch database lost", "address", c.address)
		}
		c.set(nil, errors.New("connection lost"))
		// In the background: Close waits for a transaction that the database
		// does not read from the socket.
		go cl.Close()
	}
}

// waitForLoss returns when the connection is lost or ctx ends. It also detects a
// loss before the call.
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
	discard := logr.Discard() // relevant failures are returned as errors
	cl, err := client.NewOVSDBClient(models, client.WithEndpoint(c.address), client.WithLogger(&discard))
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errUnresponsive)
	defer cancel()
	if err := cl.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect: %w", timeoutCause(ctx, err))
	}
	if _, err := cl.Monitor(ctx, cl.NewMonitor(monitoredColumns()...)); err != nil {
		cl.Close()
		return nil, fmt.Errorf("monitor: %w", timeoutCause(ctx, err))
	}
	return cl, nil
}

// timeoutCause returns errUnresponsive if that is the cause of ctx's end, or else
// err.
func timeoutCause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errUnresponsive) {
		return errUnresponsive
	}
	return err
}

// session returns the current connection's client. It waits up to
// reconnectTimeout for a connection.
func (c *connection) session(ctx context.Context) (client.Client, error) {
	return c.sessionAfter(ctx, nil)
}

// sessionAfter is session, but ignores the lost connection's client.
func (c *connection) sessionAfter(ctx context.Context, lost client.Client) (client.Client, error) {
	timeout := time.NewTimer(reconnectTimeout)
	defer timeout.Stop()
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
		case <-timeout.C:
			return nil, errors.Join(errNotConnected, err)
		}
	}
}

// transact runs one transaction, bounded by the timeout. libovsdb writes to the
// socket without a deadline, and an unresponsive database does not read from it.
// On a timeout the write continues in the background until the database resumes
// or the connection ends.
func (c *connection) transact(ctx context.Context, cl client.Client, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.timeout, transactTimeout), errUnresponsive)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type reply struct {
		results []ovsdb.OperationResult
		err     error
	}
	done := make(chan reply, 1)
	go func() {
		defer func() { <-c.slots }()
		results, err := cl.Transact(ctx, ops...)
		done <- reply{results, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, timeoutCause(ctx, r.err)
		}
		return r.results, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// isConnectionLoss reports whether a transaction failed because the connection
// was lost.
func isConnectionLoss(err error) bool {
	for _, loss := range []error{client.ErrNotConnected, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, loss) {
			return true
		}
	}
	return false
}

// Get reads one row from the cache.
func (c *connection) Get(ctx context.Context, row model.Model) error {
	cl, err := c.session(ctx)
	if err != nil {
		return err
	}
	return cl.Get(ctx, row)
}

// List reads rows from the cache.
func (c *connection) List(ctx context.Context, rows any) error {
	cl, err := c.session(ctx)
	if err != nil {
		return err
	}
	return cl.List(ctx, rows)
}

// Transact runs one transaction.
func (c *connection) Transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	cl, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	return c.transact(ctx, cl, ops...)
}

// Where builds operations on existing rows. It does not need a connection.
func (c *connection) Where(rows ...model.Model) client.ConditionalAPI {
	return c.mapper().Where(rows...)
}

// Create builds operations that insert rows. It does not need a connection.
func (c *connection) Create(rows ...model.Model) ([]ovsdb.Operation, error) {
	return c.mapper().Create(rows...)
}

func (c *connection) mapper() client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}
