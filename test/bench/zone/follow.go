// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// marker is a value of nb_cfg, and when OVN had followed the northbound database to it:
// northd copies it to sb_cfg when it has written the southbound database, and to hv_cfg
// when ovn-controller has written the flows. A time is zero if that has not happened.
type marker struct {
	set, southbound, switched time.Time
}

// follower increases nb_cfg after new writes and notes when OVN has followed.
type follower struct {
	b       *bench
	markers []marker // nb_cfg 1, 2, ...
	err     error
	stop    func()
}

// follow starts a follower.
func (b *bench) follow() *follower {
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{b: b}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for f.err == nil && ctx.Err() == nil {
			f.err = f.step()
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	f.stop = func() { cancel(); <-ended }
	return f
}

// step sets a marker if the zone has written since the last one, and reads how far OVN
// has followed.
func (f *follower) step() error {
	if n := len(f.markers); n == 0 || f.b.proxy.traffic().last.After(f.markers[n-1].set) {
		f.markers = append(f.markers, marker{set: time.Now()})
		if _, err := f.b.host.Run("ovn-nbctl", "--no-leader-only", "set", "NB_Global", ".", fmt.Sprintf("nb_cfg=%d", n+1)); err != nil {
			return err
		}
	}
	out, err := f.b.host.Run("ovn-nbctl", "--no-leader-only", "get", "NB_Global", ".", "sb_cfg", "--", "get", "NB_Global", ".", "hv_cfg")
	if err != nil {
		return err
	}
	fields := strings.Fields(out)
	if len(fields) != 2 {
		return fmt.Errorf("sb_cfg and hv_cfg are %q", out)
	}
	for i, at := range []func(*marker) *time.Time{
		func(m *marker) *time.Time { return &m.southbound }, func(m *marker) *time.Time { return &m.switched },
	} {
		reached, err := strconv.Atoi(fields[i])
		if err != nil {
			return fmt.Errorf("sb_cfg and hv_cfg are %q: %w", out, err)
		}
		for k := range f.markers[:min(reached, len(f.markers))] {
			if t := at(&f.markers[k]); t.IsZero() {
				*t = time.Now()
			}
		}
	}
	return nil
}

// followed is how long OVN may take; longer is reported, and not an error.
const followed = 10 * time.Minute

// finish stops the follower when OVN has followed everything written until last.
func (f *follower) finish(last time.Time) (marker, error) {
	f.stop()
	deadline := time.Now().Add(followed)
	for f.err == nil {
		f.err = f.step()
		for _, m := range f.markers {
			if m.set.After(last) && (!m.switched.IsZero() || time.Now().After(deadline)) {
				return m, f.err
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return marker{}, f.err
}
