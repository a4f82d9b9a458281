// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueue: a failed key is retried with backoff, and the backoff is reset
// after a success.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		q := NewQueue[string]("test", nil)
		start, failures := time.Now(), 3
		var reconciles []time.Duration
		var attempts []int
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.Run(ctx, 0, func(context.Context, string) error {
				reconciles = append(reconciles, time.Since(start))
				if len(reconciles) <= failures {
					return errors.New("conflict")
				}
				return nil
			}, func(key string, n int, err error) {
				if key != "a" || err.Error() != "conflict" {
					t.Errorf("failed with %q, %v", key, err)
				}
				attempts = append(attempts, n)
			})
		}()
		q.Add("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []time.Duration{0, firstRetry, 3 * firstRetry, 7 * firstRetry}; !reflect.DeepEqual(reconciles, want) {
			t.Errorf("reconciled after %v, want %v", reconciles, want)
		}
		if want := []int{1, 2, 3}; !reflect.DeepEqual(attempts, want) {
			t.Errorf("attempts %v, want %v", attempts, want)
		}
		if n := q.NumRequeues("a"); n != 0 {
			t.Errorf("%d requeues after a success", n)
		}
		stop()
		<-done
	})
}

// TestQueueStop: a reconcile that the stop interrupts is not reported as failed.
func TestQueueStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	q := NewQueue[string]("test", nil)
	q.Add("a")
	q.Run(ctx, 2, func(ctx context.Context, _ string) error {
		stop()
		return ctx.Err()
	}, func(key string, _ int, err error) {
		t.Errorf("%s failed: %v", key, err)
	})
}
