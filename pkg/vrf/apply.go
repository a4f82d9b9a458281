// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bulkhead/pkg/network"
)

// Target is the kernel, or Fake.
type Target interface {
	// Read returns one network's state. It skips objects without our mark.
	Read(ctx context.Context, owner Owner) (State, error)
	// Tables lists the routing tables that any object with our mark belongs to,
	// including those of deleted networks.
	Tables(ctx context.Context) ([]int, error)
	// Do applies one operation.
	Do(ctx context.Context, op Op) error
}

// ErrNoVRF is wrapped by the error of an AddDevice on a kernel without VRF.
var ErrNoVRF = errors.New("this kernel has no VRF devices (CONFIG_NET_VRF, module vrf)")

// Apply applies all operations in order. It continues after a failed operation,
// but skips those that depend on it: without its VRF device the port's master
// stays as it is, and a port outside its VRF gets no address. If an unreachable route cannot be added,
// it skips operations that make the network reachable: packets that match no other route in the VRF's
// table would use the main table. The error names each failed operation.
func Apply(ctx context.Context, t Target, ops []Op) error {
	var errs []error
	missing := map[string]bool{} // VRF devices, and ports outside their VRF
	unclosed := false
	for _, op := range ops {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if unclosed && op.opens() {
			continue
		}
		if missing[op.needs()] || op.Verb == SetMaster && missing[op.Port.Master] {
			if op.Verb == SetMaster {
				missing[op.Port.Name] = true
			}
			continue
		}
		if err := t.Do(ctx, op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
			switch {
			case op.Verb == AddDevice:
				missing[op.Device.Name] = true
			case op.Verb == SetMaster && op.Port.Master != "":
				missing[op.Port.Name] = true
			case op.Verb == AddRoute && op.Route.Unreachable:
				unclosed = true
			}
		}
	}
	return errors.Join(errs...)
}

// Result is the outcome of a reconcile.
type Result struct {
	Want, Have State // Have is the state before Ops
	Ops        []Op
	Waiting    []string // links that must appear first; their event triggers another reconcile
	DeviceOnly bool     // Ops create the VRF device alone: see Inputs.DeviceFirst
}

// Reconcile reads net's actual state and applies the difference to the desired
// state.
func Reconcile(ctx context.Context, t Target, net network.Network, node network.Node, in Inputs) (Result, error) {
	have, err := t.Read(ctx, OwnerOf(net, node, in.Plan))
	if err != nil {
		return Result{}, fmt.Errorf("read state of network %s: %w", net.Name, err)
	}
	in.Foreign, in.Taken, in.Devices = have.Foreign, have.Taken, have.Devices
	want, err := Build(net, node, in)
	if err != nil {
		return Result{Have: have}, err
	}
	r := Result{Want: want, Have: have, Ops: Diff(want, have), Waiting: Waiting(want, have)}
	if first, ok := deviceFirst(r.Ops); ok && in.DeviceFirst {
		err := Apply(ctx, t, first)
		if !errors.Is(err, ErrNoVRF) { // else nobody can see the device before the rest
			r.Ops, r.Waiting, r.DeviceOnly = first, append(r.Waiting, want.Devices[0].Name), err == nil
			return r, err
		}
	}
	return r, Apply(ctx, t, r.Ops)
}

// deviceFirst returns Diff's operations up to those that create the VRF device and prepare it; ok
// is false if they create none.
func deviceFirst(ops []Op) (first []Op, ok bool) {
	i := slices.IndexFunc(ops, func(o Op) bool { return o.Verb == AddDevice })
	if i < 0 {
		return nil, false
	}
	name := ops[i].Device.Name
	for i++; i < len(ops); i++ {
		if o := ops[i]; !(o.Verb == SetAlias && o.Device.Name == name) && !(o.Verb == SetSysctl && o.Sysctl.device() == name) {
			break
		}
	}
	return ops[:i], true
}

// Remove deletes everything of the network with that id.
func Remove(ctx context.Context, t Target, id int, node network.Node, plan network.Plan) (Result, error) {
	owner := OwnerOf(network.Network{ID: id}, node, plan)
	have, err := t.Read(ctx, owner)
	if err != nil {
		return Result{}, fmt.Errorf("read state of network id %d: %w", id, err)
	}
	want := State{ID: id, Network: have.Network}
	r := Result{Want: want, Have: have, Ops: Diff(want, have)}
	return r, Apply(ctx, t, r.Ops)
}

// Leftovers returns the ids of unwanted networks that have state on this node:
// they were deleted while no agent ran. A table outside the plan's range, from
// an earlier vrf-table-base, has no id; RemoveTable empties it.
func Leftovers(ctx context.Context, t Target, plan network.Plan, wanted func(id int) bool) (ids, tables []int, err error) {
	all, err := t.Tables(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list tables: %w", err)
	}
	for _, table := range all {
		id := table - plan.VRFTableBase
		switch {
		case table == MainTable || isShared(table):
		case id < 1 || id > network.MaxID:
			tables = append(tables, table)
		case !wanted(id):
			ids = append(ids, id)
		}
	}
	return ids, tables, nil
}

// RemoveTable deletes objects with our mark from a table that belongs to no
// network of this plan.
func RemoveTable(ctx context.Context, t Target, table int) (Result, error) {
	have, err := t.Read(ctx, Owner{Table: table})
	if err != nil {
		return Result{}, fmt.Errorf("read table %d: %w", table, err)
	}
	r := Result{Have: have, Ops: Diff(State{}, have)}
	return r, Apply(ctx, t, r.Ops)
}
