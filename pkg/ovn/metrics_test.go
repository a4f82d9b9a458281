// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"bulkhead/pkg/config"
	"bulkhead/test/metricsdoc"
)

// TestMetricsDocumented: docs/metrics.md lists the zone's metrics, and no others.
func TestMetricsDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := NewZone(config.Config{Kubernetes: config.Kubernetes{NodeName: "node1"}}, nil, nil, registry, quietLog()); err != nil {
		t.Fatal(err)
	}
	metricsdoc.Check(t, "Zone controller", registry)
	metricsdoc.CheckRegistered(t, "Work queues", registry)
}
