// SPDX-License-Identifier: Apache-2.0

// Package ovn is the zone role: it keeps this node's OVN northbound database
// as the networks, nodes and pods of the Kubernetes API say it should be, and
// gives pods on Layer 3 networks their addresses.
//
// build_*.go make rows of a network from (network, this node, inputs), diff.go
// compares them with the rows that carry our mark, apply.go runs what differs
// as one transaction. zone*.go feed them from informers.
package ovn
