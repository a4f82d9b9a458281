// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Conntrack is the size of the node's conntrack table, which all pods share.
type Conntrack struct {
	Entries int
	Max     int // 0: no limit, or conntrack is not loaded
}

// ReadConntrack reads the size of the conntrack table. root is /proc/sys or a mount of it.
func ReadConntrack(root string) (Conntrack, error) {
	read := func(name string) (int, error) {
		b, err := os.ReadFile(filepath.Join(root, "net/netfilter", name))
		if os.IsNotExist(err) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read the size of the conntrack table: %w", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, fmt.Errorf("parse %s: %w", name, err)
		}
		return n, nil
	}
	entries, err := read("nf_conntrack_count")
	if err != nil {
		return Conntrack{}, err
	}
	limit, err := read("nf_conntrack_max")
	return Conntrack{Entries: entries, Max: limit}, err
}

// Reasons of problems with the conntrack table.
const (
	reasonConntrackFull  = "ConntrackFull"
	reasonConntrackSmall = "ConntrackSmall" // enough for pods with few connections: informational
)

const (
	// The table is almost full from fullPercent on, until it has less than fullEndsPercent. So the problem does not come and go
	// with each connection.
	fullPercent, fullEndsPercent = 90, 80
	// entriesPerPod is what a node should have for each pod: a hundred connections, each with an entry in the zones of the pod's
	// port, of its network's routers and of the host.
	entriesPerPod = 500
)

// conntrackReader finds a conntrack table that is too small. Its problems stay the same while the table changes little: the node's
// condition has their messages.
type conntrackReader struct {
	cache *Cache
	table func() (Conntrack, error) // nil: not read
	log   *slog.Logger

	mu   sync.Mutex
	max  int // as read last
	last []Problem
}

// read reads the table.
func (r *conntrackReader) read() {
	if r.table == nil {
		return
	}
	now, err := r.table()
	if err != nil {
		r.log.Warn("the conntrack table cannot be watched", "error", err)
		return
	}
	pods := r.cache.connectedPods()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Max != r.max {
		r.max, r.last = now.Max, nil // the messages name the limit
	}
	r.last = conntrackProblems(now, pods, r.last)
}

// problems returns what the last read found.
func (r *conntrackReader) problems() []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// conntrackProblems returns what is wrong with the table of a node with that many pods. before are the last problems, with the same
// limit.
func conntrackProblems(now Conntrack, pods int, before []Problem) (out []Problem) {
	if now.Max == 0 {
		return nil
	}
	const remedy = "raise net.netfilter.nf_conntrack_max in a file of /etc/sysctl.d"
	// check adds the problem when the use of the table reaches begin percent, and keeps it, with its message, until the use is
	// below end percent.
	check := func(reason, message string, used, begin, end int) {
		i := slices.IndexFunc(before, func(p Problem) bool { return p.Reason == reason })
		switch {
		case i >= 0 && used*100 >= end*now.Max:
			out = append(out, before[i])
		case i < 0 && used*100 >= begin*now.Max:
			out = append(out, Problem{Reason: reason, Message: message})
		}
	}
	check(reasonConntrackFull, fmt.Sprintf("the conntrack table is almost full: it held %d of at most %d entries when this was found. When it is full, new connections of all pods and of the node fail: %s, and find who opens so many connections",
		now.Entries, now.Max, remedy), now.Entries, fullPercent, fullEndsPercent)
	needed := pods * entriesPerPod
	check(reasonConntrackSmall, fmt.Sprintf("the conntrack table holds at most %d entries, few for the %d pods of this node: %s, to %d or more", now.Max, pods, remedy, powerOfTwo(needed)),
		needed, 100, fullEndsPercent)
	return out
}

// powerOfTwo returns the first power of two that is at least n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(max(n-1, 0))) }
