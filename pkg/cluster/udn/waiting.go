// SPDX-License-Identifier: Apache-2.0

package udn

import "sync"

// waiting knows whose deletions wait for the pods of which NAD, so that a pod
// that leaves wakes the right one.
type waiting struct {
	mu sync.Mutex
	by map[string]Owner // NAD key → whose deletion its pods hold up
}

func (w *waiting) add(nadKey string, o Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string]Owner{}
	}
	w.by[nadKey] = o
}

func (w *waiting) done(nadKey string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, nadKey)
}

// owner is who waits for pods to leave the NAD.
func (w *waiting) owner(nadKey string) (Owner, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, ok := w.by[nadKey]
	return o, ok
}
