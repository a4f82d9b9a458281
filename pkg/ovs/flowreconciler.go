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

// FlowReconciler reconciles the external bridge's flows with flows.Build. It reads
// the bridge, which runs ovs-ofctl, when the switch reports changed flows or has
// restarted, when the OpenFlow ports of the uplink change, when networks change,
// and periodically. The cost does not depend on the number of networks.
type FlowReconciler struct {
	Client *Client
	Switch flows.Switch
	Bridge string
	// RunDir is the directory of ovs-vswitchd's sockets.
	RunDir string
	Log    *slog.Logger
	// Report, if set, is called with the result of each reconcile; nil is success.
	Report func(error)

	mu       sync.Mutex
	networks []network.Network
	isolated bool          // Isolate has succeeded
	interval time.Duration // between periodic reads; 0: readInterval
}

const (
	readInterval = 10 * time.Second
	// debounce is the delay between a change of flows and the read of the bridge.
	// It bounds the cost if another program changes flows all the time.
	debounce = 100 * time.Millisecond
)

// RunDir returns the directory of ovs-vswitchd's sockets, given the database's
// address.
func RunDir(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return filepath.Dir(path)
	}
	return "/var/run/openvswitch"
}

// SetNetworks sets the node's networks.
func (r *FlowReconciler) SetNetworks(nets []network.Network) {
	r.mu.Lock()
	r.networks = slices.Clone(nets)
	r.mu.Unlock()
	r.Client.change.notify(anyRow)
}

// Isolate installs the flows that block traffic between the external bridge's
// patch ports. The agent calls it before it creates the chassis, because
// ovn-controller then connects networks to the bridge. After a success it is a
// no-op.
func (r *FlowReconciler) Isolate(ctx context.Context) error {
	r.mu.Lock()
	isolated := r.isolated
	r.mu.Unlock()
	if isolated {
		return nil
	}
	want, err := r.desired(ctx)
	if err != nil && !errors.Is(err, flows.ErrNoUplink) {
		return err
	}
	if err := r.apply(ctx, want); err != nil {
		return err
	}
	r.mu.Lock()
	r.isolated = true
	r.mu.Unlock()
	return nil
}

func (r *FlowReconciler) desired(ctx context.Context) (flows.State, error) {
	bridge, err := r.Client.ExternalBridge(ctx, r.Bridge)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	nets := r.networks
	r.mu.Unlock()
	return flows.Build(bridge, nets)
}

// apply reads the bridge's flows and applies the difference.
func (r *FlowReconciler) apply(ctx context.Context, want flows.State) error {
	ops, err := flows.Sync(ctx, r.Switch, r.Bridge, want)
	if err != nil {
		return err
	}
	for _, op := range ops {
		r.Log.Info("changed a flow of the external bridge", "op", op.String())
	}
	return nil
}

// Run reconciles the flows until ctx ends.
func (r *FlowReconciler) Run(ctx context.Context) {
	flowsChanged := watchFlows(ctx, filepath.Join(r.RunDir, r.Bridge+".mgmt"))
	tick := time.NewTicker(cmp.Or(r.interval, readInterval))
	defer tick.Stop()
	var last flows.State // the flows of the last successful apply
	stale := true        // the bridge's flows may differ from last
	backoff := 100 * time.Millisecond
	for ctx.Err() == nil {
		changed, stop := r.Client.change.wait(anyRow)
		want, err := r.desired(ctx)
		if (err == nil || errors.Is(err, flows.ErrNoUplink)) && (stale || !reflect.DeepEqual(want, last)) {
			failed := r.apply(ctx, want)
			err = errors.Join(err, failed)
			last, stale = want, failed != nil
		}
		err = errors.Join(err, r.Client.ProtectPatchPorts(ctx, r.Bridge))
		if r.Report != nil {
			r.Report(err)
		}
		var retry <-chan time.Time
		if err != nil {
			r.Log.Warn("cannot reconcile the external bridge's flows", "error", err)
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
		case <-flowsChanged:
			stale = true
			select {
			case <-ctx.Done():
			case <-time.After(debounce):
			}
		}
		stop()
	}
}
