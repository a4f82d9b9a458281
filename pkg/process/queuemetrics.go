// SPDX-License-Identifier: Apache-2.0

package process

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// QueueMetrics are the metrics of a process's queues. Names and meanings are those of
// controller-runtime, so that one alert covers all processes.
type QueueMetrics struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

// NewQueueMetrics registers the metrics with r. It returns nil if r is nil.
func NewQueueMetrics(r prometheus.Registerer) *QueueMetrics {
	if r == nil {
		return nil
	}
	label := []string{"name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "workqueue", Name: name, Help: help}, label)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "workqueue", Name: name, Help: help}, label)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "workqueue", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}, label)
	}
	m := &QueueMetrics{
		depth:      gauge("depth", "Keys that wait for a reconcile."),
		unfinished: gauge("unfinished_work_seconds", "Sum of the ages of the reconciles that run."),
		longest:    gauge("longest_running_processor_seconds", "Age of the oldest reconcile that runs."),
		adds:       counter("adds_total", "Keys that were enqueued."),
		retries:    counter("retries_total", "Keys that were enqueued again because their reconcile failed."),
		latency:    histogram("queue_duration_seconds", "Time that a key waited for a reconcile."),
		work:       histogram("work_duration_seconds", "Duration of a reconcile."),
	}
	r.MustRegister(m.depth, m.unfinished, m.longest, m.adds, m.retries, m.latency, m.work)
	return m
}

var _ workqueue.MetricsProvider = &QueueMetrics{}

// NewDepthMetric implements workqueue.MetricsProvider, as do the methods below.
func (m *QueueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return m.depth.WithLabelValues(name)
}

// NewAddsMetric makes a queue's counter of enqueued keys.
func (m *QueueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return m.adds.WithLabelValues(name)
}

// NewLatencyMetric makes a queue's histogram of waiting times.
func (m *QueueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return m.latency.WithLabelValues(name)
}

// NewWorkDurationMetric makes a queue's histogram of reconciles.
func (m *QueueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return m.work.WithLabelValues(name)
}

// NewUnfinishedWorkSecondsMetric makes a queue's gauge of the running reconciles' ages.
func (m *QueueMetrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.unfinished.WithLabelValues(name)
}

// NewLongestRunningProcessorSecondsMetric makes a queue's gauge of the oldest running reconcile's age.
func (m *QueueMetrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.longest.WithLabelValues(name)
}

// NewRetriesMetric makes a queue's counter of retries.
func (m *QueueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return m.retries.WithLabelValues(name)
}
