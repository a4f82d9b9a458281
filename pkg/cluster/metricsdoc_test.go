// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"bulkhead/test/metricsdoc"
)

// TestMetricsDocumented: docs/metrics.md lists the cluster controller's metrics,
// and no others. Run registers the collector when the process becomes the leader;
// everything else is in controller-runtime's registry from the start.
func TestMetricsDocumented(t *testing.T) {
	registry, ok := ctrlmetrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatalf("controller-runtime's registry is a %T, which describes no metrics", ctrlmetrics.Registry)
	}
	metricsdoc.Check(t, "Cluster controller", newCollector(nil, nil, nil, nil), registry)
	metricsdoc.CheckRegistered(t, "Libraries", registry)
}
