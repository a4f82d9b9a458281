// Package guest is what runs inside the lab's machines: the init of a node VM,
// which brings up OVS, OVN, containerd and kubelet, and the external host, a
// container-like place beside the VMs. Starting a process under emulation costs
// forty times its native price, so what Go can do itself is not left to a tool.
package guest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
)

// Where a machine finds the share that the supervisor fills, and a node
// containerd's store with the images; both are read-only.
const (
	ShareDir  = "/lab"
	ImagesDir = ShareDir + "/images"
)

// ExecPort is where a machine's command server listens, on the management
// network that the node's own network stack does not see.
const ExecPort = 7000

// Config is everything a machine has to know about itself: one JSON file in
// the share, nodes/<name>.json.
type Config struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	// Addresses and Gateways are the underlay's, one for each family.
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways"`
	// Management is the address of the command channel, on the second card.
	Management netip.Prefix `json:"management"`
	// Hosts are the lines of /etc/hosts.
	Hosts []Host `json:"hosts"`
}

// Host is one line of /etc/hosts.
type Host struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
}

// MAC is derived from the underlay's IPv4 address, so that a node keeps it.
func MAC(prefix byte, a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x52, prefix, b[0], b[1], b[2], b[3]}
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
