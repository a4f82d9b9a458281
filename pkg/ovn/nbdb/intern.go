// SPDX-License-Identifier: Apache-2.0

package nbdb

import (
	"hash/maphash"
	"sync/atomic"
)

// recent are strings of rows that were copied lately, by their hash. Rows that follow
// each other mostly have the same keys, network, unit and next hops; each row that is decoded
// has strings of its own, a quarter of the memory of a cache with many peers' rows.
var (
	recent [8192]atomic.Pointer[string]
	seed   = maphash.MakeSeed()
)

// intern returns s, or an equal string of a row that was copied lately.
func intern(s string) string {
	if s == "" {
		return ""
	}
	slot := &recent[maphash.String(seed, s)%uint64(len(recent))]
	if r := slot.Load(); r != nil && *r == s {
		return *r
	}
	stored := s
	slot.Store(&stored)
	return s
}

// internMap interns the keys and values of m.
func internMap(m map[string]string) {
	for k, v := range m {
		m[intern(k)] = intern(v)
	}
}
