// Package lab starts and drives a real Kubernetes cluster on this machine: one
// to four virtual machines with kubelet, containerd, OVS and an OVN zone each,
// a native control plane, and an external host on the same network. See
// README.md for how it is built, and cmd/lab for the command line.
package lab

import (
	"fmt"
	"os"
	"path/filepath"
)

// Options describe a lab. The zero value is two IPv4 nodes without the product.
type Options struct {
	// Nodes is the number of virtual machines, 1 to 4; 0 means 2.
	Nodes int
	// Families is "ipv4" (also "") or "dual".
	Families string
	// KVM is "auto" (also ""): probe it and fall back to emulation; "on" or "off".
	KVM string
	// Install applies the manifests below deploy/ and waits until the nodes are Ready.
	Install bool
	// Keep leaves a lab whose nodes or product do not become ready, to look into.
	Keep bool
	// Repo is the checkout to build from; "" is the one around the working directory.
	Repo string
}

// complete fills in defaults and refuses what makes no sense.
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
	case "ipv4", "dual":
	default:
		return o, fmt.Errorf("families are ipv4 or dual, not %q", o.Families)
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

// findRepo walks up to the checkout that holds this package.
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

// RunVariable names the directory of the running lab: its state, sockets,
// certificates and logs. Labs with different directories do not meet.
const RunVariable = "BULKHEAD_LAB_DIR"

func runDir() string {
	if dir := os.Getenv(RunVariable); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), "bulkhead-lab")
}
