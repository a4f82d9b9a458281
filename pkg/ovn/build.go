// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"bulkhead/pkg/network"
)

// Inputs are the inputs of a network's rows besides the network and the node.
type Inputs struct {
	Plan network.Plan
	// PhysicalNetwork is OVN's name of the network behind the external bridge.
	PhysicalNetwork string
	// Peers are the other ready nodes. Localnet and secondary Layer 2 networks
	// have no rows for them.
	Peers []network.Node
	// OneNode: the cluster has no other node, ready or not.
	OneNode bool
	// Pods are this node's pods on the network.
	Pods []PodPort
	// RemotePods are the other nodes' pods on a Layer 2 network.
	RemotePods []RemotePod
	BGP        BGP
	// Services are the network's.
	Services []Service
	// Exposed are services of the cluster default network.
	Exposed []ExposedService
	// ImportedRoutes are the routes that BGP has learned, in those of the cluster default
	// network.
	ImportedRoutes []ImportedRoute
}

// PodPort is a pod's interface on a network. A pod may have several interfaces on
// one network, with different NAD keys.
type PodPort struct {
	// NADKey is network.DefaultName on the cluster default network, and
	// <namespace>/<name>/<index> for another attachment to the same NAD.
	NADKey         string
	Namespace, Pod string
	UID            string
	MAC            string // empty: derived from IPs
	IPs            []netip.Prefix
	// TunnelKey is the port's key, the same in every zone, on Layer 2 networks.
	TunnelKey int
	// VirtualMachine is the name of the virtual machine that runs in the pod. On a
	// primary Layer 2 network OVN answers its DHCP client.
	VirtualMachine string
	// Disabled ports pass no packets: another pod of the same virtual machine has its
	// addresses, before or after a live migration.
	Disabled bool
	// Locked means that the pod's primary network is another one: on this network
	// only the node's own address reaches the pod.
	Locked bool
	// Open are the ports of a locked port that all of this network reach.
	Open []network.OpenPort
	// Ingress means that the pod, of the cluster default network, reaches the cluster IPs of all
	// networks' services.
	Ingress bool
	// HostPorts are reached at the node's addresses, on the pod's primary network.
	HostPorts []network.HostPort
	// TakenHostPorts are those that an older pod has.
	TakenHostPorts []HostPortAt
	Created        time.Time // of the pod, if it has host ports
}

// HostPortAt is a port of a gateway router at which a pod's host port is reached.
type HostPortAt struct {
	Protocol string
	At       netip.AddrPort
}

// hostPortsAt returns where the pod's host ports are at the gateway router, each place once.
func (p PodPort) hostPortsAt(plan network.Plan, n network.Network, node network.Node) (out []HostPortAt) {
	seen := map[HostPortAt]struct{}{}
	for _, h := range p.HostPorts {
		for _, r := range h.Routes(plan, n, node.Addresses) {
			at := HostPortAt{h.Protocol, netip.AddrPortFrom(r.To, h.Port)}
			if _, ok := seen[at]; !ok {
				seen[at] = struct{}{}
				out = append(out, at)
			}
		}
	}
	return out
}

// Key is the pod's namespace/name.
func (p PodPort) Key() string { return p.Namespace + "/" + p.Pod }

// RemotePod is the interface of another node's pod on a Layer 2 network.
type RemotePod struct {
	NADKey         string
	Namespace, Pod string
	Node, Chassis  string // of the pod; a pod on a node without a chassis is left out
	MAC            string // empty: derived from IPs
	IPs            []netip.Prefix
	TunnelKey      int
	Disabled       bool // see PodPort
}

// Key is the pod's namespace/name.
func (p RemotePod) Key() string { return p.Namespace + "/" + p.Pod }

// Build returns the desired rows of net on node. The error says why the node cannot
// have the network.
func Build(net network.Network, node network.Node, in Inputs) (State, error) {
	return BuildUnits(net, node, in, nil)
}

