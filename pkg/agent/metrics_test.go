// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"bulkhead/pkg/process/metricsdoc"
)

// TestMetricsDocumented: docs/metrics.md lists the agent's metrics, and no others.
func TestMetricsDocumented(t *testing.T) {
	queue := NewQueue()
	a := New(Parts{Cache: NewCache(), Queue: queue, Failures: NewFailures(queue)})
	metricsdoc.Check(t, "Agent", a.registry)
}
