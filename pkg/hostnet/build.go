// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

// State is the desired or the actual state of the kernel.
type State struct {
	Rows   map[loader.Key]loader.Row
	Pods   map[string]Cgroup // attachments by pod UID; Path is empty in the actual state
	Doors  map[int]bool      // guarded interfaces by index; false in the actual state: incomplete
	Root   bool              // the programs are attached to the root cgroup
	Config loader.Config
	// Keep holds, in the desired state, the cgroups of pods whose network is unknown, by UID. Their rows and
	// attachments stay until another network has the id in the row: see State.leftRow.
	Keep map[string]Cgroup
	// Gone holds, in the desired state, the cgroups of pods by UID that the inputs lack.
	// A row and an attachment stay as long as the cgroup: a pod that is deleted with no
	// grace period is gone from the API before its processes have ended. See State.leftRow.
	Gone map[string]Cgroup
}

// NewState returns an empty State.
func NewState() State {
	return State{Rows: map[loader.Key]loader.Row{}, Pods: map[string]Cgroup{}, Doors: map[int]bool{}, Keep: map[string]Cgroup{}, Gone: map[string]Cgroup{}}
}

// Problem is an input that could not be applied, described for operators.
type Problem struct {
	Pod     string // namespace/name, if it concerns a pod
	Reason  string // CamelCase reason for conditions and metrics
	Message string
}

func (p Problem) String() string {
	if p.Pod == "" {
		return p.Reason + ": " + p.Message
	}
	return p.Reason + ": pod " + p.Pod + ": " + p.Message
}

