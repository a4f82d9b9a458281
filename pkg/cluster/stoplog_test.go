// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// A stop that was asked for causes no errors; what comes otherwise is told.
func TestStopLog(t *testing.T) {
	lost, cut, other := errors.New("leader election lost"), fmt.Errorf("patch: %w", context.Canceled), errors.New("disk full")
	for _, c := range []struct {
		name    string
		stopped bool
		want    []string
	}{
		{"asked for", true, []string{"disk full", "by name"}},
		{"not asked for", false, []string{"leader election lost", "patch: context canceled", "disk full", "by name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if c.stopped {
				stop()
			}
			var out bytes.Buffer
			log := logr.FromSlogHandler(stopLog{slog.NewTextHandler(&out, nil), ctx}).WithValues("controller", "network").WithName("manager")
			log.Error(lost, "error received after stop sequence was engaged")
			log.Error(cut, "Reconciler error")
			log.Error(other, "error received after stop sequence was engaged")
			log.Info("by name", "err", lost.Error())
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != len(c.want) {
				t.Fatalf("got %q, want %q", lines, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %d is %q, want %q", i, lines[i], want)
				}
			}
		})
	}
}
