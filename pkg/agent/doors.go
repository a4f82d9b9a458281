// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/vrf"
)

// noNetwork is the network of an interface whose network cannot be told: no
// pod's own.
const noNetwork = ^uint32(0)

// podDoor is what the host end of a pod's interface leads to.
type podDoor struct {
	network uint32
	locked  bool
}

// doorInputs are the facts that say what an interface leads to.
type doorInputs struct {
	mode      network.GatewayMode
	bridge    string             // the external bridge
	internal  []string           // interfaces of Open vSwitch that lead nowhere by themselves
	node      []netip.Prefix     // the node's addresses on the cluster default network
	pods      map[string]podDoor // by interface name
	tableBase int
}

// doors says what each interface of the host leads to. One that is left out is
// no pod's to use for packet sockets, and is not guarded: a tunnel device, the
// host end of somebody else's container.
func doors(links []vrf.Link, in doorInputs) []loader.DoorRow {
	var peer [6]byte
	var peer6 netip.Addr
	if mac, err := net.ParseMAC(network.MACOf(in.node)); err == nil && len(mac) == 6 {
		peer = [6]byte(mac)
	}
	for _, p := range in.node {
		if p.Addr().Is6() {
			peer6 = p.Addr()
		}
	}
	forward := 0
	if in.mode == network.LocalGateway {
		if i := slices.IndexFunc(links, func(l vrf.Link) bool { return l.Name == in.bridge }); i >= 0 {
			forward = links[i].Index
		}
	}
	var out []loader.DoorRow
	for _, l := range links {
		row := loader.DoorRow{Ifindex: l.Index}
		pod, isPod := in.pods[l.Name]
		id, isPort := managementID(l.Name)
		switch {
		case l.Name == "lo":
			row.Kind = loader.DoorLoopback
		case isPort && id == network.DefaultID:
			row.Kind = loader.DoorDefault
		case isPort:
			row.Kind, row.NetworkID, row.ForwardFrom = loader.DoorPort, uint32(id), forward
		case l.Table != 0:
			row.Kind, row.NetworkID, row.ForwardFrom = loader.DoorVRF, uint32(max(l.Table-in.tableBase, 0)), forward
		case isPod && pod.locked:
			row.Kind, row.NetworkID, row.PeerMAC, row.Peer6 = loader.DoorLocked, pod.network, peer, peer6
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

// managementID is the id of the network whose management port has that name.
func managementID(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "ovn-k8s-mp")
	id, err := strconv.Atoi(rest)
	return id, ok && err == nil && id >= 0 && id <= network.MaxID
}

// doorFacts gathers the facts; ports are pods' ports as Open vSwitch has them.
func (a *Agent) doorFacts(ports []ovs.PodPort) doorInputs {
	in := doorInputs{mode: a.Config.OVS.GatewayMode, bridge: a.Config.OVS.ExternalBridge,
		internal: []string{ovs.DefaultIntegrationBridge, "ovs-system", "ovs-netdev"}, pods: map[string]podDoor{}, tableBase: a.Config.Plan.VRFTableBase}
	if hosts, err := a.Config.DefaultNetwork.HostSubnets(a.Store.NodeID()); err == nil {
		for _, h := range hosts {
			in.node = append(in.node, network.Management(h))
		}
	}
	for _, p := range ports {
		in.pods[p.Name] = a.podDoor(p.NAD, p.Network, p.Namespace+"/"+p.Pod)
	}
	return in
}

func (a *Agent) podDoor(nad, net, pod string) podDoor {
	if nad == network.DefaultName {
		return podDoor{locked: a.Store.IsLocked(pod)}
	}
	if id := a.Store.NetworkID(net); id != 0 {
		return podDoor{network: uint32(id)}
	}
	return podDoor{network: noNetwork}
}

// doorRows are the rows of all interfaces now: those of pods that are being
// connected included, which Open vSwitch does not have yet.
func (a *Agent) doorRows(ctx context.Context) ([]loader.DoorRow, error) {
	links, err := a.Kernel.Links(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := a.OVS.ListPods(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods' ports: %w", err)
	}
	in := a.doorFacts(ports)
	a.mu.Lock()
	for name, d := range a.connecting {
		if _, ok := in.pods[name]; !ok {
			in.pods[name] = d
		}
	}
	a.mu.Unlock()
	return doors(links, in), nil
}

// GuardPorts guards the host ends of interfaces that a pod is about to be
// connected by. The caller ends with Connected, whatever comes of it.
func (a *Agent) GuardPorts(ctx context.Context, ports []cni.Port) error {
	if a.HostNet == nil {
		return nil
	}
	a.mu.Lock()
	for _, p := range ports {
		a.connecting[p.Name] = a.podDoor(p.NAD, p.Network, p.Namespace+"/"+p.Pod)
	}
	a.mu.Unlock()
	rows, err := a.doorRows(ctx)
	if err != nil {
		return err
	}
	links, err := a.Kernel.Links(ctx)
	if err != nil {
		return err
	}
	for _, p := range ports {
		i := slices.IndexFunc(links, func(l vrf.Link) bool { return l.Name == p.Name })
		if i < 0 {
			return fmt.Errorf("interface %s of pod %s/%s is not there", p.Name, p.Namespace, p.Pod)
		}
		j := slices.IndexFunc(rows, func(r loader.DoorRow) bool { return r.Ifindex == links[i].Index })
		if j < 0 {
			return fmt.Errorf("interface %s of pod %s/%s leads nowhere that is known", p.Name, p.Namespace, p.Pod)
		}
		if err := a.HostNet.Guard(rows[j]); err != nil {
			return fmt.Errorf("guard interface %s of pod %s/%s: %w", p.Name, p.Namespace, p.Pod, err)
		}
	}
	return nil
}

// Connected tells that Open vSwitch has these ports now, or never will.
func (a *Agent) Connected(ports []cni.Port) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ports {
		delete(a.connecting, p.Name)
	}
}

// GuardLink guards a VRF device or management port before it is set up.
func (a *Agent) GuardLink(l vrf.Link) error {
	if a.HostNet == nil {
		return nil
	}
	rows := doors([]vrf.Link{l}, a.doorFacts(nil))
	if len(rows) != 1 {
		return fmt.Errorf("interface %s leads nowhere that is known", l.Name)
	}
	if a.Config.OVS.GatewayMode == network.LocalGateway {
		// Where it may be forwarded from is told with all the others.
		a.Hosts()
	}
	return a.HostNet.Guard(rows[0])
}

// hostAddrs are the node's addresses on a network, one a family.
func hostAddrs(n network.Network, nodeID int) (v4, v6 netip.Addr) {
	hosts, err := n.HostSubnets(nodeID)
	if err != nil {
		return v4, v6
	}
	for _, h := range hosts {
		if a := network.Management(h).Addr(); a.Is4() {
			v4 = a
		} else {
			v6 = a
		}
	}
	return v4, v6
}
