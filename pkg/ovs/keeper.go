// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// FlowKeeper keeps the external bridge's flows as flows.Build wants them. It
// reads the bridge, and so starts ovs-ofctl, when the switch tells that flows
// changed or is another process, when the bridge's uplink has other OpenFlow
// ports, when networks changed, and now and then in case nothing was told. What
// that costs does not grow with the number of networks.
type FlowKeeper struct {
	Client *Client
	Switch flows.Switch
	Bridge string
	// RunDir holds ovs-vswitchd's sockets.
	RunDir string
	Log    *slog.Logger
	// Report, when set, gets the outcome of every attempt: nil is success.
	Report func(error)

	mu       sync.Mutex
	networks []network.Network
	closed   bool          // the flows were in place once
	every    time.Duration // between reads that nothing gave rise to; 0: readEvery
}

const (
	readEvery = 10 * time.Second
	// gather is how long changes of flows are gathered before the bridge is read:
	// somebody who changes flows all the time costs no more than that.
	gather = 100 * time.Millisecond
)

// RunDir is where ovs-vswitchd's sockets are, by the database's address.
func RunDir(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return filepath.Dir(path)
	}
	return "/var/run/openvswitch"
}

// SetNetworks tells which networks the node has.
func (k *FlowKeeper) SetNetworks(nets []network.Network) {
	k.mu.Lock()
	k.networks = slices.Clone(nets)
	k.mu.Unlock()
	k.Client.change.notify(anything)
}

// Close closes the external bridge, before Open vSwitch is told that networks
// lead to it: nothing passes between patch ports then. It does so once.
func (k *FlowKeeper) Close(ctx context.Context) error {
	k.mu.Lock()
	closed := k.closed
	k.mu.Unlock()
	if closed {
		return nil
	}
	want, err := k.want(ctx)
	if err != nil && !errors.Is(err, flows.ErrNoUplink) {
		return err
	}
	if err := k.apply(ctx, want); err != nil {
		return err
	}
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	return nil
}

func (k *FlowKeeper) want(ctx context.Context) (flows.State, error) {
	bridge, err := k.Client.ExternalBridge(ctx, k.Bridge)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	nets := k.networks
	k.mu.Unlock()
	return flows.Build(bridge, nets)
}

// apply compares with what the bridge has.
func (k *FlowKeeper) apply(ctx context.Context, want flows.State) error {
	ops, err := flows.Sync(ctx, k.Switch, k.Bridge, want)
	if err != nil {
		return err
	}
	for _, op := range ops {
		k.Log.Info("external bridge", "op", op.String())
	}
	return nil
}

// Run keeps the flows until ctx ends.
func (k *FlowKeeper) Run(ctx context.Context) {
	touched := watchSwitch(ctx, filepath.Join(k.RunDir, k.Bridge+".mgmt"))
	tick := time.NewTicker(cmp.Or(k.every, readEvery))
	defer tick.Stop()
	var placed flows.State // what the bridge had when it was read last
	stale := true          // it may have something else now
	backoff := 100 * time.Millisecond
	for ctx.Err() == nil {
		changed, stop := k.Client.change.wait(anything)
		want, err := k.want(ctx)
		if (err == nil || errors.Is(err, flows.ErrNoUplink)) && (stale || !reflect.DeepEqual(want, placed)) {
			failed := k.apply(ctx, want)
			err = errors.Join(err, failed)
			placed, stale = want, failed != nil
		}
		err = errors.Join(err, k.Client.ProtectPatchPorts(ctx, k.Bridge))
		if k.Report != nil {
			k.Report(err)
		}
		var retry <-chan time.Time
		if err != nil {
			k.Log.Warn("cannot keep the external bridge's flows", "error", err)
			retry = time.After(backoff)
			backoff = min(2*backoff, 10*time.Second)
		} else {
			backoff = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-retry:
		case <-tick.C:
			stale = true
		case <-touched:
			stale = true
			select {
			case <-ctx.Done():
			case <-time.After(gather):
			}
		}
		stop()
	}
}
