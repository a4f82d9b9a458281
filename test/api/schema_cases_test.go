// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
)

// l3 is a Layer3 spec in one line.
func l3(fields string) string { return "topology: Layer3\nlayer3: {" + fields + "}" }

func l2(fields string) string { return "topology: Layer2\nlayer2: {" + fields + "}" }

func localnet(fields string) string { return "topology: Localnet\nlocalnet: {" + fields + "}" }

// manySubnets is a Layer3 subnets list of n distinct CIDRs.
func manySubnets(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("{cidr: 10.%d.%d.0/24, hostSubnet: 26}", i/256, i%256)
	}
	return "subnets: [" + strings.Join(out, ", ") + "]"
}

func layer3Cases() []schemaCase {
	ok := "role: Primary, subnets: [{cidr: 10.100.0.0/16}]"
	both := "role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 24}, {cidr: 'fd10::/48', hostSubnet: 64}]"
	return []schemaCase{
		{name: "layer3 minimal", spec: l3(ok)},
		{name: "layer3 dual stack", spec: l3(both)},
		{name: "layer3 secondary", spec: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}]")},
		{name: "layer3 everything", spec: l3(both + ", mtu: 1300, joinSubnets: [100.70.0.0/16, 'fd70::/64']")},
		{name: "layer3 several subnets of a family", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 10.2.0.0/16, hostSubnet: 24}, {cidr: 10.3.0.0/16, hostSubnet: 24}]")},
		{name: "layer3 100 subnets", spec: l3("role: Primary, " + manySubnets(100))},
		{name: "layer3 400 subnets", spec: l3("role: Primary, " + manySubnets(400))},
		{name: "layer3 401 subnets", spec: l3("role: Primary, " + manySubnets(401)), want: "must have at most 400 items"},
		{name: "layer3 append one to 399", spec: l3("role: Primary, " + manySubnets(399)), update: l3("role: Primary, " + manySubnets(400))},
		{name: "topology missing", spec: "layer3: {" + ok + "}", want: "Required value"},
		{name: "topology unknown", spec: "topology: Layer4", want: "Unsupported value: \"Layer4\""},
		{name: "localnet in a UDN", spec: "topology: Localnet", want: "Unsupported value: \"Localnet\""},
		{name: "layer3 without its section", spec: "topology: Layer3", want: "spec.layer3 is required when topology is Layer3 and forbidden otherwise"},
		{name: "layer3 with layer2's section", spec: l3(ok) + "\nlayer2: {role: Primary, subnets: [10.1.0.0/16]}", want: "spec.layer2 is required when topology is Layer2 and forbidden otherwise"},
		{name: "layer3 role missing", spec: l3("subnets: [{cidr: 10.100.0.0/16}]"), want: "spec.layer3.role: Required value"},
		{name: "layer3 role unknown", spec: l3("role: Tertiary, subnets: [{cidr: 10.100.0.0/16}]"), want: "Unsupported value: \"Tertiary\""},
		{name: "layer3 subnets missing", spec: l3("role: Primary"), want: "spec.layer3.subnets: Required value"},
		{name: "layer3 subnets empty", spec: l3("role: Primary, subnets: []"), want: "should have at least 1 items"},
		{name: "layer3 cidr invalid", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/33}]"), want: "CIDR is invalid"},
		{name: "layer3 cidr without length", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0}]"), want: "CIDR is invalid"},
		{name: "layer3 cidr too long", spec: l3("role: Primary, subnets: [{cidr: '" + strings.Repeat("1", 44) + "'}]"), want: "Too long"},
		{name: "layer3 host subnet wider than cidr", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 15}]"), want: "HostSubnet must be smaller than CIDR subnet"},
		{name: "layer3 host subnet equals cidr", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 16}]"), want: "HostSubnet must be smaller than CIDR subnet"},
		{name: "layer3 host subnet 32 for IPv4", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 32}]"), want: "HostSubnet must be less than 32 for IPv4 CIDR"},
		{name: "layer3 host subnet 128", spec: l3("role: Primary, subnets: [{cidr: 'fd10::/48', hostSubnet: 128}]"), want: "should be less than or equal to 127"},
		{name: "layer3 overlap", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.100.1.0/24}]"), want: "subnets must not overlap"},
		{name: "layer3 duplicate", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.100.0.0/16}]"), want: "subnets must not overlap or be given twice"},
		{name: "layer3 unequal host subnets", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 10.2.0.0/16, hostSubnet: 25}]"), want: "equal hostSubnet"},
		{name: "layer3 host subnet set once", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 10.2.0.0/16}]"), want: "equal hostSubnet"},
		{name: "layer3 mtu 575", spec: l3(ok + ", mtu: 575"), want: "should be greater than or equal to 576"},
		{name: "layer3 mtu 65537", spec: l3(ok + ", mtu: 65537"), want: "should be less than or equal to 65536"},
		{name: "layer3 IPv6 mtu 1279", spec: l3(both + ", mtu: 1279"), want: "MTU should be greater than or equal to 1280 when IPv6 subnet is used"},
		{name: "layer3 secondary join", spec: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}], joinSubnets: [100.70.0.0/16]"), want: "JoinSubnets is only supported for Primary network"},
		{name: "layer3 join same family", spec: l3(ok + ", joinSubnets: [100.70.0.0/16, 100.71.0.0/16]"), want: "must be from different IP families"},
		{name: "layer3 three joins", spec: l3(ok + ", joinSubnets: [100.70.0.0/16, 'fd70::/64', 'fd71::/64']"), want: "must have at most 2 items"},
		{name: "layer3 secondary same family", spec: l3("role: Secondary, subnets: [{cidr: 10.1.0.0/16}, {cidr: 10.2.0.0/16}]"), want: "from different IP families"},
		{name: "layer3 append", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.101.0.0/16}]")},
		{name: "layer3 remove", spec: l3(both), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 24}]"), want: "append new subnets at the end"},
		{name: "layer3 insert before", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.99.0.0/16}, {cidr: 10.100.0.0/16}]"), want: "append new subnets at the end"},
		{name: "layer3 host subnet change", spec: l3(both), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 25}, {cidr: 'fd10::/48', hostSubnet: 64}]"), want: "append new subnets at the end"},
		{name: "layer3 cidr grows by a digit", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/1}]"), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]"), want: "append new subnets at the end"},
		{name: "layer3 secondary append", spec: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}]"), update: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 'fd10::/48'}]"), want: "Secondary network is immutable"},
		{name: "layer3 role change", spec: l3(ok), update: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}]"), want: "role is immutable"},
		{name: "layer3 mtu set later", spec: l3(ok), update: l3(ok + ", mtu: 1300"), want: "mtu is immutable"},
		{name: "layer3 join set later", spec: l3(ok), update: l3(ok + ", joinSubnets: [100.70.0.0/16]"), want: "joinSubnets is immutable"},
		{name: "layer3 becomes layer2", spec: l3(ok), update: l2("role: Primary, subnets: [10.1.0.0/16]"), want: "topology is immutable"},
		{name: "layer3 nothing changes", spec: l3(both + ", mtu: 1300"), update: l3(both + ", mtu: 1300")},
	}
}

