// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestQueueMetrics: a reconcile that does not end is visible in its age, and the keys behind it in the depth.
func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		registry := prometheus.NewRegistry()
		q := NewQueue[string]("pods", NewQueueMetrics(registry))
		unblock, failures := make(chan struct{}), 2
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.Run(ctx, 1, func(_ context.Context, key string) error {
				if key == "stuck" {
					<-unblock
				} else if failures > 0 {
					failures--
					return errors.New("conflict")
				}
				return nil
			}, func(string, int, error) {})
		}()
		q.Add("stuck")
		synctest.Wait()
		q.Add("waits")
		q.Add("waits")
		time.Sleep(time.Minute)
		synctest.Wait()
		wantMetrics(t, registry, map[string]float64{
			"workqueue_depth": 1, "workqueue_adds_total": 2, "workqueue_retries_total": 0,
			"workqueue_longest_running_processor_seconds": 60, "workqueue_unfinished_work_seconds": 60,
			"workqueue_queue_duration_seconds": 1, "workqueue_work_duration_seconds": 0,
		})
		close(unblock)
		time.Sleep(time.Minute)
		synctest.Wait()
		wantMetrics(t, registry, map[string]float64{
			"workqueue_depth": 0, "workqueue_adds_total": 4, "workqueue_retries_total": 2,
			"workqueue_longest_running_processor_seconds": 0, "workqueue_unfinished_work_seconds": 0,
			"workqueue_queue_duration_seconds": 4, "workqueue_work_duration_seconds": 4,
		})
		stop()
		<-done
		time.Sleep(time.Minute) // the queue's own goroutine ends with its next tick
	})
}

// wantMetrics compares the values of the queue "pods"; of a histogram it is the count.
func wantMetrics(t *testing.T, r *prometheus.Registry, want map[string]float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if l := m.Label; len(l) != 1 || l[0].GetName() != "name" || l[0].GetValue() != "pods" {
				t.Errorf("%s has the labels %v", f.GetName(), l)
			}
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("metrics %v, want those of %v", got, want)
	}
}
