// SPDX-License-Identifier: Apache-2.0

// Package hostnet decides which processes of the node belong to which network:
// it follows host-network pods to their cgroups, and kubelet to its own, and
// keeps the eBPF maps and attachments of pkg/loader in step.
package hostnet

import (
	"net/netip"

	"bulkhead/pkg/loader"
)

// OptOutAnnotation on a pod, with the value "disabled", leaves its sockets
// alone, where its namespace has the label TrustLabel.
const (
	OptOutAnnotation = "k8s.ovn.org/bulkhead-host-vrf-binding"
	OptOutValue      = "disabled"
	// TrustLabel on a namespace, with the value "trusted", says that the
	// administrator trusts its host-network pods.
	TrustLabel = "k8s.ovn.org/bulkhead-host-pods"
	TrustValue = "trusted"
)

// NetworkUnknown is the network of a tenant's pod while it cannot be told: its
// namespace is labelled and has no usable network. Such a pod keeps what it had;
// one that had nothing reaches no network.
const NetworkUnknown = -1

// Pod is a host-network pod of this node.
type Pod struct {
	UID, Namespace, Name string
	NetworkID            int // of the namespace's primary network; 0: the cluster default network; or NetworkUnknown
	Unbound              bool
	Trusted              bool // packet sockets on any interface
	// ProbePorts are the TCP ports on which kubelet probes the pod or calls its
	// hooks, Ports all that its containers declare.
	ProbePorts, Ports []uint16
}

func (p Pod) name() string { return p.Namespace + "/" + p.Name }

// Network is a primary network as this node knows it.
type Network struct {
	ID           int
	Name         string
	VRFIfindex   int // 0 while the device does not exist
	Mark         uint32
	Subnets      []netip.Prefix // everything that lies inside the VRF
	Host4, Host6 netip.Addr     // the node's addresses on it; invalid: none
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
	Doors    []loader.DoorRow // interfaces of the host
	Locals   []netip.Addr     // the node's own addresses, outside all networks
	// TunnelPort is the overlay's UDP port. Marks are the networks', from the
	// first one's to the last possible one's.
	TunnelPort          uint16
	MarkFirst, MarkLast uint32
}
