// SPDX-License-Identifier: Apache-2.0

// Package hostnet assigns processes of the node to networks: it finds the cgroups of
// host-network pods and of kubelet, and reconciles the eBPF maps and attachments of
// pkg/loader.
package hostnet

import (
	"net/netip"
	"time"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

// OptOutAnnotation on a pod, with the value "disabled", turns VRF binding off, if the
// pod's namespace has the label TrustLabel.
const (
	OptOutAnnotation = "k8s.ovn.org/bulkhead-host-vrf-binding"
	OptOutValue      = "disabled"
	// TrustLabel on a namespace, with the value "trusted", says that the
	// administrator trusts its host-network pods.
	TrustLabel = "k8s.ovn.org/bulkhead-host-pods"
	TrustValue = "trusted"
)

// NetworkUnknown is the network id of a tenant's pod while its network is unknown:
// the namespace has the label but no usable network. Such a pod keeps its row and
// attachment; a pod without them reaches no network.
const NetworkUnknown = -1

// Pod is a host-network pod of this node.
type Pod struct {
	UID, Namespace, Name string
	Created              time.Time
	NetworkID            int  // of the namespace's primary network; 0: the cluster default network; or NetworkUnknown
	Unbound              bool // opted out of VRF binding
	Trusted              bool // may have packet sockets on any interface
	Ingress              bool // of the cluster default network, and reaches the cluster IPs of all networks
	// ProbePorts are the TCP ports on which kubelet probes the pod or calls its
	// hooks. Ports are all ports that its containers declare.
	ProbePorts, Ports []uint16
}

// olderThan reports whether a pod was created before another. Those of one second are in the order of their UIDs.
func (p Pod) olderThan(other Pod) bool {
	if !p.Created.Equal(other.Created) {
		return p.Created.Before(other.Created)
	}
	return p.UID < other.UID
}

func (p Pod) name() string { return p.Namespace + "/" + p.Name }

// Network is a primary network on this node.
type Network struct {
	ID           int
	Name         string
	VRFIfindex   int // 0: the VRF device does not exist
	Mark         uint32
	Subnets      []netip.Prefix
	Host4, Host6 netip.Addr // the node's addresses on the network; invalid: none
}

// LockedAddr is a default-network address of a pod that has a primary network.
type LockedAddr struct {
	Addr      netip.Addr
	NetworkID int
	Open      []network.OpenPort // what the cluster default network reaches
}

// ClusterIP is a cluster IP of a service of a tenant's network.
type ClusterIP struct {
	Addr      netip.Addr
	NetworkID int
}

// Inputs is the caller's part of the desired state. The package itself reads the
// cgroup tree and finds kubelet.
type Inputs struct {
	Pods     []Pod
	Networks []Network
	Locked   []LockedAddr
	Doors    []loader.DoorRow // interfaces of the host to guard
	Locals   []netip.Addr     // the node's addresses outside all networks
	Others   []netip.Addr     // its other addresses there, such as those that move between nodes: packets may have them as source only
	Services []netip.Prefix   // the cluster's service CIDRs: each network's VRF leads to services
	// ClusterIPs are those that ingress pods reach.
	ClusterIPs []ClusterIP
	// Masquerade are the cluster's masquerade subnets: no pod sends a frame from or to them.
	Masquerade []netip.Prefix
}
