// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// healthHandlers are the endpoints that kubelet probes, by path: /healthz
// answers while the process lives, /readyz fails while ready returns an error.
func healthHandlers(ready func() error) map[string]http.Handler {
	return map[string]http.Handler{
		"/healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }),
		"/readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		}),
	}
}

// NewRegistry is a registry with the metrics of the Go runtime and the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// maxScrapes is how many requests read the metrics at a time.
const maxScrapes = 4

// Starting is the handler of a process that has not started yet: it is alive and not ready, until Set.
type Starting struct {
	handler atomic.Pointer[http.Handler]
}

// NewStarting returns a Starting that says what the process waits for.
func NewStarting(waitsFor string) *Starting {
	s := &Starting{}
	mux := http.NewServeMux()
	for path, handler := range healthHandlers(func() error { return fmt.Errorf("waiting for %s", waitsFor) }) {
		mux.Handle(path, handler)
	}
	s.Set(mux)
	return s
}

// Set sets the handler of all further requests.
func (s *Starting) Set(h http.Handler) { s.handler.Store(&h) }

// ServeHTTP implements http.Handler.
func (s *Starting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.handler.Load()).ServeHTTP(w, r)
}

// NewMux serves healthHandlers and /metrics.
func NewMux(ready func() error, metrics prometheus.Gatherer) *http.ServeMux {
	mux := http.NewServeMux()
	for path, handler := range healthHandlers(ready) {
		mux.Handle(path, handler)
	}
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	return mux
}

// ServeTCP listens on address, as ListenTCP does, and serves h there in the background until ctx
// ends. Anybody who reaches the node can connect, so the number of
// connections is limited: maxOfRemote for each remote address, maxRemote for all. Kubelet's probes come from loopback.
func ServeTCP(ctx context.Context, address string, h http.Handler, log *slog.Logger) error {
	return ListenTCP(ctx, address, log, func(l net.Listener) { serve(ctx, limitRemote(l, maxOfRemote, maxRemote), h, log) })
}

// ListenTCP listens on address and passes the listener to start, which must return. An empty address is not listened on. If
// another program has the port, ListenTCP tries again in the background until the port is
// free, and the process works without it meanwhile.
func ListenTCP(ctx context.Context, address string, log *slog.Logger, start func(net.Listener)) error {
	if address == "" {
		return nil
	}
	listen := func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			start(l)
		}
		return err
	}
	err := listen()
	if errors.Is(err, syscall.EADDRINUSE) {
		log.Warn("another program has the port, trying again until it is free", "address", address)
		go func() {
			for errors.Is(err, syscall.EADDRINUSE) {
				select {
				case <-ctx.Done():
					return
				case <-time.After(portInterval):
				}
				err = listen()
			}
			if err != nil {
				log.Error("listen", "address", address, "error", err)
			}
		}()
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	return nil
}

// portInterval is how often ListenTCP tries to get a port that another program has.
const portInterval = 200 * time.Millisecond

// ServeUnix listens on a unix socket, as ListenUnix does, and serves h there in
// the background until ctx ends. An empty path serves nothing.
func ServeUnix(ctx context.Context, path string, h http.Handler, log *slog.Logger) error {
	if path == "" {
		return nil
	}
	l, err := ListenUnix(path)
	if err != nil {
		return err
	}
	serve(ctx, l, h, log)
	return nil
}

func serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("stopped serving HTTP", "address", l.Addr().String(), "error", err)
		}
	}()
}
