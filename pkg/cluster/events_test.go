// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

func TestShortNotes(t *testing.T) {
	fake := events.NewFakeRecorder(1)
	for name, c := range map[string]struct {
		note string
		args []any
		want string
	}{
		"short":          {"node %s: 100%%", []any{"a"}, "node a: 100%"},
		"longest":        {"%s", []any{strings.Repeat("x", 1024)}, strings.Repeat("x", 1024)},
		"too long":       {"%s", []any{strings.Repeat("x", 1025)}, strings.Repeat("x", 1020) + " …"},
		"inside a rune":  {"%s", []any{strings.Repeat("é", 600) + "x"}, strings.Repeat("é", 510) + " …"},
		"between, again": {"x%s", []any{strings.Repeat("é", 600)}, "x" + strings.Repeat("é", 509) + " …"},
	} {
		shortNotes{fake}.Eventf(&corev1.Pod{}, nil, "Warning", "Reason", "Act", c.note, c.args...)
		got := strings.TrimPrefix(<-fake.Events, "Warning Reason ")
		if got != c.want || len(got) > maxNote || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes: %q", name, len(got), got)
		}
	}
}
