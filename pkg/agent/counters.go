// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/loader"
)

// counters reads the counters of the eBPF programs and of the nft table.
type counters struct {
	ebpf     func() ([]loader.Counter, error) // nil: no eBPF
	firewall *firewall.Target                 // nil: no nft
	hosts    *hostReconciler
	log      *slog.Logger

	mu      sync.Mutex
	nftLast map[string]uint64
	nftRead time.Time
}

// ebpfCounters are empty without eBPF.
func (c *counters) ebpfCounters() []loader.Counter {
	if c.ebpf == nil {
		return nil
	}
	out, err := c.ebpf()
	if err != nil {
		c.log.Debug("cannot read eBPF counters", "error", err)
	}
	return out
}

// nftCounters are packets by named counter, cached for ten seconds: a read
// starts an nft process.
func (c *counters) nftCounters() map[string]uint64 {
	if c.firewall == nil || !c.hosts.tableExists.Load() {
		return map[string]uint64{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.nftRead) < 10*time.Second && c.nftLast != nil {
		return maps.Clone(c.nftLast)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := c.firewall.Counters(ctx)
	if err != nil {
		c.log.Debug("cannot read nft counters", "error", err)
		return map[string]uint64{}
	}
	c.nftLast, c.nftRead = out, time.Now()
	return maps.Clone(out)
}
