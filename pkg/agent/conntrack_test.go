// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// The problems begin and end at different sizes, and their messages do not follow each connection.
func TestConntrackProblems(t *testing.T) {
	const limit = 1000
	var last []Problem
	for _, step := range []struct {
		entries, pods int
		want          []string // reasons
	}{
		{899, 0, nil}, {900, 0, []string{reasonConntrackFull}}, {1000, 0, []string{reasonConntrackFull}}, {800, 0, []string{reasonConntrackFull}},
		{799, 0, nil}, {899, 0, nil}, {0, 1, nil}, {0, 2, []string{reasonConntrackSmall}}, {950, 9, []string{reasonConntrackFull, reasonConntrackSmall}}, {0, 1, nil},
	} {
		now := conntrackProblems(Conntrack{step.entries, limit}, step.pods, last)
		var reasons []string
		for _, p := range now {
			reasons = append(reasons, p.Reason)
			for _, before := range last {
				if before.Reason == p.Reason && before != p {
					t.Errorf("%+v: the message became %q from %q", step, p.Message, before.Message)
				}
			}
		}
		if !slices.Equal(reasons, step.want) {
			t.Errorf("%+v: %v", step, reasons)
		}
		last = now
	}
	if got := conntrackProblems(Conntrack{Entries: 5}, 100, nil); got != nil {
		t.Errorf("without a limit: %v", got)
	}
	for n, want := range map[int]int{0: 1, 1: 1, 500: 512, 512: 512, 513: 1024} {
		if got := powerOfTwo(n); got != want {
			t.Errorf("first power of two from %d: %d, want %d", n, got, want)
		}
	}
}

// A table that is almost full degrades the node until it is not, and one that is small for the node's pods is an event.
func TestConntrackReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		dir := filepath.Join(root, "net/netfilter")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		set := func(entries, limit int) {
			t.Helper()
			for name, n := range map[string]int{"nf_conntrack_count": entries, "nf_conntrack_max": limit} {
				if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendln(nil, n), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		f := newFakeNode(t, func(p *Parts) { p.Conntrack = func() (Conntrack, error) { return ReadConntrack(root) } })
		f.agent.start() // conntrack is not loaded
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil && f.conditionNow().Reason == "AllWell" })
		set(950, 1000)
		eventuallyWithin(t, 2*resyncInterval, "degraded", func() bool { return f.conditionNow().Reason == reasonConntrackFull })
		if m := f.conditionNow().Message; !strings.Contains(m, "950 of at most 1000 entries") || !strings.Contains(m, "raise net.netfilter.nf_conntrack_max") {
			t.Error(m)
		}
		set(950, 2000)
		eventuallyWithin(t, 2*resyncInterval, "not degraded", func() bool { return f.conditionNow().Reason == "AllWell" })
		for i := range 5 {
			f.setPod(Pod{UID: fmt.Sprint("u", i), Namespace: "shop", Name: fmt.Sprint("p", i)})
		}
		eventuallyWithin(t, 2*resyncInterval, "an event", func() bool { return countPrefix(f.eventsNow(), reasonConntrackSmall) == 1 })
		if c := f.conditionNow(); c.True() {
			t.Errorf("degraded: %+v", c)
		}
	})
}
