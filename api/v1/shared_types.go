// SPDX-License-Identifier: Apache-2.0

package v1

// NetworkTopology is the shape of a network.
type NetworkTopology string

// The topologies.
const (
	NetworkTopologyLayer3   NetworkTopology = "Layer3"
	NetworkTopologyLayer2   NetworkTopology = "Layer2"
	NetworkTopologyLocalnet NetworkTopology = "Localnet"
)

// NetworkRole is the role of a network for a pod.
type NetworkRole string

// The roles.
const (
	NetworkRolePrimary   NetworkRole = "Primary"
	NetworkRoleSecondary NetworkRole = "Secondary"
)

// NetworkIPAMLifecycle is how long a workload keeps its addresses.
// +kubebuilder:validation:Enum=Persistent
type NetworkIPAMLifecycle string

// IPAMLifecyclePersistent keeps a workload's addresses across restarts.
const IPAMLifecyclePersistent NetworkIPAMLifecycle = "Persistent"

// IPAMMode is whether addresses are assigned.
// +kubebuilder:validation:Enum=Enabled;Disabled
type IPAMMode string

// The IPAM modes.
const (
	IPAMEnabled  IPAMMode = "Enabled"
	IPAMDisabled IPAMMode = "Disabled"
)

// CIDR is a range of addresses such as "10.100.0.0/16" or "fd10:1::/48".
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="CIDR is invalid: write it as 10.100.0.0/16 or fd10:1::/48"
type CIDR string

// IP is one address such as "10.100.0.1" or "fd10:1::1".
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="IP is invalid: write it as 10.100.0.1 or fd10:1::1"
type IP string

// DualStackCIDRs is one CIDR, or one per IP family.
// +kubebuilder:validation:MinItems=1
// +kubebuilder:validation:MaxItems=2
// +kubebuilder:validation:XValidation:rule="size(self) != 2 || !isCIDR(self[0]) || !isCIDR(self[1]) || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="When 2 CIDRs are set, they must be from different IP families: keep one IPv4 and one IPv6 CIDR"
type DualStackCIDRs []CIDR

// DualStackIPs is one address, or one per IP family.
// +kubebuilder:validation:MinItems=1
// +kubebuilder:validation:MaxItems=2
// +kubebuilder:validation:XValidation:rule="size(self) != 2 || !isIP(self[0]) || !isIP(self[1]) || ip(self[0]).family() != ip(self[1]).family()",message="When 2 IPs are set, they must be from different IP families: keep one IPv4 and one IPv6 address"
type DualStackIPs []IP

// IPAMConfig is how addresses are managed.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.lifecycle) || self.lifecycle != 'Persistent' || !has(self.mode) || self.mode == 'Enabled'",message="lifecycle Persistent is only supported when ipam.mode is Enabled: set mode to Enabled or remove lifecycle"
type IPAMConfig struct {
	// mode is whether addresses are assigned to pods.
	// `Enabled`: each pod gets an address in `subnets`.
	// `Disabled`: pods get a MAC address only, and configure IP addresses themselves. Network policies, services and
	// other features that select pods by address do not work then, and only MAC addresses are protected against
	// spoofing. Secondary networks only.
	// Defaults to `Enabled`.
	// +optional
	Mode IPAMMode `json:"mode,omitempty"`

	// lifecycle is how long a workload keeps its addresses.
	// `Persistent`: in an `ipamclaims.k8s.cni.cncf.io` object, so that a virtual machine keeps them after a restart or
	// a migration. Requires mode `Enabled`.
	// +optional
	Lifecycle NetworkIPAMLifecycle `json:"lifecycle,omitempty"`
}
