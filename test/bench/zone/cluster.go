// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"bulkhead/test/api"
	"bulkhead/test/bench/controller"
)

// cluster is an API server with the cluster controller, and the zone controller of one node.
type cluster struct {
	env        *api.Env
	kube       kubernetes.Interface
	nads       nadclient.Interface
	dynamic    dynamic.Interface
	binary     string
	log        *os.File
	clusterRun *controller.Process
	zone       *controller.Process
}

// configuration gives a node's /20 to the default network, whose addresses all pods
// hold beside their own network's.
const configuration = `[default]
cluster-subnets = 10.128.0.0/10/20, fd10:128::/40/64
max-networks = 10000
[observe]
log-level = warn
`

func startCluster(ctx context.Context, binary string) (_ *cluster, err error) {
	env, err := api.Start(ctx, api.Options{})
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	c := &cluster{env: env, binary: binary}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if err := env.Install(ctx, filepath.Join(api.Root(), "deploy", "crds"), filepath.Join(api.Root(), "deploy", "config.yaml"), filepath.Join(api.Root(), "deploy", "install.yaml")); err != nil {
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
	c.clusterRun, err = c.run("--role=cluster", "--kubeconfig="+c.path("cluster.kubeconfig"))
	return c, err
}

func (c *cluster) path(name string) string { return filepath.Join(c.env.Dir, name) }

// run starts the controller.
func (c *cluster) run(args ...string) (*controller.Process, error) {
	return controller.Start(c.binary, c.log, append(args, "--config="+c.path("bulkhead.conf"))...)
}

// startZone starts the zone controller of node1 on the host's databases.
func (c *cluster) startZone(nb, sb string) (err error) {
	c.zone, err = c.run("--role=zone", "--kubeconfig="+c.path("zone.kubeconfig"), "--node-name="+nodeName(0), "--nb-address="+nb, "--sb-address="+sb)
	return err
}

// stopZone stops the zone as kubelet would.
func (c *cluster) stopZone() error {
	if c.zone == nil {
		return nil
	}
	p := c.zone
	c.zone = nil
	return p.Stop()
}

// stop stops all processes and removes their files.
func (c *cluster) stop() error {
	err := c.stopZone()
	if c.clusterRun != nil {
		err = errors.Join(err, c.clusterRun.Stop())
	}
	return errors.Join(err, c.env.Stop())
}
