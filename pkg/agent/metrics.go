// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the agent's own; what others count is read at each scrape.
type metrics struct {
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
}

func newMetrics() metrics {
	return metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "bulkhead_agent_reconcile_seconds",
			Help: "Time to make one thing of the node what it should be.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}, []string{"what"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bulkhead_agent_reconcile_errors_total",
			Help: "Attempts that failed and are made again."}, []string{"what"}),
	}
}

func (k kind) String() string {
	return [...]string{"network", "ports", "hosts", "node", "report", "all"}[k]
}

func (m metrics) observe(k key, took time.Duration, err error) {
	m.seconds.WithLabelValues(k.kind.String()).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(k.kind.String()).Inc()
	}
}

var (
	descNetworks = prometheus.NewDesc("bulkhead_agent_networks", "Networks on this node, by state.", []string{"state"}, nil)
	descPods     = prometheus.NewDesc("bulkhead_agent_locked_addresses", "Default-network addresses that only kubelet may reach.", nil, nil)
	descDegraded = prometheus.NewDesc("bulkhead_agent_degraded", "1 while the Node condition BulkheadDegraded is true.", nil, nil)
	descFeature  = prometheus.NewDesc("bulkhead_agent_feature", "1 for a feature of the kernel that is there, 0 for one that is missing.", []string{"feature"}, nil)
	descVerdict  = prometheus.NewDesc("bulkhead_ebpf_decisions_total", "Decisions of the eBPF programs.", []string{"verdict", "reason"}, nil)
	descNFT      = prometheus.NewDesc("bulkhead_nft_packets_total", "Packets that met a named counter of the nft table.", []string{"counter"}, nil)
)

// Registry is what /metrics serves.
func (a *Agent) Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(a.metrics.seconds, a.metrics.errors, collector{a},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

type collector struct{ a *Agent }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descNetworks, descPods, descDegraded, descFeature, descVerdict, descNFT} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	states := map[string]int{StateReady: 0, StateWaiting: 0, StateError: 0}
	for _, n := range c.a.networkStates(nil, nil) {
		states[n.State]++
	}
	for s, n := range states {
		gauge(descNetworks, float64(n), s)
	}
	gauge(descPods, float64(len(c.a.Store.Locked())))
	degraded := 0.0
	if conditionOf(c.a.Problems()).True() {
		degraded = 1
	}
	gauge(descDegraded, degraded)
	for _, f := range c.a.Features {
		v := 0.0
		if f.OK {
			v = 1
		}
		gauge(descFeature, v, f.Name)
	}
	for _, n := range c.a.ebpfCounters() {
		ch <- prometheus.MustNewConstMetric(descVerdict, prometheus.CounterValue, float64(n.Count), n.Verdict.String(), n.Reason.String())
	}
	for name, v := range c.a.nftCounters() {
		ch <- prometheus.MustNewConstMetric(descNFT, prometheus.CounterValue, float64(v), name)
	}
}
