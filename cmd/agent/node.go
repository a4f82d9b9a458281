// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bulkhead/pkg/agent"
	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/ovs/uplink"
	"bulkhead/pkg/process"
	"bulkhead/pkg/vrf"
)

// node is what the agent configures: the kernel and Open vSwitch.
type node struct {
	parts    agent.Parts
	kernel   *vrf.Kernel
	ovs      *ovs.Client
	bridge   *ovs.FlowReconciler
	uplink   *uplink.Keeper   // nil: the bridge has its uplink
	hostNet  *hostnet.Manager // nil: no eBPF
	refusals agent.Refusals   // nil: refusals are only counted
	closers  []func()
}

// openKernel opens the kernel. A missing feature degrades the node, but does not stop the agent.
func openKernel(ctx context.Context, cfg config.Config, opts options, log *slog.Logger) (_ *node, err error) {
	metrics := process.NewRegistry()
	cache, queue := agent.NewCache(), agent.NewQueue(metrics)
	failures := agent.NewFailures(queue)
	n := &node{parts: agent.Parts{Config: cfg, Cache: cache, Queue: queue, Failures: failures, Metrics: metrics, Log: log}}
	defer func() {
		if err != nil {
			n.close()
		}
	}()

	nftFeatures := n.openNFT(ctx)
	ebpfFeatures := n.openEBPF(queue.EnqueueReport)
	guard := agent.NewLinkGuard(cfg, cache, n.parts.HostNet, queue)
	if n.kernel, err = vrf.Open(opts.sysctlPath, cfg.OVS.ExternalBridge, guard.Guard); err != nil {
		return nil, fmt.Errorf("open the kernel's routing tables: %w", err)
	}
	n.closers = append(n.closers, n.kernel.Close)
	_, ipv6 := cfg.DefaultNetwork.Families()
	vrfFeature := probeVRF()
	n.parts.Features = func() []agent.Feature {
		return slices.Concat([]agent.Feature{vrfFeature()}, agent.SysctlFeatures(opts.sysctlPath, ipv6), nftFeatures, ebpfFeatures)
	}
	n.parts.Conntrack = func() (agent.Conntrack, error) { return agent.ReadConntrack(opts.sysctlPath) }

	n.parts.Kernel = n.kernel
	return n, nil
}

// openOVS waits for Open vSwitch.
func (n *node) openOVS(ctx context.Context, opts options) (err error) {
	cfg, log := n.parts.Config, n.parts.Log
	if n.ovs, err = ovs.Connect(ctx, cfg.OVS.DBAddress, log); err != nil {
		return err
	}
	n.closers = append(n.closers, n.ovs.Close)
	if err := n.openUplink(ctx, opts); err != nil {
		return err
	}
	n.bridge = ovs.NewFlowReconciler(n.ovs, ovs.FlowOptions{Switch: flows.OFCtl{}, Bridge: cfg.OVS.ExternalBridge, Node: cfg.Kubernetes.NodeName, Plan: cfg.Plan,
		LooseIsolation: cfg.BGP.LooseIsolation, RunDir: ovs.RunDir(cfg.OVS.DBAddress), Neighbours: ovs.KernelNeighbours{}, Log: log,
		Report: func(err error) { n.parts.Failures.RecordComponent("external bridge", err) }})
	n.parts.OVS, n.parts.Flows = n.ovs, n.bridge
	return nil
}

// probeVRF returns a function that tells whether the kernel has VRF devices. It tries again while they are missing, as their module
// may be loaded later.
func probeVRF() func() agent.Feature {
	var mu sync.Mutex
	var found bool
	return func() agent.Feature {
		mu.Lock()
		defer mu.Unlock()
		if found {
			return agent.NewFeature("VRF devices", nil, "")
		}
		err := vrf.Probe()
		found = err == nil
		return agent.NewFeature("VRF devices", err, "no network is kept apart in this node's kernel: networks are not configured")
	}
}

