// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"
	"sync"

	"bulkhead/pkg/process"
)

// unitQueue is a queue of networks with the units that are to be reconciled, and of
// other keys.
type unitQueue struct {
	process.Queue[string]

	mu     sync.Mutex
	dirty  map[string]*unitSet // by network
	audits map[string]struct{} // networks to audit
}

func newUnitQueue(metrics *process.QueueMetrics) *unitQueue {
	return &unitQueue{Queue: process.NewQueue[string]("networks", metrics), dirty: map[string]*unitSet{}, audits: map[string]struct{}{}}
}

// AddUnits enqueues units of a network, or the whole network for none.
func (q *unitQueue) AddUnits(network string, units ...Unit) {
	q.mark(network, units...)
	q.Add(network)
}

// mark adds units that the next reconcile of the network takes. It does not enqueue the network: after a failed reconcile the
// queue does.
func (q *unitQueue) mark(network string, units ...Unit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dirty[network] == nil {
		q.dirty[network] = &unitSet{}
	}
	q.dirty[network].add(units...)
}

// AddAudit enqueues an audit of a network.
func (q *unitQueue) AddAudit(network string) {
	q.mu.Lock()
	q.audits[network] = struct{}{}
	q.mu.Unlock()
	q.Add(network)
}

// take removes and returns the network's units, nil for all. ok is false if there is
// nothing to reconcile. audit is true if nothing but an audit was enqueued. An audit of a
// network that has units to reconcile is dropped: the next round has another.
func (q *unitQueue) take(network string) (units []Unit, audit, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, audit = q.audits[network]
	delete(q.audits, network)
	dirty := q.dirty[network]
	if dirty == nil {
		return nil, audit, audit
	}
	delete(q.dirty, network)
	return dirty.list(), false, true
}

// unitSet is a set of a network's units.
type unitSet struct {
	all   bool
	units map[Unit]struct{}
}

// add adds units, or all for none.
func (s *unitSet) add(units ...Unit) {
	if len(units) == 0 {
		s.all = true
	}
	if s.units == nil {
		s.units = map[Unit]struct{}{}
	}
	for _, u := range units {
		s.units[u] = struct{}{}
	}
}

func (s *unitSet) has(u Unit) bool {
	_, ok := s.units[u]
	return ok || s.all
}

// list returns the units in order, nil for all.
func (s *unitSet) list() []Unit {
	if s.all {
		return nil
	}
	out := make([]Unit, 0, len(s.units))
	for u := range s.units {
		out = append(out, u)
	}
	slices.SortFunc(out, compareUnits)
	return out
}
