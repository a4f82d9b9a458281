// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RouteAdvertisements advertises pod networks and egress IPs to BGP peers.
//
// The selected FRRConfigurations define the peers. Each of them is copied for
// every node, with the node's prefixes added.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=routeadvertisements,scope=Cluster,shortName=ra,singular=routeadvertisements
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.status`
// +kubebuilder:printcolumn:name="TargetVRF",type=string,priority=1,JSONPath=`.spec.targetVRF`
// +kubebuilder:printcolumn:name="Advertisements",type=string,priority=1,JSONPath=`.spec.advertisements`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RouteAdvertisements struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec selects what to advertise, and to which peers.
	// +required
	Spec RouteAdvertisementsSpec `json:"spec"`

	// status is the observed state of the advertisement.
	// +optional
	Status RouteAdvertisementsStatus `json:"status,omitempty"`
}

// RouteAdvertisementsSpec selects what to advertise, and to which peers.
// +kubebuilder:validation:XValidation:rule="!('PodNetwork' in self.advertisements) || (!has(self.nodeSelector.matchLabels) || size(self.nodeSelector.matchLabels) == 0) && (!has(self.nodeSelector.matchExpressions) || size(self.nodeSelector.matchExpressions) == 0)",message="a 'nodeSelector' can't be specified with 'PodNetwork', which is advertised on all nodes: set nodeSelector to {}"
type RouteAdvertisementsSpec struct {
	// targetVRF is the VRF whose BGP sessions advertise the routes.
	// Empty: the node's default VRF. `auto`: each network's own VRF. Otherwise the VRF with that name, at most 15
	// characters.
	// +kubebuilder:validation:MaxLength=15
	// +optional
	TargetVRF string `json:"targetVRF,omitempty"`

	// networkSelectors select the networks to advertise: the cluster default network, ClusterUserDefinedNetworks by
	// label, or both.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=networkSelectionType
	// +kubebuilder:validation:XValidation:rule="self.filter(s, s.networkSelectionType != 'DefaultNetwork').size() < 2",message="networkSelectionType ClusterUserDefinedNetwork is the same as ClusterUserDefinedNetworks: remove one of the two selectors"
	// +required
	NetworkSelectors []NetworkSelector `json:"networkSelectors" patchStrategy:"merge" patchMergeKey:"networkSelectionType"`

	// nodeSelector selects the nodes that advertise. `{}` selects all of them and is required for `PodNetwork`.
	// +required
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`

	// frrConfigurationSelector selects the FRRConfigurations, which define the BGP peers. `{}` selects all of them.
	// +required
	FRRConfigurationSelector metav1.LabelSelector `json:"frrConfigurationSelector"`

	// advertisements are what to advertise, each at most once.
	// `PodNetwork`: the pod addresses. Each node advertises its own subnet of the network.
	// `EgressIP`: the egress IPs of the network. It is refused, because nodes do not carry egress IPs.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +required
	Advertisements []AdvertisementType `json:"advertisements"`
}

// AdvertisementType is what is advertised of a network.
// +kubebuilder:validation:Enum=PodNetwork;EgressIP
type AdvertisementType string

// The kinds of advertisement.
const (
	PodNetwork AdvertisementType = "PodNetwork"
	EgressIP   AdvertisementType = "EgressIP"
)

// NetworkSelectionType is the kind of the selected networks.
// +kubebuilder:validation:Enum=DefaultNetwork;ClusterUserDefinedNetworks;ClusterUserDefinedNetwork
type NetworkSelectionType string

// The kinds of network that can be advertised.
const (
	// DefaultNetwork is the cluster default network.
	DefaultNetwork NetworkSelectionType = "DefaultNetwork"
	// ClusterUserDefinedNetworks are those that a label selector selects.
	ClusterUserDefinedNetworks NetworkSelectionType = "ClusterUserDefinedNetworks"
	// ClusterUserDefinedNetworksSingular is the same: the no-overlay proposal's examples have it.
	ClusterUserDefinedNetworksSingular NetworkSelectionType = "ClusterUserDefinedNetwork"
)

// NetworkSelector selects networks of one kind.
// +kubebuilder:validation:XValidation:rule="has(self.clusterUserDefinedNetworkSelector) == (self.networkSelectionType in ['ClusterUserDefinedNetworks', 'ClusterUserDefinedNetwork'])",message="Inconsistent selector: networkSelectionType ClusterUserDefinedNetworks requires clusterUserDefinedNetworkSelector and other types forbid it: set both or neither"
// +union
type NetworkSelector struct {
	// networkSelectionType is the kind of network.
	// `DefaultNetwork`: the cluster default network.
	// `ClusterUserDefinedNetworks` or `ClusterUserDefinedNetwork`: those that clusterUserDefinedNetworkSelector selects.
	// +unionDiscriminator
	// +required
	NetworkSelectionType NetworkSelectionType `json:"networkSelectionType"`

	// clusterUserDefinedNetworkSelector selects ClusterUserDefinedNetworks.
	// +optional
	ClusterUserDefinedNetworkSelector *ClusterUserDefinedNetworkSelector `json:"clusterUserDefinedNetworkSelector,omitempty"`
}

// CUDNs returns what selects ClusterUserDefinedNetworks, nil if s selects another kind of network.
func (s NetworkSelector) CUDNs() *ClusterUserDefinedNetworkSelector {
	if s.NetworkSelectionType == ClusterUserDefinedNetworks || s.NetworkSelectionType == ClusterUserDefinedNetworksSingular {
		return s.ClusterUserDefinedNetworkSelector
	}
	return nil
}

// ClusterUserDefinedNetworkSelector selects ClusterUserDefinedNetworks.
type ClusterUserDefinedNetworkSelector struct {
	// networkSelector selects them by their labels. `{}` selects all of them.
	// +required
	NetworkSelector metav1.LabelSelector `json:"networkSelector"`
}

// RouteAdvertisementsStatus is the observed state of the advertisement.
type RouteAdvertisementsStatus struct {
	// status summarises the condition Accepted: "Accepted", or "Not Accepted" and the reason.
	// +optional
	Status string `json:"status,omitempty"`

	// conditions: Accepted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// RouteAdvertisementsList is a list of RouteAdvertisements.
// +kubebuilder:object:root=true
type RouteAdvertisementsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RouteAdvertisements `json:"items"`
}
