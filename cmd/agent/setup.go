// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"sync"

	"bulkhead/pkg/agent"
	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/vrf"
)

// setUpKernel tries what the kernel has, and leaves in parts what works. The
// manager and what it refuses are nil without eBPF.
func setUpKernel(ctx context.Context, cfg config.Config, opts options, kernel *vrf.Kernel, parts *agent.Parts, changed *kicks, log *slog.Logger) (*hostnet.Manager, agent.Refusals, func()) {
	parts.Features = append(parts.Features, agent.FeatureOf("VRF devices", kernel.Probe(ctx, cfg.Plan.VRFTableBase), "no network is kept apart in this node's kernel: networks are not configured"))
	parts.Features = append(parts.Features, agent.SysctlFeatures(opts.sysctlPath)...)

	nft, err := firewall.Open()
	if err == nil {
		_, err = nft.Read(ctx)
	}
	parts.Features = append(parts.Features, agent.FeatureOf("nftables", err, "raw sockets of the node's processes reach locked addresses"))
	if err == nil {
		parts.Firewall = nft
		err := nft.MatchesSockets(ctx)
		parts.Features = append(parts.Features, agent.FeatureOf("nftables socket match", err, "there is no wall behind the eBPF programs for packets into networks"))
		if err == nil {
			parts.PodRoots = func() []firewall.Cgroup { return agent.FindPodRoots(cfg.CgroupRoot) }
		}
	}

	l, err := loader.Load(loader.Options{PinRoot: cfg.BPFPinPath, CgroupRoot: cfg.CgroupRoot, Log: log})
	parts.Features = append(parts.Features, agent.EBPFFeatures(l, err)...)
	parts.KubeletCgroup = func() firewall.Cgroup { return agent.FindKubeletCgroup(cfg.CgroupRoot) }
	if err != nil {
		return nil, nil, func() {}
	}
	if agent.MarksKubelet(parts.Features) {
		parts.KubeletMark = loader.KubeletMark
	}
	parts.Counters = l.Counters
	m, err := hostnet.New(l, hostnet.Options{CgroupRoot: cfg.CgroupRoot, Log: log, OnChange: changed.kick})
	if err != nil {
		parts.Features = append(parts.Features, agent.FeatureOf("host-network processes", err, "tenants' host-network processes stay outside their network"))
		return nil, nil, l.Close
	}
	parts.HostNet = m
	refusals, err := l.Events()
	if err != nil {
		log.Warn("refusals are counted and not told", "error", err)
		return m, nil, l.Close
	}
	return m, refusals, l.Close
}

// kicks passes a call on to a function that is known later.
type kicks struct {
	mu sync.Mutex
	f  func()
}

func (k *kicks) set(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.f = f
}

func (k *kicks) kick() {
	k.mu.Lock()
	f := k.f
	k.mu.Unlock()
	if f != nil {
		f()
	}
}
