// SPDX-License-Identifier: Apache-2.0

// Package ovs configures this node's Open vSwitch: the chassis settings that
// ovn-controller reads, the integration bridge, management ports and pod ports.
// The Build functions return the desired state, Diff the operations from the
// actual to the desired state, and Client applies them in transactions of the
// Open_vSwitch database.
package ovs

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Keys of external_ids. KeyOwner is our mark: the package never changes rows
// without it.
const (
	KeyOwner   = "k8s.ovn.org/owner"
	OwnerValue = "bulkhead"
	KeyRole    = "k8s.ovn.org/role" // an Owner
	KeyNetwork = "k8s.ovn.org/network"
	KeyNAD     = "k8s.ovn.org/nad"

	KeyLSP         = "iface-id" // ovn-controller's: the logical port
	KeyLSPVersion  = "iface-id-ver"
	KeyAttachedMAC = "attached-mac"
	KeyInstalled   = "ovn-installed" // written by ovn-controller
	KeySandbox     = "sandbox"
	KeyIfName      = "k8s.ovn.org/ifname"     // inside the pod
	KeyAttachment  = "k8s.ovn.org/attachment" // CNI network/ifname of the ADD that created it
	KeyPod         = "k8s.ovn.org/pod"        // namespace/name
)

// Owner selects a group of our rows.
type Owner string

const (
	OwnerChassis    Owner = "chassis"
	OwnerManagement Owner = "management"
	OwnerPod        Owner = "pod"
)

// State is one Owner's desired or actual state in the database.
type State struct {
	// Chassis holds external_ids of the Open_vSwitch row; in the desired state
	// only the keys that we manage.
	Chassis map[string]string
	// Bridge is the integration bridge, for OwnerChassis.
	Bridge *Bridge
	// Ports holds ports by name.
	Ports map[string]Port
}

// Bridge is an OVS bridge with fail_mode=secure, as ovn-controller creates it.
type Bridge struct {
	Name         string
	DatapathType string // "" is the kernel datapath
}

// Port is a port with one interface of the same name.
type Port struct {
	Name        string
	Bridge      string
	Internal    bool   // otherwise an existing link of the host
	MAC         string // internal ports only: other links have a MAC
	MTU         int    // internal ports only
	ExternalIDs map[string]string
}

// Inputs are BuildChassis's inputs besides the node.
type Inputs struct {
	SBAddress       string // OVN southbound database
	ExternalBridge  string
	PhysicalNetwork string
	// ExternalIDs are the actual external_ids of the Open_vSwitch row: an
	// existing system-id and an operator's bridge mappings are kept.
	ExternalIDs map[string]string
}

// DefaultIntegrationBridge is ovn-controller's default.
const DefaultIntegrationBridge = "br-int"

// IntegrationBridge returns ovn-controller's bridge, given the external_ids of
// the Open_vSwitch row.
func IntegrationBridge(externalIDs map[string]string) string {
	if b := externalIDs["ovn-bridge"]; b != "" {
		return b
	}
	return DefaultIntegrationBridge
}

// BuildChassis returns the state that makes this node an OVN chassis in its own
// zone. It includes the integration bridge, so that the agent and ovn-controller
// may start in any order.
func BuildChassis(node network.Node, in Inputs) (State, error) {
	if len(node.EncapIPs) == 0 {
		return State{}, fmt.Errorf("node %s has no geneve address: assign an address to the external bridge %s, or set encap-ips", node.Name, in.ExternalBridge)
	}
	encap := make([]string, len(node.EncapIPs))
	for i, a := range node.EncapIPs {
		encap[i] = a.String()
	}
	ids := map[string]string{
		"system-id":                 ChassisID(node.Name, in.ExternalIDs),
		"hostname":                  node.Name, // the chassis hostname, to which requested-chassis refers
		"ovn-remote":                in.SBAddress,
		"ovn-encap-type":            "geneve",
		"ovn-encap-ip":              strings.Join(encap, ","),
		"ovn-is-interconn":          "true",
		"ovn-bridge-mappings":       mergeMappings(in.ExternalIDs["ovn-bridge-mappings"], in.PhysicalNetwork, in.ExternalBridge),
		"ovn-monitor-all":           "true", // the zone is this node: it needs all rows
		"ovn-set-local-ip":          "true", // with several geneve addresses, send from the configured one
		"ovn-remote-probe-interval": "100000",
	}
	return State{Chassis: ids, Bridge: &Bridge{
		Name: IntegrationBridge(in.ExternalIDs), DatapathType: in.ExternalIDs["ovn-bridge-datapath-type"],
	}}, nil
}

