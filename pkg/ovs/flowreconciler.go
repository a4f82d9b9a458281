// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// FlowReconciler reconciles the external bridge's flows with flows.Build. It reads
// the bridge, which runs ovs-ofctl, when the switch reports changed flows or has
// restarted, when the OpenFlow ports of the uplink, of the cluster default network's gateway
// or of Localnet networks change, when the node's facts change, and periodically. The cost
// does not depend on the number of networks with gateway routers.
type FlowReconciler struct {
	Client *Client
	Switch flows.Switch
	Bridge string
	Plan   network.Plan
	// RunDir is the directory of ovs-vswitchd's sockets.
	RunDir string
	Log    *slog.Logger
	// Report, if set, is called with the result of each reconcile; nil is success.
	Report func(error)

	mu   sync.Mutex
	node network.Node
	// localnets are the VLANs of Localnet networks, by patch port.
	localnets map[string]int
	isolated  bool          // Isolate has succeeded
	interval  time.Duration // between periodic reads; 0: readInterval
}

const (
	// readInterval is long, because the switch reports what changes, and each read runs a
	// program.
	readInterval = time.Minute
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

// SetNode sets the node's facts, and the Localnet networks that the bridge may connect to
// the wire.
func (r *FlowReconciler) SetNode(node network.Node, localnets []network.Network) {
	vlans := map[string]int{}
	for _, n := range localnets {
		vlans[n.LocalnetPatch()] = n.VLAN
	}
	r.mu.Lock()
	changed := !reflect.DeepEqual(r.node, node) || !maps.Equal(r.localnets, vlans)
	r.node, r.localnets = node, vlans
	r.mu.Unlock()
	if changed {
		r.Client.change.notify(anyRow)
	}
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

// errNoFacts: the node's facts are not known yet, so what the bridge has stays.
var errNoFacts = errors.New("the node's facts are not known yet")

func (r *FlowReconciler) desired(ctx context.Context) (flows.State, error) {
	r.mu.Lock()
	node, localnets := r.node, r.localnets
	r.mu.Unlock()
	if node.Name == "" {
		return nil, errNoFacts
	}
	gateway := network.Network{ID: network.DefaultID, Name: network.DefaultName}.ExternalPatch(r.Bridge, node.Name)
	bridge, err := r.Client.ExternalBridge(ctx, r.Bridge, gateway, localnets)
	if err != nil {
		return nil, err
	}
	return flows.Build(bridge, flows.Inputs{Addresses: node.Addresses, MAC: node.BridgeMAC, Masquerade: r.Plan.Masquerade, Services: r.Plan.ServiceCIDRs})
}

// protectPatchPorts protects the ports of all networks but Localnet ones.
func (r *FlowReconciler) protectPatchPorts(ctx context.Context) error {
	r.mu.Lock()
	localnets := r.localnets
	r.mu.Unlock()
	return r.Client.ProtectPatchPorts(ctx, r.Bridge, localnets)
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

// Run reconciles the flows until ctx ends, from the first SetNode on.
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
		if errors.Is(err, errNoFacts) {
			err = nil // SetNode notifies
		} else {
			err = errors.Join(err, r.protectPatchPorts(ctx))
			if r.Report != nil {
				r.Report(err)
			}
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