func layer2Cases() []schemaCase {
	ok := "role: Primary, subnets: [10.100.0.0/16]"
	sec := "role: Secondary, subnets: [10.100.0.0/16]"
	both := "role: Primary, subnets: [10.100.0.0/16, 'fd10::/64']"
	return []schemaCase{
		{name: "layer2 minimal", spec: l2(ok)},
		{name: "layer2 secondary", spec: l2(sec)},
		{name: "layer2 secondary without addresses", spec: l2("role: Secondary, ipam: {mode: Disabled}")},
		{name: "layer2 persistent", spec: l2(ok + ", ipam: {lifecycle: Persistent}")},
		{name: "layer2 everything", spec: l2(both + ", mtu: 1300, joinSubnets: [100.70.0.0/16, 'fd70::/64'], reservedSubnets: [10.100.1.0/24, 'fd10::1:0/112'], infrastructureSubnets: [10.100.0.0/24, 'fd10::/112'], defaultGatewayIPs: [10.100.0.9, 'fd10::9'], ipam: {mode: Enabled, lifecycle: Persistent}")},
		{name: "layer2 without its section", spec: "topology: Layer2", want: "spec.layer2 is required when topology is Layer2 and forbidden otherwise"},
		{name: "layer2 role missing", spec: l2("subnets: [10.100.0.0/16]"), want: "spec.layer2.role: Required value"},
		{name: "layer2 subnets missing", spec: l2("role: Primary"), want: "Subnets is required with ipam.mode is Enabled or unset"},
		{name: "layer2 subnets with IPAM off", spec: l2(sec + ", ipam: {mode: Disabled}"), want: "Subnets must be unset when ipam.mode is Disabled"},
		{name: "layer2 primary with IPAM off", spec: l2("role: Primary, ipam: {mode: Disabled}"), want: "Disabled ipam.mode is only supported for Secondary network"},
		{name: "layer2 persistent with IPAM off", spec: l2("role: Secondary, ipam: {mode: Disabled, lifecycle: Persistent}"), want: "lifecycle Persistent is only supported when ipam.mode is Enabled"},
		{name: "layer2 ipam empty", spec: l2(ok + ", ipam: {}"), want: "should have at least 1 properties"},
		{name: "layer2 lifecycle unknown", spec: l2(ok + ", ipam: {lifecycle: Forever}"), want: "Unsupported value: \"Forever\""},
		{name: "layer2 same family", spec: l2("role: Primary, subnets: [10.1.0.0/16, 10.2.0.0/16]"), want: "must be from different IP families"},
		{name: "layer2 three subnets", spec: l2("role: Primary, subnets: [10.1.0.0/16, 'fd10::/64', 'fd11::/64']"), want: "must have at most 2 items"},
		{name: "layer2 cidr invalid", spec: l2("role: Primary, subnets: [ten/16]"), want: "CIDR is invalid"},
		{name: "layer2 IPv6 mtu 1000", spec: l2(both + ", mtu: 1000"), want: "MTU should be greater than or equal to 1280"},
		{name: "layer2 secondary join", spec: l2(sec + ", joinSubnets: [100.70.0.0/16]"), want: "JoinSubnets is only supported for Primary network"},
		{name: "layer2 secondary gateway", spec: l2(sec + ", defaultGatewayIPs: [10.100.0.1]"), want: "defaultGatewayIPs is only supported for Primary network"},
		{name: "layer2 secondary reserved", spec: l2(sec + ", reservedSubnets: [10.100.1.0/24]"), want: "reservedSubnets is only supported for Primary network"},
		{name: "layer2 secondary infrastructure", spec: l2(sec + ", infrastructureSubnets: [10.100.1.0/24]"), want: "infrastructureSubnets is only supported for Primary network"},
		{name: "layer2 gateway invalid", spec: l2(ok + ", defaultGatewayIPs: [10.100.0.256]"), want: "IP is invalid"},
		{name: "layer2 gateway outside", spec: l2(ok + ", defaultGatewayIPs: [10.101.0.1]"), want: "defaultGatewayIPs must belong to one of the subnets specified in the subnets field"},
		{name: "layer2 gateway of one family", spec: l2(both + ", defaultGatewayIPs: [10.100.0.1]"), want: "defaultGatewayIPs must be specified for all IP families"},
		{name: "layer2 gateways of the same family", spec: l2(both + ", defaultGatewayIPs: [10.100.0.1, 10.100.0.2]"), want: "must be from different IP families"},
		{name: "layer2 gateway outside infrastructure", spec: l2(ok + ", infrastructureSubnets: [10.100.1.0/24], defaultGatewayIPs: [10.100.0.1]"), want: "infrastructureSubnets when those are set"},
		{name: "layer2 reserved outside", spec: l2(ok + ", reservedSubnets: [10.101.0.0/24]"), want: "reservedSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "layer2 infrastructure outside", spec: l2(ok + ", infrastructureSubnets: [10.101.0.0/24]"), want: "infrastructureSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "layer2 reserved with host bits", spec: l2(ok + ", reservedSubnets: [10.100.1.1/24]"), want: "reservedSubnets must be a masked network address"},
		{name: "layer2 infrastructure with host bits", spec: l2(ok + ", infrastructureSubnets: [10.100.1.1/24]"), want: "infrastructureSubnets must be a masked network address"},
		{name: "layer2 reserved overlaps infrastructure", spec: l2(ok + ", infrastructureSubnets: [10.100.1.0/24], reservedSubnets: [10.100.0.0/20]"), want: "must not overlap"},
		{name: "layer2 too many infrastructure", spec: l2(ok + ", infrastructureSubnets: [10.100.1.0/24, 10.100.2.0/24, 10.100.3.0/24, 10.100.4.0/24, 10.100.5.0/24]"), want: "must have at most 4 items"},
		{name: "layer2 immutable", spec: l2(ok), update: l2(ok + ", mtu: 1300"), want: "Network spec is immutable"},
		{name: "layer2 nothing changes", spec: l2(ok), update: l2(ok)},
	}
}

