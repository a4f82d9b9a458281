// SPDX-License-Identifier: Apache-2.0

package ovn

import "github.com/prometheus/client_golang/prometheus"

// metrics are what an operator watches of a zone. None has a label that grows
// with the number of networks.
type metrics struct {
	networks  prometheus.Histogram
	pods      prometheus.Histogram
	refused   prometheus.Counter
	failing   prometheus.Gauge
	reconnect prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	buckets := prometheus.ExponentialBuckets(0.001, 2, 14)
	m := metrics{
		networks:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bulkhead_zone_network_sync_seconds", Help: "Time to bring one network's OVN rows in line.", Buckets: buckets}),
		pods:      prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bulkhead_zone_pod_sync_seconds", Help: "Time to give one pod its addresses and annotation.", Buckets: buckets}),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: "bulkhead_zone_pods_refused_total", Help: "Times that a pod could not be given a network."}),
		failing:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "bulkhead_zone_networks_failing", Help: "Networks that are not as they should be on this node: refused, or their transaction fails. The log names them."}),
		reconnect: prometheus.NewCounter(prometheus.CounterOpts{Name: "bulkhead_zone_nb_connects_total", Help: "Connects to the northbound database."}),
	}
	if r != nil {
		r.MustRegister(m.networks, m.pods, m.refused, m.failing, m.reconnect)
	}
	return m
}
