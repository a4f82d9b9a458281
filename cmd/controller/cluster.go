// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"

	"bulkhead/pkg/cluster"
	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
)

// runCluster is --role=cluster: leader-elected, the Kubernetes API only.
func runCluster(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	rest, err := kube.RESTConfig(cfg.Kubernetes, "bulkhead-cluster")
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	return cluster.Run(ctx, cfg, rest, log)
}
