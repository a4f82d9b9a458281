// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bulkhead/test/api"
)

// Names of the processes that are measured.
const (
	controllerProc = "controller"
	serverProc     = "kube-apiserver"
	etcdProc       = "etcd"
	benchProc      = "bench"
)

// cluster is a fresh API server, and the controller that works on it.
type cluster struct {
	*caller
	env     *api.Env
	binary  string
	listen  string // the controller's /readyz and /metrics
	log     *os.File
	running *exec.Cmd
	peak    int64 // the largest of the controllers that have ended
}

func startCluster(ctx context.Context, binary string) (_ *cluster, err error) {
	env, err := api.Start(ctx, api.Options{Fairness: true})
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	c := &cluster{env: env, binary: binary}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.abandon())
		}
	}()
	deploy := filepath.Join(api.Root(), "deploy")
	if err := env.Install(ctx, filepath.Join(deploy, "crds"), filepath.Join(deploy, "admission"), filepath.Join(deploy, "install.yaml")); err != nil {
		return nil, fmt.Errorf("install the manifests: %w", err)
	}
	if c.caller, err = newCaller(env.Admin); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.kubeconfig(), []byte(api.Kubeconfig(env.Controller)), 0o600); err != nil {
		return nil, fmt.Errorf("write the controller's kubeconfig: %w", err)
	}
	if c.log, err = os.Create(filepath.Join(env.Dir, "controller.log")); err != nil {
		return nil, fmt.Errorf("make the controller's log: %w", err)
	}
	return c, nil
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.env.Dir, "controller.kubeconfig") }

// stop ends every process and removes their files.
func (c *cluster) stop() error { return errors.Join(c.stopController(), c.env.Stop()) }

// abandon ends every process, leaves the logs and says where.
func (c *cluster) abandon() error {
	fmt.Fprintln(os.Stderr, "logs are in", c.env.Dir)
	return errors.Join(c.stopController(), c.env.Halt())
}

// pids are the processes that run now.
func (c *cluster) pids() map[string]int {
	p := map[string]int{serverProc: c.env.PID(serverProc), etcdProc: c.env.PID(etcdProc), benchProc: os.Getpid()}
	if c.running != nil {
		p[controllerProc] = c.running.Process.Pid
	}
	return p
}

// startController starts the cluster role and waits until it is the leader and
// has its caches.
func (c *cluster) startController(ctx context.Context) error {
	// Found anew each time: nobody else may have taken it meanwhile.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	c.listen = l.Addr().String()
	_ = l.Close() // only its port was wanted
	cmd := exec.Command(c.binary, "--role=cluster", "--kubeconfig="+c.kubeconfig(), "--listen="+c.listen)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	if err := api.StartChild(cmd); err != nil {
		return fmt.Errorf("start %s: %w", c.binary, err)
	}
	c.running = cmd
	return c.poll(ctx, "the controller is ready", func() (bool, error) {
		_, err := c.ask(ctx, "/readyz")
		return err == nil, nil
	})
}

// stopController ends the controller as Kubernetes would.
func (c *cluster) stopController() error {
	if c.running == nil {
		return nil
	}
	cmd := c.running
	c.running = nil
	if peak, err := peakMemory(cmd.Process.Pid); err == nil {
		c.peak = max(c.peak, peak)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // one that has ended says so below
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("the controller ended with: %w", err)
		}
		return nil
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		return errors.New("the controller did not end within 30 s of SIGTERM")
	}
}

// peakMemory is the controllers' peak until now.
func (c *cluster) peakMemory() (int64, error) {
	if c.running == nil {
		return c.peak, nil
	}
	now, err := peakMemory(c.running.Process.Pid)
	return max(c.peak, now), err
}

// ask gets a page of the controller's own server.
func (c *cluster) ask(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.listen+path, nil)
	if err != nil {
		return "", fmt.Errorf("make a request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the controller for %s: %w", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return "", fmt.Errorf("ask the controller for %s: %w", path, err)
	}
	return string(b), nil
}

// settled waits until the controller has looked at n networks or more and has
// nothing left to do.
func (c *cluster) settled(ctx context.Context, n int) error {
	return c.poll(ctx, fmt.Sprintf("the controller has looked at %d networks", n), func() (bool, error) {
		m, err := c.queue(ctx)
		return m.done >= n && m.busy == 0 && m.queued == 0, err
	})
}

// queue is the state of the controller's queue of networks.
type queue struct{ done, busy, queued int }

func (c *cluster) queue(ctx context.Context) (q queue, err error) {
	if c.running == nil {
		return q, nil
	}
	page, err := c.ask(ctx, "/metrics")
	if err != nil {
		return q, err
	}
	for metric, into := range map[string]*int{
		"controller_runtime_reconcile_total": &q.done, "controller_runtime_active_workers": &q.busy, "workqueue_depth": &q.queued,
	} {
		samples, err := parseMetric(strings.NewReader(page), metric)
		if err != nil {
			return q, err
		}
		for _, s := range samples {
			if s.labels["controller"] == "network" {
				*into += int(s.value)
			}
		}
	}
	return q, nil
}

// poll asks f until it is done.
func (c *cluster) poll(ctx context.Context, what string, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := f()
		if err != nil || done {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		}
	}
}
