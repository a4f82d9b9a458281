// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"bulkhead/pkg/process"
)

// ServeNode answers load balancers that ask whether the node serves Services, until ctx ends: see NodeHandler. It listens as
// process.ListenTCP does, with the limits of the Services' ports.
func ServeNode(ctx context.Context, address string, serves func() error, log *slog.Logger) error {
	return process.ListenTCP(ctx, address, log, func(l net.Listener) {
		server := serve(l, NodeHandler(serves), log)
		context.AfterFunc(ctx, func() { _ = server.Close() })
	})
}

// NodeHandler answers /healthz as kube-proxy does at its port 10256: 200, or 503 while serves returns an error.
func NodeHandler(serves func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := serves(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}
