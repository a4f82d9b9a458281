// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// recent remembers what was written until the cache has caught up with it.
// Entries live for as long as that takes, normally milliseconds.
type writeCache struct {
	mu       sync.Mutex
	bySource map[Source]map[string]record // by mirror's name
}

type record struct {
	mirror   Mirror
	deleted  bool
	uncached bool // removed before the cache had what was written: it comes and goes yet
	at       time.Time
}

// trust is how long a write is believed that the cache does not show: its
// event may have been lost in a gap of the watch.
const writeTTL = time.Minute

// atLeast tells whether version a is b or a later one; a version that is no
// number is taken for later, which costs at most a write.
func atLeast(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c >= 0
}

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

// merge corrects the mirrors that the cache has of a source.
func (r *writeCache) overlay(s Source, cached map[string]Mirror, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, rec := range r.bySource[s] {
		c, ok := cached[name]
		switch {
		case now.Sub(rec.at) > writeTTL:
			r.drop(s, name)
		case rec.deleted && ok && (c.UID == rec.mirror.UID || atLeast(rec.mirror.ResourceVersion, c.ResourceVersion)):
			delete(cached, name) // it, or one before it
		case rec.deleted && (ok || !rec.uncached), ok && atLeast(c.ResourceVersion, rec.mirror.ResourceVersion):
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

// seen is told what the cache now has; true means that it is our own write,
// which needs no answer.
func (r *writeCache) observe(s Source, name, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.bySource[s][name]
	if !ok || rec.deleted || !atLeast(version, rec.mirror.ResourceVersion) {
		return false
	}
	r.drop(s, name)
	return version == rec.mirror.ResourceVersion
}

// gone is told that the mirror was deleted; true means that we did it.
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
