// SPDX-License-Identifier: Apache-2.0

// Package ovs sets up this node's Open vSwitch: the chassis settings that
// ovn-controller reads, the integration bridge, management ports and pod
// ports. Build says what should be, Diff what to do about what is there,
// Client does it, in transactions of the Open_vSwitch database.
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

// Keys of external_ids. KeyOwner is our mark: rows without it are not ours
// and are never touched.
const (
	KeyOwner   = "k8s.ovn.org/owner"
	OwnerValue = "bulkhead"
	KeyRole    = "k8s.ovn.org/role" // what the port is for: an Owner
	KeyNetwork = "k8s.ovn.org/network"
	KeyNAD     = "k8s.ovn.org/nad"

	KeyLSP         = "iface-id" // ovn-controller's: the logical port
	KeyLSPVersion  = "iface-id-ver"
	KeyAttachedMAC = "attached-mac"
	KeyInstalled   = "ovn-installed" // written by ovn-controller
	KeySandbox     = "sandbox"
	KeyIfName      = "k8s.ovn.org/ifname"     // inside the pod
	KeyAttachment  = "k8s.ovn.org/attachment" // CNI network/ifname of the ADD that made it
	KeyPod         = "k8s.ovn.org/pod"        // namespace/name
)

// Owner says which of our rows are meant.
type Owner string

const (
	OwnerChassis    Owner = "chassis"
	OwnerManagement Owner = "management"
	OwnerPod        Owner = "pod"
)

// State is what should be, or is, in the database, for one Owner.
type State struct {
	// Chassis are keys of the Open_vSwitch row's external_ids: those that
	// Build answers for.
	Chassis map[string]string
	// Bridge is the integration bridge, where it is asked for.
	Bridge *Bridge
	// Ports by name.
	Ports map[string]Port
}

// Bridge is an OVS bridge that fails secure, as ovn-controller makes it.
type Bridge struct {
	Name         string
	DatapathType string // "" is the kernel's
}

// Port is a port with one interface of the same name.
type Port struct {
	Name        string
	Bridge      string
	Internal    bool   // else a link of the system
	MAC         string // internal ports only: others have theirs already
	MTU         int    // internal ports only
	ExternalIDs map[string]string
}

// Inputs is what Build needs beside the network and the node.
type Inputs struct {
	SBAddress       string // OVN southbound database
	ExternalBridge  string
	PhysicalNetwork string
	// ExternalIDs is what the Open_vSwitch row's external_ids hold now: an
	// existing system-id and an operator's bridge mappings are kept.
	ExternalIDs map[string]string
}

// DefaultIntegrationBridge is ovn-controller's default.
const DefaultIntegrationBridge = "br-int"

// IntegrationBridge is the bridge that ovn-controller works on, by the
// Open_vSwitch row's external_ids.
func IntegrationBridge(externalIDs map[string]string) string {
	if b := externalIDs["ovn-bridge"]; b != "" {
		return b
	}
	return DefaultIntegrationBridge
}

// BuildChassis is what makes this node an OVN chassis and a zone of its own,
// with the integration bridge, so that it does not matter whether we or
// ovn-controller start first.
func BuildChassis(node network.Node, in Inputs) (State, error) {
	if len(node.EncapIPs) == 0 {
		return State{}, fmt.Errorf("node %s has no geneve address: give the external bridge %s an address, or set encap-ips", node.Name, in.ExternalBridge)
	}
	encap := make([]string, len(node.EncapIPs))
	for i, a := range node.EncapIPs {
		encap[i] = a.String()
	}
	ids := map[string]string{
		"system-id":                 ChassisID(node.Name, in.ExternalIDs),
		"hostname":                  node.Name, // ovn-controller's chassis hostname, which requested-chassis names
		"ovn-remote":                in.SBAddress,
		"ovn-encap-type":            "geneve",
		"ovn-encap-ip":              strings.Join(encap, ","),
		"ovn-is-interconn":          "true",
		"ovn-bridge-mappings":       mergeMappings(in.ExternalIDs["ovn-bridge-mappings"], in.PhysicalNetwork, in.ExternalBridge),
		"ovn-monitor-all":           "true", // the zone is one node: all of it is ours
		"ovn-set-local-ip":          "true", // several geneve addresses: use the one that was chosen
		"ovn-remote-probe-interval": "100000",
	}
	return State{Chassis: ids, Bridge: &Bridge{
		Name: IntegrationBridge(in.ExternalIDs), DatapathType: in.ExternalIDs["ovn-bridge-datapath-type"],
	}}, nil
}

// ChassisID is the system-id that is there, or one that follows from the
// node's name: an agent whose database was lost comes back as the same chassis.
func ChassisID(node string, externalIDs map[string]string) string {
	if id := externalIDs["system-id"]; id != "" {
		return id
	}
	h := sha256.Sum256([]byte("bulkhead chassis " + node))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // UUID version 8: made our own way
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// mergeMappings puts physnet:bridge into a list of bridge mappings and leaves
// the mappings of other physical networks as they are.
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

// BuildManagement is the node's own interface on net.
func BuildManagement(net network.Network, node network.Node, integrationBridge string) (State, error) {
	hosts, err := net.HostSubnets(node.ID)
	if err != nil {
		return State{}, fmt.Errorf("management port of network %s on node %s: %w", net.Name, node.Name, err)
	}
	addrs := make([]netip.Prefix, len(hosts))
	for i, h := range hosts {
		addrs[i] = network.Management(h)
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
	Name           string // the link's, on the host
	LSP            string
	Namespace, Pod string
	UID            string // of the pod: ovn-controller binds the port only if the logical port has the same
	MAC            string
	Sandbox        string
	IfName         string // inside the pod
	Attachment     string // CNI network/ifname of the ADD that makes it
	NAD            string // key, or network.DefaultName
	Network        string
}

// BuildPods is the ports of pods' interfaces.
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

// podPort reads a pod port's external_ids back.
func podPort(p Port) PodPort {
	ids := p.ExternalIDs
	ns, pod, _ := strings.Cut(ids[KeyPod], "/")
	return PodPort{Name: p.Name, LSP: ids[KeyLSP], Namespace: ns, Pod: pod, UID: ids[KeyLSPVersion], MAC: ids[KeyAttachedMAC],
		Sandbox: ids[KeySandbox], IfName: ids[KeyIfName], Attachment: ids[KeyAttachment], NAD: ids[KeyNAD], Network: ids[KeyNetwork]}
}

// Merge is the union of states; later ones win.
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

// sortedKeys are m's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
