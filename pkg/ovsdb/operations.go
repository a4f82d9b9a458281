// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// ByUUID returns the condition that selects one row.
func ByUUID(id string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: id})}
}

// RequireRow returns the operation that makes a transaction fail if the row does not
// exist. To change a missing row is no error.
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
