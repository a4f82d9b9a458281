// SPDX-License-Identifier: Apache-2.0

package network

// Annotations, labels and other names in the Kubernetes API. Each annotation
// has one writer, except pod-networks, whose entries have one each.
const (
	// On NetworkAttachmentDefinitions, written by the cluster controller, in the
	// request that creates them.
	AnnotationNetworkID   = "k8s.ovn.org/network-id"
	AnnotationNetworkName = "k8s.ovn.org/network-name"
	// AnnotationAdvertisedVRFs are the VRFs into which BGP advertises the network's pods,
	// comma-separated: VRFDefault, VRFAuto, names. Without it, or empty: none.
	AnnotationAdvertisedVRFs = "k8s.ovn.org/advertised-vrfs"
	// On Nodes, written by the cluster controller.
	AnnotationNodeID = "k8s.ovn.org/node-id"
	// AnnotationDefaultTransport is the transport of the cluster default network with which
	// the cluster was installed. It is written with the id.
	AnnotationDefaultTransport = "k8s.ovn.org/default-network-transport"
	// AnnotationSystemIDShared are other nodes with the same AnnotationChassisID, comma-separated: a machine was cloned.
	AnnotationSystemIDShared = "k8s.ovn.org/node-chassis-id-shared-with"
	// On Nodes, written by the node's agent.
	AnnotationChassisID     = "k8s.ovn.org/node-chassis-id"
	AnnotationEncapIPs      = "k8s.ovn.org/node-encap-ips"    // JSON list of addresses
	AnnotationGatewayConfig = "k8s.ovn.org/l3-gateway-config" // GatewayConfig by network name
	// On Nodes, written by the node's agent and by the node's zone: Failures.
	AnnotationAgentFailures = "k8s.ovn.org/agent-network-failures"
	AnnotationZoneFailures  = "k8s.ovn.org/zone-network-failures"
	// On Pods, written by the zone of the pod's node (entries of Layer 3
	// networks) and by the cluster controller (other entries): PodNetworks.
	AnnotationPodNetworks = "k8s.ovn.org/pod-networks"
	// On Pods, written by the pod's author: requests for secondary networks,
	// and settings of the primary network (Multus network selection).
	AnnotationNetworks       = "k8s.v1.cni.cncf.io/networks"
	AnnotationDefaultNetwork = "v1.multus-cni.io/default-network"
	// AnnotationPrimaryClaim names the IPAMClaim on the primary network. Deprecated:
	// AnnotationDefaultNetwork has a field for it.
	AnnotationPrimaryClaim = "k8s.ovn.org/primary-udn-ipamclaim"
	// On Pods, written by KubeVirt: when the virtual machine began to run in this pod,
	// the target of a live migration.
	AnnotationMigrationTargetReady = "kubevirt.io/migration-target-ready-timestamp"
	// On Pods, written by the node's agent: the results of CNI ADD.
	AnnotationNetworkStatus = "k8s.v1.cni.cncf.io/network-status"

	// On EndpointSlice mirrors, which have the endpoints' addresses on a
	// primary network, written by the cluster controller. The Service is in a label
	// of its own: kube-proxy and DNS must not select mirrors.
	LabelMirrorService   = "k8s.ovn.org/service-name"
	AnnotationSource     = "k8s.ovn.org/source-endpointslice"
	AnnotationMirrorOn   = "k8s.ovn.org/endpointslice-network" // the network's name
	EndpointSliceManager = "endpointslice-mirror-controller.k8s.ovn.org"

	// LabelPrimaryUDN marks namespaces whose pods have a primary network other
	// than the cluster default network. It can only be set when the namespace
	// is created.
	LabelPrimaryUDN = "k8s.ovn.org/primary-user-defined-network"
	// LabelLayer2Pod marks pods that the zones of other nodes need: pods on Layer 2
	// networks, which have a port there, and on Localnet networks those that share
	// addresses. The cluster controller writes it with the pod's addresses. It proves
	// nothing: anybody who creates pods can write it.
	LabelLayer2Pod = "k8s.ovn.org/layer2-pod"
	// LabelVirtualMachine is KubeVirt's: the name of the virtual machine that runs in
	// a pod.
	LabelVirtualMachine = "vm.kubevirt.io/name"
	// LabelUDN marks NetworkAttachmentDefinitions rendered from a UDN or CUDN.
	LabelUDN = "k8s.ovn.org/user-defined-network"
	// FinalizerUDN keeps UDNs, CUDNs and their NADs until no pod uses them.
	FinalizerUDN = "k8s.ovn.org/user-defined-network-protection"
	// FinalizerNAD blocks a NAD's deletion until no pod uses it, so that no other network
	// is assigned its id before.
	FinalizerNAD = "k8s.ovn.org/network-attachment-definition-protection"

	// CNIType is the CNI plugin's name in NAD JSON and in /opt/cni/bin.
	CNIType = "ovn-k8s-cni-overlay"
	// CNIVersion is the CNI version of rendered NADs.
	CNIVersion = "1.1.0"
)
