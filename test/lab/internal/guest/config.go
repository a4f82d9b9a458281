// SPDX-License-Identifier: Apache-2.0

// Package guest runs inside the lab's machines: the init of a node VM, which starts
// OVS, OVN, containerd and kubelet, and the external host, a container beside the
// VMs. Starting a process takes forty times as long under emulation as natively, so
// this package calls the kernel itself rather than command line tools.
package guest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
)

// Mount points of the share, which the supervisor fills, and of containerd's store
// with the images; both are read-only.
const (
	ShareDir  = "/lab"
	ImagesDir = ShareDir + "/images"
	// ContainerRuntime is the program that containerd runs.
	ContainerRuntime = ShareDir + "/bin/container-runtime"
)

// ExecPort is the port of a machine's command server on the management network,
// which is not in the node's own network namespace.
const ExecPort = 7000

// Config is a machine's configuration: the file nodes/<name>.json in the share.
type Config struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	// Addresses and Gateways are on the underlay, one per IP family.
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways"`
	// Management is the address of the command server, on the second network card.
	Management netip.Prefix `json:"management"`
	// AgentUplink: the product makes the external bridge.
	AgentUplink bool `json:"agentUplink,omitempty"`
	// Hosts are the lines of /etc/hosts.
	Hosts []Host `json:"hosts"`
}

// Host is one line of /etc/hosts.
type Host struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
}

// MAC derives a stable MAC address from the underlay's IPv4 address.
func MAC(prefix byte, a netip.Addr) net.HardwareAddr {
	b := a.AsSlice()
	return append(net.HardwareAddr{0x52, prefix}, b[len(b)-4:]...)
}

func readConfig(name string) (Config, error) {
	path := filepath.Join(ShareDir, "nodes", name+".json")
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read this machine's configuration: %w", err)
	}
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return c, nil
}
