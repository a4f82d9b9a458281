// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// TestSetLogStop: errors that a stop causes are dropped after the stop, and logged before it.
func TestSetLogStop(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before); klog.ClearLogger() })
	lost, cut, other := errors.New("leader election lost"), fmt.Errorf("patch: %w", context.Canceled), errors.New("disk full")
	for _, c := range []struct {
		name    string
		stopped bool
		want    []string
	}{
		{"stopped", true, []string{"disk full", "by name"}},
		{"running", false, []string{"leader election lost", "patch: context canceled", "Failed to release lease", "disk full", "by name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if c.stopped {
				stop()
			}
			var out bytes.Buffer
			log := SetLog(ctx, &out, slog.LevelInfo, "node", "n1")
			manager := logr.FromSlogHandler(log.Handler()).WithValues("controller", "network").WithName("manager")
			manager.Error(lost, "error received after stop sequence was engaged")
			manager.Error(cut, "Reconciler error")
			klog.ErrorS(cut, "Failed to release lease")
			klog.Flush()
			log.Error("write", "error", other)
			log.Debug("below the level")
			slog.Info("by name", "error", lost.Error())
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != len(c.want) {
				t.Fatalf("got %q, want %q", lines, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "node=n1") || !strings.Contains(lines[i], " error=") {
					t.Errorf("line %d is %q, want the error %q of node n1", i, lines[i], want)
				}
			}
		})
	}
}