func localnetCases() []schemaCase {
	base := "role: Secondary, physicalNetworkName: tenantblue"
	ok := base + ", subnets: [192.168.0.0/16]"
	both := base + ", subnets: [192.168.0.0/16, 'fd10::/64']"
	c := []schemaCase{
		{name: "localnet minimal", spec: localnet(ok)},
		{name: "localnet without addresses", spec: localnet(base + ", ipam: {mode: Disabled}")},
		{name: "localnet everything", spec: localnet(both + ", excludeSubnets: [192.168.0.0/30, 'fd10::/126'], mtu: 9000, vlan: {mode: Access, access: {id: 200}}, ipam: {mode: Enabled, lifecycle: Persistent}")},
		{name: "localnet vlan 1", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 1}}")},
		{name: "localnet without its section", spec: "topology: Localnet", want: "spec.localnet is required when topology is Localnet and forbidden otherwise"},
		{name: "localnet primary", spec: localnet("role: Primary, physicalNetworkName: x, subnets: [192.168.0.0/16]"), want: "Unsupported value: \"Primary\""},
		{name: "localnet no physical network", spec: localnet("role: Secondary, subnets: [192.168.0.0/16]"), want: "physicalNetworkName: Required value"},
		{name: "localnet empty physical network", spec: localnet("role: Secondary, physicalNetworkName: '', subnets: [192.168.0.0/16]"), want: "at least 1 chars"},
		{name: "localnet colon", spec: localnet("role: Secondary, physicalNetworkName: 'a:b', subnets: [192.168.0.0/16]"), want: "physicalNetworkName cannot contain `,` or `:` characters"},
		{name: "localnet comma", spec: localnet("role: Secondary, physicalNetworkName: 'a,b', subnets: [192.168.0.0/16]"), want: "physicalNetworkName cannot contain `,` or `:` characters"},
		{name: "localnet long name", spec: localnet("role: Secondary, physicalNetworkName: " + strings.Repeat("a", 254) + ", subnets: [192.168.0.0/16]"), want: "Too long"},
		{name: "localnet subnets missing", spec: localnet(base), want: "Subnets is required with ipam.mode is Enabled or unset, and forbidden otherwise"},
		{name: "localnet subnets with IPAM off", spec: localnet(ok + ", ipam: {mode: Disabled}"), want: "Subnets is required with ipam.mode is Enabled or unset, and forbidden otherwise"},
		{name: "localnet excludes without subnets", spec: localnet(base + ", ipam: {mode: Disabled}, excludeSubnets: [192.168.0.0/30]"), want: "excludeSubnets must be unset when subnets is unset"},
		{name: "localnet excludes outside", spec: localnet(ok + ", excludeSubnets: [192.169.0.0/30]"), want: "excludeSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "localnet excludes empty", spec: localnet(ok + ", excludeSubnets: []"), want: "should have at least 1 items"},
		{name: "localnet IPv6 mtu", spec: localnet(both + ", mtu: 1279"), want: "MTU should be greater than or equal to 1280"},
		{name: "localnet vlan 0", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 0}}"), want: "should be greater than or equal to 1"},
		{name: "localnet vlan 4095", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 4095}}"), want: "should be less than or equal to 4094"},
		{name: "localnet vlan without access", spec: localnet(ok + ", vlan: {mode: Access}"), want: "vlan access config is required when vlan mode is 'Access'"},
		{name: "localnet vlan mode unknown", spec: localnet(ok + ", vlan: {mode: Trunk}"), want: "Unsupported value: \"Trunk\""},
		{name: "localnet mtu changes", spec: localnet(ok), update: localnet(ok + ", mtu: 1400")},
		{name: "localnet vlan changes", spec: localnet(ok), update: localnet(ok + ", vlan: {mode: Access, access: {id: 3}}")},
		{name: "localnet excludes change", spec: localnet(ok), update: localnet(ok + ", excludeSubnets: [192.168.0.0/30]")},
		{name: "localnet physical network changes", spec: localnet(ok), update: localnet("role: Secondary, physicalNetworkName: other, subnets: [192.168.0.0/16]")},
		{name: "localnet subnets change", spec: localnet(ok), update: localnet(base + ", subnets: [192.169.0.0/16]"), want: "subnets is immutable"},
		{name: "localnet ipam changes", spec: localnet(ok), update: localnet(ok + ", ipam: {lifecycle: Persistent}"), want: "ipam is immutable"},
	}
	for i := range c {
		c[i].kind = "C"
	}
	return c
}

