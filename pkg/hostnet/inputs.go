// SPDX-License-Identifier: Apache-2.0

// Package hostnet decides which processes of the node belong to which network:
// it follows host-network pods to their cgroups, and kubelet to its own, and
// keeps the eBPF maps and attachments of pkg/loader in step.
package hostnet

import "net/netip"

// OptOutAnnotation on a pod, with the value "disabled", leaves its sockets alone.
const (
	OptOutAnnotation = "k8s.ovn.org/bulkhead-host-vrf-binding"
	OptOutValue      = "disabled"
)

// Pod is a host-network pod of this node whose namespace has a primary network.
type Pod struct {
	UID, Namespace, Name string
	NetworkID            int
	Disabled             bool // the opt-out annotation
}

// Network is a primary network as this node knows it.
type Network struct {
	ID         int
	Name       string
	VRFIfindex int // 0 while the device does not exist
	Mark       uint32
	Subnets    []netip.Prefix // everything that lies inside the VRF
}

// LockedAddr is a default-network address of a pod that has a primary network.
type LockedAddr struct {
	Addr      netip.Addr
	NetworkID int
}

// Inputs is everything the caller knows; the cgroup tree and kubelet are found here.
type Inputs struct {
	Pods     []Pod
	Networks []Network
	Locked   []LockedAddr
}
