// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"bulkhead/test/api"
	"bulkhead/test/bench/proc"
	"bulkhead/test/native"
)

// cluster is an API server with the cluster role, and the zone role of one node.
type cluster struct {
	env        *api.Env
	kube       kubernetes.Interface
	nads       nadclient.Interface
	dynamic    dynamic.Interface
	controller string
	log        *os.File
	clusterRun *exec.Cmd
	zone       *exec.Cmd
	listen     string // of the zone
}

// configuration gives a node's /20 to the default network, whose addresses all pods
// hold beside their own network's.
const configuration = `[default]
cluster-subnets = 10.128.0.0/10/20, fd10:128::/40/64
max-networks = 10000
[observe]
log-level = warn
`

func startCluster(ctx context.Context, controller string) (_ *cluster, err error) {
	env, err := api.Start(ctx, api.Options{})
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	c := &cluster{env: env, controller: controller}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if err := env.Install(ctx, filepath.Join(api.Root(), "deploy", "crds"), filepath.Join(api.Root(), "deploy", "install.yaml")); err != nil {
		return nil, fmt.Errorf("install the manifests: %w", err)
	}
	if c.kube, err = kubernetes.NewForConfig(env.Admin); err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	if c.nads, err = nadclient.NewForConfig(env.Admin); err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfig(env.Admin); err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	for name, text := range map[string]string{
		"cluster.kubeconfig": api.Kubeconfig(env.Controller), "zone.kubeconfig": api.Kubeconfig(env.Admin), "bulkhead.conf": configuration,
	} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write a file: %w", err)
		}
	}
	if c.log, err = os.Create(c.path("controllers.log")); err != nil {
		return nil, fmt.Errorf("create the controllers' log: %w", err)
	}
	c.clusterRun, _, err = c.run(ctx, "--role=cluster", "--kubeconfig="+c.path("cluster.kubeconfig"))
	return c, err
}

func (c *cluster) path(name string) string { return filepath.Join(c.env.Dir, name) }

// run starts the controller and returns its process and its address.
func (c *cluster) run(ctx context.Context, args ...string) (*exec.Cmd, string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("find a free port: %w", err)
	}
	listen := l.Addr().String()
	_ = l.Close() // only its port is needed
	cmd := exec.Command(c.controller, append(args, "--config="+c.path("bulkhead.conf"), "--listen="+listen)...)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	if err := api.StartChild(cmd); err != nil {
		return nil, "", fmt.Errorf("start %s: %w", c.controller, err)
	}
	return cmd, listen, nil
}

// startZone starts the zone role of node1 on the host's databases.
func (c *cluster) startZone(ctx context.Context, nb, sb string) (err error) {
	c.zone, c.listen, err = c.run(ctx, "--role=zone", "--kubeconfig="+c.path("zone.kubeconfig"), "--node-name="+nodeName(0), "--nb-address="+nb, "--sb-address="+sb)
	return err
}

// ready reports whether the zone's readiness probe passes.
func (c *cluster) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.listen+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// stopZone stops the zone as kubelet would.
func (c *cluster) stopZone() error {
	if c.zone == nil {
		return nil
	}
	cmd := c.zone
	c.zone = nil
	if err := proc.Terminate(cmd); err != nil {
		return fmt.Errorf("stop the zone: %w", err)
	}
	return nil
}

// stop stops all processes and removes their files.
func (c *cluster) stop() error {
	err := c.stopZone()
	if c.clusterRun != nil {
		native.Kill(c.clusterRun)
	}
	return errors.Join(err, c.env.Stop())
}
