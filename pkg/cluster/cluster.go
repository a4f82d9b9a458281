// SPDX-License-Identifier: Apache-2.0

// Package cluster is the cluster role: what happens once in a cluster, in the
// Kubernetes API alone.
package cluster

import (
	"context"
	"log/slog"

	"k8s.io/client-go/rest"

	"bulkhead/pkg/config"
)

// Run runs the cluster role until ctx ends or leadership is lost.
func Run(ctx context.Context, cfg config.Config, restConfig *rest.Config, log *slog.Logger) error {
	<-ctx.Done()
	return nil
}