// ChassisID returns the existing system-id, or one derived from the node's name,
// so that a node whose database was lost remains the same chassis.
func ChassisID(node string, externalIDs map[string]string) string {
	if id := externalIDs["system-id"]; id != "" {
		return id
	}
	h := sha256.Sum256([]byte("bulkhead chassis " + node))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // UUID version 8: custom
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// BridgeMappings returns the bridges of physical networks, from the external_ids of
// Open_vSwitch.
func BridgeMappings(externalIDs map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range strings.Split(externalIDs["ovn-bridge-mappings"], ",") {
		if name, bridge, ok := strings.Cut(strings.TrimSpace(m), ":"); ok {
			out[name] = bridge
		}
	}
	return out
}

// mergeMappings sets physnet:bridge in a list of bridge mappings and keeps the
// mappings of other physical networks.
func mergeMappings(existing, physnet, bridge string) string {
	var out []string
	placed := false
	for _, m := range strings.Split(existing, ",") {
		if m = strings.TrimSpace(m); m == "" {
			continue
		}
		if name, _, _ := strings.Cut(m, ":"); name == physnet {
			if placed {
				continue
			}
			m, placed = physnet+":"+bridge, true
		}
		out = append(out, m)
	}
	if !placed {
		out = append(out, physnet+":"+bridge)
	}
	return strings.Join(out, ",")
}

// BuildManagement returns net's management port on the node.
func BuildManagement(net network.Network, node network.Node, integrationBridge string) (State, error) {
	hosts, err := net.HostSubnets(node.ID)
	if err != nil {
		return State{}, fmt.Errorf("management port of network %s on node %s: %w", net.Name, node.Name, err)
	}
	addrs := make([]netip.Prefix, len(hosts))
	for i, h := range hosts {
		addrs[i] = net.ManagementIn(h)
	}
	p := Port{
		Name: net.ManagementPort(), Bridge: integrationBridge, Internal: true, MAC: network.MACOf(addrs), MTU: net.MTU,
		ExternalIDs: map[string]string{
			KeyOwner: OwnerValue, KeyRole: string(OwnerManagement), KeyNetwork: net.Name,
			KeyLSP: net.ManagementLSP(node.Name),
		},
	}
	return State{Ports: map[string]Port{p.Name: p}}, nil
}

// PodPort is the host end of a pod's interface.
type PodPort struct {
	Name           string // of the host end
	LSP            string
	Namespace, Pod string
	UID            string // of the pod: ovn-controller binds the port only if the logical port has the same uid
	MAC            string
	Sandbox        string
	IfName         string // inside the pod
	Attachment     string // CNI network/ifname of the ADD that creates it
	NAD            string // key, or network.DefaultName
	Network        string
}

// BuildPods returns the ports of pods' interfaces.
func BuildPods(ports []PodPort, integrationBridge string) State {
	s := State{Ports: make(map[string]Port, len(ports))}
	for _, p := range ports {
		s.Ports[p.Name] = Port{Name: p.Name, Bridge: integrationBridge, ExternalIDs: map[string]string{
			KeyOwner: OwnerValue, KeyRole: string(OwnerPod), KeyNetwork: p.Network, KeyNAD: p.NAD,
			KeyLSP: p.LSP, KeyLSPVersion: p.UID, KeyAttachedMAC: p.MAC, KeySandbox: p.Sandbox,
			KeyIfName: p.IfName, KeyAttachment: p.Attachment, KeyPod: p.Namespace + "/" + p.Pod,
		}}
	}
	return s
}

// parsePodPort parses a pod port's external_ids.
func parsePodPort(p Port) PodPort {
	ids := p.ExternalIDs
	ns, pod, _ := strings.Cut(ids[KeyPod], "/")
	return PodPort{Name: p.Name, LSP: ids[KeyLSP], Namespace: ns, Pod: pod, UID: ids[KeyLSPVersion], MAC: ids[KeyAttachedMAC],
		Sandbox: ids[KeySandbox], IfName: ids[KeyIfName], Attachment: ids[KeyAttachment], NAD: ids[KeyNAD], Network: ids[KeyNetwork]}
}

// Merge returns the union of states; later ones win.
func Merge(states ...State) State {
	out := State{Chassis: map[string]string{}, Ports: map[string]Port{}}
	for _, s := range states {
		maps.Copy(out.Chassis, s.Chassis)
		maps.Copy(out.Ports, s.Ports)
		if s.Bridge != nil {
			out.Bridge = s.Bridge
		}
	}
	return out
}

// sortedKeys returns m's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
