// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// networkReconciler reconciles the kernel's part of each network.
type networkReconciler struct {
	config config.Config
	cache  *Cache
	queue  *Queue
	kernel Kernel
	flows  Flows // nil: the external bridge is not managed
	node   *nodeReconciler
	log    *slog.Logger

	mu         sync.Mutex
	last       map[int]networkResult // by id
	newDevices map[int]time.Time     // by id: until when nothing may use a network's new VRF device
	kept       []int                 // networks that stay as they are, because no NAD of theirs is usable; nil before the first reconcileAll
}

// keptNetworks returns the ids of the networks that stay as they are; known is false before the
// first reconcileAll.
func (r *networkReconciler) keptNetworks() (ids []int, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept, r.kept != nil
}

// newDeviceDelay is how long a new VRF device must have no routes, rules or users, so that other programs
// see it first: see vrf.Inputs.DeviceFirst. FRR's zebra reads each link at once, but
// handles it and the routes in different threads.
const newDeviceDelay = time.Second

// newDeviceWait returns how long the network's new VRF device must still have no routes, rules or users.
func (r *networkReconciler) newDeviceWait(id int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.newDevices[id]
	if !ok {
		return 0
	}
	left := time.Until(until)
	if left <= 0 {
		delete(r.newDevices, id)
	}
	return max(left, 0)
}

// isNewDevice reports whether the network's VRF device is new, and may not be used yet.
func (r *networkReconciler) isNewDevice(id int) bool { return r.newDeviceWait(id) > 0 }

// markNewDevice records that nothing may use the network's new VRF device for the duration d; 0: it may be used.
func (r *networkReconciler) markNewDevice(id int, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d == 0 {
		delete(r.newDevices, id)
	} else {
		r.newDevices[id] = time.Now().Add(d)
	}
}

// networkResult is the result of a network's last reconcile.
type networkResult struct {
	network network.Network
	kernel  vrf.Result
	err     error
	at      time.Time
	// waitingSince is when the first of consecutive reconciles found a link missing.
	waitingSince time.Time
}

// linkGrace is how long a network may wait for a link before it is a problem.
const linkGrace = 30 * time.Second

// newResult returns the result of a reconcile at now, after the previous one.
func newResult(previous networkResult, net network.Network, kernel vrf.Result, err error, now time.Time) networkResult {
	r := networkResult{network: net, kernel: kernel, err: err, at: now}
	if len(kernel.Waiting) > 0 {
		r.waitingSince = previous.waitingSince
		if r.waitingSince.IsZero() {
			r.waitingSince = now
		}
	}
	return r
}

// waitingTooLong reports whether the network has waited for a link for longer than
// linkGrace; left is how long until then, if it waits.
func (r networkResult) waitingTooLong(now time.Time) (tooLong bool, left time.Duration) {
	if r.waitingSince.IsZero() {
		return false, 0
	}
	left = linkGrace - now.Sub(r.waitingSince)
	return left <= 0, max(left, 0)
}

// results returns a copy of the results by network id.
func (r *networkReconciler) results() map[int]networkResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.last)
}

// reconcile reconciles the network with that id, or removes it if it is deleted or has no
// host subnet for this node.
func (r *networkReconciler) reconcile(ctx context.Context, id int) error {
	node := r.node.Node()
	net, ok := r.cache.Network(id)
	if id == network.DefaultID {
		net, ok = r.config.DefaultNetwork, true
	}
	if left := r.newDeviceWait(id); left > 0 {
		r.queue.keys.AddAfter(key{kindNetwork, id}, left)
		return nil
	}
	if !ok {
		return r.remove(ctx, id, node)
	}
	if !r.node.known() {
		return nil // the id's event, and the first facts, enqueue everything
	}
	if !net.IsDefault() && !net.HasNode(node.ID) {
		// A tenant can cause this, so it is no problem of the node: the network's status reports it.
		return r.remove(ctx, id, node)
	}
	if r.kernel.DeviceIndex(r.config.Plan.VRFTable(net)) == 0 && !net.IsDefault() {
		r.markNewDevice(id, newDeviceDelay) // before the device exists, so that nothing uses it
	}
	result, err := vrf.Reconcile(ctx, r.kernel, net, node, vrf.Inputs{Plan: r.config.Plan, IPv6: r.kernel.HasIPv6(),
		Exposed: r.cache.AllowedAddresses(r.config.AllowedServices), DeviceFirst: true})
	r.logOperations(net.Name, result)
	if result.DeviceOnly && err == nil {
		r.markNewDevice(id, newDeviceDelay)
		r.queue.keys.AddAfter(key{kindNetwork, id}, newDeviceDelay)
	} else {
		r.markNewDevice(id, 0)
	}
	r.mu.Lock()
	waited := !r.last[id].waitingSince.IsZero()
	r.last[id] = newResult(r.last[id], net, result, err, time.Now())
	r.mu.Unlock()
	if waited != (len(result.Waiting) > 0) {
		r.queue.EnqueueReport()
	}
	if len(result.Ops) > 0 {
		r.queue.enqueueBatched(kindHosts) // the VRF device may have another index
	}
	for _, link := range result.Waiting {
		if link == net.ManagementPort() {
			r.queue.enqueueBatched(kindPorts) // somebody may have deleted it
		}
	}
	if err != nil {
		return &networkError{net.Name, err}
	}
	return nil
}

