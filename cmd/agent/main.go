// SPDX-License-Identifier: Apache-2.0

// Command agent runs on every node. It gives each network its VRF, management
// port, routes and rules, binds tenants' host-network processes to their
// network, lets only kubelet's probes through to locked addresses, and connects
// pods.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/errgroup"

	"bulkhead/pkg/agent"
	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/uplink"
	"bulkhead/pkg/process"
	"bulkhead/pkg/vrf"
)

func main() { process.Main("agent", run) }

// options are flags that only the agent has.
type options struct {
	sysctlPath   string
	stateSocket  string
	uplinkRecord string
}

// run runs the agent until ctx ends. It leaves the data path as it is then.
func run(ctx context.Context, args []string) error {
	cfg, opts, err := parse(args)
	if err != nil {
		return err
	}
	log := process.SetLog(ctx, os.Stderr, cfg.LogLevel, "node", cfg.Kubernetes.NodeName)
	log.Info("starting", "version", process.Version())
	nl.EnableErrorMessageReporting = true // adds the kernel's message to errors

	clients, err := kube.NewClients(cfg.Kubernetes, "bulkhead-agent")
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// Kubelet must not restart the agent while it waits: Open vSwitch may be unavailable for a long time.
	public := process.NewStarting("the kernel and Open vSwitch: see the log")
	if err := process.ServeTCP(ctx, cfg.Listen, public, log); err != nil {
		return err
	}
	if err := cniFiles(cfg.CNI).BeginBoot(); err != nil {
		return err
	}
	node, err := openKernel(ctx, cfg, opts, log)
	if err != nil {
		return err
	}
	defer node.close()
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	defer func() { cancel(); _ = group.Wait() }() // before node is closed
	start := func(task string, f func() error) {
		group.Go(func() error { return describe(task, f()) })
	}
	if node.hostNet != nil { // also while the agent waits: kubelet may restart, and its probes must pass
		start("watch pods' cgroups and kubelet", func() error { return node.hostNet.Run(ctx) })
	}
	if err := node.openOVS(ctx, opts); err != nil {
		return err
	}
	node.parts.API = agent.NewKubeAPI(ctx, clients.Kube, cfg.Kubernetes.NodeName)
	agent.LogFeatures(log, node.parts.Features())

	a := agent.New(node.parts)
	if err := a.Serve(ctx, public, opts.stateSocket); err != nil {
		return err
	}
	informers, err := agent.NewInformers(clients, cfg.Kubernetes.NodeName)
	if err != nil {
		return err
	}
	pods, err := newCNIServer(cfg, a, node, informers, clients, log)
	if err != nil {
		return err
	}

	start("watch the kernel", func() error {
		return node.kernel.Watch(ctx, vrf.TableRange{TableBase: cfg.Plan.VRFTableBase, MaxID: network.MaxID}, a.KernelChanged)
	})
	if node.parts.Firewall != nil {
		start("watch nftables", func() error { return firewall.Watch(ctx, a.FirewallChanged) })
	}
	if node.refusals != nil {
		start("report refusals", func() error { return a.ReportRefusals(ctx, node.refusals) })
	}
	if node.uplink != nil {
		start("keep the uplink on the external bridge", func() error { return node.uplink.Run(ctx) })
		start("watch the external bridge", func() error { node.ovs.WatchUplink(ctx, cfg.OVS.ExternalBridge, node.uplink.Notify); return nil })
	}
	start("reconcile the external bridge", func() error { node.bridge.Run(ctx); return nil })
	start("reconcile", func() error { return a.Run(ctx) })
	start("serve CNI", func() error { return pods.Serve(ctx, cfg.CNI.Socket) })
	start("install the CNI plugin", func() error {
		return installCNI(ctx, cniFiles(cfg.CNI), a, pods, func(err error) { node.parts.Failures.RecordComponent("CNI plugin", err) })
	})
	start("collect ports of deleted pods", func() error { return collectPorts(ctx, pods, log) })
	start("watch the API", func() error { return a.Watch(ctx, informers, pods.NetworksChanged) })
	return group.Wait()
}

// parse reads the configuration and the flags.
func parse(args []string) (cfg config.Config, opts options, err error) {
	opts = options{sysctlPath: "/proc/sys", stateSocket: "/var/run/bulkhead/agent.sock", uplinkRecord: uplink.DefaultRecord}
	cfg, err = config.Load("agent", args, func(fs *pflag.FlagSet) {
		fs.StringVar(&opts.sysctlPath, "sysctl-path", opts.sysctlPath, "a writable mount of the node's /proc/sys")
		fs.StringVar(&opts.uplinkRecord, "uplink-record", opts.uplinkRecord, "file that says what was moved from the uplink to the external bridge; it must survive a reboot")
		fs.StringVar(&opts.stateSocket, "state-socket", opts.stateSocket, "unix socket from which bulkheadctl reads the agent's state; empty: none")
	})
	if err != nil || cfg.Kubernetes.NodeName != "" {
		return cfg, opts, err
	}
	if cfg.Kubernetes.NodeName, err = os.Hostname(); err != nil {
		return cfg, opts, fmt.Errorf("--node-name is empty, and the host has no name: %w", err)
	}
	return cfg, opts, nil
}

// describe adds the task that failed to its error. The end of ctx is no error.
func describe(task string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("%s: %w", task, err)
}
