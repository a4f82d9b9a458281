// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServeUnix(t *testing.T) {
	ready := errors.New("caches are not synced")
	socket := filepath.Join(t.TempDir(), "run", "a.sock")
	mux := NewMux(func() error { return ready }, NewRegistry())
	log := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 2 { // the second replaces the socket
		if err := ServeUnix(ctx, socket, mux, log); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(ServeUnix(ctx, "", mux, log), ServeTCP(ctx, "", mux, log)); err != nil {
		t.Errorf("empty address: %v", err)
	}
	if err := ServeTCP(ctx, "192.0.2.1:1", mux, log); err == nil {
		t.Error("an address that is not the host's: no error")
	}
	for path, mode := range map[string]os.FileMode{socket: 0o600, filepath.Dir(socket): 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", path, st, err, mode)
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	expect := func(path string, status int, body string) {
		t.Helper()
		resp, err := client.Get("http://process" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status || !strings.Contains(string(got), body) {
			t.Errorf("%s: %s %q, want %d %q", path, resp.Status, got, status, body)
		}
	}
	expect("/healthz", 200, "ok")
	expect("/readyz", 503, "caches are not synced")
	ready = nil
	expect("/readyz", 200, "ok")
	expect("/metrics", 200, "go_goroutines")
	stop()
	for {
		if _, err := net.Dial("unix", socket); err != nil {
			break // closed
		}
	}
	// The socket of a stopped process remains; the next process replaces it.
	l, err := ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