// networkError is why a network is not configured.
type networkError struct {
	network string
	cause   error
}

func (e *networkError) Error() string { return "network " + e.network + ": " + e.cause.Error() }

func (e *networkError) Unwrap() error { return e.cause }

// remove removes a network's kernel state, and then its management port and the eBPF programs'
// rows. The gateway reconciler removes its flows.
func (r *networkReconciler) remove(ctx context.Context, id int, node network.Node) error {
	result, err := vrf.Remove(ctx, r.kernel, id, node, r.config.Plan)
	r.mu.Lock()
	name := r.last[id].network.Name
	r.mu.Unlock()
	r.logOperations(cmp.Or(name, fmt.Sprintf("id %d", id)), result)
	if err != nil {
		return fmt.Errorf("remove network id %d: %w", id, err)
	}
	r.cache.MarkRemoved(id)
	r.mu.Lock()
	delete(r.last, id)
	delete(r.newDevices, id)
	r.mu.Unlock()
	r.queue.enqueueBatched(kindPorts, kindHosts)
	return nil
}

func (r *networkReconciler) logOperations(name string, result vrf.Result) {
	for _, op := range result.Ops {
		r.log.Debug("kernel operation", "network", name, "operation", op.String())
	}
	if len(result.Ops) > 0 {
		r.log.Info("network changed in the kernel", "network", name, "operations", len(result.Ops), "waiting", strings.Join(result.Waiting, ","))
	}
}

// reconcileAll enqueues everything: what should exist, and orphaned networks,
// which were deleted while no agent ran.
func (r *networkReconciler) reconcileAll(ctx context.Context) error {
	wanted := map[int]bool{network.DefaultID: true}
	r.queue.keys.Add(key{kindNetwork, network.DefaultID})
	for _, n := range r.cache.Networks() {
		wanted[n.ID] = true
		r.queue.keys.Add(key{kindNetwork, n.ID})
	}
	r.queue.enqueueBatched(kindHosts, kindNode)
	ids, tables, err := vrf.Leftovers(ctx, r.kernel, r.config.Plan, func(id int) bool { return wanted[id] })
	if err != nil {
		return err
	}
	var errs []error
	kept := []int{}
	for _, id := range ids {
		name, err := r.orphanWithNAD(ctx, id)
		switch {
		case err != nil:
			errs, kept = append(errs, err), append(kept, id)
		case name != "":
			r.log.Warn("network stays unchanged: it has no usable NetworkAttachmentDefinition", "network", name)
			kept = append(kept, id)
		default:
			r.queue.keys.Add(key{kindNetwork, id})
		}
	}
	r.mu.Lock()
	changed := !slices.Equal(r.kept, kept)
	r.kept = kept
	r.mu.Unlock()
	if changed {
		r.queue.EnqueueHosts()
	}
	if r.flows != nil {
		r.flows.Keep(kept)
	}
	r.queue.enqueueBatched(kindPorts)
	for _, t := range tables {
		result, err := vrf.RemoveTable(ctx, r.kernel, t)
		r.logOperations(fmt.Sprintf("table %d", t), result)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// orphanWithNAD returns the name of an orphaned network if a NAD, even if
// unusable, names it: invalid input must not remove a network. One that was created
// again has another id, and what the old id has is an orphan.
func (r *networkReconciler) orphanWithNAD(ctx context.Context, id int) (string, error) {
	owner := vrf.OwnerOf(network.Network{ID: id}, r.node.Node(), r.config.Plan)
	st, err := r.kernel.Read(ctx, owner)
	if err != nil {
		return "", fmt.Errorf("read orphaned network id %d: %w", id, err)
	}
	for _, d := range st.Devices {
		if name, ok := r.cache.networkWithAlias(d.Alias); ok && r.cache.NetworkID(name) == 0 {
			return name, nil
		}
	}
	return "", nil
}
