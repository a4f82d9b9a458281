// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/test/api"
	"bulkhead/test/bench/controller"
	"bulkhead/test/bench/proc"
)

// Names of the measured processes.
const (
	controllerProc = "controller"
	serverProc     = "kube-apiserver"
	etcdProc       = "etcd"
	benchProc      = "bench"
)

// cluster is an API server and its controller.
type cluster struct {
	*rawClient
	env     *api.Env
	binary  string
	log     *os.File
	running *controller.Process
	peak    int64 // largest peak memory of the controllers that have exited
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
	if err := env.Install(ctx, filepath.Join(deploy, "crds"), filepath.Join(deploy, "admission"), filepath.Join(deploy, "config.yaml"), filepath.Join(deploy, "install.yaml")); err != nil {
		return nil, fmt.Errorf("install the manifests: %w", err)
	}
	if c.rawClient, err = newRawClient(env.Admin); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.kubeconfig(), []byte(api.Kubeconfig(env.Controller)), 0o600); err != nil {
		return nil, fmt.Errorf("write the controller's kubeconfig: %w", err)
	}
	if c.log, err = os.Create(filepath.Join(env.Dir, "controller.log")); err != nil {
		return nil, fmt.Errorf("create the controller's log: %w", err)
	}
	return c, nil
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.env.Dir, "controller.kubeconfig") }

// stop stops all processes and removes their files.
func (c *cluster) stop() error { return errors.Join(c.stopController(), c.env.Stop()) }

// abandon stops all processes, keeps the logs and prints their directory.
func (c *cluster) abandon() error {
	fmt.Fprintln(os.Stderr, "logs are in", c.env.Dir)
	return errors.Join(c.stopController(), c.env.Halt())
}

// pids returns the running processes by name.
func (c *cluster) pids() map[string]int {
	p := map[string]int{serverProc: c.env.PID(serverProc), etcdProc: c.env.PID(etcdProc), benchProc: os.Getpid()}
	if c.running != nil {
		p[controllerProc] = c.running.PID()
	}
	return p
}

// startController starts the cluster controller and waits until it is the leader and
// its caches are synced.
func (c *cluster) startController(ctx context.Context) error {
	p, err := controller.Start(c.binary, c.log, "--role=cluster", "--kubeconfig="+c.kubeconfig())
	if err != nil {
		return err
	}
	c.running = p
	return c.poll(ctx, "the controller is ready", func() (bool, error) { return p.Ready(ctx), nil })
}

// stopController stops the controller as kubelet would.
func (c *cluster) stopController() error {
	if c.running == nil {
		return nil
	}
	p := c.running
	c.running = nil
	_, peak, err := proc.Memory(p.PID())
	c.peak = max(c.peak, peak)
	return errors.Join(err, p.Stop())
}

// peakMemory returns the peak memory of all controllers so far.
func (c *cluster) peakMemory() (int64, error) {
	if c.running == nil {
		return c.peak, nil
	}
	_, now, err := proc.Memory(c.running.PID())
	return max(c.peak, now), err
}

// waitReconciled waits until the controller has made n reconciliations or more
// and its queue of networks is empty.
func (c *cluster) waitReconciled(ctx context.Context, n int) error {
	return c.poll(ctx, fmt.Sprintf("the controller has reconciled %d networks", n), func() (bool, error) {
		q, err := c.queue(ctx)
		return q.reconciled >= n && q.busy == 0 && q.queued == 0, err
	})
}

// queue is the state of the controller's queue of networks.
type queue struct{ reconciled, busy, queued int }

func (c *cluster) queue(ctx context.Context) (q queue, err error) {
	if c.running == nil {
		return q, nil
	}
	page, err := c.running.Get(ctx, "/metrics")
	if err != nil {
		return q, err
	}
	return parseQueue(page)
}

func parseQueue(page string) (q queue, err error) {
	for metric, into := range map[string]*int{
		"controller_runtime_reconcile_total": &q.reconciled, "controller_runtime_active_workers": &q.busy, "workqueue_depth": &q.queued,
	} {
		found := false
		samples, err := parseMetric(strings.NewReader(page), metric)
		if err != nil {
			return q, err
		}
		for _, s := range samples {
			if s.labels["controller"] == "network" {
				*into += int(s.value)
				found = true
			}
		}
		if !found {
			return q, fmt.Errorf("the controller has no metric %s of the network reconciler", metric)
		}
	}
	return q, nil
}

// poll calls f until it returns true or an error.
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
