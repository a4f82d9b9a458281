// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// serveGRPC serves the standard gRPC health service, for kubelet's gRPC probes.
func serveGRPC(ctx context.Context, listen string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen for gRPC: %w", err)
	}
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, health.NewServer())
	context.AfterFunc(ctx, s.Stop)
	go func() {
		if err := s.Serve(l); err != nil {
			fmt.Fprintln(os.Stderr, "netprobe: serve gRPC:", err)
		}
	}()
	return nil
}
