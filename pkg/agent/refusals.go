// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"bulkhead/pkg/loader"
)

// tellAgain is how long a refusal is not told again of the same pod for the
// same reason. All are counted.
const tellAgain = 5 * time.Minute

// Refusals is where the eBPF programs tell what they refused.
type Refusals interface {
	Next(deadline time.Time) (loader.Event, error)
	Close() error
}

// TellRefusals logs what the programs refuse, with pod and reason, and makes it
// an event of the pod, until ctx ends.
func (a *Agent) TellRefusals(ctx context.Context, r Refusals) error {
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	told := map[string]time.Time{}
	for {
		ev, err := r.Next(time.Time{})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrClosed):
			return errors.New("the ring buffer of refusals was closed")
		case err != nil:
			a.Log.Warn("refusal cannot be read", "error", err)
			continue
		}
		a.tell(ev, told)
	}
}

func (a *Agent) tell(ev loader.Event, told map[string]time.Time) {
	uid, name := "", ""
	if a.HostNet != nil {
		uid, _ = a.HostNet.PodOf(ev.CgroupID)
	}
	pod, known := a.Store.PodByUID(uid)
	if known {
		name = pod.Key()
	}
	now := a.Now()
	for k, t := range told {
		if now.Sub(t) >= tellAgain {
			delete(told, k)
		}
	}
	key := fmt.Sprintf("%s %d %d", uid, ev.Reason, ev.CgroupID)
	if uid != "" {
		key = fmt.Sprintf("%s %d", uid, ev.Reason)
	}
	if _, ok := told[key]; ok {
		return
	}
	told[key] = now
	args := []any{"pod", name, "reason", ev.Reason.String(), "what", ev.Reason.Text(), "cgroup", ev.CgroupID}
	if ev.NetworkID != 0 {
		if n, ok := a.Store.Network(int(ev.NetworkID)); ok {
			args = append(args, "network", n.Name)
		}
	}
	if ev.Addr.IsValid() {
		args = append(args, "to", ev.Addr.String())
	}
	a.Log.Warn("refused", args...)
	if known {
		msg := ev.Reason.Text()
		if ev.Addr.IsValid() {
			msg += ": to " + ev.Addr.String()
		}
		a.API.PodEvent(pod, "Refused", fmt.Sprintf("%s (%s; counted in bulkhead_ebpf_decisions_total)", msg, ev.Reason))
	}
}
