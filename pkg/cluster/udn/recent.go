// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// recent remembers what was written until the cache has caught up with it.
// Entries live for as long as that takes, normally milliseconds.
type recent struct {
	mu     sync.Mutex
	owners map[Owner]ownerRecord
	nads   map[Owner]map[string]nadRecord // by namespace
	lost   map[Owner]map[string]types.UID // by namespace
}

type ownerRecord struct {
	version    string
	finalizers []string
	conditions []metav1.Condition
}

type nadRecord struct {
	nad NAD
	at  time.Time
}

// trust is how long a NAD that the cache does not have is believed to be
// there: a deletion may have been missed in a gap of the watch.
const trust = time.Minute

// atLeast tells whether version a is b or a later one; a version that is no
// number is taken for later, which costs at most a write.
func atLeast(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c >= 0
}

// owner is the later of what the cache has and what was written.
func (r *recent) owner(o Owner, cached client.Object, conditions []metav1.Condition) ownerRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec, ok := r.owners[o]; ok {
		if !atLeast(cached.GetResourceVersion(), rec.version) {
			return rec
		}
		delete(r.owners, o)
	}
	return ownerRecord{version: cached.GetResourceVersion(), finalizers: cached.GetFinalizers(), conditions: conditions}
}

func (r *recent) setOwner(o Owner, rec ownerRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners == nil {
		r.owners = map[Owner]ownerRecord{}
	}
	r.owners[o] = rec
}

func (r *recent) setNAD(o Owner, nad NAD, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nads == nil {
		r.nads = map[Owner]map[string]nadRecord{}
	}
	if r.nads[o] == nil {
		r.nads[o] = map[string]nadRecord{}
	}
	r.nads[o][nad.Namespace] = nadRecord{nad, now}
}

// merge corrects the NADs that the cache has of an owner.
func (r *recent) merge(o Owner, cached map[string]NAD, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ns, rec := range r.nads[o] {
		c, ok := cached[ns]
		switch {
		case ok && atLeast(c.ResourceVersion, rec.nad.ResourceVersion), !ok && now.Sub(rec.at) > trust:
			r.dropNAD(o, ns)
		default:
			cached[ns] = rec.nad
		}
	}
}

// lose notes that a NAD of o's says so no more: whoever may write annotations has
// taken ours off. It is o's until it is repaired or gone.
func (r *recent) lose(o Owner, namespace string, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil {
		r.lost = map[Owner]map[string]types.UID{}
	}
	if r.lost[o] == nil {
		r.lost[o] = map[string]types.UID{}
	}
	r.lost[o][namespace] = uid
}

// found undoes lose.
func (r *recent) found(o Owner, namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lost[o], namespace)
	if len(r.lost[o]) == 0 {
		delete(r.lost, o)
	}
}

// lostNADs are the NADs of o's that do not say so.
func (r *recent) lostNADs(o Owner) map[string]types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.lost[o])
}

func (r *recent) dropNAD(o Owner, namespace string) {
	delete(r.nads[o], namespace)
	if len(r.nads[o]) == 0 {
		delete(r.nads, o)
	}
}

// seenOwner is told what the cache now has; true means that it is our own
// write, which needs no answer.
func (r *recent) seenOwner(o Owner, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.owners[o]
	if !ok || !atLeast(version, rec.version) {
		return false
	}
	delete(r.owners, o)
	return version == rec.version
}

// seenNAD is the same for a NAD.
func (r *recent) seenNAD(o Owner, namespace, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.nads[o][namespace]
	if !ok || !atLeast(version, rec.nad.ResourceVersion) {
		return false
	}
	r.dropNAD(o, namespace)
	return version == rec.nad.ResourceVersion
}

// gone is told that an owner or, with a namespace, its NAD there was deleted.
func (r *recent) gone(o Owner, namespaces ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(namespaces) == 0 {
		delete(r.owners, o)
	}
	for _, ns := range namespaces {
		r.dropNAD(o, ns)
	}
}
