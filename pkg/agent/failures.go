// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"sync"
	"time"
)

// Failures holds what fails now: keys of the queue, and components that run
// beside the queue. A change enqueues the report.
type Failures struct {
	queue *Queue

	mu         sync.Mutex
	keys       map[key]failure
	components map[string]string // component → last error
}

// failure is the last error of a key, and since when the key fails.
type failure struct {
	err   error
	since time.Time
}

// NewFailures is empty.
func NewFailures(queue *Queue) *Failures {
	return &Failures{queue: queue, keys: map[key]failure{}, components: map[string]string{}}
}

// RecordComponent records the outcome of a component that runs beside the
// queue; a nil error is success.
func (f *Failures) RecordComponent(component string, err error) {
	message := ""
	if err != nil {
		message = component + ": " + err.Error()
	}
	f.mu.Lock()
	changed := f.components[component] != message
	f.components[component] = message
	f.mu.Unlock()
	if changed {
		f.queue.EnqueueReport()
	}
}

// record records the outcome of a reconcile. A key that fails again keeps its failure until a reconcile succeeds.
func (f *Failures) record(k key, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, failed := f.keys[k]
	if err == nil {
		delete(f.keys, k)
	} else {
		now := failure{err, old.since}
		if !failed {
			now.since = time.Now()
		}
		f.keys[k] = now
	}
	changed := failed != (err != nil) || failed && old.err.Error() != err.Error()
	if (changed || k.kind == kindAll) && k.kind != kindReport {
		f.queue.enqueueBatched(kindReport)
	}
}

// current returns a copy of what fails.
func (f *Failures) current() (keys map[key]failure, components []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, message := range f.components {
		if message != "" {
			components = append(components, message)
		}
	}
	return maps.Clone(f.keys), components
}
