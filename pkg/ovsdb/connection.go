// SPDX-License-Identifier: Apache-2.0

// Package ovsdb connects to OVSDB servers (RFC 7047) with libovsdb: it reconnects
// with an empty cache, bounds every transaction, and reports failed operations.
package ovsdb

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

const (
	dialTimeout = 10 * time.Second
	// monitorTimeout bounds the first read of the monitored tables. At 500 networks
	// that is 20 MB, which a busy node may take a minute to read.
	monitorTimeout = 3 * time.Minute
	// transactTimeout bounds a transaction: an unresponsive database must not
	// block callers forever.
	transactTimeout = 30 * time.Second
	// reconnectTimeout is how long Wait waits for a connection, so that callers do
	// not fail during a restart of the database.
	reconnectTimeout = 5 * time.Second
	// MaxTransactions is the number of concurrent transactions; more wait.
	MaxTransactions = 8
	// checkInterval is how often a connection is checked: libovsdb reports a loss
	// only to callers that wait at that moment. The check finds the other losses.
	checkInterval  = 10 * time.Second
	minRedialDelay = 100 * time.Millisecond
	maxRedialDelay = 5 * time.Second
)

var (
	// ErrUnresponsive is the error of transactions that time out.
	ErrUnresponsive = errors.New("the database does not answer: is ovsdb-server stopped?")
	// ErrNotConnected is the error of reads and transactions without a connection.
	ErrNotConnected = errors.New("not connected to the database: is ovsdb-server running?")
)

// Connection maintains a connection to a database. When the connection is lost, it
// replaces the client, so that no stale cache remains. It does not use libovsdb's
// reconnect, which blocks readers and writers while the database is down and
// reports that it is connected. New creates it; set the fields before Run.
type Connection struct {
	Database  string // for the log, e.g. "OVN northbound"
	Address   string // "unix:/…" or "tcp:…"
	Models    func() (model.ClientDBModel, error)
	Monitors  func() []client.MonitorOption
	OnConnect func(client.Client) // called after each connect
	Log       *slog.Logger        // New sets slog.Default
	Timeout   time.Duration       // of a transaction; 0: 30 s

	slots chan struct{} // semaphore of running transactions

	mu      sync.Mutex
	current client.Client // nil if not connected
	latest  client.Client // current, or the last one if not connected
	err     error         // why current is nil
	changed chan struct{} // closed and replaced when current changes
}

// New returns a connection that is not yet running.
func New() *Connection {
	return &Connection{Log: slog.Default(), slots: make(chan struct{}, MaxTransactions), changed: make(chan struct{})}
}

