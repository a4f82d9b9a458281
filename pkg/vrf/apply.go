// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"

	"bulkhead/pkg/network"
)

// Target is the kernel, or Fake.
type Target interface {
	// Read is one network's part; what carries no mark of ours is left out.
	Read(ctx context.Context, owner Owner) (State, error)
	// Tables are the routing tables that anything of ours belongs to, those of
	// networks that are long gone included.
	Tables(ctx context.Context) ([]int, error)
	// Do makes one change.
	Do(ctx context.Context, op Op) error
}

// ErrNoVRF is wrapped by the error of an AddDevice on a kernel without VRF.
var ErrNoVRF = errors.New("this kernel has no VRF devices (CONFIG_NET_VRF, module vrf)")

// Apply makes all changes in order. One that fails does not stop those behind
// it, except those that need it: without its VRF device the port is not put
// anywhere, and outside its VRF it gets no address. The error names each that
// failed.
func Apply(ctx context.Context, t Target, ops []Op) error {
	var errs []error
	missing := map[string]bool{} // VRF devices, and ports that are not in theirs
	for _, op := range ops {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
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
			}
		}
	}
	return errors.Join(errs...)
}

// Result is what a reconcile saw and did.
type Result struct {
	Want, Have State // Have is from before Ops
	Ops        []Op
	Waiting    []string // links that must appear first; their event asks for another run
}

// Reconcile reads net's part, and changes it into what should be.
func Reconcile(ctx context.Context, t Target, net network.Network, node network.Node, in Inputs) (Result, error) {
	have, err := t.Read(ctx, OwnerOf(net, node, in.Plan))
	if err != nil {
		return Result{}, fmt.Errorf("read state of network %s: %w", net.Name, err)
	}
	in.Foreign, in.Devices = have.Foreign, have.Devices
	want, err := Build(net, node, in)
	if err != nil {
		return Result{Have: have}, err
	}
	r := Result{Want: want, Have: have, Ops: Diff(want, have), Waiting: Waiting(want, have)}
	return r, Apply(ctx, t, r.Ops)
}

// Remove takes away everything of the network with that id.
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

// Leftovers are the ids of networks that have state here but are not wanted:
// they went while no agent ran. A table outside the plan's range, left by
// another vrf-table-base, has no id; RemoveTable takes it.
func Leftovers(ctx context.Context, t Target, plan network.Plan, wanted func(id int) bool) (ids, tables []int, err error) {
	all, err := t.Tables(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list tables: %w", err)
	}
	for _, table := range all {
		id := table - plan.VRFTableBase
		switch {
		case table == MainTable:
		case id < 1 || id > network.MaxID:
			tables = append(tables, table)
		case !wanted(id):
			ids = append(ids, id)
		}
	}
	return ids, tables, nil
}

// RemoveTable takes away what carries our mark in a table that belongs to no
// network of this plan.
func RemoveTable(ctx context.Context, t Target, table int) (Result, error) {
	have, err := t.Read(ctx, Owner{Table: table})
	if err != nil {
		return Result{}, fmt.Errorf("read table %d: %w", table, err)
	}
	r := Result{Have: have, Ops: Diff(State{}, have)}
	return r, Apply(ctx, t, r.Ops)
}
