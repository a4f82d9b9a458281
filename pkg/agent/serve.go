// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves what an operator, a scraper and kubelet ask.
//
//	/healthz      the process is alive
//	/readyz       the first full run is done
//	/metrics      Prometheus
//	/debug/state  State as JSON; with ?deep=1 the kernel is read now
func (a *Agent) Handler(debug bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("/metrics", promhttp.HandlerFor(a.Registry(), promhttp.HandlerOpts{}))
	if debug {
		mux.HandleFunc("/debug/state", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			if err := enc.Encode(a.State(r.Context(), r.URL.Query().Get("deep") != "")); err != nil {
				a.Log.Debug("write state", "error", err)
			}
		})
	}
	return mux
}

// Serve answers on a TCP address ("" for none) and on a unix socket ("" for
// none) until ctx ends. Only the socket, which is root's, tells the state: it
// names every tenant's pods.
func (a *Agent) Serve(ctx context.Context, listen, socket string) error {
	var errs []error
	serve := func(l net.Listener, h http.Handler) {
		s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug)}
		context.AfterFunc(ctx, func() { _ = s.Close() })
		go func() {
			if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
				a.Log.Error("stopped serving", "address", l.Addr().String(), "error", err)
			}
		}()
	}
	if listen != "" {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen on %s: %w", listen, err))
		} else {
			serve(l, a.Handler(false))
		}
	}
	if socket != "" {
		l, err := listenUnix(socket)
		if err != nil {
			errs = append(errs, err)
		} else {
			serve(l, a.Handler(true))
		}
	}
	return errors.Join(errs...)
}

// listenUnix makes a socket that only root can open, in place of one that a
// former process left.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of socket %s: %w", path, err)
	}
	// Bound under another name, so that it never exists with other rights.
	next := path + ".new"
	for _, p := range []string{next, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove old socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: next, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(next, 0o600), os.Rename(next, path)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}
