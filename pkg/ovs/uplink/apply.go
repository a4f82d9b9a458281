// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"fmt"
	"log/slog"
)

// Target is the node: the kernel, Open vSwitch and the record; or Fake.
type Target interface {
	// Lock excludes other processes until the function that it returns is called.
	Lock(ctx context.Context) (func(), error)
	// Record reads the record. Of one from an earlier boot it returns only that a restore was begun or
	// is done.
	Record(ctx context.Context) (Record, error)
	// Switch reads the bridge and where the interface is a port; an empty name: of no interface.
	Switch(ctx context.Context, bridge, uplink string) (Switch, error)
	// Defaults returns the interfaces of the main table's default routes, best first.
	Defaults(ctx context.Context) ([]string, error)
	// Read reads the rest of the state.
	Read(ctx context.Context, o Owner) (State, error)
	Do(ctx context.Context, op Op) error
}

// Apply runs the operations until one fails: each may delete what those before it have made sure
// of elsewhere.
func Apply(ctx context.Context, t Target, ops []Op, log *slog.Logger) error {
	for i, op := range ops {
		err := ctx.Err()
		if err == nil {
			err = t.Do(ctx, op)
		}
		if err != nil {
			return fmt.Errorf("%s: %w (%d operations were not tried)", op, err, len(ops)-i-1)
		}
		log.Info("external bridge's uplink", "op", op.String())
	}
	return nil
}

// Sync moves the interface that configured names, or Auto, into the bridge, or completes a restore. It
// returns the interface, if it is known.
func Sync(ctx context.Context, t Target, bridge, configured string, log *slog.Logger) (uplink string, err error) {
	return run(ctx, t, bridge, configured, log, Build)
}

// Restore gives the interface its addresses and routes back, and deletes the bridge if the agent
// created it. The record's bridge takes precedence over the one given. Afterwards Sync does nothing until somebody deletes the record.
func Restore(ctx context.Context, t Target, bridge string, log *slog.Logger) (uplink string, err error) {
	if rec, err := t.Record(ctx); err == nil && rec.Bridge != "" {
		bridge = rec.Bridge
	}
	return run(ctx, t, bridge, Auto, log, func(o Owner, have State) (State, error) {
		if !have.Interface.Exists {
			return State{}, fmt.Errorf("interface %s does not exist: the addresses and routes of bridge %s cannot be moved back to it", o.Uplink, o.Bridge)
		}
		return BuildRestored(o, have), nil
	})
}

func run(ctx context.Context, t Target, bridge, configured string, log *slog.Logger, build func(Owner, State) (State, error)) (string, error) {
	unlock, err := t.Lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	rec, err := t.Record(ctx)
	if err != nil {
		return "", err
	}
	sw, err := t.Switch(ctx, bridge, "")
	if err != nil {
		return "", err
	}
	var defaults []string
	if configured == Auto && rec.Phase == PhaseNone { // else they do not matter, and there may be many routes
		if defaults, err = t.Defaults(ctx); err != nil {
			return "", err
		}
	}
	o, err := Choose(bridge, configured, rec, sw, defaults)
	if err != nil {
		return "", err
	}
	have, err := t.Read(ctx, o)
	if err != nil {
		return o.Uplink, fmt.Errorf("read uplink %s and bridge %s: %w", o.Uplink, o.Bridge, err)
	}
	have.Record = rec
	if have.Switch, err = t.Switch(ctx, bridge, o.Uplink); err != nil {
		return o.Uplink, err
	}
	want, err := build(o, have)
	if err != nil {
		return o.Uplink, err
	}
	return o.Uplink, Apply(ctx, t, Diff(want, have), log)
}
