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
	"bulkhead/pkg/ovs"
)

// setUpCNI makes the server that attaches pods. The container runtime is told
// of it, and calls the node ready, once the agent's first full run is done.
func setUpCNI(cfg config.Config, a *agent.Agent, watches *agent.Watches, switches *ovs.Client, clients *kube.Clients, log *slog.Logger) (*cni.Server, error) {
	pods, err := cni.NewInformerPods(watches.Pods())
	if err != nil {
		return nil, err
	}
	ports := agent.PodPorts{OVS: switches, Agent: a, Pod: pods.Get}
	server := cni.NewServer(cni.Config{Default: cfg.DefaultNetwork, Log: log}, pods, a.Store, ports, cni.Kernel{}, cni.APIStatus{Client: clients.Kube})
	a.OnNetworks = server.NetworksChanged
	a.OnReady = func() {
		// The plugin first: the configuration makes the runtime call it.
		for {
			err := cni.InstallPlugin(cfg.CNI.Plugin, cfg.CNI.BinDir)
			if err == nil {
				err = cni.WriteConflist(cfg.CNI.ConfDir, cfg.CNI.Socket)
			}
			if err == nil {
				break
			}
			log.Error("the container runtime cannot be told how to attach pods; trying again", "error", err)
			server.SetReady(err.Error())
			time.Sleep(5 * time.Second)
		}
		server.SetReady("")
		log.Info("ready to attach pods", "socket", cfg.CNI.Socket)
	}
	return server, nil
}

// collect removes ports of pods that went while nobody called the plugin.
func collect(ctx context.Context, server *cni.Server, log *slog.Logger) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := server.Collect(ctx); err != nil && ctx.Err() == nil {
				log.Warn("ports of pods that are gone", "error", err)
			}
		}
	}
}
