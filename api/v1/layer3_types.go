// SPDX-License-Identifier: Apache-2.0

package v1

// Layer3Config describes a network with a subnet per node and routing between
// nodes.
//
// The cost of rules over subnets is linear in the number of subnets, except for
// overlaps, which are compared in pairs. There are two rules for overlaps, each
// for half of the subnets, because 400 x 400 comparisons exceed the API server's
// budget for one expression. They skip unchanged subnets, because the API server
// also validates every write to status.
//
// For the same reason each rule is on the field that it checks, and checks the
// common case first: for each field that a rule selects, the API server copies
// the schemas of all sibling fields.
//
// +kubebuilder:validation:XValidation:rule="!has(self.joinSubnets) || self.role == 'Primary'",message="JoinSubnets is only supported for Primary network: remove joinSubnets or set role to Primary"
// +kubebuilder:validation:XValidation:rule="!has(self.mtu) || self.mtu >= 1280 || !self.subnets.exists(s, isCIDR(s.cidr) && cidr(s.cidr).ip().family() == 6)",message="MTU should be greater than or equal to 1280 when IPv6 subnet is used: raise mtu, or remove the IPv6 subnet"
// +kubebuilder:validation:XValidation:rule="self.role != 'Secondary' || size(self.subnets) < 2 || size(self.subnets) == 2 && (!isCIDR(self.subnets[0].cidr) || !isCIDR(self.subnets[1].cidr) || cidr(self.subnets[0].cidr).ip().family() != cidr(self.subnets[1].cidr).ip().family())",message="Secondary networks may define at most 2 subnets, and when 2 CIDRs are set for Secondary networks, they must be from different IP families: remove the others"
// +kubebuilder:validation:XValidation:rule="self.role != 'Secondary' || self.subnets == oldSelf.subnets",message="Subnets is immutable for Secondary role: create another network"
// +kubebuilder:validation:XValidation:rule="has(self.joinSubnets) == has(oldSelf.joinSubnets) && (!has(self.joinSubnets) || self.joinSubnets == oldSelf.joinSubnets)",message="joinSubnets is immutable: create another network"
// +kubebuilder:validation:XValidation:rule="has(self.mtu) == has(oldSelf.mtu) && (!has(self.mtu) || self.mtu == oldSelf.mtu)",message="mtu is immutable: create another network"
type Layer3Config struct {
	// role is the role of the network for its pods.
	// `Primary`: all pods of the network's namespaces reach their default gateway and services through it.
	// `Secondary`: pods that name it in the annotation `k8s.v1.cni.cncf.io/networks` get an additional interface.
	// +kubebuilder:validation:Enum=Primary;Secondary
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="role is immutable: create another network"
	// +required
	Role NetworkRole `json:"role"`

	// mtu is the largest packet on the network in bytes, 576 to 65536 and at least 1280 with IPv6.
	// Defaults to the configured MTU of overlay networks, with transport NoOverlay to that of the network between nodes,
	// and must not exceed what that network carries.
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// subnets are the ranges that pod addresses are allocated from, at most 400. Each range is divided into one subnet
	// per node. Ranges can be appended to a Primary network for more nodes. Existing ranges and their order cannot
	// change, because the order determines the subnet of each node. A Secondary network has at most one range per IP
	// family, which cannot change.
	// Ranges must not overlap one another or the ranges of the cluster (pods, services, join, transit, masquerade).
	// They may overlap those of other networks.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=400
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || oldSelf.hasValue() && oldSelf.value() == self || self.exists(s, !isCIDR(s.cidr)) || [self.map(s, cidr(s.cidr))].all(l, l.all(i, a, i >= 200 || l.exists_one(b, a.containsCIDR(b))))",optionalOldSelf=true,message="Subnets must not overlap or contain each other, and Subnets with same CIDR are not allowed: remove one of them"
	// +kubebuilder:validation:XValidation:rule="size(self) <= 200 || oldSelf.hasValue() && oldSelf.value() == self || self.exists(s, !isCIDR(s.cidr)) || [self.map(s, cidr(s.cidr))].all(l, l.all(i, a, i < 200 || l.exists_one(b, a.containsCIDR(b))))",optionalOldSelf=true,message="Subnets must not overlap or contain each other, and Subnets with same CIDR are not allowed: remove the one that is 201st or later in the list"
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || ['4', '6'].all(f, [self.filter(s, isCIDR(s.cidr) && string(cidr(s.cidr).ip().family()) == f).map(s, has(s.hostSubnet) ? s.hostSubnet : 0)].all(l, l.all(h, h == l[0])))",message="Subnets from the same IP family must use the same hostSubnet value: set it on all of them, or on none"
	// +kubebuilder:validation:XValidation:rule="size(self) >= size(oldSelf) && oldSelf.all(i, s, self[i].cidr == s.cidr)",message="Removing existing subnets is not allowed, nor changing or moving them, as nodes use them: append new subnets at the end"
	// +kubebuilder:validation:XValidation:rule="size(self) < size(oldSelf) || oldSelf.all(i, s, self[i] == s || self[i].cidr != s.cidr)",message="hostSubnet is immutable: do not change it for existing subnets, or create another network"
	// +listType=atomic
	// +required
	Subnets []Layer3Subnet `json:"subnets"`

	// joinSubnets are used between the network's routers, at most one per IP family. Pods can see these addresses as
	// the source of traffic from outside, so they must not overlap addresses that pods connect to. Primary networks
	// only.
	// Defaults to the cluster's setting, 100.65.0.0/16 and fd99::/64.
	// +optional
	JoinSubnets DualStackCIDRs `json:"joinSubnets,omitempty"`
}

// Layer3Subnet is one range of a Layer3 network.
// +kubebuilder:validation:XValidation:rule="!has(self.hostSubnet) || !isCIDR(self.cidr) || self.hostSubnet > cidr(self.cidr).prefixLength()",message="HostSubnet must be smaller than CIDR subnet: set hostSubnet to a longer prefix length than that of cidr"
// +kubebuilder:validation:XValidation:rule="!has(self.hostSubnet) || self.hostSubnet < 32 || !isCIDR(self.cidr) || cidr(self.cidr).ip().family() != 4",message="HostSubnet must < 32 for ipv4 CIDR: set hostSubnet to a shorter prefix length"
type Layer3Subnet struct {
	// cidr is the range, such as "10.100.0.0/16" or "fd10:1::/48".
	// +required
	CIDR CIDR `json:"cidr"`

	// hostSubnet is the prefix length of each node's subnet, longer than that of the range and below 32 for IPv4. It
	// must be the same for all ranges of one IP family.
	// Defaults to 24 for IPv4 and 64 for IPv6. A range smaller than that is the subnet of a single node.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	HostSubnet int32 `json:"hostSubnet,omitempty"`
}
