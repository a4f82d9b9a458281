// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// ByUUID returns the condition that selects one row.
func ByUUID(id string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: id})}
}

// RequireRow returns the operation that makes a transaction fail if the row does not
// exist. Changing a missing row is not an error.
func RequireRow(table, id string) ovsdb.Operation {
	now := 0
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Where: ByUUID(id), Columns: []string{"_uuid"}, Timeout: &now,
		Until: string(ovsdb.WaitConditionEqual), Rows: []ovsdb.Row{{"_uuid": ovsdb.UUID{GoUUID: id}}},
	}
}

// AddEventHandler adds a handler of the connection's events. A lost connection has
// no cache and no events.
func AddEventHandler(c client.Client, h *cache.EventHandlerFuncs) {
	if rows := c.Cache(); rows != nil {
		rows.AddEventHandler(h)
	}
}

// readTimeout bounds a read whose connection is lost as it begins.
const readTimeout = time.Second

// Get reads one row from a client's cache. Its error is ErrNotConnected if the connection is
// lost, even during the read, where libovsdb's own method may wait until ctx ends.
func Get(ctx context.Context, c client.Client, row model.Model) error {
	return read(ctx, c, func(ctx context.Context) error { return c.Get(ctx, row) })
}

// List reads rows from a client's cache, as Get does.
func List(ctx context.Context, c client.Client, rows any) error {
	return read(ctx, c, func(ctx context.Context) error { return c.List(ctx, rows) })
}

func read(ctx context.Context, c client.Client, f func(context.Context) error) error {
	if c.Cache() == nil {
		return ErrNotConnected
	}
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := f(limited)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.Cache() == nil { // what was read after the loss may be incomplete
		return ErrNotConnected
	}
	return err
}