func clusterCases() []schemaCase {
	ok := l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]")
	options := "\nnoOverlayOptions: {outboundSNAT: Enabled, routing: Managed}"
	c := []schemaCase{
		{name: "cluster layer3", spec: ok},
		{name: "cluster layer2", spec: l2("role: Primary, subnets: [10.100.0.0/16]")},
		{name: "cluster geneve", spec: ok + "\ntransport: Geneve"},
		{name: "cluster no overlay", spec: ok + "\ntransport: NoOverlay" + options},
		{name: "cluster 400 subnets", spec: l3("role: Primary, " + manySubnets(400))},
		{name: "cluster transport unknown", spec: ok + "\ntransport: EVPN", want: "Unsupported value: \"EVPN\""},
		{name: "cluster no overlay without options", spec: ok + "\ntransport: NoOverlay", want: "noOverlayOptions is required if and only if transport is 'NoOverlay'"},
		{name: "cluster options without no overlay", spec: ok + options, want: "noOverlayOptions is required if and only if transport is 'NoOverlay'"},
		{name: "cluster options with geneve", spec: ok + "\ntransport: Geneve" + options, want: "noOverlayOptions is required if and only if transport is 'NoOverlay'"},
		{name: "cluster no overlay half configured", spec: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {routing: Managed}", want: "outboundSNAT: Required value"},
		{name: "cluster no overlay on layer2", spec: l2("role: Primary, subnets: [10.100.0.0/16]") + "\ntransport: NoOverlay" + options, want: "transport 'NoOverlay' is only supported for Layer3 primary networks"},
		{name: "cluster no overlay secondary", spec: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}]") + "\ntransport: NoOverlay" + options, want: "transport 'NoOverlay' is only supported for Layer3 primary networks"},
		{name: "cluster transport changes", spec: ok, update: ok + "\ntransport: NoOverlay" + options, want: "transport is immutable"},
		{name: "cluster transport named later", spec: ok, update: ok + "\ntransport: Geneve"},
		{name: "cluster options change", spec: ok + "\ntransport: NoOverlay" + options, update: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Disabled, routing: Managed}", want: "noOverlayOptions is immutable"},
		{name: "cluster append", spec: ok, update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.101.0.0/16}]")},
		{name: "cluster layer2 immutable", spec: l2("role: Primary, subnets: [10.100.0.0/16]"), update: l2("role: Primary, subnets: [10.101.0.0/16]"), want: "Network spec is immutable"},
	}
	for i := range c {
		c[i].kind = "C"
	}
	return c
}
