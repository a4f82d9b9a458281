// SPDX-License-Identifier: Apache-2.0

// Command agent runs on every node: it gives each network its VRF, management
// port, routes and rules, binds tenants' host-network processes to their
// network, lets kubelet's probes pass and nothing else, and attaches pods.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/errgroup"

	"bulkhead/pkg/agent"
	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/vrf"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, config.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// options are flags that only the agent has.
type options struct {
	sysctlPath  string
	stateSocket string
}

// run is the whole process, until ctx ends. What it made stays then: the data
// path goes on without it.
func run(ctx context.Context, args []string) error {
	opts := options{sysctlPath: "/proc/sys", stateSocket: "/var/run/bulkhead/agent.sock"}
	cfg, err := config.Load("agent", args, func(fs *pflag.FlagSet) {
		fs.StringVar(&opts.sysctlPath, "sysctl-path", opts.sysctlPath, "where the node's /proc/sys can be written")
		fs.StringVar(&opts.stateSocket, "state-socket", opts.stateSocket, "unix socket that tells bulkheadctl the agent's state; empty: none")
	})
	if err != nil {
		return err
	}
	if cfg.Kubernetes.NodeName == "" {
		if cfg.Kubernetes.NodeName, err = os.Hostname(); err != nil {
			return fmt.Errorf("--node-name is empty, and the host has no name: %w", err)
		}
	}
	log := kube.SetLog(ctx, os.Stderr, cfg.LogLevel, "node", cfg.Kubernetes.NodeName)
	nl.EnableErrorMessageReporting = true // the kernel's own words in errors

	clients, err := kube.NewClients(cfg.Kubernetes, "bulkhead-agent")
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	kernel, err := vrf.Open(opts.sysctlPath, cfg.OVS.ExternalBridge)
	if err != nil {
		return fmt.Errorf("reach the kernel: %w", err)
	}
	defer kernel.Close()

	// What the kernel lacks degrades the node; it does not stop the agent.
	parts := agent.Parts{Config: cfg, Store: agent.NewCache(), Kernel: kernel, Log: log,
		API: agent.NewKubeAPI(ctx, clients.Kube, cfg.Kubernetes.NodeName)}
	var kicks kicks
	manager, refusals, closeBPF := setUpKernel(ctx, cfg, opts, kernel, &parts, &kicks, log)
	defer closeBPF()
	agent.LogFeatures(log, parts.Features)

	switches, err := ovs.Connect(ctx, cfg.OVS.DBAddress, log)
	if err != nil {
		return err
	}
	defer switches.Close()
	bridge := &ovs.FlowKeeper{Client: switches, Switch: flows.OFCtl{}, Bridge: cfg.OVS.ExternalBridge, RunDir: ovs.RunDir(cfg.OVS.DBAddress), Log: log}
	parts.OVS, parts.Flows = switches, bridge

	a := agent.New(parts)
	kicks.set(a.ReportChanged)
	kernel.Guard = a.GuardLink
	bridge.Report = func(err error) { a.Outcome("external bridge", err) }
	if err := a.Serve(ctx, cfg.Listen, opts.stateSocket); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	watches, err := a.NewWatches(clients)
	if err != nil {
		return err
	}
	pods, err := setUpCNI(cfg, a, watches, switches, clients, log)
	if err != nil {
		return err
	}
	group.Go(func() error {
		return ended("follow the kernel", kernel.Watch(ctx, vrf.Watched{TableBase: cfg.Plan.VRFTableBase, MaxID: network.MaxID}, a.KernelChanged))
	})
	if manager != nil {
		group.Go(func() error { return ended("follow pods and kubelet", manager.Run(ctx)) })
	}
	if parts.Firewall != nil {
		group.Go(func() error { return ended("follow nftables", firewall.Watch(ctx, a.FirewallChanged)) })
	}
	if refusals != nil {
		group.Go(func() error { return ended("tell refusals", a.TellRefusals(ctx, refusals)) })
	}
	group.Go(func() error { bridge.Run(ctx); return nil })
	group.Go(func() error { return ended("reconcile", a.Run(ctx)) })
	group.Go(func() error { return ended("attach pods", pods.Serve(ctx, cfg.CNI.Socket)) })
	group.Go(func() error { return ended("collect what pods left", collect(ctx, pods, log)) })
	group.Go(func() error {
		// Only when the lists are complete does the agent know what is not
		// wanted any more. It waits as long as the API server is away.
		if err := watches.Run(ctx); err != nil {
			return ended("read the API", err)
		}
		a.Start()
		return nil
	})
	return group.Wait()
}

// ended names the part of the process that ended; being told to end is no error.
func ended(part string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}
