// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"time"

	"bulkhead/pkg/agent"
	"bulkhead/pkg/cni"
	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
)

// newCNIServer makes the server that connects pods.
func newCNIServer(cfg config.Config, a *agent.Agent, n *node, informers *agent.Informers, clients *kube.Clients, log *slog.Logger) (*cni.Server, error) {
	pods, err := cni.NewInformerPods(informers.Pods())
	if err != nil {
		return nil, err
	}
	return cni.NewServer(cni.Config{Default: cfg.DefaultNetwork, Plan: cfg.Plan, ConfDir: cfg.CNI.ConfDir, Log: log}, pods, n.parts.Cache, a.PodPorts(n.ovs, pods.Get), cni.Kernel{}, cni.APIStatus{Client: clients.Kube}), nil
}

// cniFiles are the plugin and its configuration on the node.
func cniFiles(paths config.CNI) cni.Installation {
	return cni.Installation{Plugin: paths.Plugin, BinDir: paths.BinDir, ConfDir: paths.ConfDir, Socket: paths.Socket, Mark: cni.InstalledMark}
}

// installCNI installs the plugin and its configuration, with which the
// container runtime reports the node ready, once the agent is synced. Then it keeps them.
func installCNI(ctx context.Context, files cni.Installation, a *agent.Agent, server *cni.Server, report func(error)) error {
	select {
	case <-a.Synced():
	case <-ctx.Done():
		return nil
	}
	server.KeepInstalled(ctx, files, report)
	return nil
}

// collectPorts periodically deletes ports of pods that were deleted without a
// call of the plugin.
func collectPorts(ctx context.Context, server *cni.Server, log *slog.Logger) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := server.Collect(ctx); err != nil && ctx.Err() == nil {
				log.Warn("cannot delete ports of deleted pods", "error", err)
			}
		}
	}
}
