// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"k8s.io/klog/v2"
)

// SetLog makes the one logger of a process, for itself and for what the
// libraries of Kubernetes have to say; all lines have the attributes. Once ctx,
// the process's own, has ended, errors that the stop itself causes are left out.
func SetLog(ctx context.Context, to io.Writer, level slog.Leveler, attributes ...any) *slog.Logger {
	log := slog.New(stopLog{slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}), ctx}).With(attributes...)
	slog.SetDefault(log)
	klog.SetSlogLogger(log)
	return log
}

// stopLog is a handler without the errors that a stop itself causes: a manager
// reports its lease as lost also where it was given back, and each
// reconciliation that the stop has cut short; requests end half way.
type stopLog struct {
	slog.Handler
	stopping context.Context
}

// Handle implements slog.Handler.
func (h stopLog) Handle(ctx context.Context, r slog.Record) error {
	if h.stopping.Err() != nil && r.Level == slog.LevelError && causedByStop(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// causedByStop tells a record with such an error. The manager's own about its
// lease has no type of its own.
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
func (h stopLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return stopLog{h.Handler.WithAttrs(attrs), h.stopping}
}

// WithGroup implements slog.Handler.
func (h stopLog) WithGroup(name string) slog.Handler {
	return stopLog{h.Handler.WithGroup(name), h.stopping}
}
