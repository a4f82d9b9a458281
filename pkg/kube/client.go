// SPDX-License-Identifier: Apache-2.0

// Package kube provides what all processes need for the Kubernetes API: clients,
// paged lists, the parser of NetworkAttachmentDefinitions, and the patch of the
// pod-networks annotation.
package kube

import (
	"fmt"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"bulkhead/pkg/config"
)

// Clients are the clients of the Kubernetes API.
type Clients struct {
	REST *rest.Config
	Kube kubernetes.Interface
	NAD  nadclient.Interface
}

// NewClients returns clients for the kubeconfig or, if there is none, for the
// pod's service account. agent is the User-Agent.
func NewClients(c config.Kubernetes, agent string) (*Clients, error) {
	cfg, err := RESTConfig(c, agent)
	if err != nil {
		return nil, err
	}
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create Kubernetes client: %w", err)
	}
	// NADs are custom resources, which the API server serves in JSON only.
	crd := rest.CopyConfig(cfg)
	crd.ContentType, crd.AcceptContentTypes = "application/json", "application/json"
	n, err := nadclient.NewForConfig(crd)
	if err != nil {
		return nil, fmt.Errorf("create NetworkAttachmentDefinition client: %w", err)
	}
	return &Clients{REST: cfg, Kube: k, NAD: n}, nil
}

// RESTConfig returns the client configuration for the API server.
func RESTConfig(c config.Kubernetes, agent string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if c.Kubeconfig != "" {
		if cfg, err = clientcmd.BuildConfigFromFlags(c.APIServer, c.Kubeconfig); err != nil {
			return nil, fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, err)
		}
	} else {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("read the pod's service account (outside a cluster set --kubeconfig): %w", err)
		}
		if c.APIServer != "" {
			cfg.Host = c.APIServer
		}
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = c.QPS, c.Burst, agent
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return cfg, nil
}