// BuildUnits is Build for some of the units, or all for nil. Rows of one unit may be
// in columns of another unit's rows, which must then exist. Of peers, pods and
// services, in needs only those of the units.
func BuildUnits(net network.Network, node network.Node, in Inputs, units []Unit) (State, error) {
	b := &builder{net: net, node: node, in: in, space: uuidSpace(net)}
	if len(net.Subnets) > 0 || net.Topology == network.Layer3 {
		hosts, err := net.HostSubnets(node.ID)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node.Name, err)
		}
		b.hosts = hosts
	}
	t, err := b.topology()
	if err != nil {
		return nil, err
	}
	var selected unitSet
	selected.add(units...)
	if b.unit = topologyUnit; selected.has(b.unit) {
		b.rateLimits()
		t.own()
	}
	if b.unit = importUnit; selected.has(b.unit) {
		b.importedRoutes()
	}
	for _, peer := range in.Peers {
		if b.unit = peerUnit(peer.Name); selected.has(b.unit) && t.peer != nil {
			t.peer(peer)
		}
	}
	for _, pod := range in.Pods {
		if b.unit = podUnit(pod.Key()); selected.has(b.unit) {
			b.pod(t.podSwitch, pod)
		}
	}
	for _, pod := range in.RemotePods {
		if b.unit = remoteUnit(pod.Key()); selected.has(b.unit) && net.Topology == network.Layer2 && pod.Chassis != "" {
			b.remotePod(t.podSwitch, pod)
		}
	}
	if !b.primary() {
		return b.rows, nil
	}
	for _, s := range in.Services {
		if b.unit = serviceUnit(s.Key()); selected.has(b.unit) {
			b.service(t.podSwitch, s)
		}
	}
	for _, s := range in.Exposed {
		if b.unit = exposedUnit(s.Key()); selected.has(b.unit) && !net.IsDefault() {
			b.exposed(s)
		}
	}
	return b.rows, nil
}

// topology is what differs between topologies and roles.
type topology struct {
	podSwitch string             // that has the pods' ports
	own       func()             // adds the rows of the topology unit
	peer      func(network.Node) // adds the rows of another node; nil: there are none
}

func (b *builder) topology() (topology, error) {
	primary := b.primary()
	switch {
	case b.net.Topology == network.Layer3 && primary:
		return topology{b.nodeSwitch(), func() {
			b.layer3()
			b.sharedSets()
			b.exemptSets()
			b.gateway()
			b.uplink()
			b.isolation()
			b.confine()
			b.isolateAdvertised()
		}, b.layer3Peer}, nil
	case b.net.Topology == network.Layer3:
		return topology{b.nodeSwitch(), b.layer3, b.layer3Peer}, nil
	case b.net.Topology == network.Layer2 && primary:
		return topology{b.net.Layer2Switch(), func() {
			b.layer2()
			b.exemptSets()
			b.transitRouter()
			b.gateway()
			b.confine()
			b.isolateAdvertised()
		}, b.layer2Peer}, nil
	case b.net.Topology == network.Layer2:
		return topology{b.net.Layer2Switch(), b.layer2, nil}, nil
	case b.net.Topology == network.Localnet && !primary:
		return topology{b.net.LocalnetSwitch(), b.localnet, nil}, nil
	}
	return topology{}, fmt.Errorf("network %s: there is no topology %s with role %s", b.net.Name, b.net.Topology, b.net.Role)
}

// builder collects the rows of one network.
type builder struct {
	net   network.Network
	node  network.Node
	in    Inputs
	hosts []netip.Prefix // of node, one per IP family; none without subnets
	space uuid.UUID      // of the rows' UUIDs
	unit  Unit           // of the rows that are added
	rows  State
}

// masqueradeManagement returns the addresses that the network's pods are SNATed to
// on the management port, of the network's IP families.
func (b *builder) masqueradeManagement() []netip.Prefix {
	return b.filterFamilies(b.in.Plan.MasqueradeManagement(b.net))
}

// filterFamilies returns the prefixes of the network's IP families.
func (b *builder) filterFamilies(ps []netip.Prefix) []netip.Prefix {
	v4, v6 := b.net.Families()
	return network.FilterFamilies(ps, v4, v6)
}

// gateways returns the addresses of the router that is the pods' gateway.
func (b *builder) gateways() []netip.Prefix { return mapPrefixes(b.hosts, b.net.GatewayIn) }

// management returns the node's own addresses on the network.
func (b *builder) management() []netip.Prefix { return mapPrefixes(b.hosts, b.net.ManagementIn) }

// primary reports whether the network is the default gateway of its pods.
func (b *builder) primary() bool { return b.net.IsDefault() || b.net.IsPrimary() }

// localGateway reports whether pods leave OVN through the kernel instead of the
// gateway router.
func (b *builder) localGateway() bool { return b.node.Mode == network.LocalGateway }

// hasGateway reports whether the network, a primary one, has a gateway router on
// this node: if the agent has reported the external bridge.
func (b *builder) hasGateway() bool { return b.node.BridgeMAC != "" && len(b.node.Addresses) > 0 }
