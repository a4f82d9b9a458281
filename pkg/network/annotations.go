// SPDX-License-Identifier: Apache-2.0

package network

// Names in the Kubernetes API. Each annotation has one writer (DESIGN § 3).
const (
	// On NetworkAttachmentDefinitions, by the cluster role, in the write that
	// creates them.
	AnnotationNetworkID   = "k8s.ovn.org/network-id"
	AnnotationNetworkName = "k8s.ovn.org/network-name"
	// On Nodes, by the cluster role.
	AnnotationNodeID = "k8s.ovn.org/node-id"
	// On Nodes, by the node's agent.
	AnnotationChassisID     = "k8s.ovn.org/node-chassis-id"
	AnnotationEncapIPs      = "k8s.ovn.org/node-encap-ips"    // JSON list of addresses
	AnnotationGatewayConfig = "k8s.ovn.org/l3-gateway-config" // GatewayConfig by network
	// On Nodes, by the agent and by the node's zone: Failures.
	AnnotationAgentFailures = "k8s.ovn.org/agent-network-failures"
	AnnotationZoneFailures  = "k8s.ovn.org/zone-network-failures"
	// On Pods, by the zone of the pod's node (Layer 3) or by the cluster role.
	AnnotationPodNetworks = "k8s.ovn.org/pod-networks"
	// On Pods, by whoever makes them: the networks that the pod asks for, and
	// what it asks for on its primary network (Multus' network selection).
	AnnotationNetworks       = "k8s.v1.cni.cncf.io/networks"
	AnnotationDefaultNetwork = "v1.multus-cni.io/default-network"
	// On Pods, by the agent through the container runtime: what CNI ADD did.
	AnnotationNetworkStatus = "k8s.v1.cni.cncf.io/network-status"

	// On EndpointSlices that repeat another one with addresses on a tenant's
	// network, by the cluster role: the Service is not in the label that
	// kube-proxy and DNS go by.
	LabelMirrorService   = "k8s.ovn.org/service-name"
	AnnotationSource     = "k8s.ovn.org/source-endpointslice"
	AnnotationMirrorOn   = "k8s.ovn.org/endpointslice-network" // the network's name
	EndpointSliceManager = "endpointslice-mirror-controller.k8s.ovn.org"

	// LabelPrimaryUDN marks namespaces whose pods have a primary network of
	// their own; it can be given only when the namespace is created.
	LabelPrimaryUDN = "k8s.ovn.org/primary-user-defined-network"
	// LabelUDN marks NetworkAttachmentDefinitions rendered from a UDN or CUDN.
	LabelUDN = "k8s.ovn.org/user-defined-network"
	// FinalizerUDN holds UDNs, CUDNs and their NADs until no pod uses them.
	FinalizerUDN = "k8s.ovn.org/user-defined-network-protection"

	// CNIType is the CNI plugin's name in NAD JSON and in /opt/cni/bin.
	CNIType = "ovn-k8s-cni-overlay"
	// CNIVersion of rendered NADs.
	CNIVersion = "1.1.0"
)
