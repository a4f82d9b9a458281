// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/kube"
)

// writeCache holds our own writes until the cache has them, normally for some
// milliseconds.
type writeCache struct {
	mu       sync.Mutex
	owners   map[Owner]ownerRecord
	nads     map[Owner]map[string]nadRecord // by namespace
	stripped map[Owner]map[string]types.UID // by namespace, see addStripped
}

type ownerRecord struct {
	version    string
	finalizers []string
	status     Status
}

type nadRecord struct {
	nad NAD
	at  time.Time
}

// nadTTL is how long a written NAD is assumed to exist without being in the cache.
// It covers a deletion that the watch missed.
const nadTTL = time.Minute

// owner returns the newer of the cached object and our last write.
func (c *writeCache) owner(o Owner, cached client.Object, status Status) ownerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rec, ok := c.owners[o]; ok {
		if !kube.AtLeast(cached.GetResourceVersion(), rec.version) {
			return rec
		}
		delete(c.owners, o)
	}
	return ownerRecord{version: cached.GetResourceVersion(), finalizers: cached.GetFinalizers(), status: status}
}

func (c *writeCache) setOwner(o Owner, rec ownerRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners == nil {
		c.owners = map[Owner]ownerRecord{}
	}
	c.owners[o] = rec
}

func (c *writeCache) setNAD(o Owner, nad NAD, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nads == nil {
		c.nads = map[Owner]map[string]nadRecord{}
	}
	if c.nads[o] == nil {
		c.nads[o] = map[string]nadRecord{}
	}
	c.nads[o][nad.Namespace] = nadRecord{nad, now}
}

// merge replaces an owner's cached NADs by our newer writes.
func (c *writeCache) merge(o Owner, cached map[string]NAD, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ns, rec := range c.nads[o] {
		got, ok := cached[ns]
		switch {
		case ok && kube.AtLeast(got.ResourceVersion, rec.nad.ResourceVersion), !ok && now.Sub(rec.at) > nadTTL:
			c.dropNAD(o, ns)
		default:
			cached[ns] = rec.nad
		}
	}
}

// addStripped records that somebody removed our annotation from a NAD of o. The NAD
// belongs to o until it is repaired or deleted.
func (c *writeCache) addStripped(o Owner, namespace string, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stripped == nil {
		c.stripped = map[Owner]map[string]types.UID{}
	}
	if c.stripped[o] == nil {
		c.stripped[o] = map[string]types.UID{}
	}
	c.stripped[o][namespace] = uid
}

// clearStripped undoes addStripped.
func (c *writeCache) clearStripped(o Owner, namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.stripped[o], namespace)
	if len(c.stripped[o]) == 0 {
		delete(c.stripped, o)
	}
}

// strippedNADs returns the UIDs of the NADs of o that lack our annotation.
func (c *writeCache) strippedNADs(o Owner) map[string]types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.stripped[o])
}

func (c *writeCache) dropNAD(o Owner, namespace string) {
	delete(c.nads[o], namespace)
	if len(c.nads[o]) == 0 {
		delete(c.nads, o)
	}
}

// observeOwner removes the record of our write if the cache has that version or a
// later one. It returns true if the version is our own write, which needs no
// reconciliation.
func (c *writeCache) observeOwner(o Owner, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec, ok := c.owners[o]
	if !ok || !kube.AtLeast(version, rec.version) {
		return false
	}
	delete(c.owners, o)
	return version == rec.version
}

// observeNAD is observeOwner for a NAD.
func (c *writeCache) observeNAD(o Owner, namespace, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec, ok := c.nads[o][namespace]
	if !ok || !kube.AtLeast(version, rec.nad.ResourceVersion) {
		return false
	}
	c.dropNAD(o, namespace)
	return version == rec.nad.ResourceVersion
}

// forget removes the records of a deleted owner or, with namespaces, of its deleted
// NADs there.
func (c *writeCache) forget(o Owner, namespaces ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(namespaces) == 0 {
		delete(c.owners, o)
	}
	for _, ns := range namespaces {
		c.dropNAD(o, ns)
	}
}
