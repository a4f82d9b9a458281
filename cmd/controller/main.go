// SPDX-License-Identifier: Apache-2.0

// Command controller turns UserDefinedNetworks, ClusterUserDefinedNetworks and
// NetworkAttachmentDefinitions into networks. --role=cluster runs once per
// cluster and uses the Kubernetes API alone; --role=zone runs on every node,
// beside the node's OVN northbound database.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/pflag"

	"bulkhead/pkg/cluster"
	"bulkhead/pkg/config"
	"bulkhead/pkg/healthcheck"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/ovn"
	"bulkhead/pkg/process"
	"bulkhead/pkg/routeimport"
)

func main() { process.Main("controller", run) }

// run reads the configuration and runs the role until ctx ends.
func run(ctx context.Context, args []string) error {
	role := ""
	cfg, err := config.Load("controller", args, func(fs *pflag.FlagSet) {
		fs.StringVar(&role, "role", role, "cluster (one in the cluster) or zone (one on every node)")
	})
	if err != nil {
		return err
	}
	log := process.SetLog(ctx, os.Stderr, cfg.LogLevel)
	log.Info("starting", "role", role, "version", process.Version())
	switch role {
	case "cluster":
		return runCluster(ctx, cfg, log)
	case "zone":
		return runZone(ctx, cfg, log)
	default:
		return fmt.Errorf("--role is %q: use cluster or zone", role)
	}
}

// runCluster is --role=cluster. The leader alone reconciles.
func runCluster(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	rest, err := kube.RESTConfig(cfg.Kubernetes, "bulkhead-cluster")
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	return cluster.Run(ctx, cfg, rest, log)
}

// runZone is --role=zone. It is ready once every network that existed at the
// start is built, or has failed by itself.
func runZone(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	clients, err := kube.NewClients(cfg.Kubernetes, "bulkhead-zone")
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// The zone runs on every node and holds every network's rows: memory costs its
	// users more than the garbage collector's CPU time. GOGC overrides this.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
	metrics := process.NewRegistry()
	zone, err := ovn.NewZone(cfg, clients.Kube, clients.NAD, metrics, log)
	if err != nil {
		return err
	}
	routes, err := routeimport.Read(cfg.OVS.ExternalBridge)
	if err != nil {
		return fmt.Errorf("read the routes that BGP has learned: %w", err)
	}
	zone.SetImportedRoutes(importedRoutes(routes))
	go routeimport.Watch(ctx, cfg.OVS.ExternalBridge, routeimport.RereadInterval, log, func(r []routeimport.Route) { zone.SetImportedRoutes(importedRoutes(r)) })
	ready := func() error {
		if !zone.Ready() {
			return errors.New("not every known network is built")
		}
		return nil
	}
	if err := process.ServeTCP(ctx, cfg.Listen, process.NewMux(ready, metrics), log); err != nil {
		return err
	}
	if err := healthcheck.ServeNode(ctx, cfg.Kubernetes.HealthzBindAddress, zone.ServesServices, log); err != nil {
		return err
	}
	return zone.Run(ctx)
}

// importedRoutes converts routes to the zone's type.
func importedRoutes(routes []routeimport.Route) []ovn.ImportedRoute {
	var out []ovn.ImportedRoute
	for _, r := range routes {
		out = append(out, ovn.ImportedRoute(r))
	}
	return out
}
