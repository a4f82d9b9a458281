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
	Root   bool              // the probe programs at the root cgroup
	Config loader.Config
}

// NewState is empty.
func NewState() State {
	return State{Rows: map[loader.Key]loader.Row{}, Pods: map[string]Cgroup{}}
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
	s := NewState()
	var problems []Problem
	s.Root = true
	s.Config = loader.Config{PodLevels: layout.Levels, KubeletLevels: kubelet.Levels, ProbeLock: true}

	nets := map[int]Network{}
	for _, n := range in.Networks {
		nets[n.ID] = n
	}
	used := map[int]bool{}
	for _, p := range in.Pods {
		if p.Disabled {
			continue
		}
		name := p.Namespace + "/" + p.Name
		n, ok := nets[p.NetworkID]
		if !ok || n.ID <= 0 {
			problems = append(problems, Problem{name, "NetworkUnknown", fmt.Sprintf("network %d is not on this node yet", p.NetworkID)})
			continue
		}
		used[n.ID] = true
		cg, ok := layout.Pods[p.UID]
		if !ok {
			problems = append(problems, Problem{name, "CgroupMissing", "kubelet has not made the pod's cgroup yet"})
			continue
		}
		if n.VRFIfindex <= 0 {
			problems = append(problems, Problem{name, "VRFMissing", fmt.Sprintf("network %s has no VRF device: its wildcard binds are refused", n.Name)})
		}
		s.Pods[p.UID] = cg
		s.put(podRow(n, cg))
	}
	// Prefixes of networks without a host-network pod here are of no use to
	// anyone, and a small trie is a fast one.
	for id := range used {
		for _, prefix := range nets[id].Subnets {
			if !prefix.IsValid() || prefix.Addr().Is4In6() {
				problems = append(problems, Problem{"", "SubnetInvalid", fmt.Sprintf("network %s: %s is not a usable subnet", nets[id].Name, prefix)})
				continue
			}
			s.put(loader.DestRow{NetworkID: uint32(id), Prefix: prefix.Masked()})
		}
	}
	locked := slices.Clone(in.Locked)
	// An address held twice is locked either way; the lower id only settles who is named.
	slices.SortStableFunc(locked, func(a, b LockedAddr) int { return b.NetworkID - a.NetworkID })
	for _, a := range locked {
		if !a.Addr.IsValid() || a.Addr.Zone() != "" || a.Addr.IsUnspecified() {
			problems = append(problems, Problem{"", "AddressInvalid", fmt.Sprintf("%s cannot be locked", a.Addr)})
			continue
		}
		s.put(loader.LockedRow{Addr: a.Addr.Unmap(), NetworkID: uint32(a.NetworkID)})
	}
	for _, r := range kubelet.Rows {
		s.put(r)
	}
	if kubelet.Reason != "" {
		problems = append(problems, Problem{"", kubelet.Reason, kubelet.Message})
	}
	return s, problems
}

func podRow(n Network, cg Cgroup) loader.PodRow {
	return loader.PodRow{CgroupID: cg.ID, NetworkID: uint32(n.ID), Mark: n.Mark, VRFIfindex: uint32(max(n.VRFIfindex, 0))}
}

func (s State) put(r loader.Row) { s.Rows[r.Key()] = r }
