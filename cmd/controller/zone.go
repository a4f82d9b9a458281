// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"

	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/ovn"
)

// runZone is --role=zone: this node's OVN northbound database.
func runZone(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	clients, err := kube.NewClients(cfg.Kubernetes, "bulkhead-zone")
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	zone, err := ovn.NewZone(cfg, clients.Kube, clients.NAD, log)
	if err != nil {
		return err
	}
	return zone.Run(ctx)
}
