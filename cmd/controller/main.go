// SPDX-License-Identifier: Apache-2.0

// Command controller turns what is asked for in the Kubernetes API into
// networks. --role=cluster runs once in a cluster, against the API alone;
// --role=zone runs on every node, beside its OVN northbound database.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, config.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

// run is the whole process: configuration, then the role, until ctx ends.
func run(ctx context.Context, args []string) error {
	role := ""
	cfg, err := config.Load("controller", args, func(fs *pflag.FlagSet) {
		fs.StringVar(&role, "role", role, "cluster (one in the cluster) or zone (one on every node)")
	})
	if err != nil {
		return err
	}
	log := kube.SetLog(ctx, os.Stderr, cfg.LogLevel)

	switch role {
	case "cluster":
		return runCluster(ctx, cfg, log)
	case "zone":
		return runZone(ctx, cfg, log)
	default:
		return fmt.Errorf("--role is %q: use cluster or zone", role)
	}
}
