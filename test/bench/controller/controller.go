// SPDX-License-Identifier: Apache-2.0

// Package controller runs the product's controller as a process, for benchmarks.
package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"

	"bulkhead/test/api"
	"bulkhead/test/bench/proc"
)

// Process is a controller that runs.
type Process struct {
	cmd    *exec.Cmd
	listen string // serves /readyz and /metrics
}

// Start starts a controller, with a free port for its HTTP server.
func Start(binary string, log *os.File, args ...string) (*Process, error) {
	// A new port each time: another process may have taken the last one.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	listen := l.Addr().String()
	_ = l.Close() // only its port is needed
	cmd := exec.Command(binary, append(args, "--listen="+listen)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := api.StartChild(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	return &Process{cmd: cmd, listen: listen}, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ready reports whether its readiness probe passes: a cluster controller is the leader, and
// caches are synced.
func (p *Process) Ready(ctx context.Context) bool {
	_, err := p.Get(ctx, "/readyz")
	return err == nil
}

// Get reads a page of its HTTP server.
func (p *Process) Get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.listen+path, nil)
	if err != nil {
		return "", fmt.Errorf("create a request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("get %s of the controller: %w", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return "", fmt.Errorf("get %s of the controller: %w", path, err)
	}
	return string(b), nil
}

// Stop stops it as kubelet would.
func (p *Process) Stop() error {
	if err := proc.Terminate(p.cmd); err != nil {
		return fmt.Errorf("stop the controller: %w", err)
	}
	return nil
}
