// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"

	"bulkhead/test/native"
)

// traffic is what a client has sent to a database.
type traffic struct {
	writes int       // transactions that insert, update, mutate or delete
	bytes  int64     // of these transactions
	last   time.Time // of the last of them
}

// proxy counts the zone's transactions where the database sees them.
type proxy struct {
	*native.Proxy

	mu    sync.Mutex
	total traffic
}

func startProxy(path, target string) (p *proxy, err error) {
	p = &proxy{}
	p.Proxy, err = native.StartProxy(path, target, p.count, nil)
	return p, err
}

func (p *proxy) count(m native.Message) native.Verdict {
	if !m.Write {
		return native.Pass
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total.writes++
	p.total.bytes += int64(m.Size)
	p.total.last = time.Now()
	return native.Pass
}

func (p *proxy) traffic() traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// since returns the traffic after before.
func (t traffic) since(before traffic) traffic {
	return traffic{t.writes - before.writes, t.bytes - before.bytes, t.last}
}
