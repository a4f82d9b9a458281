// SPDX-License-Identifier: Apache-2.0

package v1

// Layer3Config describes a network with a subnet of its own on every node and
// routing between them.
//
// Rules over subnets stay linear in the number of subnets, except the one on
// overlaps, which compares pairs. It is two rules, each for half of the subnets,
// because the API server's budget for one expression does not hold 400 x 400
// comparisons, and it leaves subnets alone that have not changed, because every
// write to status is validated too.
//
// For the same reason rules stand on the field that they are about, and settle
// the common case first: each field that a rule selects costs the API server a
// copy of the schemas of all fields beside it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.joinSubnets) || self.role == 'Primary'",message="JoinSubnets is only supported for Primary network: remove joinSubnets or set role to Primary"
// +kubebuilder:validation:XValidation:rule="!has(self.mtu) || self.mtu >= 1280 || !self.subnets.exists(s, isCIDR(s.cidr) && cidr(s.cidr).ip().family() == 6)",message="MTU should be greater than or equal to 1280 when IPv6 subnet is used: raise mtu, or remove the IPv6 subnet"
// +kubebuilder:validation:XValidation:rule="self.role != 'Secondary' || size(self.subnets) < 2 || size(self.subnets) == 2 && (!isCIDR(self.subnets[0].cidr) || !isCIDR(self.subnets[1].cidr) || cidr(self.subnets[0].cidr).ip().family() != cidr(self.subnets[1].cidr).ip().family())",message="Secondary networks may define at most 2 subnets, and when 2 CIDRs are set for Secondary networks, they must be from different IP families: remove the others"
// +kubebuilder:validation:XValidation:rule="self.role != 'Secondary' || self.subnets == oldSelf.subnets",message="Subnets is immutable for Secondary role: create another network"
// +kubebuilder:validation:XValidation:rule="has(self.joinSubnets) == has(oldSelf.joinSubnets) && (!has(self.joinSubnets) || self.joinSubnets == oldSelf.joinSubnets)",message="joinSubnets is immutable: create another network"
// +kubebuilder:validation:XValidation:rule="has(self.mtu) == has(oldSelf.mtu) && (!has(self.mtu) || self.mtu == oldSelf.mtu)",message="mtu is immutable: create another network"
type Layer3Config struct {
	// role is what the network is to its pods.
	// `Primary`: every pod of the network's namespaces has its default gateway and its services there.
	// `Secondary`: pods that name it in the annotation `k8s.v1.cni.cncf.io/networks` get one more interface.
	// +kubebuilder:validation:Enum=Primary;Secondary
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="role is immutable: create another network"
	// +required
	Role NetworkRole `json:"role"`

	// mtu is the largest packet on the network in bytes, 576 to 65536 and at least 1280 with IPv6.
	// Defaults to the MTU of the cluster default network.
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// subnets are the ranges that nodes, and through them pods, get their addresses from, at most 400. Each range is
	// cut into one subnet for each node. Further ranges can be appended to a Primary network when more nodes come;
	// what is there stays, in its order, because the order decides which node has which subnet. A Secondary network
	// has one range, or one of each IP family, for good.
	// Ranges must not overlap one another nor the ranges of the cluster (pods, services, join, transit, masquerade);
	// those of other networks may be the same.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=400
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || oldSelf.hasValue() && oldSelf.value() == self || self.exists(s, !isCIDR(s.cidr)) || [self.map(s, cidr(s.cidr))].all(l, l.all(i, a, i >= 200 || l.exists_one(b, a.containsCIDR(b))))",optionalOldSelf=true,message="Subnets must not overlap or contain each other, and Subnets with same CIDR are not allowed: remove one of them"
	// +kubebuilder:validation:XValidation:rule="size(self) <= 200 || oldSelf.hasValue() && oldSelf.value() == self || self.exists(s, !isCIDR(s.cidr)) || [self.map(s, cidr(s.cidr))].all(l, l.all(i, a, i < 200 || l.exists_one(b, a.containsCIDR(b))))",optionalOldSelf=true,message="Subnets must not overlap or contain each other, and Subnets with same CIDR are not allowed: remove the one that is 201st or later in the list"
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || ['4', '6'].all(f, [self.filter(s, isCIDR(s.cidr) && string(cidr(s.cidr).ip().family()) == f).map(s, has(s.hostSubnet) ? s.hostSubnet : 0)].all(l, l.all(h, h == l[0])))",message="Subnets from the same IP family must use the same hostSubnet value: give it to all of them, or to none"
	// +kubebuilder:validation:XValidation:rule="size(self) >= size(oldSelf) && oldSelf.all(i, s, self[i].cidr == s.cidr)",message="Removing existing subnets is not allowed, nor changing or moving them, as nodes use them: append new subnets at the end"
	// +kubebuilder:validation:XValidation:rule="size(self) < size(oldSelf) || oldSelf.all(i, s, self[i] == s || self[i].cidr != s.cidr)",message="hostSubnet is immutable: leave that of existing subnets as it is, or create another network"
	// +listType=atomic
	// +required
	Subnets []Layer3Subnet `json:"subnets"`

	// joinSubnets are used inside the network's own routers, at most one for each IP family. Pods can see these
	// addresses as the source of traffic from outside, so they must not overlap what pods talk to. Primary networks
	// only.
	// Defaults to the cluster's setting, 100.65.0.0/16 and fd99::/64.
	// +optional
	JoinSubnets DualStackCIDRs `json:"joinSubnets,omitempty"`
}

// Layer3Subnet is one range of a Layer3 network.
// +kubebuilder:validation:XValidation:rule="!has(self.hostSubnet) || !isCIDR(self.cidr) || self.hostSubnet > cidr(self.cidr).prefixLength()",message="HostSubnet must be smaller than CIDR subnet: give hostSubnet a longer prefix than cidr has"
// +kubebuilder:validation:XValidation:rule="!has(self.hostSubnet) || self.hostSubnet < 32 || !isCIDR(self.cidr) || cidr(self.cidr).ip().family() != 4",message="HostSubnet must < 32 for ipv4 CIDR: give hostSubnet a shorter prefix"
type Layer3Subnet struct {
	// cidr is the range, such as "10.100.0.0/16" or "fd10:1::/48".
	// +required
	CIDR CIDR `json:"cidr"`

	// hostSubnet is the prefix length of each node's part of the range, longer than the range's own and below 32 for
	// IPv4. All ranges of one IP family have the same.
	// Defaults to 24 for IPv4 and 64 for IPv6; a smaller range is one node's as a whole.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	HostSubnet int32 `json:"hostSubnet,omitempty"`
}
