// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"
)

// TestProblemEvents: a problem has an event at once, not at each reconcile, and again before Kubernetes deletes the event.
func TestProblemEvents(t *testing.T) {
	var e ProblemEvents[string]
	start := time.Unix(1000, 0)
	for i, c := range []struct {
		problem string
		after   time.Duration
		want    bool
	}{
		{"", 0, false}, {"full", 0, true}, {"full", time.Minute, false}, {"full", EventRepeat - 1, false}, {"full", EventRepeat, true},
		{"full", EventRepeat + 1, false}, {"refused", EventRepeat + 1, true}, {"", EventRepeat + 2, false}, {"refused", EventRepeat + 3, true},
	} {
		if got := e.Due("red/a", c.problem, start.Add(c.after)); got != c.want {
			t.Errorf("step %d: due %t, want %t", i, got, c.want)
		}
	}
	if e.Due("red/a", "", start); e.Len() != 0 {
		t.Errorf("%d objects are recorded", e.Len())
	}
}