// openUplink moves the uplink into the external bridge, if that is configured, before anything reads the
// bridge. A failure degrades the node; Run tries again.
func (n *node) openUplink(ctx context.Context, opts options) error {
	c := n.parts.Config.OVS
	if c.Uplink == "" {
		return nil
	}
	target, err := uplink.Open(n.ovs, opts.uplinkRecord, opts.sysctlPath)
	if err != nil {
		return fmt.Errorf("open the uplink: %w", err)
	}
	n.closers = append(n.closers, target.Close)
	n.uplink = uplink.NewKeeper(target, c.ExternalBridge, c.Uplink, n.parts.Log, func(err error) { n.parts.Failures.RecordComponent("uplink", err) })
	if err := n.uplink.Sync(ctx); err != nil {
		n.parts.Log.Warn("the uplink is not on the external bridge", "error", err)
	}
	return nil
}

// close releases what openKernel and openOVS opened. The node's configuration stays.
func (n *node) close() {
	for _, f := range slices.Backward(n.closers) {
		f()
	}
}

func (n *node) openNFT(ctx context.Context) []agent.Feature {
	nft, err := openFirewall(ctx)
	features := []agent.Feature{agent.NewFeature("nftables", err, "raw sockets of the node's processes reach locked addresses")}
	if err != nil {
		return features
	}
	n.parts.Firewall, n.parts.Servers = nft, hostnet.Servers
	n.parts.Firewalls = func() (firewall.Conflicts, error) {
		return firewall.ReadConflicts(n.parts.Config.OVS.ExternalBridge)
	}
	err = nft.MatchesSockets(ctx)
	if err == nil {
		root := n.parts.Config.CgroupRoot
		n.parts.PodRoots = func() ([]firewall.Cgroup, error) { return agent.FindPodRoots(root) }
	}
	return append(features, agent.NewFeature("nftables socket match", err, "eBPF alone stops packets into networks: nftables no longer backs it up"))
}

// openFirewall tries for some seconds: a read fails if somebody flushes the ruleset meanwhile, and the agent would run
// without nftables until its next start.
func openFirewall(ctx context.Context) (*firewall.Target, error) {
	for attempt := 1; ; attempt++ {
		nft, err := firewall.Open()
		if err == nil {
			_, err = nft.Read(ctx)
		}
		if err == nil || attempt == 5 || ctx.Err() != nil {
			return nft, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// openEBPF loads the eBPF programs. changed is called when the state of
// host-network processes changes without a reconcile.
func (n *node) openEBPF(changed func()) []agent.Feature {
	cfg, log := n.parts.Config, n.parts.Log
	n.parts.KubeletCgroup = func() firewall.Cgroup { return agent.FindKubeletCgroup(cfg.CgroupRoot) }
	l, err := loader.Load(loader.Options{PinRoot: cfg.BPFPinPath, CgroupRoot: cfg.CgroupRoot, Log: log})
	features := agent.EBPFFeatures(l, err)
	if err != nil {
		return features
	}
	n.closers = append(n.closers, l.Close)
	if agent.MarksKubelet(features) {
		n.parts.KubeletMark = loader.KubeletMark
	}
	n.parts.Counters = l.Counters
	manager, err := hostnet.New(l, hostnet.Options{CgroupRoot: cfg.CgroupRoot, Log: log, OnChange: changed})
	if err != nil {
		return append(features, agent.NewFeature("host-network processes", err, "tenants' host-network processes stay outside their network"))
	}
	n.hostNet, n.parts.HostNet = manager, manager
	if err := manager.GuardOverlay(); err != nil {
		log.Warn("host-network pods may send to the overlay's port until the first reconcile", "error", err)
	}
	refusals, err := l.Events()
	if err != nil {
		log.Warn("refusals are only counted", "error", err)
		return features
	}
	n.refusals = refusals
	return features
}
