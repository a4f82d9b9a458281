// SPDX-License-Identifier: Apache-2.0

// Package ovn is the zone controller: it reconciles this node's OVN northbound
// database with the networks, nodes and pods of the Kubernetes API, and
// allocates the addresses of pods on Layer 3 networks.
//
// build*.go build the desired rows of a network from (network, this node,
// inputs), diff.go compares them with the rows that carry our marks, apply.go
// applies the difference in one transaction. zone*.go feed them from informers.
package ovn
