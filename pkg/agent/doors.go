// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/config"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/vrf"
)

// unknownNetwork is the network id of a pod's interface whose network is
// unknown. No pod has this network.
const unknownNetwork = ^uint32(0)

// podDoor is the network behind the host end of a pod's interface.
type podDoor struct {
	network uint32
	locked  bool
	open    bool // some ports of the locked address
}

// doorInputs are the inputs of buildDoors.
type doorInputs struct {
	bridge    string // the external bridge
	mode      network.GatewayMode
	internal  []string           // interfaces of Open vSwitch that lead to no network
	node      []netip.Prefix     // the node's addresses on the cluster default network
	pods      map[string]podDoor // by interface name
	joined    map[string]uint32  // the network that BGP joins with a VRF of the operator's, by the VRF's name
	tableBase int
}

// buildDoors returns the doors among the host's interfaces. The other
// interfaces, e.g. tunnel devices and the host ends of other CNIs' containers,
// are not guarded, and pods cannot use packet sockets on them.
func buildDoors(links []vrf.Link, in doorInputs) []loader.DoorRow {
	var peer [6]byte
	if mac, err := net.ParseMAC(network.MACOf(in.node)); err == nil && len(mac) == 6 {
		peer = [6]byte(mac)
	}
	peer6, _ := network.FirstOfFamily(in.node, netip.IPv6Unspecified())
	// What the firewall lets in: replies, in shared mode only those of services, and in local
	// mode connections to services with external traffic policy Local.
	forward := 0
	if i := slices.IndexFunc(links, func(l vrf.Link) bool { return l.Name == in.bridge }); i >= 0 {
		forward = links[i].Index
	}
	if in.mode == network.LocalGateway {
		forward = loader.ForwardFromOwn // pods' packets leave by any interface to which the node's routes lead
	}
	vrfs := map[int]uint32{} // the network, by the index of its VRF device
	for _, l := range links {
		if id, ok := in.joined[l.Name]; ok && l.Type == "vrf" {
			vrfs[l.Index] = id
		}
		if l.Table != 0 { // never another network's
			vrfs[l.Index] = uint32(max(l.Table-in.tableBase, 0))
		}
	}
	var out []loader.DoorRow
	for _, l := range links {
		row := loader.DoorRow{Ifindex: l.Index}
		pod, isPod := in.pods[l.Name]
		id, isPort := network.ManagementPortID(l.Name)
		own, isVRF := vrfs[l.Index]
		inVRF, isLink := vrfs[l.Master]
		switch {
		case l.Name == "lo":
			row.Kind = loader.DoorLoopback
		case isPort && id == network.DefaultID:
			row.Kind = loader.DoorDefault
			if in.mode == network.LocalGateway {
				row.ForwardFrom = forward
			}
		case isPort:
			row.Kind, row.NetworkID, row.ForwardFrom = loader.DoorPort, uint32(id), forward
		case isVRF:
			row.Kind, row.NetworkID, row.ForwardFrom = loader.DoorVRF, own, forward
		case isLink:
			row.Kind, row.NetworkID, row.ForwardFrom = loader.DoorLink, inVRF, forward
		case isPod && pod.locked:
			row.Kind, row.NetworkID, row.PeerMAC, row.Peer6, row.Open = loader.DoorLocked, pod.network, peer, peer6.Addr(), pod.open
		case isPod:
			row.Kind, row.NetworkID = loader.DoorPod, pod.network
		case l.PeerInOtherNetns, l.Type == "geneve", slices.Contains(in.internal, l.Name):
			continue
		default:
			row.Kind = loader.DoorOwn
		}
		out = append(out, row)
	}
	return out
}

// doorFacts gathers the inputs of buildDoors that the cache holds.
type doorFacts struct {
	config config.Config
	cache  *Cache
}

// inputs adds the facts of pods' ports in Open vSwitch.
func (f doorFacts) inputs(ports []ovs.PodPort) doorInputs {
	in := doorInputs{bridge: f.config.OVS.ExternalBridge, mode: f.config.OVS.GatewayMode,
		internal: []string{ovs.DefaultIntegrationBridge, "ovs-system", "ovs-netdev"}, pods: map[string]podDoor{}, joined: map[string]uint32{}, tableBase: f.config.Plan.VRFTableBase}
	for _, n := range f.cache.Networks() {
		for _, name := range n.OtherVRFs("") {
			if _, taken := in.joined[name]; !taken && name != "" {
				in.joined[name] = uint32(n.ID)
			}
		}
	}
	in.node = managementAddresses(f.config.DefaultNetwork, f.cache.NodeID())
	for _, p := range ports {
		in.pods[p.Name] = f.podDoor(p.NAD, p.Network, p.Namespace+"/"+p.Pod)
	}
	return in
}

