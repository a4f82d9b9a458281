// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"bulkhead/pkg/loader"
)

// repeatAfter is how long further refusals of a pod for the same reason are
// counted, but not reported.
const repeatAfter = 5 * time.Minute

// Refusals is the ring buffer of what the eBPF programs refused.
type Refusals interface {
	Next(deadline time.Time) (loader.Event, error)
	Close() error
}

// refusalReporter reports refusals in the log and as events of pods.
type refusalReporter struct {
	cache   *Cache
	hostNet HostNet // nil: no eBPF
	api     API
	log     *slog.Logger
}

// run reports refusals until ctx ends.
func (r refusalReporter) run(ctx context.Context, refusals Refusals) error {
	stop := context.AfterFunc(ctx, func() { _ = refusals.Close() })
	defer stop()
	reported := map[string]time.Time{}
	for {
		ev, err := refusals.Next(time.Time{})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrClosed):
			return errors.New("the ring buffer of refusals was closed")
		case err != nil:
			r.log.Warn("refusal cannot be read", "error", err)
			continue
		}
		r.report(ev, reported)
	}
}

// report reports a refusal, unless one with the same reason was reported for the cgroup or the pod within repeatAfter.
// reported holds the times of the last reports, by cgroup and reason and by pod and reason.
func (r refusalReporter) report(ev loader.Event, reported map[string]time.Time) {
	now := time.Now()
	byCgroup := fmt.Sprintf("%d %d", ev.CgroupID, ev.Reason)
	if t, ok := reported[byCgroup]; ok && now.Sub(t) < repeatAfter {
		return // before the pod is sought, among the cgroups of all pods: one may cause many refusals
	}
	for k, t := range reported {
		if now.Sub(t) >= repeatAfter {
			delete(reported, k)
		}
	}
	uid := ""
	if r.hostNet != nil && ev.CgroupID != 0 {
		uid, _ = r.hostNet.PodOf(ev.CgroupID)
	}
	reported[byCgroup] = now
	if uid != "" {
		byPod := fmt.Sprintf("%s %d", uid, ev.Reason)
		if _, ok := reported[byPod]; ok {
			return
		}
		reported[byPod] = now
	}
	pod, known := r.cache.PodByUID(uid)
	name, message := "", ev.Reason.Text()
	if known {
		name = pod.Key()
	}
	args := []any{"pod", name, "reason", ev.Reason.String(), "what", message, "cgroup", ev.CgroupID}
	if ev.NetworkID != 0 {
		if n, ok := r.cache.Network(int(ev.NetworkID)); ok {
			args = append(args, "network", n.Name)
		}
	}
	if ev.Addr.IsValid() {
		args = append(args, "to", ev.Addr.String())
		message += ": to " + ev.Addr.String()
	}
	r.log.Warn("refused", args...)
	if known {
		r.api.PodEvent(pod, "Refused", fmt.Sprintf("%s (%s; counted in bulkhead_ebpf_decisions_total)", message, ev.Reason))
	}
}
