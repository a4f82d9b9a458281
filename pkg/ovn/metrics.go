// SPDX-License-Identifier: Apache-2.0

package ovn

import "github.com/prometheus/client_golang/prometheus"

// metrics are a zone's metrics. None has a label whose values grow with the number
// of networks.
type metrics struct {
	networks  prometheus.Histogram
	pods      prometheus.Histogram
	refused   prometheus.Counter
	failing   prometheus.Gauge
	reconnect prometheus.Counter
	learned   prometheus.Gauge
	// corrections are those of audits.
	corrections prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	buckets := prometheus.ExponentialBuckets(0.001, 2, 14)
	m := metrics{
		networks:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bulkhead_zone_network_sync_seconds", Help: "Time to reconcile one network's OVN rows.", Buckets: buckets}),
		pods:        prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bulkhead_zone_pod_sync_seconds", Help: "Time to assign one pod's addresses and write its annotation.", Buckets: buckets}),
		refused:     prometheus.NewCounter(prometheus.CounterOpts{Name: "bulkhead_zone_pods_refused_total", Help: "Failed attempts to assign a pod's networks."}),
		failing:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "bulkhead_zone_networks_failing", Help: "Networks that fail on this node: they cannot be built, or their transaction fails. The log names them."}),
		reconnect:   prometheus.NewCounter(prometheus.CounterOpts{Name: "bulkhead_zone_nb_connects_total", Help: "Connects to the northbound database."}),
		learned:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "bulkhead_zone_bgp_routes", Help: "Routes through the external bridge in the main table that BGP has learned on this node."}),
		corrections: prometheus.NewCounter(prometheus.CounterOpts{Name: "bulkhead_zone_audit_corrections_total", Help: "Changes of OVN rows that only a periodic audit found necessary: each is a defect. The log has the first of each network."}),
	}
	if r != nil {
		r.MustRegister(m.networks, m.pods, m.refused, m.failing, m.reconnect, m.learned, m.corrections)
	}
	return m
}
