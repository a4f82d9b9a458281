// SPDX-License-Identifier: Apache-2.0

package v1

// Layer2Config describes a network that is one switch across all nodes.
//
// +kubebuilder:validation:XValidation:rule="has(self.ipam) && has(self.ipam.mode) && self.ipam.mode != 'Enabled' || has(self.subnets)",message="Subnets is required with ipam.mode is Enabled or unset: add subnets"
// +kubebuilder:validation:XValidation:rule="!has(self.ipam) || !has(self.ipam.mode) || self.ipam.mode != 'Disabled' || !has(self.subnets)",message="Subnets must be unset when ipam.mode is Disabled: remove subnets"
// +kubebuilder:validation:XValidation:rule="!has(self.ipam) || !has(self.ipam.mode) || self.ipam.mode != 'Disabled' || self.role == 'Secondary'",message="Disabled ipam.mode is only supported for Secondary network: set ipam.mode to Enabled"
// +kubebuilder:validation:XValidation:rule="!has(self.joinSubnets) || self.role == 'Primary'",message="JoinSubnets is only supported for Primary network: remove joinSubnets or set role to Primary"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultGatewayIPs) || self.role == 'Primary'",message="defaultGatewayIPs is only supported for Primary network: remove defaultGatewayIPs or set role to Primary"
// +kubebuilder:validation:XValidation:rule="!has(self.reservedSubnets) || self.role == 'Primary'",message="reservedSubnets is only supported for Primary network: remove reservedSubnets or set role to Primary"
// +kubebuilder:validation:XValidation:rule="!has(self.infrastructureSubnets) || self.role == 'Primary'",message="infrastructureSubnets is only supported for Primary network: remove infrastructureSubnets or set role to Primary"
// +kubebuilder:validation:XValidation:rule="!has(self.mtu) || self.mtu >= 1280 || !has(self.subnets) || !self.subnets.exists(s, isCIDR(s) && cidr(s).ip().family() == 6)",message="MTU should be greater than or equal to 1280 when IPv6 subnet is used: raise mtu, or remove the IPv6 subnet"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultGatewayIPs) || has(self.subnets) && self.defaultGatewayIPs.all(g, !isIP(g) || self.subnets.exists(s, isCIDR(s) && cidr(s).containsIP(g)))",message="defaultGatewayIPs must belong to one of the subnets specified in the subnets field: choose an address inside"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultGatewayIPs) || has(self.subnets) && size(self.defaultGatewayIPs) == size(self.subnets)",message="defaultGatewayIPs must be specified for all IP families of subnets: add the missing one"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultGatewayIPs) || !has(self.infrastructureSubnets) || self.defaultGatewayIPs.all(g, !isIP(g) || self.infrastructureSubnets.exists(s, isCIDR(s) && cidr(s).containsIP(g)))",message="defaultGatewayIPs have to belong to infrastructureSubnets if those are set: choose an address inside"
// +kubebuilder:validation:XValidation:rule="!has(self.reservedSubnets) || has(self.subnets)",message="reservedSubnets must be unset when subnets is unset: remove reservedSubnets, or add subnets"
// +kubebuilder:validation:XValidation:rule="!has(self.infrastructureSubnets) || has(self.subnets)",message="infrastructureSubnets must be unset when subnets is unset: remove infrastructureSubnets, or add subnets"
// +kubebuilder:validation:XValidation:rule="!has(self.reservedSubnets) || !has(self.subnets) || self.reservedSubnets.all(r, !isCIDR(r) || self.subnets.exists(s, isCIDR(s) && cidr(s).containsCIDR(r)))",message="reservedSubnets must be subnetworks of the networks specified in the subnets field: choose ranges inside"
// +kubebuilder:validation:XValidation:rule="!has(self.infrastructureSubnets) || !has(self.subnets) || self.infrastructureSubnets.all(r, !isCIDR(r) || self.subnets.exists(s, isCIDR(s) && cidr(s).containsCIDR(r)))",message="infrastructureSubnets must be subnetworks of the networks specified in the subnets field: choose ranges inside"
// +kubebuilder:validation:XValidation:rule="!has(self.reservedSubnets) || !has(self.infrastructureSubnets) || self.infrastructureSubnets.all(i, !isCIDR(i) || self.reservedSubnets.all(r, !isCIDR(r) || !cidr(i).containsCIDR(r) && !cidr(r).containsCIDR(i)))",message="infrastructureSubnets and reservedSubnets must not overlap: choose another range for one of them"
type Layer2Config struct {
	// role is the role of the network for its pods.
	// `Primary`: all pods of the network's namespaces reach their default gateway and services through it.
	// `Secondary`: pods that name it in the annotation `k8s.v1.cni.cncf.io/networks` get an additional interface.
	// +kubebuilder:validation:Enum=Primary;Secondary
	// +required
	Role NetworkRole `json:"role"`

	// mtu is the largest packet on the network in bytes, 576 to 65536 and at least 1280 with IPv6.
	// Defaults to the configured MTU of overlay networks, and must not exceed what the network between nodes carries.
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// subnets are the ranges that pod addresses are allocated from: at most one per IP family.
	// Required unless `ipam.mode` is `Disabled`, which forbids them.
	// +optional
	Subnets DualStackCIDRs `json:"subnets,omitempty"`

	// reservedSubnets are parts of `subnets`, at most 25, whose addresses are assigned only to pods that request them,
	// for example to virtual machines that already have addresses. Primary networks only.
	// By default nothing is reserved.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=25
	// +kubebuilder:validation:XValidation:rule="self.all(s, !isCIDR(s) || cidr(s) == cidr(s).masked())",message="reservedSubnets must be a masked network address (no host bits set): write 10.100.1.0/24, not 10.100.1.7/24"
	// +optional
	ReservedSubnets []CIDR `json:"reservedSubnets,omitempty"`

	// infrastructureSubnets are parts of `subnets`, at most 4, that the network's own addresses (gateway, nodes) are
	// allocated from. Pods cannot have these addresses. Primary networks only.
	// By default the network uses the first addresses of `subnets`.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(s, !isCIDR(s) || cidr(s) == cidr(s).masked())",message="infrastructureSubnets must be a masked network address (no host bits set): write 10.100.1.0/24, not 10.100.1.7/24"
	// +optional
	InfrastructureSubnets []CIDR `json:"infrastructureSubnets,omitempty"`

	// defaultGatewayIPs are the addresses of the pods' default gateway, one per entry of `subnets`. Defaults to the
	// first address of each, or of `infrastructureSubnets`. Primary networks only.
	// +optional
	DefaultGatewayIPs DualStackIPs `json:"defaultGatewayIPs,omitempty"`

	// joinSubnets are used between the network's routers, at most one per IP family. Pods can see these addresses as
	// the source of traffic from outside, so they must not overlap addresses that pods connect to. Primary networks
	// only.
	// Defaults to the cluster's setting, 100.65.0.0/16 and fd99::/64.
	// +optional
	JoinSubnets DualStackCIDRs `json:"joinSubnets,omitempty"`

	// ipam is how addresses are managed. When omitted, pods get addresses in `subnets`.
	// +optional
	IPAM *IPAMConfig `json:"ipam,omitempty"`
}
