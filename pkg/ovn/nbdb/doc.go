// SPDX-License-Identifier: Apache-2.0

// Package nbdb is the OVN northbound database as Go types, generated from the
// schema of OVN 25.03 (Debian 13), the oldest version supported: newer schemas
// only add.
package nbdb

//go:generate go run bulkhead/hack/modelgen -p nbdb -o . ../schema/ovn-nb.ovsschema
