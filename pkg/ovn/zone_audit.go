// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// An audit compares all rows of a network with the API although no event has changed
// anything. It corrects what a lost event, or a defect of the zone, has left.
const (
	// auditInterval is how often each network is audited. The audits are spread over it: at
	// 500 networks one takes place every 1.2 s.
	auditInterval = 10 * time.Minute
	// auditPause is the longest time between two audits: few networks are audited more often.
	auditPause = time.Minute
	// auditConfirm is how long a difference must last before an audit corrects it. Until then
	// it is taken for an event on its way: the informers' caches are ahead of their events, and
	// a namespace's deletion may arrive long before those of its services.
	auditConfirm = 30 * time.Second
)

// auditKey is the key in queue that audits a network again.
func auditKey(name string) string { return keyAudit + "/" + name }

// syncAudit enqueues the audit of the key's network or, for keyAudit, of the next one. After
// the last one, it has the leftovers of deleted networks and the remote chassis compared too.
func (z *Zone) syncAudit(key string) {
	if _, name, ok := strings.Cut(key, keyAudit+"/"); ok {
		z.queue.AddAudit(name)
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	names := z.networks()
	z.queue.AddAfter(keyAudit, min(auditInterval/time.Duration(len(names)), auditPause))
	next, found := slices.BinarySearch(names, z.audited)
	if found {
		next++
	}
	if next == len(names) {
		next = 0
		z.queue.Add(keyCleanup)
		z.queue.Add(keyChassis)
	}
	z.audited = names[next]
	delete(z.unconfirmed, z.audited) // only an audit that follows soon confirms what this one sees
	z.queue.AddAudit(z.audited)
}

// audit compares a network's rows with the API. It corrects a difference that the audit
// before has seen too.
func (z *Zone) audit(ctx context.Context, name string, j job) error {
	if !j.known {
		return nil // keyCleanup removes what is left of it
	}
	ops, err := z.operations(ctx, name, j)
	if err != nil {
		return nil //nolint:nilerr // what keeps the network from being read or built is reported when it is reconciled
	}
	seen := make(map[string]struct{}, len(ops))
	for _, op := range ops {
		seen[op.String()] = struct{}{}
	}
	z.mu.Lock()
	before := z.unconfirmed[name]
	if len(ops) == 0 {
		delete(z.unconfirmed, name)
	} else {
		z.unconfirmed[name] = seen
	}
	z.mu.Unlock()
	again := slices.DeleteFunc(slices.Sorted(maps.Keys(seen)), func(op string) bool { _, ok := before[op]; return !ok })
	if len(again) == 0 {
		if len(ops) > 0 {
			z.queue.AddAfter(auditKey(name), auditConfirm)
		}
		return nil
	}
	z.log.Warn("the network's OVN rows differ from the API although no event is pending: correcting them", "network", name, "operations", len(again), "first", again[0])
	z.metrics.corrections.Add(float64(len(again)))
	z.queue.AddUnits(name)
	return nil
}
