// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

// A note that the API server would refuse is cut, and one with % is not formatted twice.
func TestShortNotes(t *testing.T) {
	fake := events.NewFakeRecorder(1)
	for note, want := range map[string]string{
		"node a: 100%":            "node a: 100%",
		strings.Repeat("x", 1024): strings.Repeat("x", 1024),
		strings.Repeat("x", 1025): strings.Repeat("x", 1020) + " …",
	} {
		shortNotes{fake}.Eventf(&corev1.Pod{}, nil, "Warning", "Reason", "Act", "%s", note)
		if got := <-fake.Events; got != "Warning Reason "+want {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}