func (f doorFacts) podDoor(nad, net, pod string) podDoor {
	if nad == network.DefaultName {
		locked, open := f.cache.IsLocked(pod)
		return podDoor{locked: locked, open: open}
	}
	if id := f.cache.NetworkID(net); id != 0 {
		return podDoor{network: uint32(id)}
	}
	return podDoor{network: unknownNetwork}
}

// LinkGuard guards VRF devices and management ports when they are created.
type LinkGuard struct {
	facts   doorFacts
	hostNet HostNet
	queue   *Queue
}

// NewLinkGuard guards links with hostNet, which is nil without eBPF.
func NewLinkGuard(conf config.Config, cache *Cache, hostNet HostNet, queue *Queue) *LinkGuard {
	return &LinkGuard{facts: doorFacts{conf, cache}, hostNet: hostNet, queue: queue}
}

// Guard guards a link before it is set up.
func (g *LinkGuard) Guard(l vrf.Link) error {
	if g.hostNet == nil {
		return nil
	}
	rows := buildDoors([]vrf.Link{l}, g.facts.inputs(nil))
	if len(rows) != 1 {
		return fmt.Errorf("interface %s leads to no known network", l.Name)
	}
	g.queue.EnqueueHosts() // the row lacks ForwardFrom, which needs all links
	return g.hostNet.Guard(rows[0])
}

// doorReader reads the host's doors, and guards those of pods' new interfaces.
type doorReader struct {
	facts   doorFacts
	kernel  Kernel
	ovs     OVS
	hostNet HostNet // nil: no eBPF

	mu         sync.Mutex
	connecting map[string]podDoor // by name: pods' interfaces that Open vSwitch does not have yet
}

// rows are the doors among all interfaces, including those of pods that are
// being connected.
func (r *doorReader) rows(ctx context.Context) ([]loader.DoorRow, error) {
	links, err := r.kernel.Links(ctx)
	if err != nil {
		return nil, err
	}
	return r.rowsOf(ctx, links)
}

func (r *doorReader) rowsOf(ctx context.Context, links []vrf.Link) ([]loader.DoorRow, error) {
	// Before the ports: an interface that is connected meanwhile is among them.
	r.mu.Lock()
	connecting := maps.Clone(r.connecting)
	r.mu.Unlock()
	ports, err := r.ovs.ListPods(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods' ports: %w", err)
	}
	in := r.facts.inputs(ports)
	for name, d := range connecting {
		if _, ok := in.pods[name]; !ok {
			in.pods[name] = d
		}
	}
	return buildDoors(links, in), nil
}

// guardPorts guards the host ends of interfaces before they connect a pod. The
// caller calls connected afterwards, also if guardPorts fails.
func (r *doorReader) guardPorts(ctx context.Context, ports []cni.Port) error {
	if r.hostNet == nil {
		return nil
	}
	r.mu.Lock()
	for _, p := range ports {
		r.connecting[p.Name] = r.facts.podDoor(p.NAD, p.Network, p.Namespace+"/"+p.Pod)
	}
	r.mu.Unlock()
	links, err := r.kernel.Links(ctx)
	if err != nil {
		return err
	}
	rows, err := r.rowsOf(ctx, links)
	if err != nil {
		return err
	}
	for _, p := range ports {
		i := slices.IndexFunc(links, func(l vrf.Link) bool { return l.Name == p.Name })
		if i < 0 {
			return fmt.Errorf("interface %s of pod %s/%s does not exist", p.Name, p.Namespace, p.Pod)
		}
		j := slices.IndexFunc(rows, func(r loader.DoorRow) bool { return r.Ifindex == links[i].Index })
		if j < 0 {
			return fmt.Errorf("interface %s of pod %s/%s leads to no known network", p.Name, p.Namespace, p.Pod)
		}
		if err := r.hostNet.Guard(rows[j]); err != nil {
			return fmt.Errorf("guard interface %s of pod %s/%s: %w", p.Name, p.Namespace, p.Pod, err)
		}
	}
	return nil
}

// connected says that Open vSwitch has these ports, or that connecting the pod
// has failed.
func (r *doorReader) connected(ports []cni.Port) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range ports {
		delete(r.connecting, p.Name)
	}
}
