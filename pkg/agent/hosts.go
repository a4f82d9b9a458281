// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
)

// reconcileHosts tells eBPF and nft who may reach what from the host's own
// network: tenants' host-network processes, kubelet, locked addresses. nft
// comes first: it closes, and knows nothing of what eBPF opens.
func (a *Agent) reconcileHosts(ctx context.Context) error {
	if !a.started.Load() {
		return nil
	}
	run := a.beginHosts()
	defer a.endHosts(run)
	locked := a.Store.Locked()
	var errs []error
	if a.keeper != nil {
		a.mu.Lock()
		recheck := a.recheck
		a.recheck = false
		a.mu.Unlock()
		ops, err := a.keeper.Reconcile(ctx, a.firewallInputs(locked), recheck)
		for _, op := range ops {
			a.Log.Debug("nft", "op", op.String())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("nftables: %w", err))
		} else {
			a.nft.made.Store(true)
		}
	}
	if a.HostNet != nil {
		in := hostnet.Inputs{Pods: a.Store.HostPods(), Networks: a.hostNetworks(), Locked: locked}
		if err := a.HostNet.Reconcile(ctx, in); err != nil {
			errs = append(errs, fmt.Errorf("host network: %w", err))
		}
		a.queue.AddAfter(key{kind: theReport}, settle)
	}
	return errors.Join(errs...)
}

func (a *Agent) beginHosts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hostsBegun++
	return a.hostsBegun
}

func (a *Agent) endHosts(run int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hostsEnd = run
	close(a.hostsEnded)
	a.hostsEnded = make(chan struct{})
}

// Lock returns when the default-network address of a pod that is about to be
// connected is locked, if it is to be: a pod is closed before it is reachable.
// Calls at the same time share a run. That something else of the node could
// not be done in that run does not hold up the pod; the condition tells it.
func (a *Agent) Lock(ctx context.Context, p Pod) error {
	if len(lockedOf(p)) == 0 && !p.HostNetwork {
		return nil
	}
	a.Store.SetPod(p)
	a.mu.Lock()
	want := a.hostsBegun + 1
	a.mu.Unlock()
	a.queue.Add(key{kind: theHosts})
	for {
		a.mu.Lock()
		done, ended := a.hostsEnd >= want, a.hostsEnded
		a.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return fmt.Errorf("pod %s: its default-network address is not locked yet: %w", p.Key(), ctx.Err())
		}
	}
}

func (a *Agent) firewallInputs(locked []hostnet.LockedAddr) firewall.Inputs {
	in := firewall.Inputs{Locked: make([]netip.Addr, 0, len(locked))}
	for _, l := range locked {
		in.Locked = append(in.Locked, l.Addr)
	}
	in.Mark = a.KubeletMark
	if in.Mark == 0 && a.KubeletCgroup != nil {
		in.Cgroup, in.CgroupID = a.KubeletCgroup()
	}
	return in
}

// hostNetworks are the networks as the programs need them.
func (a *Agent) hostNetworks() []hostnet.Network {
	nets := a.Store.Networks()
	out := make([]hostnet.Network, 0, len(nets))
	for _, n := range nets {
		out = append(out, hostnet.Network{
			ID: n.ID, Name: n.Name, VRFIfindex: a.Kernel.DeviceIndex(a.Config.Plan.VRFTable(n)), Mark: n.PacketMark(), Subnets: n.CIDRs(),
		})
	}
	return out
}

// kubeletUnits are where kubelet's cgroup is on nodes with systemd and in the
// lab. They matter only where eBPF cannot tell kubelet.
var kubeletUnits = []string{"system.slice/kubelet.service", "runtime.slice/kubelet.service", "podruntime.slice/kubelet.service", "kubelet.service", "kubelet"}

// FindKubeletCgroup looks for kubelet's cgroup below the cgroup2 mount. Without
// any, nothing on the node reaches locked addresses, and the condition says so.
func FindKubeletCgroup(root string) (path string, id uint64) {
	for _, unit := range kubeletUnits {
		dir := filepath.Join(root, unit)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if id, err := loader.CgroupID(dir); err == nil {
			return unit, id
		}
	}
	return "", 0
}