// Build returns the desired state. A pod without a cgroup is reported too, because
// its sockets are not confined until kubelet creates the cgroup.
func Build(in Inputs, layout Layout, kubelet Kubelet) (State, []Problem) {
	b := builder{State: NewState(), in: in, layout: layout, nets: map[int]Network{}}
	b.Root = true
	b.Config = loader.Config{PodLevels: layout.Levels, PodRootLevels: layout.RootLevels, KubeletLevels: kubelet.Levels, ProbeLock: true,
		Guard: true, TunnelPort: network.TunnelPort, MarkFirst: network.FirstPacketMark, MarkLast: network.LastPacketMark,
		OwnFirst: network.OwnPortFirst, OwnLast: network.OwnPortLast}
	for _, n := range in.Networks {
		b.nets[n.ID] = n
	}
	if len(layout.Roots) == 0 {
		b.addProblem("", "PodCgroupsMissing", "there is no cgroup kubepods that holds all pods: pods' processes cannot be distinguished from the node's, and nothing confines them: start kubelet with cgroupsPerQOS, and with its cgroup root at most %d levels deep", kubepodsDepth-1)
	}
	for _, r := range layout.Roots {
		b.put(loader.PodRootRow{CgroupID: r.ID})
	}
	maps.Copy(b.Gone, layout.Pods)
	for _, p := range in.Pods {
		delete(b.Gone, p.UID)
		b.addPod(p)
	}
	b.addNetworks()
	for _, c := range in.Services {
		b.put(loader.DestRow{NetworkID: loader.AllNetworks, Prefix: c.Masked()})
	}
	for _, c := range in.Masquerade {
		b.put(loader.DestRow{NetworkID: loader.Masquerade, Prefix: c.Masked()})
	}
	for _, c := range in.ClusterIPs {
		if _, ok := b.nets[c.NetworkID]; ok {
			b.put(loader.ClusterIPRow{Addr: c.Addr, NetworkID: uint32(c.NetworkID)})
		}
	}
	b.addProbes()
	b.addLocked()
	for _, d := range in.Doors {
		b.put(d)
		b.Doors[d.Ifindex] = true
	}
	for _, a := range in.Locals {
		if a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() {
			b.put(loader.LocalRow{Addr: a.Unmap().WithZone("")})
		}
	}
	for _, a := range slices.Concat(in.Locals, in.Others) {
		if a = a.Unmap().WithZone(""); a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() {
			b.put(loader.DestRow{NetworkID: loader.OwnAddress, Prefix: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	for _, r := range kubelet.Rows {
		b.put(r)
	}
	if kubelet.Reason != "" {
		b.addProblem("", kubelet.Reason, "%s", kubelet.Message)
	}
	return b.State, b.problems
}

type builder struct {
	State
	in       Inputs
	layout   Layout
	nets     map[int]Network
	problems []Problem
}

func (b *builder) addProblem(pod, reason, format string, args ...any) {
	b.problems = append(b.problems, Problem{pod, reason, fmt.Sprintf(format, args...)})
}

// bindsSockets reports whether the programs bind the pod's sockets to VRFs.
func (p Pod) bindsSockets() bool {
	return p.NetworkID != 0 && !p.Unbound || p.NetworkID == 0 && p.Ingress
}

// addPod adds the row of a host-network pod, and the attachment of one whose sockets are bound to VRFs.
func (b *builder) addPod(p Pod) {
	cg, exists := b.layout.Pods[p.UID]
	n, known := b.nets[p.NetworkID]
	known = known && n.ID > 0
	tenant := p.NetworkID != 0
	switch {
	case tenant && !known && !exists:
		b.addProblem(p.name(), "NetworkUnknown", "the network of the pod's namespace is not on this node yet")
		return
	case !exists:
		if p.bindsSockets() {
			b.addProblem(p.name(), "CgroupMissing", "kubelet has not created the pod's cgroup yet")
		}
		return
	case tenant && !known:
		b.addProblem(p.name(), "NetworkUnknown", "the network of the pod's namespace is not on this node yet: the pod keeps the network that it had, or reaches none")
		b.Keep[p.UID] = cg
		return
	}
	b.put(podRow(p, n, cg))
	if !p.bindsSockets() {
		return
	}
	if tenant && n.VRFIfindex <= 0 {
		b.addProblem(p.name(), "VRFMissing", "network %s has no VRF device: the pod's wildcard binds are refused", n.Name)
	}
	b.Pods[p.UID] = cg
}

// addNetworks adds the rows of networks and of their subnets.
func (b *builder) addNetworks() {
	for _, n := range b.nets {
		if n.ID <= 0 {
			continue
		}
		b.put(loader.NetRow{NetworkID: uint32(n.ID), VRFIfindex: uint32(max(n.VRFIfindex, 0)), Mark: n.Mark, Host4: n.Host4, Host6: n.Host6})
		for _, prefix := range n.Subnets {
			if !prefix.IsValid() || prefix.Addr().Is4In6() {
				b.addProblem("", "SubnetInvalid", "network %s: %s is not a usable subnet", n.Name, prefix)
				continue
			}
			b.put(loader.DestRow{NetworkID: uint32(n.ID), Prefix: prefix.Masked()})
		}
	}
}

// maxProbePorts limits a pod's rows: all pods of a node share a map of 4096.
const maxProbePorts = 32

// addProbes adds the rows of the ports on which kubelet probes pods of a network. kubelet's connection
// does not tell which pod it is for: if pods of several networks name a port, the oldest pod's network gets it, so
// that no newer pod can take it over. If a pod outside networks uses a port, its probes are not redirected.
func (b *builder) addProbes() {
	outside, oldest := map[uint16]bool{}, map[uint16]Pod{}
	for _, p := range b.in.Pods {
		if p.NetworkID == 0 || p.Unbound { // listens outside all networks
			for _, port := range slices.Concat(p.ProbePorts, p.Ports) {
				outside[port] = true
			}
			continue
		}
		for _, port := range p.ProbePorts[:min(len(p.ProbePorts), maxProbePorts)] {
			if first, ok := oldest[port]; p.NetworkID > 0 && (!ok || p.olderThan(first)) {
				oldest[port] = p
			}
		}
	}
	for _, p := range b.in.Pods {
		if p.NetworkID <= 0 || p.Unbound {
			continue
		}
		ports := p.ProbePorts
		if len(ports) > maxProbePorts {
			b.addProblem(p.name(), "ProbePortsTooMany", "probes and hooks name %d ports, and %d are redirected into the pod's network: use fewer", len(ports), maxProbePorts)
			ports = ports[:maxProbePorts]
		}
		for _, port := range ports {
			switch {
			case outside[port]:
				b.addProblem(p.name(), "ProbePortShared", "probes and hooks on port %d are not redirected into the pod's network, because a host-network pod outside the tenants' networks uses the same port: choose another port", port)
				continue
			case oldest[port].NetworkID != p.NetworkID:
				b.addProblem(p.name(), "ProbePortShared", "probes and hooks on port %d are not redirected into the pod's network, because an older host-network pod of another network names the same port: choose another port", port)
				continue
			}
			if _, ok := b.nets[p.NetworkID]; ok && port != 0 {
				b.put(loader.ProbeRow{Port: port, NetworkID: uint32(p.NetworkID)})
			}
		}
	}
}

// addLocked adds the rows of locked addresses.
func (b *builder) addLocked() {
	locked := slices.Clone(b.in.Locked)
	// An address that two networks name is locked either way. The last row wins: sort
	// it to be the lowest id's.
	slices.SortStableFunc(locked, func(a, b LockedAddr) int { return b.NetworkID - a.NetworkID })
	for _, a := range locked {
		if !a.Addr.IsValid() || a.Addr.Zone() != "" || a.Addr.IsUnspecified() {
			b.addProblem("", "AddressInvalid", "%s is no address that can be locked", a.Addr)
			continue
		}
		b.put(loader.LockedRow{Addr: a.Addr.Unmap(), NetworkID: uint32(a.NetworkID)})
		for _, p := range a.Open {
			b.put(loader.OpenRow{Addr: a.Addr.Unmap(), Protocol: p.Protocol, Port: p.Port})
			// Fragments without a port.
			b.put(loader.OpenRow{Addr: a.Addr.Unmap(), Protocol: p.Protocol})
		}
	}
}

func podRow(p Pod, n Network, cg Cgroup) loader.PodRow {
	r := loader.PodRow{CgroupID: cg.ID, Unbound: p.Unbound, Trusted: p.Trusted, Ingress: p.Ingress && p.NetworkID == 0}
	if p.NetworkID > 0 {
		r.NetworkID, r.Mark, r.VRFIfindex = uint32(n.ID), n.Mark, uint32(max(n.VRFIfindex, 0))
	}
	return r
}

func (s State) put(r loader.Row) { s.Rows[r.Key()] = r }
