// SPDX-License-Identifier: Apache-2.0

// Package lab starts and drives a real Kubernetes cluster on this machine: one
// to four virtual machines with kubelet, containerd, OVS and an OVN zone each,
// a native control plane, and an external host on the same network. See
// README.md for how it is built, and cmd/lab for the command line.
package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/pkg/network"
)

// Options describes a lab. The zero value is two IPv4 nodes without the product.
type Options struct {
	// Nodes is the number of virtual machines, 1 to 4; 0 means 2.
	Nodes int
	// Families is "ipv4" (also ""), "ipv6" or "dual".
	Families string
	// Gateway is the product's gateway mode, "shared" (also "") or "local".
	Gateway string
	// BGP installs FRR on each node and frr-k8s.
	BGP bool
	// Transport is how packets of the cluster default network go between nodes: "geneve" (also
	// "") or "no-overlay", which needs BGP and turns it on.
	Transport string
	// AgentUplink leaves the node's card and addresses to the product, which moves them to the
	// external bridge; otherwise the nodes do so at boot.
	AgentUplink bool
	// KVM is "on", "off" or "auto" (also ""), which falls back to emulation if KVM does
	// not work.
	KVM string
	// Install applies the manifests below deploy/ and waits until the nodes are Ready.
	Install bool
	// Conformance builds Kubernetes' own tests, and loads the images of their pods.
	Conformance bool
	// Keep keeps a lab whose nodes or product do not become ready, for debugging.
	Keep bool
	// Repo is the checkout to build from; "" is that of the working directory.
	Repo string
}

// complete sets the defaults and validates the options.
func (o Options) complete() (Options, error) {
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.Nodes < 1 || o.Nodes > 4 {
		return o, fmt.Errorf("a lab has 1 to 4 nodes, not %d", o.Nodes)
	}
	switch o.Families {
	case "":
		o.Families = "ipv4"
	case "ipv4", "ipv6", "dual":
	default:
		return o, fmt.Errorf("families are ipv4, ipv6 or dual, not %q", o.Families)
	}
	switch o.Gateway {
	case "":
		o.Gateway = "shared"
	case "shared", "local":
	default:
		return o, fmt.Errorf("gateway modes are shared or local, not %q", o.Gateway)
	}
	switch o.Transport {
	case "":
		o.Transport = network.TransportGeneve
	case network.TransportGeneve:
	case network.TransportNoOverlay:
		o.BGP = true
	default:
		return o, fmt.Errorf("transports are %s or %s, not %q", network.TransportGeneve, network.TransportNoOverlay, o.Transport)
	}
	if o.BGP && !o.Install {
		return o, errors.New("a lab with BGP has the product installed")
	}
	switch o.KVM {
	case "":
		o.KVM = "auto"
	case "auto", "on", "off":
	default:
		return o, fmt.Errorf("kvm is auto, on or off, not %q", o.KVM)
	}
	if o.Repo == "" {
		repo, err := findRepo()
		if err != nil {
			return o, err
		}
		o.Repo = repo
	}
	return o, nil
}

// findRepo returns the checkout that contains the working directory.
func findRepo() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "test/lab/k8s/go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside a checkout of the project", dir)
		}
	}
}

// RunVariable is the environment variable that names the directory of the running lab,
// with its state, sockets, certificates and logs. Labs with different directories are
// independent.
const RunVariable = "BULKHEAD_LAB_DIR"

func runDir() string {
	if dir := os.Getenv(RunVariable); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), "bulkhead-lab")
}
