// SPDX-License-Identifier: Apache-2.0

// Package vsdb is the Open_vSwitch database as Go types, generated from the
// schema of Open vSwitch 3.5 (Debian 13), the oldest version supported: newer
// schemas only add.
package vsdb

//go:generate go run github.com/ovn-kubernetes/libovsdb/cmd/modelgen -extended -p vsdb -o . vswitch.ovsschema
