// SPDX-License-Identifier: Apache-2.0

package v1

// VLANMode is how VLAN tags are handled.
type VLANMode string

// VLANModeAccess tags all packets with one VLAN on the physical network.
const VLANModeAccess VLANMode = "Access"

// AccessVLANConfig is the VLAN of an access port.
type AccessVLANConfig struct {
	// id is the VLAN ID, 1 to 4094.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	// +required
	ID int32 `json:"id"`
}

// VLANConfig is the VLAN of a Localnet network on the physical network.
// +kubebuilder:validation:XValidation:rule="has(self.mode) && self.mode == 'Access' ? has(self.access) : !has(self.access)",message="vlan access config is required when vlan mode is 'Access', and forbidden otherwise: add or remove access"
// +union
type VLANConfig struct {
	// mode is how VLAN tags are handled. `Access`: pods send untagged packets, which have the tag `access.id` on the
	// physical network.
	// +kubebuilder:validation:Enum=Access
	// +unionDiscriminator
	// +required
	Mode VLANMode `json:"mode"`

	// access is the VLAN of mode `Access`.
	// +optional
	Access *AccessVLANConfig `json:"access,omitempty"`
}

// LocalnetConfig describes a network that is the nodes' physical network.
//
// mtu, vlan, excludeSubnets and physicalNetworkName may change, because the
// physical network can change. Pods rely on the other fields.
//
// +kubebuilder:validation:XValidation:rule="!has(self.ipam) || !has(self.ipam.mode) || self.ipam.mode == 'Enabled' ? has(self.subnets) : !has(self.subnets)",message="Subnets is required with ipam.mode is Enabled or unset, and forbidden otherwise: add or remove subnets, or change ipam.mode"
// +kubebuilder:validation:XValidation:rule="!has(self.excludeSubnets) || has(self.subnets)",message="excludeSubnets must be unset when subnets is unset: remove excludeSubnets, or add subnets"
// +kubebuilder:validation:XValidation:rule="!has(self.excludeSubnets) || !has(self.subnets) || self.excludeSubnets.all(e, !isCIDR(e) || self.subnets.exists(s, isCIDR(s) && cidr(s).containsCIDR(e)))",message="excludeSubnets must be subnetworks of the networks specified in the subnets field: choose ranges inside"
// +kubebuilder:validation:XValidation:rule="!has(self.mtu) || self.mtu >= 1280 || !has(self.subnets) || !self.subnets.exists(s, isCIDR(s) && cidr(s).ip().family() == 6)",message="MTU should be greater than or equal to 1280 when IPv6 subnet is used: raise mtu, or remove the IPv6 subnet"
// +kubebuilder:validation:XValidation:rule="has(self.subnets) == has(oldSelf.subnets) && (!has(self.subnets) || self.subnets == oldSelf.subnets)",message="subnets is immutable: create another network"
// +kubebuilder:validation:XValidation:rule="has(self.ipam) == has(oldSelf.ipam) && (!has(self.ipam) || self.ipam == oldSelf.ipam)",message="ipam is immutable: create another network"
type LocalnetConfig struct {
	// role is the role of the network for its pods. Only `Secondary` is possible: pods that name the network in the
	// annotation `k8s.v1.cni.cncf.io/networks` get an additional interface.
	// +kubebuilder:validation:Enum=Secondary
	// +required
	Role NetworkRole `json:"role"`

	// physicalNetworkName is the name of the physical network in the nodes' OVS bridge mappings
	// (`ovn-bridge-mappings`). 1 to 253 characters without `,` and `:`. It may change.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^,:]+$')",message="physicalNetworkName cannot contain `,` or `:` characters: choose another name, in the nodes' bridge mappings too"
	// +required
	PhysicalNetworkName string `json:"physicalNetworkName"`

	// subnets are the ranges that pod addresses are allocated from: at most one per IP family.
	// Required unless `ipam.mode` is `Disabled`, which forbids them, for example if the physical network has a DHCP
	// server.
	// +optional
	Subnets DualStackCIDRs `json:"subnets,omitempty"`

	// excludeSubnets are parts of `subnets`, at most 25, that are not assigned to pods, because other hosts on the
	// physical network use them. They may change; running pods keep their addresses. By default nothing is excluded.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=25
	// +optional
	ExcludeSubnets []CIDR `json:"excludeSubnets,omitempty"`

	// ipam is how addresses are managed. When omitted, pods get addresses in `subnets`.
	// +optional
	IPAM *IPAMConfig `json:"ipam,omitempty"`

	// mtu is the largest packet on the network in bytes, 576 to 65536 and at least 1280 with IPv6. It should be that of
	// the physical network: a smaller one reduces throughput, a larger one causes packet loss. It may change.
	// Defaults to the MTU of the underlay.
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// vlan is the VLAN on the physical network. It may change. When omitted, packets are untagged.
	// +optional
	VLAN *VLANConfig `json:"vlan,omitempty"`
}
