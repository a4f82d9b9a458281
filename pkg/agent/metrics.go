// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// reconcileMetrics measure reconciles by kind.
type reconcileMetrics struct {
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
}

func newReconcileMetrics() reconcileMetrics {
	return reconcileMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "bulkhead_agent_reconcile_seconds",
			Help: "Duration of a reconcile.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}, []string{"what"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bulkhead_agent_reconcile_errors_total",
			Help: "Reconciles that failed and are retried."}, []string{"what"}),
	}
}

// label is the value of the metrics' label.
func (k kind) label() string {
	return [...]string{kindNetwork: "network", kindGateway: "gateway", kindPorts: "ports", kindHosts: "hosts", kindServers: "servers",
		kindConflicts: "conflicts", kindNode: "node", kindReport: "report", kindAll: "all"}[k]
}

func (m reconcileMetrics) observe(k kind, took time.Duration, err error) {
	m.seconds.WithLabelValues(k.label()).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(k.label()).Inc()
	}
}

var (
	descNetworks = prometheus.NewDesc("bulkhead_agent_networks", "Networks on this node, by state.", []string{"state"}, nil)
	descLocked   = prometheus.NewDesc("bulkhead_agent_locked_addresses", "Default-network addresses that only kubelet may reach.", nil, nil)
	descDegraded = prometheus.NewDesc("bulkhead_agent_degraded", "1 while the Node condition BulkheadDegraded is true.", nil, nil)
	descFeature  = prometheus.NewDesc("bulkhead_agent_feature", "1 if the kernel has the feature, 0 if not.", []string{"feature"}, nil)
	descVerdict  = prometheus.NewDesc("bulkhead_ebpf_decisions_total", "Decisions of the eBPF programs.", []string{"verdict", "reason"}, nil)
	descNFT      = prometheus.NewDesc("bulkhead_nft_packets_total", "Packets that matched a named counter of the nft table.", []string{"counter"}, nil)
)

// collector reads the agent's state at each scrape.
type collector struct{ states *stateReader }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descNetworks, descLocked, descDegraded, descFeature, descVerdict, descNFT} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	oneIf := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	states := map[string]int{StateReady: 0, StateWaiting: 0, StateError: 0, StateNoSubnet: 0}
	for _, n := range c.states.networkStates(nil, nil) {
		states[n.State]++
	}
	for s, n := range states {
		gauge(descNetworks, float64(n), s)
	}
	gauge(descLocked, float64(len(c.states.cache.Locked())))
	gauge(descDegraded, oneIf(condition(c.states.reporter.problems()).True()))
	for _, f := range c.states.reporter.features() {
		gauge(descFeature, oneIf(f.OK), f.Name)
	}
	for _, n := range c.states.counters.ebpfCounters() {
		ch <- prometheus.MustNewConstMetric(descVerdict, prometheus.CounterValue, float64(n.Count), n.Verdict.String(), n.Reason.String())
	}
	for name, v := range c.states.counters.nftCounters() {
		ch <- prometheus.MustNewConstMetric(descNFT, prometheus.CounterValue, float64(v), name)
	}
}
