// SPDX-License-Identifier: Apache-2.0

package ledger

import "sync"

// Waiting knows whose deletion waits for the pods of which NAD, so that a pod
// that leaves wakes the right one. The zero value is empty; it is safe for
// concurrent use.
type Waiting[K comparable] struct {
	mu sync.Mutex
	by map[string]K // by NAD key
}

// Add notes that the NAD's pods hold up what k wants to do.
func (w *Waiting[K]) Add(nadKey string, k K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string]K{}
	}
	w.by[nadKey] = k
}

// Done notes that nobody waits for the NAD's pods.
func (w *Waiting[K]) Done(nadKey string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, nadKey)
}

// For is who waits for pods to leave the NAD.
func (w *Waiting[K]) For(nadKey string) (K, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, ok := w.by[nadKey]
	return k, ok
}
