// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/pkg/network"
)

// An audit compares all rows of a network with the API although no event has changed
// anything. It corrects what a lost event, or a defect of the zone, has left.
const (
	// auditInterval is how often each network is audited. The audits are spread over it: at
	// 500 networks one takes place every 1.2 s.
	auditInterval = 10 * time.Minute
	// auditConfirm is how long a difference must exist before an audit corrects it: the
	// informers' caches are ahead of their events.
	auditConfirm = 5 * time.Second
)

// auditKey is the key in queue that audits a network.
func auditKey(name string) string { return keyAudit + "/" + name }

// syncAudit audits the network of the key or, for keyAudit, the next one.
func (z *Zone) syncAudit(key string) {
	if _, name, ok := strings.Cut(key, keyAudit+"/"); ok {
		z.queue.AddAudit(name)
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	names := map[string]struct{}{network.DefaultName: {}}
	for _, name := range z.nadIndex.Networks() {
		names[name] = struct{}{}
	}
	z.queue.AddAfter(keyAudit, auditInterval/time.Duration(len(names)))
	sorted := slices.Sorted(maps.Keys(names))
	i, last := slices.BinarySearch(sorted, z.audited)
	if last {
		i++
	}
	if i == len(sorted) {
		i = 0
		z.queue.Add(keyCleanup)
		z.queue.Add(keyChassis)
	}
	z.audited = sorted[i]
	z.queue.AddAudit(z.audited)
}

// audit compares a network's rows with the API. It corrects differences that an earlier
// audit has seen.
func (z *Zone) audit(ctx context.Context, name string, j job) error {
	if !j.known {
		return nil // keyCleanup removes what is left of it
	}
	ops, err := z.operations(ctx, name, j)
	if err != nil {
		return nil //nolint:nilerr // the network's next event, or the next connection, reports it
	}
	seen := make(map[string]struct{}, len(ops))
	for _, op := range ops {
		seen[op.String()] = struct{}{}
	}
	z.mu.Lock()
	before := z.suspects[name]
	if len(ops) == 0 {
		delete(z.suspects, name)
	} else {
		z.suspects[name] = seen
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
