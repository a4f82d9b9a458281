// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/pkg/loader"
)

// fakeRefusals is a ring buffer; Next blocks.
type fakeRefusals struct{ events chan loader.Event }

func (r fakeRefusals) Next(time.Time) (loader.Event, error) {
	ev, ok := <-r.events
	if !ok {
		return ev, fmt.Errorf("read: %w", os.ErrClosed)
	}
	return ev, nil
}

func (r fakeRefusals) Close() error { close(r.events); return nil }

// TestReportRefusals: refusals are reported per pod and reason, once in five
// minutes, until the context ends.
func TestReportRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFakeNode(t, func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		f.agent.cache.SetNAD(nad(f.agent.config, "green", "net", 7))
		f.agent.cache.SetPod(Pod{UID: "uid-41", RuntimeUID: "uid-41", Namespace: "red", Name: "host", HostNetwork: true})
		r := fakeRefusals{make(chan loader.Event)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.agent.ReportRefusals(ctx, r) }()
		events := func() []string {
			synctest.Wait()
			return slices.DeleteFunc(f.eventsNow(), func(e string) bool { return !strings.Contains(e, " Refused ") })
		}
		to := netip.MustParseAddrPort("10.30.0.3:80")
		foreign := loader.Event{CgroupID: 41, NetworkID: 7, Reason: loader.ReasonGuardForeign, Addr: to}
		for range 3 {
			r.events <- foreign
		}
		got := events()
		if len(got) != 1 || !strings.HasPrefix(got[0], "red/host Refused") || !strings.Contains(got[0], "10.30.0.3:80") || !strings.Contains(got[0], loader.ReasonGuardForeign.String()) {
			t.Errorf("three refusals of a pod: %q", got)
		}
		for _, want := range []string{"pod=red/host", "network=green_net", "to=10.30.0.3:80", "reason=" + loader.ReasonGuardForeign.String()} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s: %s", want, log.String())
			}
		}
		if f.podsSought != 1 {
			t.Errorf("three refusals of a cgroup: its pod was sought %d times", f.podsSought)
		}
		r.events <- loader.Event{CgroupID: 41, Reason: loader.ReasonSetDevice}
		if got := events(); len(got) != 2 {
			t.Errorf("another reason: %q", got)
		}
		r.events <- loader.Event{CgroupID: 99, Reason: loader.ReasonGuardForeign} // an unknown pod: only logged
		if got := events(); len(got) != 2 || !strings.Contains(log.String(), "cgroup=99") {
			t.Errorf("a process outside all pods: %q %s", got, log.String())
		}
		time.Sleep(repeatAfter)
		r.events <- foreign
		if got := events(); len(got) != 3 {
			t.Errorf("after %v: %q", repeatAfter, got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}
