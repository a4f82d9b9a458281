// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"sync"
	"time"

	"bulkhead/pkg/kube"
)

// writeCache holds our writes until the informer cache shows them, normally for
// milliseconds.
type writeCache struct {
	mu       sync.Mutex
	bySource map[Source]map[string]record // by name of the mirror
}

type record struct {
	mirror   Mirror
	deleted  bool
	uncached bool // deleted before the cache showed it: create and delete events follow
	at       time.Time
}

// writeTTL limits the lifetime of a record whose event never arrives, because a
// gap in the watch can lose it.
const writeTTL = time.Minute

func (r *writeCache) written(s Source, m Mirror, now time.Time) { r.set(s, record{mirror: m, at: now}) }

func (r *writeCache) deleted(s Source, m Mirror, now time.Time) {
	r.set(s, record{mirror: Mirror{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}, deleted: true, at: now})
}

func (r *writeCache) set(s Source, rec record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bySource == nil {
		r.bySource = map[Source]map[string]record{}
	}
	if r.bySource[s] == nil {
		r.bySource[s] = map[string]record{}
	}
	_, pending := r.bySource[s][rec.mirror.Name]
	rec.uncached = rec.deleted && pending
	r.bySource[s][rec.mirror.Name] = rec
}

// overlay applies our writes to the mirrors of a source in the informer cache.
func (r *writeCache) overlay(s Source, cached map[string]Mirror, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, rec := range r.bySource[s] {
		c, ok := cached[name]
		switch {
		case now.Sub(rec.at) > writeTTL:
			r.drop(s, name)
		case rec.deleted && ok && (c.UID == rec.mirror.UID || kube.AtLeast(rec.mirror.ResourceVersion, c.ResourceVersion)):
			delete(cached, name) // the deleted mirror, or an earlier one of that name
		case rec.deleted && (ok || !rec.uncached), ok && kube.AtLeast(c.ResourceVersion, rec.mirror.ResourceVersion):
			r.drop(s, name)
		case rec.deleted:
		default:
			cached[name] = rec.mirror
		}
	}
}

func (r *writeCache) drop(s Source, name string) {
	delete(r.bySource[s], name)
	if len(r.bySource[s]) == 0 {
		delete(r.bySource, s)
	}
}

// observe records that the informer cache shows a mirror. It returns true for our
// own write, which needs no reconcile.
func (r *writeCache) observe(s Source, name, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.bySource[s][name]
	if !ok || rec.deleted || !kube.AtLeast(version, rec.mirror.ResourceVersion) {
		return false
	}
	r.drop(s, name)
	return version == rec.mirror.ResourceVersion
}

// observeDelete records that the informer cache shows a deletion. It returns true
// if this process deleted the mirror.
func (r *writeCache) observeDelete(s Source, m Mirror) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.bySource[s][m.Name]
	if !ok || rec.mirror.UID != m.UID {
		return false
	}
	r.drop(s, m.Name)
	return rec.deleted
}
