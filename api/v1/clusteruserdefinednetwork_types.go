// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterUserDefinedNetwork is a network shared by the pods of several
// namespaces. Administrators create it, and tenants use it.
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

	// spec is the desired network.
	// +required
	Spec ClusterUserDefinedNetworkSpec `json:"spec"`

	// status is the observed state of the network.
	// +optional
	Status ClusterUserDefinedNetworkStatus `json:"status,omitempty"`
}

// ClusterUserDefinedNetworkSpec describes the network and selects its namespaces.
type ClusterUserDefinedNetworkSpec struct {
	// namespaceSelector selects the namespaces that have the network. It may change. The label
	// `kubernetes.io/metadata.name` is the safest one to select by, because users cannot set it.
	// +required
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// network describes the network.
	// +required
	Network NetworkSpec `json:"network"`
}

// TransportOption is how packets are transported between nodes.
type TransportOption string

// The transports.
const (
	TransportOptionGeneve    TransportOption = "Geneve"
	TransportOptionNoOverlay TransportOption = "NoOverlay"
)

// SNATOption is whether the source address of traffic that leaves the cluster is
// translated.
type SNATOption string

// The SNAT options.
const (
	SNATEnabled  SNATOption = "Enabled"
	SNATDisabled SNATOption = "Disabled"
)

// RoutingOption is how nodes get the routes to the pods on other nodes.
type RoutingOption string

// The routing options.
const (
	RoutingManaged   RoutingOption = "Managed"
	RoutingUnmanaged RoutingOption = "Unmanaged"
)

// NoOverlayOptions are the settings of transport NoOverlay.
type NoOverlayOptions struct {
	// outboundSNAT is whether the source address of traffic that leaves the cluster is translated.
	// `Enabled`: to the node's address. `Disabled`: it stays the pod's address, to which the outside needs a route.
	// The source address of traffic between pods is never translated.
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +required
	OutboundSNAT SNATOption `json:"outboundSNAT"`

	// routing is how nodes get the routes to the pods on other nodes.
	// `Managed`: the nodes are BGP peers of one another, without further configuration.
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
// +kubebuilder:validation:XValidation:rule="(has(self.transport) && self.transport == 'NoOverlay') == (has(self.noOverlayOptions) || has(self.noOverlay))",message="noOverlayOptions is required if and only if transport is 'NoOverlay': add or remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.noOverlayOptions) || !has(self.noOverlay)",message="noOverlayOptions and noOverlay are the same settings: remove one of them"
// +kubebuilder:validation:XValidation:rule="has(self.noOverlay) == has(oldSelf.noOverlay) || !has(self.transport) || self.transport != 'NoOverlay' || !has(oldSelf.transport) || oldSelf.transport != 'NoOverlay'",message="noOverlayOptions and noOverlay cannot replace each other: keep the name with which the network was created"
// +kubebuilder:validation:XValidation:rule="(has(self.transport) ? self.transport : 'Geneve') == (has(oldSelf.transport) ? oldSelf.transport : 'Geneve')",message="transport is immutable: create another network"
// +union
type NetworkSpec struct {
	// topology is the shape of the network.
	// `Layer3`: a subnet per node and routing between nodes. Scales to many nodes and pods.
	// `Layer2`: one switch across all nodes. Virtual machines keep their addresses when they migrate.
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

	// transport is how packets are transported between nodes.
	// `Geneve`: in an overlay. `NoOverlay`: routed by the physical network without encapsulation (Layer3 Primary only).
	// Defaults to `Geneve`.
	// +kubebuilder:validation:Enum=NoOverlay;Geneve
	// +optional
	Transport TransportOption `json:"transport,omitempty"`

	// noOverlayOptions are the settings of transport `NoOverlay`, which requires them.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="noOverlayOptions is immutable: create another network"
	// +optional
	NoOverlayOptions *NoOverlayOptions `json:"noOverlayOptions,omitempty"`

	// noOverlay is noOverlayOptions under the name that OVN-Kubernetes gives it. A network has one of the two.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="noOverlay is immutable: create another network"
	// +optional
	NoOverlay *NoOverlayOptions `json:"noOverlay,omitempty"`
}

// NoOverlaySettings returns the settings of transport NoOverlay under either name, nil for another transport.
func (s *NetworkSpec) NoOverlaySettings() *NoOverlayOptions {
	return cmp.Or(s.NoOverlayOptions, s.NoOverlay)
}

// ClusterUserDefinedNetworkStatus is the observed state of the network.
type ClusterUserDefinedNetworkStatus struct {
	// conditions: NetworkCreated, NetworkAllocationSucceeded and TransportAccepted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// activeNamespaces are the namespaces in which the network is available.
	// +listType=set
	// +optional
	ActiveNamespaces []string `json:"activeNamespaces,omitempty"`
}

// ClusterUserDefinedNetworkList is a list of ClusterUserDefinedNetworks.
// +kubebuilder:object:root=true
type ClusterUserDefinedNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterUserDefinedNetwork `json:"items"`
}
