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
	"bulkhead/pkg/network"
)

// reconcileHosts tells eBPF and nft who may reach what from the host's own
// network: host-network processes, kubelet, locked addresses, interfaces. nft
// comes first: it closes, and knows nothing of what eBPF opens.
func (a *Agent) reconcileHosts(ctx context.Context) error {
	if !a.started.Load() {
		return nil
	}
	run := a.beginHosts()
	open, err := a.closeAndOpen(ctx)
	a.endHosts(run, open)
	return err
}

// closeAndOpen is one run. open is the part of err that leaves something open.
func (a *Agent) closeAndOpen(ctx context.Context) (open, err error) {
	locked := a.Store.Locked()
	var errs, opens []error
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
			err = fmt.Errorf("nftables: %w", err)
			errs, opens = append(errs, err), append(opens, err)
		} else {
			a.nft.made.Store(true)
		}
	}
	if a.HostNet != nil {
		rows, err := a.doorRows(ctx)
		if err != nil {
			return errors.Join(append(opens, err)...), errors.Join(append(errs, err)...)
		}
		in := hostnet.Inputs{Pods: a.Store.HostPods(), Networks: a.hostNetworks(), Locked: locked, Doors: rows, TunnelPort: tunnelPort,
			MarkFirst: network.PacketMark(1), MarkLast: network.PacketMark(network.MaxID)}
		for _, p := range a.Node().Addresses {
			in.Locals = append(in.Locals, p.Addr())
		}
		if err := a.HostNet.Reconcile(ctx, in); err != nil {
			err = fmt.Errorf("host network: %w", err)
			errs = append(errs, err)
			if errors.Is(err, hostnet.ErrNotClosed) {
				opens = append(opens, err)
			}
		}
		a.queue.AddAfter(key{kind: theReport}, settle)
	}
	if a.keeper == nil && a.HostNet == nil {
		opens = append(opens, errors.New("this node has neither nftables nor eBPF"))
	}
	return errors.Join(opens...), errors.Join(errs...)
}

// FirewallChanged is told of each transaction that touched the nft table. What
// somebody else changed is put right.
func (a *Agent) FirewallChanged(generation uint32) {
	if a.keeper != nil && a.keeper.Changed(generation) {
		a.Hosts()
	}
}

// tunnelPort is where OVN's geneve tunnels listen.
const tunnelPort = 6081

func (a *Agent) beginHosts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hostsBegun++
	return a.hostsBegun
}

func (a *Agent) endHosts(run int, open error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hostsEnd, a.hostsErr = run, open
	close(a.hostsEnded)
	a.hostsEnded = make(chan struct{})
}

// Lock returns when the default-network address of a pod that is about to be
// connected is locked, if it is to be: a pod is closed before it is reachable.
// Calls at the same time share a run. The error says what could not be closed;
// that something could not be opened does not hold up the pod, the condition
// tells it.
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
		done, open, ended := a.hostsEnd >= want, a.hostsErr, a.hostsEnded
		a.mu.Unlock()
		if done {
			if open != nil {
				return fmt.Errorf("pod %s: its default-network address cannot be locked: %w", p.Key(), open)
			}
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
	in := firewall.Inputs{Locked: make([]netip.Addr, 0, len(locked)), Networks: a.Store.Networks(), DefaultPort: a.Config.DefaultNetwork.ManagementPort(),
		Mode: a.Config.OVS.GatewayMode, TunnelPort: tunnelPort}
	for _, l := range locked {
		in.Locked = append(in.Locked, l.Addr)
	}
	if a.PodRoots != nil {
		in.PodRoots = a.PodRoots()
	}
	in.Mark = a.KubeletMark
	if in.Mark == 0 && a.KubeletCgroup != nil {
		in.Kubelet.Cgroup = a.KubeletCgroup()
	}
	return in
}

// hostNetworks are the networks as the programs need them.
func (a *Agent) hostNetworks() []hostnet.Network {
	nets := a.Store.Networks()
	out := make([]hostnet.Network, 0, len(nets))
	for _, n := range nets {
		x := hostnet.Network{ID: n.ID, Name: n.Name, VRFIfindex: a.Kernel.DeviceIndex(a.Config.Plan.VRFTable(n)), Mark: n.PacketMark(), Subnets: n.CIDRs()}
		x.Host4, x.Host6 = hostAddrs(n, a.Store.NodeID())
		out = append(out, x)
	}
	return out
}

// FindPodRoots are the cgroups that hold all pods, for nft.
func FindPodRoots(root string) []firewall.Cgroup {
	layout, err := hostnet.ReadLayout(root)
	if err != nil {
		return nil
	}
	var out []firewall.Cgroup
	for _, r := range layout.Roots {
		if rel, err := filepath.Rel(root, r.Path); err == nil {
			out = append(out, firewall.Cgroup{Path: rel, ID: r.ID})
		}
	}
	return out
}

// kubeletUnits are where kubelet's cgroup is on nodes with systemd and in the
// lab. They matter only where eBPF cannot tell kubelet.
var kubeletUnits = []string{"system.slice/kubelet.service", "runtime.slice/kubelet.service", "podruntime.slice/kubelet.service", "kubelet.service", "kubelet"}

// FindKubeletCgroup looks for kubelet's cgroup below the cgroup2 mount. Without
// any, nothing on the node reaches locked addresses, and the condition says so.
func FindKubeletCgroup(root string) firewall.Cgroup {
	for _, unit := range kubeletUnits {
		dir := filepath.Join(root, unit)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if id, err := loader.CgroupID(dir); err == nil {
			return firewall.Cgroup{Path: unit, ID: id}
		}
	}
	return firewall.Cgroup{}
}
