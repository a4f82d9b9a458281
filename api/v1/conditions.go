// SPDX-License-Identifier: Apache-2.0

package v1

// Condition types of UserDefinedNetwork and ClusterUserDefinedNetwork.
const (
	// ConditionNetworkCreated: every namespace of the network has its
	// NetworkAttachmentDefinition. The message names those that have not.
	ConditionNetworkCreated = "NetworkCreated"
	// ConditionNetworkAllocationSucceeded: the subnets hold every node. The
	// message names the nodes that they do not hold.
	ConditionNetworkAllocationSucceeded = "NetworkAllocationSucceeded"
	// ConditionTransportAccepted: the transport is configured.
	ConditionTransportAccepted = "TransportAccepted"
)

// Reasons of ConditionNetworkCreated.
const (
	ReasonNADCreated = "NetworkAttachmentDefinitionCreated"
	ReasonNADDeleted = "NetworkAttachmentDefinitionDeleted"
	// ReasonSyncError is a UserDefinedNetwork's, ReasonNADSyncError a
	// ClusterUserDefinedNetwork's.
	ReasonSyncError       = "SyncError"
	ReasonNADSyncError    = "NetworkAttachmentDefinitionSyncError"
	ReasonNotYetSupported = "NotYetSupported"
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
	// ReasonNoOverlayRouteAdvertisementsNotAccepted: one does, but is not accepted itself.
	ReasonNoOverlayRouteAdvertisementsNotAccepted = "NoOverlayRouteAdvertisementsNotAccepted"
)

// ConditionAccepted is the condition type of RouteAdvertisements: its routes
// are advertised.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted             = "Accepted"
	ReasonConfigurationError   = "ConfigurationError"
	ReasonConfigurationPending = "ConfigurationPending"
	ReasonInternalError        = "InternalError"
)
