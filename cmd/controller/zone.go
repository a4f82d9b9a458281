// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	zone, err := ovn.NewZone(cfg, clients.Kube, clients.NAD, metrics, log)
	if err != nil {
		return err
	}
	serveZone(ctx, cfg.Listen, zone, metrics, log)
	return zone.Run(ctx)
}

// serveZone answers /healthz (the process), /readyz (every network known at
// the start is built) and /metrics.
func serveZone(ctx context.Context, listen string, zone *ovn.Zone, metrics *prometheus.Registry, log *slog.Logger) {
	if listen == "" {
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !zone.Ready() {
			http.Error(w, "not every known network is built", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.ListenAndServe(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("cannot serve metrics", "address", listen, "error", err)
		}
	}()
}
