// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// reconcileNetwork makes the kernel's part of one network what it should be,
// or takes it away when the network is gone.
func (a *Agent) reconcileNetwork(ctx context.Context, id int) error {
	if !a.started.Load() {
		return nil
	}
	node := a.Node()
	net, ok := a.Store.Network(id)
	if id == network.DefaultID {
		net, ok = a.Config.DefaultNetwork, true
	}
	if !ok {
		return a.removeNetwork(ctx, id, node)
	}
	if node.ID == 0 {
		return nil // its coming asks for a look at everything
	}
	r, err := vrf.Reconcile(ctx, a.Kernel, net, node, vrf.Inputs{Plan: a.Config.Plan, IPv6: a.Kernel.HasIPv6()})
	a.logOps(net.Name, r)
	a.mu.Lock()
	a.nets[id] = netStatus{net: net, result: r, err: err, at: a.Now()}
	a.mu.Unlock()
	if len(r.Ops) > 0 {
		a.queue.AddAfter(key{kind: theHosts}, settle) // the VRF device may have another index
	}
	for _, w := range r.Waiting {
		if w == net.ManagementPort() {
			a.queue.AddAfter(key{kind: thePorts}, settle) // in case somebody deleted it
		}
	}
	if err != nil {
		return fmt.Errorf("network %s: %w", net.Name, err)
	}
	return nil
}

// removeNetwork takes everything away: the kernel's part first, which has the
// order inside it, then the management port, then the rows of the programs.
func (a *Agent) removeNetwork(ctx context.Context, id int, node network.Node) error {
	r, err := vrf.Remove(ctx, a.Kernel, id, node, a.Config.Plan)
	a.logOps(r.Have.Network, r)
	if err != nil {
		return fmt.Errorf("remove network id %d: %w", id, err)
	}
	a.Store.Gone(id)
	a.mu.Lock()
	delete(a.nets, id)
	a.mu.Unlock()
	a.queue.AddAfter(key{kind: thePorts}, settle)
	a.queue.AddAfter(key{kind: theHosts}, settle)
	return nil
}

func (a *Agent) logOps(name string, r vrf.Result) {
	for _, op := range r.Ops {
		a.Log.Debug("kernel", "network", name, "op", op.String())
	}
	if len(r.Ops) > 0 {
		a.Log.Info("network changed in the kernel", "network", name, "operations", len(r.Ops), "waiting", strings.Join(r.Waiting, ","))
	}
}

// reconcilePorts makes exactly the management ports that networks need. One
// that is leaving keeps its port until nothing in the kernel uses it.
func (a *Agent) reconcilePorts(ctx context.Context) error {
	node := a.Node()
	if node.ID == 0 {
		return nil
	}
	nets := append([]network.Network{a.Config.DefaultNetwork}, a.Store.Networks()...)
	leaving := a.Store.Leaving()
	a.mu.Lock()
	for _, id := range leaving {
		if st, ok := a.nets[id]; ok {
			nets = append(nets, st.net)
		}
	}
	a.mu.Unlock()
	if a.Flows != nil {
		a.Flows.SetNetworks(nets)
	}
	if err := a.OVS.SyncManagement(ctx, node, nets); err != nil {
		return fmt.Errorf("management ports: %w", err)
	}
	return nil
}

// lookAtAll asks for a look at everything there should be, and at what there
// is and should not be: networks that went while no agent ran.
func (a *Agent) lookAtAll(ctx context.Context) error {
	if !a.started.Load() {
		return nil
	}
	wanted := map[int]bool{network.DefaultID: true}
	a.queue.Add(key{aNetwork, network.DefaultID})
	for _, n := range a.Store.Networks() {
		wanted[n.ID] = true
		a.queue.Add(key{aNetwork, n.ID})
	}
	for _, k := range []kind{thePorts, theHosts, theNode} {
		a.queue.AddAfter(key{kind: k}, settle)
	}
	ids, tables, err := vrf.Leftovers(ctx, a.Kernel, a.Config.Plan, func(id int) bool { return wanted[id] })
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		spared, err := a.spared(ctx, id)
		switch {
		case err != nil:
			errs = append(errs, err)
		case spared != "":
			a.Log.Warn("network is left as it is: its definition cannot be read", "network", spared)
		default:
			a.queue.Add(key{aNetwork, id})
		}
	}
	for _, t := range tables {
		r, err := vrf.RemoveTable(ctx, a.Kernel, t)
		a.logOps(fmt.Sprintf("table %d", t), r)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// spared is the name of a leftover's network if a NAD still names it, though
// one that cannot be used now. Bad input withdraws nothing.
func (a *Agent) spared(ctx context.Context, id int) (string, error) {
	owner := vrf.OwnerOf(network.Network{ID: id}, a.Node(), a.Config.Plan)
	st, err := a.Kernel.Read(ctx, owner)
	if err != nil {
		return "", fmt.Errorf("read leftover network id %d: %w", id, err)
	}
	for _, d := range st.Devices {
		if name, ok := strings.CutPrefix(d.Alias, vrf.AliasPrefix); ok && a.Store.Named(name) {
			return name, nil
		}
	}
	return "", nil
}
