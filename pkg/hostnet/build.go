// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"slices"

	"bulkhead/pkg/loader"
)

// State is what the kernel should hold, or holds.
type State struct {
	Rows   map[loader.Key]loader.Row
	Pods   map[string]Cgroup // attachments by pod UID; Path is empty in what was read back
	Doors  map[int]bool      // guarded interfaces; false: read back, and not complete
	Root   bool              // the programs at the root cgroup
	Config loader.Config
	// Keep are pods, by UID, whose row and attachment stay as they are. Only in
	// what is wanted.
	Keep map[string]Cgroup
}

// NewState is empty.
func NewState() State {
	return State{Rows: map[loader.Key]loader.Row{}, Pods: map[string]Cgroup{}, Doors: map[int]bool{}, Keep: map[string]Cgroup{}}
}

// Problem is something of the inputs that could not be served, for a human.
type Problem struct {
	Pod     string // namespace/name, where it concerns one
	Reason  string // one CamelCase word for conditions and metrics
	Message string
}

func (p Problem) String() string {
	if p.Pod == "" {
		return p.Reason + ": " + p.Message
	}
	return p.Reason + ": pod " + p.Pod + ": " + p.Message
}

// Build says what should be. A pod whose cgroup is not there yet is no problem
// of the inputs but is named, as its sockets are not confined until it is.
func Build(in Inputs, layout Layout, kubelet Kubelet) (State, []Problem) {
	b := builder{State: NewState(), in: in, layout: layout, nets: map[int]Network{}}
	b.Root = true
	b.Config = loader.Config{PodLevels: layout.Levels, PodRootLevels: layout.RootLevels, KubeletLevels: kubelet.Levels, ProbeLock: true,
		Guard: true, TunnelPort: uint32(in.TunnelPort), MarkFirst: in.MarkFirst, MarkLast: in.MarkLast}
	for _, n := range in.Networks {
		b.nets[n.ID] = n
	}
	for _, r := range layout.Roots {
		b.put(loader.PodRootRow{CgroupID: r.ID})
	}
	for _, p := range in.Pods {
		b.pod(p)
	}
	b.networks()
	b.probes()
	b.locked()
	for _, d := range in.Doors {
		b.put(d)
		b.Doors[d.Ifindex] = true
	}
	for _, a := range in.Locals {
		if a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() {
			b.put(loader.LocalRow{Addr: a.Unmap().WithZone("")})
		}
	}
	for _, r := range kubelet.Rows {
		b.put(r)
	}
	if kubelet.Reason != "" {
		b.problem("", kubelet.Reason, "%s", kubelet.Message)
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

func (b *builder) problem(pod, reason, format string, args ...any) {
	b.problems = append(b.problems, Problem{pod, reason, fmt.Sprintf(format, args...)})
}

// pod makes the row of a host-network pod, and has it attached if it is a tenant's.
func (b *builder) pod(p Pod) {
	cg, there := b.layout.Pods[p.UID]
	n, known := b.nets[p.NetworkID]
	known = known && n.ID > 0
	tenant := p.NetworkID != 0
	switch {
	case tenant && !known && !there:
		b.problem(p.name(), "NetworkUnknown", "its namespace has no network on this node yet")
		return
	case !there:
		if tenant && !p.Unbound {
			b.problem(p.name(), "CgroupMissing", "kubelet has not made the pod's cgroup yet")
		}
		return
	case tenant && !known:
		b.problem(p.name(), "NetworkUnknown", "its namespace has no network on this node yet: it reaches no network, or keeps the one it had")
		b.Keep[p.UID] = cg
		return
	}
	b.put(podRow(p, n, cg))
	if !tenant || p.Unbound {
		return
	}
	if n.VRFIfindex <= 0 {
		b.problem(p.name(), "VRFMissing", "network %s has no VRF device: its wildcard binds are refused", n.Name)
	}
	b.Pods[p.UID] = cg
}

// networks make the rows of what lies inside a VRF and where it is entered.
func (b *builder) networks() {
	for _, n := range b.nets {
		if n.ID <= 0 {
			continue
		}
		b.put(loader.NetRow{NetworkID: uint32(n.ID), VRFIfindex: uint32(max(n.VRFIfindex, 0)), Mark: n.Mark, Host4: n.Host4, Host6: n.Host6})
		for _, prefix := range n.Subnets {
			if !prefix.IsValid() || prefix.Addr().Is4In6() {
				b.problem("", "SubnetInvalid", "network %s: %s is not a usable subnet", n.Name, prefix)
				continue
			}
			b.put(loader.DestRow{NetworkID: uint32(n.ID), Prefix: prefix.Masked()})
		}
	}
}

// probes are the ports on which kubelet looks for servers of a network. A port
// that pods of different networks, or of none, name is nobody's: kubelet does
// not say which pod it means.
func (b *builder) probes() {
	users := map[uint16]map[int]bool{}
	for _, p := range b.in.Pods {
		for _, port := range slices.Concat(p.ProbePorts, p.Ports) {
			if users[port] == nil {
				users[port] = map[int]bool{}
			}
			id := p.NetworkID
			if p.Unbound {
				id = 0 // it listens outside its network
			}
			users[port][id] = true
		}
	}
	for _, p := range b.in.Pods {
		if p.NetworkID <= 0 || p.Unbound {
			continue
		}
		for _, port := range p.ProbePorts {
			if len(users[port]) > 1 {
				b.problem(p.name(), "ProbePortShared", "its probes and hooks on port %d are not led into its network, because a host-network pod outside the network names the same port: choose another", port)
				continue
			}
			if _, ok := b.nets[p.NetworkID]; ok && port != 0 {
				b.put(loader.ProbeRow{Port: port, NetworkID: uint32(p.NetworkID)})
			}
		}
	}
}

func (b *builder) locked() {
	locked := slices.Clone(b.in.Locked)
	// An address held twice is locked either way; the lower id only settles who is named.
	slices.SortStableFunc(locked, func(a, b LockedAddr) int { return b.NetworkID - a.NetworkID })
	for _, a := range locked {
		if !a.Addr.IsValid() || a.Addr.Zone() != "" || a.Addr.IsUnspecified() {
			b.problem("", "AddressInvalid", "%s cannot be locked", a.Addr)
			continue
		}
		b.put(loader.LockedRow{Addr: a.Addr.Unmap(), NetworkID: uint32(a.NetworkID)})
	}
}

func podRow(p Pod, n Network, cg Cgroup) loader.PodRow {
	r := loader.PodRow{CgroupID: cg.ID, Unbound: p.Unbound, Trusted: p.Trusted}
	if p.NetworkID > 0 {
		r.NetworkID, r.Mark, r.VRFIfindex = uint32(n.ID), n.Mark, uint32(max(n.VRFIfindex, 0))
	}
	return r
}

func (s State) put(r loader.Row) { s.Rows[r.Key()] = r }
