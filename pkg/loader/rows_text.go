// SPDX-License-Identifier: Apache-2.0

package loader

import "fmt"

func (r PodRow) Key() Key       { return Key{"bh_pods", r.CgroupID} }
func (r PodRootRow) Key() Key   { return Key{"bh_podroots", r.CgroupID} }
func (r DoorRow) Key() Key      { return Key{"bh_doors", r.Ifindex} }
func (r NetRow) Key() Key       { return Key{"bh_nets", r.NetworkID} }
func (r LocalRow) Key() Key     { return Key{"bh_locals", r.Addr} }
func (r ProbeRow) Key() Key     { return Key{"bh_probes", r.Port} }
func (r DestRow) Key() Key      { return Key{"bh_dests", r} }
func (r ClusterIPRow) Key() Key { return Key{"bh_dests", r.Addr} }
func (r LockedRow) Key() Key    { return Key{"bh_locked", r.Addr} }
func (r OpenRow) Key() Key      { return Key{"bh_open", r} }
func (r KubeletRow) Key() Key   { return Key{"bh_kubelet", r} }

func (r PodRow) String() string {
	s := fmt.Sprintf("pod cgroup %d → network %d mark %#x vrf ifindex %d", r.CgroupID, r.NetworkID, r.Mark, r.VRFIfindex)
	if r.NetworkID == NoNetwork {
		s = fmt.Sprintf("pod cgroup %d → no network, mark %#x", r.CgroupID, r.Mark)
	}
	if r.Unbound {
		s += " unbound"
	}
	if r.Trusted {
		s += " trusted"
	}
	if r.Ingress {
		s += " ingress"
	}
	return s
}
func (r PodRootRow) String() string { return fmt.Sprintf("cgroup %d of all pods", r.CgroupID) }
func (r DoorRow) String() string {
	s := fmt.Sprintf("interface %d: %s", r.Ifindex, r.Kind)
	if r.NetworkID != 0 {
		s += fmt.Sprintf(" of network %d", r.NetworkID)
	}
	if r.ForwardFrom == ForwardFromOwn {
		s += " forwarded from the node's interfaces"
	} else if r.ForwardFrom != 0 {
		s += fmt.Sprintf(" forwarded from interface %d", r.ForwardFrom)
	}
	return s
}
func (r NetRow) String() string {
	return fmt.Sprintf("network %d at vrf ifindex %d", r.NetworkID, r.VRFIfindex)
}
func (r LocalRow) String() string { return fmt.Sprintf("node's address %s", r.Addr) }
func (r ProbeRow) String() string {
	return fmt.Sprintf("probes of TCP port %d → network %d", r.Port, r.NetworkID)
}
func (r DestRow) String() string {
	switch r.NetworkID {
	case AllNetworks:
		return fmt.Sprintf("destination %s inside every network", r.Prefix)
	case Masquerade:
		return fmt.Sprintf("masquerade addresses %s", r.Prefix)
	case OwnAddress:
		return fmt.Sprintf("node's own address %s", r.Prefix)
	}
	return fmt.Sprintf("destination %s inside network %d", r.Prefix, r.NetworkID)
}
func (r ClusterIPRow) String() string {
	return fmt.Sprintf("cluster IP %s of network %d", r.Addr, r.NetworkID)
}
func (r OpenRow) String() string {
	return fmt.Sprintf("open %s port %d of locked address %s", r.Protocol, r.Port, r.Addr)
}
func (r LockedRow) String() string {
	return fmt.Sprintf("locked address %s of network %d", r.Addr, r.NetworkID)
}
func (r KubeletRow) String() string {
	if r.TGID != 0 {
		return fmt.Sprintf("kubelet process %d", r.TGID)
	}
	return fmt.Sprintf("kubelet cgroup %d", r.CgroupID)
}
