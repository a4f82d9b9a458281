// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterUserDefinedNetwork is one network shared by the pods of several
// namespaces. Administrators create it; tenants only use it.
//
// For a Primary network each namespace must have been created with the label
// `k8s.ovn.org/primary-user-defined-network`.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusteruserdefinednetworks,scope=Cluster,shortName=cudn,singular=clusteruserdefinednetwork
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Topology",type=string,JSONPath=`.spec.network.topology`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.network['layer3','layer2','localnet'].role`
// +kubebuilder:printcolumn:name="Created",type=string,JSONPath=`.status.conditions[?(@.type=="NetworkCreated")].status`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.conditions[?(@.type=="NetworkAllocationSucceeded")].status`
// +kubebuilder:printcolumn:name="Transport",type=string,JSONPath=`.status.conditions[?(@.type=="TransportAccepted")].reason`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="NetworkCreated")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterUserDefinedNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the network that is wanted.
	// +required
	Spec ClusterUserDefinedNetworkSpec `json:"spec"`

	// status is what has become of it.
	// +optional
	Status ClusterUserDefinedNetworkStatus `json:"status,omitempty"`
}

// ClusterUserDefinedNetworkSpec describes the network and who has it.
type ClusterUserDefinedNetworkSpec struct {
	// namespaceSelector selects the namespaces that have the network; it may change. The label
	// `kubernetes.io/metadata.name` is the safest to select by, as nobody can give it to a namespace of their own.
	// +required
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// network describes the network.
	// +required
	Network NetworkSpec `json:"network"`
}

// TransportOption is how packets travel between nodes.
type TransportOption string

// The transports.
const (
	TransportOptionGeneve    TransportOption = "Geneve"
	TransportOptionNoOverlay TransportOption = "NoOverlay"
)

// SNATOption is whether pods' addresses are hidden from the outside.
type SNATOption string

// The SNAT options.
const (
	SNATEnabled  SNATOption = "Enabled"
	SNATDisabled SNATOption = "Disabled"
)

// RoutingOption is who sees to it that nodes know the way to one another's pods.
type RoutingOption string

// The routing options.
const (
	RoutingManaged   RoutingOption = "Managed"
	RoutingUnmanaged RoutingOption = "Unmanaged"
)

// NoOverlayOptions are the settings of transport NoOverlay.
type NoOverlayOptions struct {
	// outboundSNAT is what happens to the source address of traffic that leaves the cluster.
	// `Enabled`: it becomes the node's. `Disabled`: it stays the pod's, which the outside then must have a route to.
	// Traffic between pods always keeps it.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +required
	OutboundSNAT SNATOption `json:"outboundSNAT"`

	// routing is who makes the nodes' routes known.
	// `Managed`: the nodes peer with one another by BGP, without further configuration.
	// `Unmanaged`: the administrator creates RouteAdvertisements and FRRConfigurations.
	// +kubebuilder:validation:Enum=Managed;Unmanaged
	// +required
	Routing RoutingOption `json:"routing"`
}

// NetworkSpec describes the network.
// +kubebuilder:validation:XValidation:rule="self.topology == 'Layer3' ? has(self.layer3) : !has(self.layer3)",message="spec.layer3 is required when topology is Layer3 and forbidden otherwise: add or remove it"
// +kubebuilder:validation:XValidation:rule="self.topology == 'Layer2' ? has(self.layer2) : !has(self.layer2)",message="spec.layer2 is required when topology is Layer2 and forbidden otherwise: add or remove it"
// +kubebuilder:validation:XValidation:rule="self.topology == 'Localnet' ? has(self.localnet) : !has(self.localnet)",message="spec.localnet is required when topology is Localnet and forbidden otherwise: add or remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.transport) || self.transport != 'NoOverlay' || self.topology == 'Layer3' && has(self.layer3) && self.layer3.role == 'Primary'",message="transport 'NoOverlay' is only supported for Layer3 primary networks: remove transport, or set topology to Layer3 and role to Primary"
// +kubebuilder:validation:XValidation:rule="(has(self.transport) && self.transport == 'NoOverlay') == has(self.noOverlayOptions)",message="noOverlayOptions is required if and only if transport is 'NoOverlay': add or remove it"
// +kubebuilder:validation:XValidation:rule="(has(self.transport) ? self.transport : 'Geneve') == (has(oldSelf.transport) ? oldSelf.transport : 'Geneve')",message="transport is immutable: create another network"
// +union
type NetworkSpec struct {
	// topology is the shape of the network.
	// `Layer3`: a subnet for each node and routing between nodes. Grows to many nodes and pods.
	// `Layer2`: one switch across all nodes. Pods and virtual machines keep their address when they move.
	// `Localnet`: the nodes' physical network, with its own addresses and gateways.
	// +kubebuilder:validation:Enum=Layer2;Layer3;Localnet
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="topology is immutable: create another network"
	// +unionDiscriminator
	// +required
	Topology NetworkTopology `json:"topology"`

	// layer3 describes a network of topology `Layer3`.
	// +optional
	Layer3 *Layer3Config `json:"layer3,omitempty"`

	// layer2 describes a network of topology `Layer2`.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="Layer2 is immutable: create another network"
	// +optional
	Layer2 *Layer2Config `json:"layer2,omitempty"`

	// localnet describes a network of topology `Localnet`.
	// +optional
	Localnet *LocalnetConfig `json:"localnet,omitempty"`

	// transport is how packets travel between nodes.
	// `Geneve`: in an overlay. `NoOverlay`: as they are, by the routes of the physical network (Layer3 Primary only).
	// Defaults to `Geneve`.
	// +kubebuilder:validation:Enum=NoOverlay;Geneve
	// +optional
	Transport TransportOption `json:"transport,omitempty"`

	// noOverlayOptions are the settings of transport `NoOverlay`, which needs them.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="noOverlayOptions is immutable: create another network"
	// +optional
	NoOverlayOptions *NoOverlayOptions `json:"noOverlayOptions,omitempty"`
}

// ClusterUserDefinedNetworkStatus is what has become of the network.
type ClusterUserDefinedNetworkStatus struct {
	// conditions: NetworkCreated, NetworkAllocationSucceeded and TransportAccepted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// ClusterUserDefinedNetworkList is a list of ClusterUserDefinedNetworks.
// +kubebuilder:object:root=true
type ClusterUserDefinedNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterUserDefinedNetwork `json:"items"`
}
