// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
)

type other struct {
	UUID string `ovsdb:"_uuid"`
	Name string `ovsdb:"name"`
}

// scriptedServer answers a client's requests with two tables of one row each. The reply
// with the row of Other is followed at once by update, which may be read before the reply
// is. From the second connection on, Other is empty.
type scriptedServer struct {
	update      string
	connections atomic.Int32
}

const (
	twoTables = `{"name": "Test", "version": "1.0.0", "tables": {
"Thing": {"isRoot": true, "columns": {"name": {"type": "string"}}}, "Other": {"isRoot": true, "columns": {"name": {"type": "string"}}}}}`
	thingRow = `{"Thing": {"00000000-0000-0000-0000-00000000000a": {"initial": {"name": "thing"}}}}`
	otherRow = `{"Other": {"00000000-0000-0000-0000-00000000000b": {"initial": {"name": "other"}}}}`
)

func (s *scriptedServer) serve(conn net.Conn) {
	defer conn.Close()
	first := s.connections.Add(1) == 1
	requests := json.NewDecoder(conn)
	for {
		var r struct {
			ID     json.RawMessage
			Method string
			Params []json.RawMessage
		}
		if requests.Decode(&r) != nil {
			return
		}
		result, then := "[]", ""
		switch r.Method {
		case "list_dbs":
			result = `["Test"]`
		case "get_schema":
			result = twoTables
		case "monitor_cond":
			var tables map[string]json.RawMessage
			if json.Unmarshal(r.Params[2], &tables) != nil {
				return
			}
			if _, isThing := tables["Thing"]; isThing {
				result = thingRow
				break
			}
			result = `{}`
			if first {
				result = otherRow
				then = fmt.Sprintf(`{"method": "update2", "params": [%s, %s], "id": null}`, r.Params[1], s.update)
			}
		}
		if _, err := fmt.Fprintf(conn, `{"id": %s, "result": %s, "error": null}%s`, r.ID, result, then); err != nil {
			return
		}
	}
}

// What is deleted while its table is read is not in the cache for good: either the
// deletion is applied, or the client connects again.
func TestUpdateDuringMonitor(t *testing.T) {
	reconnected := containing{text: "triggering reconnect to rebuild cache"}
	for range 20 {
		s := &scriptedServer{update: `{"Other": {"00000000-0000-0000-0000-00000000000b": {"delete": null}}}`}
		socket := filepath.Join(t.TempDir(), "db.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go s.serve(conn)
			}
		}()
		c := New()
		c.Database, c.Address, c.Log = "test", "unix:"+socket, slog.New(slog.NewTextHandler(&reconnected, nil))
		c.Models = func() (model.ClientDBModel, error) {
			return model.NewClientDBModel("Test", map[string]model.Model{"Thing": &thing{}, "Other": &other{}})
		}
		c.Monitors = func() []client.MonitorOption {
			return []client.MonitorOption{client.WithTable(&thing{}), client.WithTable(&other{})}
		}
		c.OnConnect = func(client.Client) {}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { c.Run(ctx); close(ended) }()
		eventually(t, "the cache is that of the database", func() bool {
			var things []thing
			var others []other
			return c.List(ctx, &things) == nil && c.List(ctx, &others) == nil && len(things) == 1 && len(others) == 0
		})
		cancel()
		<-ended
		_ = l.Close()
	}
	// In some rounds the deletion came before the row, or this test shows nothing.
	if !reconnected.Load() {
		t.Errorf("the deletion never came while the table was read, or the log does not have %q", reconnected.text)
	}
}

// containing is true once a text was written to it.
type containing struct {
	text string
	atomic.Bool
}

func (c *containing) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		c.Store(true)
	}
	return len(p), nil
}
