// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/database/inmemory"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/server"
)

type thing struct {
	UUID string `ovsdb:"_uuid"`
	Name string `ovsdb:"name"`
}

const schemaText = `{"name": "Test", "version": "1.0.0", "tables": {"Thing": {"isRoot": true, "columns": {"name": {"type": "string"}}}}}`

func models() (model.ClientDBModel, error) {
	return model.NewClientDBModel("Test", map[string]model.Model{"Thing": &thing{}})
}

// testServer is an OVSDB server in this process, on one socket, that can be stopped
// and started with an empty database. The package's server keeps its connections when
// it is closed, so that clients connect by a proxy.
type testServer struct {
	t      *testing.T
	socket string
	stop   func()
}

func (s *testServer) start() {
	s.t.Helper()
	m, err := models()
	if err != nil {
		s.t.Fatal(err)
	}
	var schema ovsdb.DatabaseSchema
	if err := json.Unmarshal([]byte(schemaText), &schema); err != nil {
		s.t.Fatal(err)
	}
	full, errs := model.NewDatabaseModel(schema, m)
	if len(errs) > 0 {
		s.t.Fatal(errs)
	}
	quiet := logr.Discard()
	srv, err := server.NewOvsdbServer(inmemory.NewDatabase(map[string]model.ClientDBModel{"Test": m}, &quiet), &quiet, full)
	if err != nil {
		s.t.Fatal(err)
	}
	behind := filepath.Join(s.t.TempDir(), "behind.sock")
	go func() { _ = srv.Serve("unix", behind) }()
	eventually(s.t, "the server is ready", srv.Ready)
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = sync.OnceFunc(func() { cancel(); _ = l.Close(); srv.Close() })
	s.t.Cleanup(s.stop)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", behind)
			if err != nil {
				_ = in.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
			go func() { _, _ = io.Copy(in, out) }()
			go func() { _, _ = io.Copy(out, in) }()
		}
	}()
}

// connection returns a running connection to the server, and the number of its
// connects so far.
func (s *testServer) connection(onConnect ...func(client.Client)) (*Connection, *atomic.Int32) {
	var connects atomic.Int32
	c := New()
	c.Database, c.Address, c.Models, c.Log = "test", "unix:"+s.socket, models, slog.New(slog.DiscardHandler)
	c.Monitors = func() []client.MonitorOption { return []client.MonitorOption{client.WithTable(&thing{})} }
	c.OnConnect = func(cl client.Client) {
		connects.Add(1)
		for _, f := range onConnect {
			f(cl)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	s.t.Cleanup(func() { cancel(); <-ended })
	return c, &connects
}

func eventually(t *testing.T, desc string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", desc)
		}
	}
}

func insert(t *testing.T, c *Connection, name string) {
	t.Helper()
	ctx := context.Background()
	cl, err := c.Wait(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	ops, err := c.Create(&thing{UUID: "new", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Transact(ctx, cl, ops...); err != nil {
		t.Fatal(err)
	}
}

// names returns the cached rows.
func names(t *testing.T, c *Connection) string {
	t.Helper()
	var rows []thing
	if err := c.List(context.Background(), &rows); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range rows {
		out = append(out, r.Name)
	}
	return strings.Join(out, ",")
}

// A connection that was lost comes back without the rows that it had.
func TestReconnect(t *testing.T) {
	s := &testServer{t: t, socket: filepath.Join(t.TempDir(), "db.sock")}
	c, connects := s.connection()
	if _, err := c.Wait(canceled(), nil); !errors.Is(err, ErrNotConnected) {
		t.Errorf("before the server: error %v", err)
	}
	s.start()
	insert(t, c, "one")
	eventually(t, "the row is cached", func() bool { return names(t, c) == "one" })
	first := c.Client()

	s.stop()
	eventually(t, "the loss is noticed", func() bool { return c.Client() == nil })
	if err := c.Fatal(context.Background())(errors.New("any")); !errors.Is(err, ErrNotConnected) {
		t.Errorf("Fatal without a connection: %v", err)
	}
	s.start()
	second, err := c.Wait(context.Background(), first)
	if err != nil || second == first {
		t.Fatalf("the client after the loss: the same: %t, error %v", second == first, err)
	}
	if got := names(t, c); got != "" || connects.Load() != 2 {
		t.Errorf("rows %q after %d connects", got, connects.Load())
	}
	insert(t, c, "two")
	eventually(t, "the new row is cached", func() bool { return names(t, c) == "two" })
	if err := c.Fatal(context.Background())(errors.New("any")); err != nil {
		t.Errorf("Fatal of another error: %v", err)
	}
}

// A connection that is lost while OnConnect runs, before anybody waits for its loss, is
// replaced too.
func TestLostBeforeWait(t *testing.T) {
	s := &testServer{t: t, socket: filepath.Join(t.TempDir(), "db.sock")}
	s.start()
	var lost atomic.Bool
	c, connects := s.connection(func(cl client.Client) {
		if !lost.Swap(true) {
			cl.Close()
			for cl.Cache() != nil {
				time.Sleep(time.Millisecond)
			}
			AddEventHandler(cl, &cache.EventHandlerFuncs{}) // there are no events, and no panic
		}
	})
	eventually(t, "connected again", func() bool { return connects.Load() == 2 && c.Client() != nil })
}

// To change a row that does not exist is no error in OVSDB: RequireRow makes it one.
func TestRequireRow(t *testing.T) {
	s := &testServer{t: t, socket: filepath.Join(t.TempDir(), "db.sock")}
	s.start()
	c, _ := s.connection()
	insert(t, c, "one")
	var rows []thing
	eventually(t, "the row is cached", func() bool {
		return c.List(context.Background(), &rows) == nil && len(rows) == 1
	})
	transact := func(id string) error {
		update := ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: "Thing", Where: ByUUID(id), Row: ovsdb.Row{"name": "changed"}}
		_, err := c.Transact(context.Background(), c.Client(), RequireRow("Thing", id), update)
		return err
	}
	if err := transact(rows[0].UUID); err != nil {
		t.Errorf("an existing row: %v", err)
	}
	if err := transact("00000000-0000-0000-0000-000000000001"); err == nil {
		t.Error("a missing row was changed without an error")
	}
}

// A database that does not answer ends a transaction by the timeout, and the batch.
func TestTimeout(t *testing.T) {
	c := New()
	c.Timeout = 10 * time.Millisecond
	for range MaxTransactions {
		c.slots <- struct{}{} // transactions that hang
	}
	_, err := c.Transact(context.Background(), nil)
	if !errors.Is(err, ErrUnresponsive) {
		t.Errorf("error %v", err)
	}
	if fatal := c.Fatal(context.Background())(err); !errors.Is(fatal, ErrUnresponsive) {
		t.Errorf("fatal error %v", fatal)
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
