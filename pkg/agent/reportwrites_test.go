// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// One fault affects many networks, one after another, and ends: the Node is written a few times, and then says all of it.
func TestReportWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const networks, most = 60, 12
		f := newFakeNode(t)
		f.kernel.NoVRF = true
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		time.Sleep(2 * longestGap)
		var conditions, annotations, events int
		mark := func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			conditions, annotations, events = len(f.conditions), f.writes, len(f.recorded)
		}
		check := func(what string) {
			t.Helper()
			f.mu.Lock()
			defer f.mu.Unlock()
			c, a, e := len(f.conditions)-conditions, f.writes-annotations, len(f.recorded)-events
			t.Logf("%s: %d writes of the condition, %d of annotations, %d events", what, c, a, e)
			if c > most || a > most || e > most*mostEvents {
				t.Errorf("%s: %d writes of the condition, %d of annotations, %d events", what, c, a, e)
			}
		}
		failed := func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.annotations[network.AnnotationAgentFailures]
		}
		mark()
		start := time.Now()
		for id := 1; id <= networks; id++ {
			f.setNAD(nad(f.agent.config, "shop", fmt.Sprintf("net%d", id), id))
			if id == 1 {
				eventually(t, "the first is reported", func() bool { return f.conditionNow().True() })
				if took := time.Since(start); took > shortestGap {
					t.Errorf("the first failure is reported after %s", took)
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
		eventually(t, "all are reported", func() bool {
			return strings.Contains(f.conditionNow().Message, fmt.Sprintf("and %d more", networks-10)) && strings.Contains(failed(), fmt.Sprintf(`"ids":"1-%d"`, networks))
		})
		check("the fault")
		time.Sleep(2 * longestGap)
		mark()
		time.Sleep(3 * time.Minute)
		f.mu.Lock()
		if c, a, e := len(f.conditions)-conditions, f.writes-annotations, len(f.recorded)-events; c+a+e > 0 {
			t.Errorf("%d writes of the condition, %d of annotations, %d events while nothing changed", c, a, e)
		}
		f.mu.Unlock()
		f.setVRFSupport(true)
		eventually(t, "none is reported", func() bool { return !f.conditionNow().True() && failed() == "" })
		check("its end")
	})
}

// A network that cannot be configured is reported as long as that is so, also while its retry can only wait because another
// program has deleted the VRF device.
func TestFailureStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.kernel.Fail = func(op vrf.Op) error {
			if op.Verb == vrf.AddRoute {
				return errors.New("no route")
			}
			return nil
		}
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		failing := func() bool { c := f.conditionNow(); return strings.Contains(c.Message, "network shop_net") }
		eventually(t, "reported", failing)
		device := f.state(7).VRF
		for range 20 {
			time.Sleep(longestGap)
			f.kernel.mu.Lock()
			f.kernel.DelLink(device)
			f.kernel.mu.Unlock()
			f.agent.KernelChanged(vrf.Change{ID: 7, Links: true})
		}
		time.Sleep(longestGap)
		f.mu.Lock()
		first := slices.IndexFunc(f.conditions, func(c Condition) bool { return strings.Contains(c.Message, "network shop_net") })
		for _, c := range f.conditions[first:] {
			if !strings.Contains(c.Message, "network shop_net") {
				t.Errorf("the failure was not reported for a while: %+v", c)
			}
		}
		f.mu.Unlock()
		f.kernel.mu.Lock()
		f.kernel.Fail = nil
		f.kernel.mu.Unlock()
		eventually(t, "not reported", func() bool { return !failing() })
	})
}

// Writes are spaced only while there is always something to write.
func TestPace(t *testing.T) {
	var p pace
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var writes []time.Duration
	begin := now
	for now.Sub(begin) < 5*time.Minute { // a change each 100 ms
		if p.next(now) == 0 {
			writes = append(writes, now.Sub(begin))
		}
		now = now.Add(100 * time.Millisecond)
	}
	want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second, 31 * time.Second, 61 * time.Second, 91 * time.Second}
	if len(writes) < len(want) || !slices.Equal(writes[:len(want)], want) || len(writes) > 15 {
		t.Errorf("writes after %v, want %v and one each %s", writes, want, longestGap)
	}
	now = now.Add(2 * longestGap)
	for i, wait := range []time.Duration{0, shortestGap} {
		if got := p.next(now); got != wait {
			t.Errorf("write %d after a pause: waits %s, want %s", i, got, wait)
		}
	}
}
