// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"k8s.io/klog/v2"
)

// SetLog makes the logger of a process and makes it the default of slog and
// klog. attributes are added to every line. After ctx, the process's context,
// has ended, errors that the stop causes are not logged.
func SetLog(ctx context.Context, to io.Writer, level slog.Leveler, attributes ...any) *slog.Logger {
	log := slog.New(stopFilter{slog.NewTextHandler(to, &slog.HandlerOptions{Level: level, ReplaceAttr: errorKey}), ctx}).With(attributes...)
	slog.SetDefault(log)
	klog.SetSlogLogger(log)
	return log
}

// errorKey gives errors from klog, controller-runtime and libovsdb, whose key is "err", ours.
func errorKey(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == "err" {
		a.Key = "error"
	}
	return a
}

// stopFilter is a handler that drops errors caused by the stop of the process:
// controller-runtime's manager reports its lease as lost even when it released
// the lease, and every reconcile and request that the stop interrupted fails.
type stopFilter struct {
	slog.Handler
	process context.Context
}

// Handle implements slog.Handler.
func (h stopFilter) Handle(ctx context.Context, r slog.Record) error {
	if h.process.Err() != nil && r.Level == slog.LevelError && causedByStop(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// causedByStop reports whether a record carries an error that a stop causes.
// The manager's error about its lease has no type of its own.
func causedByStop(r slog.Record) bool {
	found := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		found = ok && (errors.Is(err, context.Canceled) || err.Error() == "leader election lost")
		return !found
	})
	return found
}

// WithAttrs implements slog.Handler.
func (h stopFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return stopFilter{h.Handler.WithAttrs(attrs), h.process}
}

// WithGroup implements slog.Handler.
func (h stopFilter) WithGroup(name string) slog.Handler {
	return stopFilter{h.Handler.WithGroup(name), h.process}
}
