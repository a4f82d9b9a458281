// SPDX-License-Identifier: Apache-2.0

// Package sbdb is the OVN southbound database as Go types, generated from the
// schema of OVN 25.03 (Debian 13), the oldest version supported: newer schemas
// only add.
package sbdb

//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p sbdb -o . ../schema/ovn-sb.ovsschema
