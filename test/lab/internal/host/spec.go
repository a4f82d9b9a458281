// SPDX-License-Identifier: Apache-2.0

// Package host is the part of the lab that runs on the developer's machine: a supervisor
// in its own namespaces, with the underlay network, and with the control plane, the
// virtual machines and the external host as child processes. When it exits for any
// reason, the kernel kills all processes in its process namespace.
package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/test/lab/internal/build"
)

// Spec describes a lab; the supervisor reads it from spec.json in the run directory.
type Spec struct {
	Run      string    `json:"run"`
	Nodes    []Machine `json:"nodes"`
	External Machine   `json:"external"`
	Families Families  `json:"families"`
	// AgentUplink: the nodes have no external bridge at boot.
	AgentUplink bool            `json:"agentUplink,omitempty"`
	KVM         bool            `json:"kvm"`
	Token       string          `json:"token"`
	Artifacts   build.Artifacts `json:"artifacts"`
}

// Machine is a node VM or the external host.
type Machine struct {
	Name string `json:"name"`
	// Addresses are the underlay's, of the lab's IP families, IPv4 first.
	Addresses []netip.Prefix `json:"addresses"`
	// Management is the command server's address; the external host has none.
	Management netip.Prefix `json:"management,omitzero"`
}

// The lab's networks, which exist only in the supervisor's network namespace.
var (
	underlay4  = netip.MustParsePrefix("172.30.0.0/24")
	underlay6  = netip.MustParsePrefix("fd00:172:30::/64")
	management = netip.MustParsePrefix("172.31.255.0/24")
)

// Families are the lab's IP families.
type Families string

// A single-stack lab has one of the first two.
const (
	IPv4 Families = "ipv4"
	IPv6 Families = "ipv6"
	Dual Families = "dual"
)

// List names the IP families.
func (f Families) List() []string { return ofFamilies(f, string(IPv4), string(IPv6)) }

// ofFamilies returns those of an IPv4 and an IPv6 value that the lab has.
func ofFamilies[T any](f Families, v4, v6 T) []T {
	switch f {
	case IPv4:
		return []T{v4}
	case IPv6:
		return []T{v6}
	}
	return []T{v4, v6}
}

// Address ranges of the cluster, IPv4 and IPv6.
var (
	clusterCIDRs = [2]string{"10.244.0.0/16", "fd10:244::/48"}
	serviceCIDRs = [2]string{"10.96.0.0/16", "fd10:96::/112"}
)

// ClusterSubnets are the product's cluster-subnets: ranges with the length of a node's.
func ClusterSubnets(f Families) []string {
	return ofFamilies(f, clusterCIDRs[0]+"/24", clusterCIDRs[1]+"/64")
}

// ServiceCIDRs are the ranges of cluster IPs.
func ServiceCIDRs(f Families) []string { return ofFamilies(f, serviceCIDRs[0], serviceCIDRs[1]) }

const (
	hostNumber     = 1
	firstNode      = 11
	externalNumber = 100
	apiPort        = 6443
)

// Plan returns the machines of a lab with their names and addresses.
func Plan(nodes int, f Families) (list []Machine, external Machine) {
	for n := range nodes {
		list = append(list, Machine{
			Name: fmt.Sprintf("node%d", n+1), Addresses: underlay(firstNode+n, f),
			Management: nth(management, firstNode+n),
		})
	}
	return list, Machine{Name: "external", Addresses: underlay(externalNumber, f)}
}

func underlay(n int, f Families) []netip.Prefix {
	return ofFamilies(f, nth(underlay4, n), nth(underlay6, n))
}

// nth returns the n-th address of a subnet, with the subnet's prefix length.
func nth(subnet netip.Prefix, n int) netip.Prefix {
	b := subnet.Addr().AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, subnet.Bits())
}

func gateways(f Families) []netip.Addr {
	var list []netip.Addr
	for _, p := range underlay(hostNumber, f) {
		list = append(list, p.Addr())
	}
	return list
}

// DNSAddresses are the cluster IPs of the service kube-system/kube-dns: the tenth of each
// service range.
func DNSAddresses(f Families) []netip.Addr {
	var list []netip.Addr
	for _, cidr := range ServiceCIDRs(f) {
		list = append(list, nth(netip.MustParsePrefix(cidr), 10).Addr())
	}
	return list
}

// APIHost is the API server's address for nodes.
func APIHost(f Families) string { return gateways(f)[0].String() }

// APIPort is the API server's port.
func APIPort() int { return apiPort }

// path returns the path of a file in the run directory.
func (s Spec) path(parts ...string) string {
	return filepath.Join(append([]string{s.Run}, parts...)...)
}

// LogDir is the directory of the daemons' logs and the VMs' consoles.
func LogDir(run string) string { return filepath.Join(run, "log") }

// KubeconfigPath is the administrator's kubeconfig.
func KubeconfigPath(run string) string { return filepath.Join(run, "pki/admin.kubeconfig") }

// ExternalSocket is the socket of the external host's command server.
func ExternalSocket(run string) string { return filepath.Join(run, "external.sock") }

// State describes a running lab: state.json in its run directory.
type State struct {
	Spec
	PID int `json:"pid"`
	// Started is the supervisor's start time in clock ticks since boot. It detects a
	// reused PID.
	Started string `json:"started"`
	Ready   bool   `json:"ready"`
	// BGP: FRR and frr-k8s are the lab's own, and not a test's.
	BGP bool `json:"bgp"`
}

// ErrNoLab is returned when no lab runs in a run directory.
var ErrNoLab = errors.New("no lab is running")

// ReadState returns the state of a run directory, and ErrNoLab if its supervisor does
// not run.
func ReadState(run string) (State, error) {
	var s State
	data, err := os.ReadFile(filepath.Join(run, "state.json"))
	if errors.Is(err, os.ErrNotExist) {
		return s, ErrNoLab
	}
	if err != nil {
		return s, fmt.Errorf("read the lab's state: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("parse the lab's state in %s: %w", run, err)
	}
	if started, err := StartTime(s.PID); err != nil || started != s.Started {
		return s, ErrNoLab
	}
	return s, nil
}

// Gone reports whether a lab's supervisor and everything that it started have exited. A
// supervisor that is a zombie may have children that are still exiting; it is gone when
// it has at most one task left.
func Gone(s State) bool {
	if started, err := StartTime(s.PID); err == nil && started == s.Started {
		return false
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.PID))
	return err != nil || len(tasks) <= 1
}

// WriteState replaces the state.
func WriteState(s State) error { return writeJSON(filepath.Join(s.Run, "state.json"), s) }

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// Rename, so that a reader never reads a partial file.
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// StartTime returns when a process started, in clock ticks since boot.
func StartTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The program's name is in parentheses and may contain any character.
	_, rest, ok := strings.Cut(string(data), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 || f[0] == "Z" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return f[19], nil
}
