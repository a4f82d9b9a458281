// SPDX-License-Identifier: Apache-2.0

package v1

// Condition types of UserDefinedNetwork and ClusterUserDefinedNetwork.
const (
	// ConditionNetworkCreated: every namespace of the network has its
	// NetworkAttachmentDefinition. The message lists the namespaces without one.
	ConditionNetworkCreated = "NetworkCreated"
	// ConditionNetworkAllocationSucceeded: every node has built the network.
	// The message lists the others.
	ConditionNetworkAllocationSucceeded = "NetworkAllocationSucceeded"
	// ConditionTransportAccepted: the transport is configured.
	ConditionTransportAccepted = "TransportAccepted"
)

// Reasons of ConditionNetworkCreated.
const (
	ReasonNADCreated = "NetworkAttachmentDefinitionCreated"
	// ReasonNADDeleted: the network is deleted, and other programs' finalizers keep the object.
	ReasonNADDeleted = "NetworkAttachmentDefinitionDeleted"
	// ReasonSyncError is for UserDefinedNetworks, ReasonNADSyncError for
	// ClusterUserDefinedNetworks.
	ReasonSyncError    = "SyncError"
	ReasonNADSyncError = "NetworkAttachmentDefinitionSyncError"
)

// Reasons of ConditionNetworkAllocationSucceeded.
const (
	ReasonAllocationSucceeded = "NetworkAllocationSucceeded"
	ReasonAllocationFailed    = "InternalError"
)

// Reasons of ConditionTransportAccepted.
const (
	ReasonGeneveTransportAccepted    = "GeneveTransportAccepted"
	ReasonNoOverlayTransportAccepted = "NoOverlayTransportAccepted"
	// ReasonNoOverlayRouteAdvertisementsIsMissing: no RouteAdvertisements advertises the network.
	ReasonNoOverlayRouteAdvertisementsIsMissing = "NoOverlayRouteAdvertisementsIsMissing"
	// ReasonNoOverlayRouteAdvertisementsNotAccepted: the RouteAdvertisements of the network are not accepted.
	ReasonNoOverlayRouteAdvertisementsNotAccepted = "NoOverlayRouteAdvertisementsNotAccepted"
	// ReasonNoOverlayRouteAdvertisementsPending: it is not known yet whether the RouteAdvertisements of the network are accepted.
	ReasonNoOverlayRouteAdvertisementsPending = "NoOverlayRouteAdvertisementsPending"
	// ReasonNoOverlayManagedRoutingNotConfigured: the network's routing is Managed, and no
	// managed fabric is configured.
	ReasonNoOverlayManagedRoutingNotConfigured = "NoOverlayManagedRoutingNotConfigured"
)

// ConditionAccepted is the condition type of RouteAdvertisements: the routes are
// advertised.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted             = "Accepted"
	ReasonConfigurationError   = "ConfigurationError"
	ReasonConfigurationPending = "ConfigurationPending"
	// ReasonInternalError: FRRConfigurations could not be written.
	ReasonInternalError = "InternalError"
)