// Run connects and reconnects until ctx ends.
func (c *Connection) Run(ctx context.Context) {
	log := c.Log.With("database", c.Database, "address", c.Address)
	wait := minRedialDelay
	for ctx.Err() == nil {
		cl, err := c.Dial(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			c.set(nil, err)
			log.Warn("cannot connect to the database", "error", err, "retry", wait)
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
		log.Info("connected to the database")
		c.OnConnect(cl)
		if waitForLoss(ctx, cl); ctx.Err() == nil {
			log.Warn("lost the connection to the database")
		}
		c.set(nil, errors.New("connection lost"))
		// In the background: Close waits for a transaction that the database does
		// not read from the socket.
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

func (c *Connection) set(cl client.Client, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.err = cl, err
	if cl != nil {
		c.latest = cl
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Dial connects once and reads the monitored tables: for a program that reads them once,
// in place of Run.
func (c *Connection) Dial(ctx context.Context) (client.Client, error) {
	models, err := c.Models()
	if err != nil {
		return nil, fmt.Errorf("database model: %w", err)
	}
	logger := logr.FromSlogHandler(c.Log.With("database", c.Database).Handler())
	cl, err := client.NewOVSDBClient(models, client.WithEndpoint(c.Address), client.WithLogger(&logger))
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	if err := within(ctx, dialTimeout, cl.Connect); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := within(ctx, monitorTimeout, func(ctx context.Context) error { return monitor(ctx, cl, c.Monitors()) }); err != nil {
		cl.Close()
		return nil, fmt.Errorf("monitor: %w", err)
	}
	return cl, nil
}

// monitor reads the tables and follows them, each on its own: one reply with all rows
// would need several times their memory while it is decoded. ovsdb-server sends what a
// transaction changes in all of them before the reply to the transaction.
//
// The method is monitor_cond. An update of a row can arrive before libovsdb has put the
// row, from the reply, into its cache. With monitor_cond it then disconnects, and Run
// connects again. With monitor_cond_since it would ignore the update, or wait forever if
// the reply to another monitor is still to come.
func monitor(ctx context.Context, cl client.Client, tables []client.MonitorOption) error {
	for _, table := range tables {
		m := cl.NewMonitor(table)
		m.Method = ovsdb.ConditionalMonitorRPC
		if _, err := cl.Monitor(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// within calls f with a deadline, after which its error is ErrUnresponsive.
func within(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrUnresponsive)
	defer cancel()
	if err := f(ctx); err != nil {
		return timeoutCause(ctx, err)
	}
	return nil
}

// timeoutCause returns ErrUnresponsive if that is the cause of ctx's end, or else
// err.
func timeoutCause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrUnresponsive) {
		return ErrUnresponsive
	}
	return err
}

// Client returns the current connection's client, nil for none.
func (c *Connection) Client() client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Wait returns the current connection's client. It waits a moment for a connection
// other than the lost one, which may be nil.
func (c *Connection) Wait(ctx context.Context, lost client.Client) (client.Client, error) {
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
			return nil, errors.Join(ErrNotConnected, ctx.Err(), err)
		case <-timeout.C:
			return nil, errors.Join(ErrNotConnected, err)
		}
	}
}

// Transact runs one transaction, bounded by the timeout, and returns an error if one
// of its operations failed. libovsdb writes to the socket without a deadline, and an
// unresponsive database does not read from it. On a timeout the write continues in
// the background until the database resumes or the connection ends.
func (c *Connection) Transact(ctx context.Context, cl client.Client, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.Timeout, transactTimeout), ErrUnresponsive)
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
			return nil, fmt.Errorf("transaction: %w", timeoutCause(ctx, r.err))
		}
		return r.results, operationErrors(r.results, ops)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// operationErrors returns the errors of a transaction's operations.
func operationErrors(results []ovsdb.OperationResult, ops []ovsdb.Operation) error {
	failed, err := ovsdb.CheckOperationResults(results, ops)
	if err == nil {
		return nil
	}
	errs := []error{err}
	for _, f := range failed {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// Fatal returns the function that tells batch.Apply when to stop: after a
// transaction that timed out each further one would wait as long, and without a
// connection none succeeds.
func (c *Connection) Fatal(ctx context.Context) func(error) error {
	return func(err error) error {
		switch {
		case errors.Is(err, ErrUnresponsive):
			return ErrUnresponsive
		case errors.Is(err, ErrNotConnected), c.Client() == nil:
			return ErrNotConnected
		}
		return ctx.Err()
	}
}

// IsLoss reports whether a transaction failed because the connection was lost.
func IsLoss(err error) bool {
	for _, loss := range []error{client.ErrNotConnected, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, loss) {
			return true
		}
	}
	return false
}

// Get reads one row from the cache. It waits a moment for a connection.
func (c *Connection) Get(ctx context.Context, row model.Model) error {
	cl, err := c.Wait(ctx, nil)
	if err != nil {
		return err
	}
	return Get(ctx, cl, row)
}

// List reads rows from the cache. It waits a moment for a connection.
func (c *Connection) List(ctx context.Context, rows any) error {
	cl, err := c.Wait(ctx, nil)
	if err != nil {
		return err
	}
	return List(ctx, cl, rows)
}

// Where builds operations on existing rows. It needs no connection after the first.
func (c *Connection) Where(rows ...model.Model) client.ConditionalAPI {
	return c.mapper().Where(rows...)
}

// Create builds operations that insert rows. It needs no connection after the first.
func (c *Connection) Create(rows ...model.Model) ([]ovsdb.Operation, error) {
	return c.mapper().Create(rows...)
}

func (c *Connection) mapper() client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}
