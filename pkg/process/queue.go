// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Backoff of a key whose reconcile fails. The first retry comes soon, as most
// failures are conflicts with another writer.
const firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second

// NewRateLimiter is an exponential backoff per key. It does not limit all keys
// together: a start with hundreds of networks must not be throttled.
func NewRateLimiter[K comparable]() workqueue.TypedRateLimiter[K] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstRetry, lastRetry)
}

// Queue is a queue of keys to reconcile.
type Queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
}

// NewQueue is an empty queue with the backoff of NewRateLimiter. name is its label in metrics, which
// may be nil.
func NewQueue[K comparable](name string, metrics *QueueMetrics) Queue[K] {
	config := workqueue.TypedRateLimitingQueueConfig[K]{Name: name}
	if metrics != nil {
		config.MetricsProvider = metrics
	}
	return Queue[K]{workqueue.NewTypedRateLimitingQueueWithConfig(NewRateLimiter[K](), config)}
}

// Run starts workers, which reconcile keys, and returns when ctx has ended and
// the workers are done. If reconcile fails, Run calls failed with the number of
// attempts and requeues the key with backoff.
func (q Queue[K]) Run(ctx context.Context, workers int, reconcile func(context.Context, K) error, failed func(key K, attempts int, err error)) {
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	var wg sync.WaitGroup
	for range max(workers, 1) {
		wg.Go(func() {
			for {
				key, shutDown := q.Get()
				if shutDown {
					return
				}
				if err := reconcile(ctx, key); err != nil && ctx.Err() == nil {
					failed(key, q.NumRequeues(key)+1, err)
					q.AddRateLimited(key)
				} else {
					q.Forget(key)
				}
				q.Done(key)
			}
		})
	}
	wg.Wait()
}
