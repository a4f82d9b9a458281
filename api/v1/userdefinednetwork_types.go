// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// UserDefinedNetwork is a network for the pods of one namespace. The namespace's
// owner can create it without an administrator.
//
// A Primary network replaces the cluster default network for the namespace's
// pods. The namespace must have been created with the label
// `k8s.ovn.org/primary-user-defined-network`. Create the network before the first
// pod, because pods wait for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=userdefinednetworks,scope=Namespaced,shortName=udn,singular=userdefinednetwork
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Topology",type=string,JSONPath=`.spec.topology`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec['layer3','layer2'].role`
// +kubebuilder:printcolumn:name="Created",type=string,JSONPath=`.status.conditions[?(@.type=="NetworkCreated")].status`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.conditions[?(@.type=="NetworkAllocationSucceeded")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="NetworkCreated")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type UserDefinedNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired network.
	// +required
	Spec UserDefinedNetworkSpec `json:"spec"`

	// status is the observed state of the network.
	// +optional
	Status UserDefinedNetworkStatus `json:"status,omitempty"`
}

// UserDefinedNetworkSpec describes the network of one namespace.
// +kubebuilder:validation:XValidation:rule="self.topology == 'Layer3' ? has(self.layer3) : !has(self.layer3)",message="spec.layer3 is required when topology is Layer3 and forbidden otherwise: add or remove it"
// +kubebuilder:validation:XValidation:rule="self.topology == 'Layer2' ? has(self.layer2) : !has(self.layer2)",message="spec.layer2 is required when topology is Layer2 and forbidden otherwise: add or remove it"
// +kubebuilder:validation:XValidation:rule="(!has(self.transport) || self.transport != 'NoOverlay') && !has(self.noOverlayOptions) && !has(self.noOverlay)",message="transport 'NoOverlay' is only supported for ClusterUserDefinedNetworks: remove transport, noOverlayOptions and noOverlay, or have an administrator create a ClusterUserDefinedNetwork"
// +union
type UserDefinedNetworkSpec struct {
	// topology is the shape of the network.
	// `Layer3`: a subnet per node and routing between nodes. Scales to many nodes and pods.
	// `Layer2`: one switch across all nodes. Virtual machines keep their addresses when they migrate.
	// +kubebuilder:validation:Enum=Layer2;Layer3
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

	// transport is how packets are transported between nodes. It can only be `Geneve`, in an overlay, which is the
	// default: networks without an overlay are ClusterUserDefinedNetworks.
	// +kubebuilder:validation:Enum=NoOverlay;Geneve
	// +optional
	Transport TransportOption `json:"transport,omitempty"`

	// noOverlayOptions belong to ClusterUserDefinedNetworks and are refused here.
	// +optional
	NoOverlayOptions *RefusedOptions `json:"noOverlayOptions,omitempty"`

	// noOverlay belongs to ClusterUserDefinedNetworks and is refused here.
	// +optional
	NoOverlay *RefusedOptions `json:"noOverlay,omitempty"`
}

// RefusedOptions are in the schema so that an object that has them is refused: the API server would drop unknown fields,
// and the network would have an overlay.
type RefusedOptions struct{}

// UserDefinedNetworkStatus is the observed state of the network.
type UserDefinedNetworkStatus struct {
	// conditions: NetworkCreated and NetworkAllocationSucceeded.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// UserDefinedNetworkList is a list of UserDefinedNetworks.
// +kubebuilder:object:root=true
type UserDefinedNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UserDefinedNetwork `json:"items"`
}
