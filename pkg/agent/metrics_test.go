// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/loader"
	"bulkhead/test/metricsdoc"
)

// TestMetricsDocumented: docs/metrics.md lists the agent's metrics, and no others.
func TestMetricsDocumented(t *testing.T) {
	metrics := prometheus.NewRegistry()
	queue := NewQueue(metrics)
	defer queue.keys.ShutDown()
	a := New(Parts{Cache: NewCache(), Queue: queue, Failures: NewFailures(queue), Metrics: metrics, Features: func() []Feature { return nil }})
	metricsdoc.Check(t, "Agent", a.registry)
	metricsdoc.CheckRegistered(t, "Work queues", a.registry)
}

// TestMetricValuesDocumented: docs/metrics.md lists the values of the labels
// reason and counter.
func TestMetricValuesDocumented(t *testing.T) {
	var reasons []string
	unknown := ^loader.Reason(0)
	for r := loader.Reason(0); r.Text() != unknown.Text(); r++ {
		reasons = append(reasons, fmt.Sprintf("| `%s` | %s | %s |", r, r.Verdict(), r.Text()))
	}
	metricsdoc.CheckRows(t, "Reasons", reasons)
	var counters []string
	for _, name := range firewall.Build(firewall.Inputs{}).Counters {
		counters = append(counters, "| `"+name+"` |")
	}
	metricsdoc.CheckRows(t, "nftables counters", counters)
}
