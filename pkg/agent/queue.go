// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bulkhead/pkg/process"
)

// kind is what a key stands for.
type kind int

const (
	kindNetwork   kind = iota // VRF, routes and rules of the network with the key's id
	kindGateway               // the external bridge's flows of the network with the key's id
	kindPorts                 // management ports of all networks
	kindHosts                 // eBPF and nft: host-network processes and kubelet
	kindServers               // the node's servers, while pods have host ports
	kindConflicts             // what other programs have configured
	kindNode                  // chassis, facts, annotations
	kindReport                // condition, events, failures
	kindAll
)

type key struct {
	kind kind
	id   int
}

func (k key) String() string {
	switch k.kind {
	case kindNetwork:
		return fmt.Sprintf("network id %d", k.id)
	case kindGateway:
		return fmt.Sprintf("external bridge, network id %d", k.id)
	case kindPorts:
		return "management ports"
	case kindHosts:
		return "host network"
	case kindServers:
		return "servers of the node"
	case kindConflicts:
		return "other programs' configuration"
	case kindNode:
		return "node"
	case kindReport:
		return "node condition"
	default:
		return "everything"
	}
}

// batchDelay is how long events of the node-wide kinds are batched, so that a
// start with hundreds of networks makes few transactions.
const batchDelay = 20 * time.Millisecond

// Queue is the agent's one work queue. Its exported methods enqueue nothing
// until the cache is synced: the agent then enqueues everything.
type Queue struct {
	keys   process.Queue[key]
	synced atomic.Bool // before that, nothing may be removed
}

// NewQueue is an empty queue. It registers its metrics with r, unless r is nil.
func NewQueue(r prometheus.Registerer) *Queue {
	return &Queue{keys: process.NewQueue[key]("agent", process.NewQueueMetrics(r))}
}

// EnqueueNetworks enqueues networks by id, and the parts that depend on all networks.
func (q *Queue) EnqueueNetworks(ids ...int) {
	if len(ids) == 0 || !q.synced.Load() {
		return
	}
	for _, id := range ids {
		q.keys.Add(key{kindNetwork, id})
	}
	q.EnqueueGateways(ids...)
	q.enqueueBatched(kindPorts, kindHosts)
}

// EnqueueGateways enqueues the external bridge's flows of networks.
func (q *Queue) EnqueueGateways(ids ...int) {
	if !q.synced.Load() {
		return
	}
	for _, id := range ids {
		q.keys.AddAfter(key{kindGateway, id}, batchDelay)
	}
}

// enqueueNetworkBatched enqueues a network whose kernel state changed. The agent's own
// changes cause events too.
func (q *Queue) enqueueNetworkBatched(id int) {
	if q.synced.Load() {
		q.keys.AddAfter(key{kindNetwork, id}, batchDelay)
	}
}

// EnqueueHosts enqueues the host network: processes, locked addresses, interfaces.
func (q *Queue) EnqueueHosts() { q.enqueueIfSynced(kindHosts) }

// EnqueueNode enqueues the node: chassis, facts and annotations.
func (q *Queue) EnqueueNode() { q.enqueueIfSynced(kindNode) }

// conflictDelay is how long changes by other programs are batched: each read lists all policy rules and chains,
// and a program may change its own many times a second.
const conflictDelay = time.Second

// enqueueConflicts enqueues what other programs have configured.
func (q *Queue) enqueueConflicts() {
	if q.synced.Load() {
		q.keys.AddAfter(key{kind: kindConflicts}, conflictDelay)
	}
}

// EnqueueReport enqueues the report of the node's condition, events and failures.
func (q *Queue) EnqueueReport() { q.enqueueIfSynced(kindReport) }

// EnqueueAll enqueues everything.
func (q *Queue) EnqueueAll() {
	if q.synced.Load() {
		q.keys.Add(key{kind: kindAll})
	}
}

func (q *Queue) enqueueIfSynced(k kind) {
	if q.synced.Load() {
		q.enqueueBatched(k)
	}
}

// enqueueBatched enqueues kinds of which there is one key.
func (q *Queue) enqueueBatched(kinds ...kind) {
	for _, k := range kinds {
		q.keys.AddAfter(key{kind: k}, batchDelay)
	}
}
