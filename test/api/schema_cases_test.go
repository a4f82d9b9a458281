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

// manySubnets is a Layer3 subnets list of n distinct CIDRs, followed by more: v4
// IPv4 CIDRs, then IPv6 CIDRs in their longest spelling.
func manySubnets(n, v4 int, more ...string) string {
	out := make([]string, n)
	for i := range out {
		if i < v4 {
			out[i] = fmt.Sprintf("{cidr: 10.%d.%d.0/24, hostSubnet: 26}", i/256, i%256)
		} else {
			out[i] = fmt.Sprintf("{cidr: 'fd10:aaaa:bbbb:cccc:dddd:eeee:%04x:0000/112', hostSubnet: 127}", i)
		}
	}
	return "subnets: [" + strings.Join(append(out, more...), ", ") + "]"
}

// forBothKinds returns each case twice: for a UserDefinedNetwork and for a
// ClusterUserDefinedNetwork.
func forBothKinds(cases []schemaCase) []schemaCase {
	var out []schemaCase
	for _, c := range cases {
		c.kind = kindUDN
		out = append(out, c)
		c.kind = kindNetwork
		out = append(out, c)
	}
	return out
}

func layer3Cases() []schemaCase {
	ok := "role: Primary, subnets: [{cidr: 10.100.0.0/16}]"
	both := "role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 24}, {cidr: 'fd10::/48', hostSubnet: 64}]"
	join := ", joinSubnets: [100.70.0.0/16]"
	secondary := "role: Secondary, subnets: [{cidr: 10.100.0.0/16}]"
	full := "role: Primary, " + manySubnets(400, 400)
	return forBothKinds([]schemaCase{
		{name: "minimal", spec: l3(ok)},
		{name: "dual stack", spec: l3(both)},
		{name: "IPv6", spec: l3("role: Primary, subnets: [{cidr: 'fd10::/48'}]")},
		{name: "everything", spec: l3(both + ", mtu: 1300, joinSubnets: [100.70.0.0/16, 'fd70::/64']")},
		{name: "host bits", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.1/16}]")},
		{name: "several of one family", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 10.2.0.0/16, hostSubnet: 24}, {cidr: 'fd10::/48'}, {cidr: 'fd11::/48'}]")},
		{name: "400 subnets", spec: l3(full)},
		{name: "401 subnets", spec: l3("role: Primary, " + manySubnets(401, 401)), want: "must have at most 400 items"},
		{name: "mtu 576", spec: l3(ok + ", mtu: 576")},
		{name: "mtu 65536", spec: l3(ok + ", mtu: 65536")},
		{name: "IPv6 mtu 1280", spec: l3(both + ", mtu: 1280")},
		{name: "smallest host subnets", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 17}, {cidr: 'fd10::/48', hostSubnet: 127}]")},
		{name: "secondary", spec: l3(secondary)},
		{name: "secondary dual stack", spec: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 'fd10::/48'}]")},

		{name: "topology missing", spec: "layer3: {" + ok + "}", want: "topology: Required value"},
		{name: "topology unknown", spec: "topology: Layer4", want: "Unsupported value: \"Layer4\""},
		{name: "section missing", spec: "topology: Layer3", want: "layer3 is required when topology is Layer3 and forbidden otherwise"},
		{name: "layer2's section too", spec: l3(ok) + "\nlayer2: {role: Primary, subnets: [10.1.0.0/16]}", want: "layer2 is required when topology is Layer2 and forbidden otherwise"},
		{name: "role missing", spec: l3("subnets: [{cidr: 10.100.0.0/16}]"), want: "layer3.role: Required value"},
		{name: "role unknown", spec: l3("role: Tertiary, subnets: [{cidr: 10.100.0.0/16}]"), want: "Unsupported value: \"Tertiary\""},
		{name: "subnets missing", spec: l3("role: Primary"), want: "layer3.subnets: Required value"},
		{name: "subnets empty", spec: l3("role: Primary, subnets: []"), want: "should have at least 1 items"},
		{name: "cidr missing", spec: l3("role: Primary, subnets: [{hostSubnet: 24}]"), want: "cidr: Required value"},
		{name: "cidr out of range", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/33}]"), want: "CIDR is invalid"},
		{name: "cidr without length", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0}]"), want: "CIDR is invalid"},
		{name: "cidr with zeros", spec: l3("role: Primary, subnets: [{cidr: 010.100.0.0/16}]"), want: "CIDR is invalid"},
		{name: "cidr IPv4 in IPv6", spec: l3("role: Primary, subnets: [{cidr: '::ffff:10.100.0.0/112'}]"), want: "CIDR is invalid"},
		{name: "cidr with host length", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16/24}]"), want: "CIDR is invalid"},
		{name: "cidr too long", spec: l3("role: Primary, subnets: [{cidr: '" + strings.Repeat("1", 44) + "'}]"), want: "Too long"},
		{name: "host subnet 0", spec: l3("role: Primary, subnets: [{cidr: 0.0.0.0/0, hostSubnet: 0}]"), want: "should be greater than or equal to 1"},
		{name: "host subnet wider than cidr", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 15}]"), want: "HostSubnet must be smaller than CIDR subnet"},
		{name: "host subnet equals cidr", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 16}]"), want: "HostSubnet must be smaller than CIDR subnet"},
		{name: "host subnet 32 for IPv4", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 32}]"), want: "HostSubnet must < 32 for ipv4 CIDR"},
		{name: "host subnet 128", spec: l3("role: Primary, subnets: [{cidr: 'fd10::/48', hostSubnet: 128}]"), want: "should be less than or equal to 127"},
		{name: "subnet in another", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.100.1.0/24}]"), want: "Subnets must not overlap or contain each other"},
		{name: "subnet containing another", spec: l3("role: Primary, subnets: [{cidr: 'fd10::/64'}, {cidr: 'fd10::/48'}]"), want: "Subnets must not overlap or contain each other"},
		{name: "subnet twice", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.100.0.0/16}]"), want: "Subnets with same CIDR are not allowed"},
		{name: "subnet twice in two spellings", spec: l3("role: Primary, subnets: [{cidr: 'fd10::/48'}, {cidr: 'fd10:0:0::/48'}]"), want: "Subnets with same CIDR are not allowed"},
		{name: "the 400th within the first", spec: l3("role: Primary, " + manySubnets(399, 399, "{cidr: 10.0.0.64/26}")), want: "Subnets must not overlap or contain each other"},
		{name: "the first within the 400th", spec: l3("role: Primary, " + manySubnets(399, 399, "{cidr: 10.0.0.0/23, hostSubnet: 26}")), want: "remove the one that is 201st or later in the list"},
		{name: "unequal host subnets", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 10.2.0.0/16, hostSubnet: 25}]"), want: "Subnets from the same IP family must use the same hostSubnet value"},
		{name: "unequal IPv6 host subnets", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 'fd10::/48', hostSubnet: 64}, {cidr: 'fd11::/48', hostSubnet: 65}]"), want: "Subnets from the same IP family must use the same hostSubnet value"},
		{name: "host subnet for one of two", spec: l3("role: Primary, subnets: [{cidr: 10.1.0.0/16, hostSubnet: 24}, {cidr: 10.2.0.0/16}]"), want: "Subnets from the same IP family must use the same hostSubnet value"},
		{name: "mtu 575", spec: l3(ok + ", mtu: 575"), want: "should be greater than or equal to 576"},
		{name: "mtu 65537", spec: l3(ok + ", mtu: 65537"), want: "should be less than or equal to 65536"},
		{name: "IPv6 mtu 1279", spec: l3(both + ", mtu: 1279"), want: "MTU should be greater than or equal to 1280 when IPv6 subnet is used"},
		{name: "two IPv6 subnets mtu 1279", spec: l3("role: Primary, subnets: [{cidr: 'fd10::/48'}, {cidr: 'fd11::/48'}], mtu: 1279"), want: "MTU should be greater than or equal to 1280 when IPv6 subnet is used"},
		{name: "join subnet invalid", spec: l3(ok + ", joinSubnets: [100.70.0.0]"), want: "CIDR is invalid"},
		{name: "join subnet too long", spec: l3(ok + ", joinSubnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "join subnets empty", spec: l3(ok + ", joinSubnets: []"), want: "should have at least 1 items"},
		{name: "join subnets of one family", spec: l3(ok + ", joinSubnets: [100.70.0.0/16, 100.71.0.0/16]"), want: "When 2 CIDRs are set, they must be from different IP families"},
		{name: "three join subnets", spec: l3(ok + ", joinSubnets: [100.70.0.0/16, 'fd70::/64', 'fd71::/64']"), want: "must have at most 2 items"},
		{name: "secondary join", spec: l3(secondary + join), want: "JoinSubnets is only supported for Primary network"},
		{name: "secondary of one family", spec: l3("role: Secondary, subnets: [{cidr: 10.1.0.0/16}, {cidr: 10.2.0.0/16}]"), want: "must be from different IP families"},
		{name: "secondary three subnets", spec: l3("role: Secondary, subnets: [{cidr: 10.1.0.0/16}, {cidr: 'fd10::/48'}, {cidr: 10.2.0.0/16}]"), want: "Secondary networks may define at most 2 subnets"},

		{name: "nothing changes", spec: l3(both + ", mtu: 1300" + join), update: l3(both + ", mtu: 1300" + join)},
		{name: "append", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.101.0.0/16}]")},
		{name: "append the other family", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 'fd10::/48', hostSubnet: 64}]")},
		{name: "append one to 399", spec: l3("role: Primary, " + manySubnets(399, 399)), update: l3(full)},
		{name: "append an overlap", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.100.0.0/20}]"), want: "Subnets must not overlap or contain each other"},
		{name: "append one that contains another", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.0.0.0/8}]"), want: "Subnets must not overlap or contain each other"},
		{name: "append another host subnet", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.101.0.0/16, hostSubnet: 25}]"), want: "Subnets from the same IP family must use the same hostSubnet value"},
		{name: "remove", spec: l3(both), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 24}]"), want: "Removing existing subnets is not allowed"},
		{name: "replace", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.101.0.0/16}]"), want: "Removing existing subnets is not allowed"},
		{name: "insert before", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.99.0.0/16}, {cidr: 10.100.0.0/16}]"), want: "append new subnets at the end"},
		{name: "swap", spec: l3(both), update: l3("role: Primary, subnets: [{cidr: 'fd10::/48', hostSubnet: 64}, {cidr: 10.100.0.0/16, hostSubnet: 24}]"), want: "append new subnets at the end"},
		{name: "cidr grows by a digit", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/1}]"), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]"), want: "append new subnets at the end"},
		{name: "host subnet changes", spec: l3(both), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 25}, {cidr: 'fd10::/48', hostSubnet: 64}]"), want: "hostSubnet is immutable"},
		{name: "host subnet set later", spec: l3(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16, hostSubnet: 24}]"), want: "hostSubnet is immutable"},
		{name: "host subnet unset later", spec: l3(both), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 'fd10::/48', hostSubnet: 64}]"), want: "hostSubnet is immutable"},
		{name: "role changes", spec: l3(ok), update: l3(secondary), want: "role is immutable"},
		{name: "mtu changes", spec: l3(ok + ", mtu: 1400"), update: l3(ok + ", mtu: 1300"), want: "mtu is immutable"},
		{name: "mtu set later", spec: l3(ok), update: l3(ok + ", mtu: 1300"), want: "mtu is immutable"},
		{name: "mtu unset later", spec: l3(ok + ", mtu: 1300"), update: l3(ok), want: "mtu is immutable"},
		{name: "join changes", spec: l3(ok + join), update: l3(ok + ", joinSubnets: [100.71.0.0/16]"), want: "joinSubnets is immutable"},
		{name: "join set later", spec: l3(ok), update: l3(ok + join), want: "joinSubnets is immutable"},
		{name: "join unset later", spec: l3(ok + join), update: l3(ok), want: "joinSubnets is immutable"},
		{name: "becomes layer2", spec: l3(ok), update: l2("role: Primary, subnets: [10.1.0.0/16]"), want: "topology is immutable"},
		{name: "secondary appends", spec: l3(secondary), update: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 'fd10::/48'}]"), want: "Subnets is immutable for Secondary role"},
		{name: "secondary appends the same family", spec: l3(secondary), update: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.101.0.0/16}]"), want: "Subnets is immutable for Secondary role"},
		{name: "secondary stays", spec: l3(secondary), update: l3(secondary)},
	})
}

func layer2Cases() []schemaCase {
	ok := "role: Primary, subnets: [10.100.0.0/16]"
	sec := "role: Secondary, subnets: [10.100.0.0/16]"
	both := "role: Primary, subnets: [10.100.0.0/16, 'fd10::/64']"
	join := ", joinSubnets: [100.70.0.0/16]"
	everything := both + ", mtu: 1300, joinSubnets: [100.70.0.0/16, 'fd70::/64'], reservedSubnets: [10.100.1.0/24, 'fd10::1:0/112'], infrastructureSubnets: [10.100.0.0/24, 'fd10::/112'], defaultGatewayIPs: [10.100.0.9, 'fd10::9'], ipam: {mode: Enabled, lifecycle: Persistent}"
	const immutable = "Layer2 is immutable"
	return forBothKinds([]schemaCase{
		{name: "minimal", spec: l2(ok)},
		{name: "secondary", spec: l2(sec)},
		{name: "IPAM on", spec: l2(ok + ", ipam: {mode: Enabled}")},
		{name: "secondary without addresses", spec: l2("role: Secondary, ipam: {mode: Disabled}")},
		{name: "persistent", spec: l2(ok + ", ipam: {lifecycle: Persistent}")},
		{name: "everything", spec: l2(everything)},
		{name: "host bits", spec: l2("role: Primary, subnets: [10.100.0.1/16]")},
		{name: "gateways in the other order", spec: l2(both + ", defaultGatewayIPs: ['fd10::9', 10.100.0.9]")},
		{name: "25 reserved", spec: l2(ok + ", reservedSubnets: " + blocks("10.100.%d.0/24", 25))},
		{name: "26 reserved", spec: l2(ok + ", reservedSubnets: " + blocks("10.100.%d.0/24", 26)), want: "must have at most 25 items"},
		{name: "4 infrastructure", spec: l2(ok + ", infrastructureSubnets: " + blocks("10.100.%d.0/24", 4))},
		{name: "5 infrastructure", spec: l2(ok + ", infrastructureSubnets: " + blocks("10.100.%d.0/24", 5)), want: "must have at most 4 items"},
		{name: "IPv6 mtu 1280", spec: l2(both + ", mtu: 1280")},

		{name: "section missing", spec: "topology: Layer2", want: "layer2 is required when topology is Layer2 and forbidden otherwise"},
		{name: "layer3's section too", spec: l2(ok) + "\nlayer3: {role: Primary, subnets: [{cidr: 10.1.0.0/16}]}", want: "layer3 is required when topology is Layer3 and forbidden otherwise"},
		{name: "role missing", spec: l2("subnets: [10.100.0.0/16]"), want: "layer2.role: Required value"},
		{name: "role unknown", spec: l2("role: Tertiary, subnets: [10.100.0.0/16]"), want: "Unsupported value: \"Tertiary\""},
		{name: "subnets missing", spec: l2("role: Primary"), want: "Subnets is required with ipam.mode is Enabled or unset"},
		{name: "subnets missing with IPAM on", spec: l2("role: Secondary, ipam: {mode: Enabled}"), want: "Subnets is required with ipam.mode is Enabled or unset"},
		{name: "subnets missing for a lifecycle", spec: l2("role: Secondary, ipam: {lifecycle: Persistent}"), want: "Subnets is required with ipam.mode is Enabled or unset"},
		{name: "subnets empty", spec: l2("role: Primary, subnets: []"), want: "should have at least 1 items"},
		{name: "subnets with IPAM off", spec: l2(sec + ", ipam: {mode: Disabled}"), want: "Subnets must be unset when ipam.mode is Disabled"},
		{name: "primary with IPAM off", spec: l2("role: Primary, ipam: {mode: Disabled}"), want: "Disabled ipam.mode is only supported for Secondary network"},
		{name: "persistent with IPAM off", spec: l2("role: Secondary, ipam: {mode: Disabled, lifecycle: Persistent}"), want: "lifecycle Persistent is only supported when ipam.mode is Enabled"},
		{name: "ipam empty", spec: l2(ok + ", ipam: {}"), want: "should have at least 1 properties"},
		{name: "ipam mode unknown", spec: l2(ok + ", ipam: {mode: Sometimes}"), want: "Unsupported value: \"Sometimes\""},
		{name: "lifecycle unknown", spec: l2(ok + ", ipam: {lifecycle: Forever}"), want: "Unsupported value: \"Forever\""},
		{name: "subnets of one family", spec: l2("role: Primary, subnets: [10.1.0.0/16, 10.2.0.0/16]"), want: "When 2 CIDRs are set, they must be from different IP families"},
		{name: "three subnets", spec: l2("role: Primary, subnets: [10.1.0.0/16, 'fd10::/64', 'fd11::/64']"), want: "must have at most 2 items"},
		{name: "subnet invalid", spec: l2("role: Primary, subnets: [ten/16]"), want: "CIDR is invalid"},
		{name: "subnet too long", spec: l2("role: Primary, subnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "mtu 575", spec: l2(ok + ", mtu: 575"), want: "should be greater than or equal to 576"},
		{name: "mtu 65537", spec: l2(ok + ", mtu: 65537"), want: "should be less than or equal to 65536"},
		{name: "IPv6 mtu 1279", spec: l2(both + ", mtu: 1279"), want: "MTU should be greater than or equal to 1280 when IPv6 subnet is used"},
		{name: "secondary join", spec: l2(sec + join), want: "JoinSubnets is only supported for Primary network"},
		{name: "secondary gateway", spec: l2(sec + ", defaultGatewayIPs: [10.100.0.1]"), want: "defaultGatewayIPs is only supported for Primary network"},
		{name: "secondary reserved", spec: l2(sec + ", reservedSubnets: [10.100.1.0/24]"), want: "reservedSubnets is only supported for Primary network"},
		{name: "secondary infrastructure", spec: l2(sec + ", infrastructureSubnets: [10.100.1.0/24]"), want: "infrastructureSubnets is only supported for Primary network"},
		{name: "join subnet invalid", spec: l2(ok + ", joinSubnets: [100.70.0.0]"), want: "CIDR is invalid"},
		{name: "join subnet too long", spec: l2(ok + ", joinSubnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "join subnets empty", spec: l2(ok + ", joinSubnets: []"), want: "should have at least 1 items"},
		{name: "join subnets of one family", spec: l2(ok + ", joinSubnets: [100.70.0.0/16, 100.71.0.0/16]"), want: "When 2 CIDRs are set, they must be from different IP families"},
		{name: "three join subnets", spec: l2(ok + ", joinSubnets: [100.70.0.0/16, 'fd70::/64', 'fd71::/64']"), want: "must have at most 2 items"},
		{name: "gateway invalid", spec: l2(ok + ", defaultGatewayIPs: [10.100.0.256]"), want: "IP is invalid"},
		{name: "gateway with a length", spec: l2(ok + ", defaultGatewayIPs: [10.100.0.1/16]"), want: "IP is invalid"},
		{name: "gateway too long", spec: l2(ok + ", defaultGatewayIPs: ['" + strings.Repeat("1", 40) + "']"), want: "Too long"},
		{name: "gateways empty", spec: l2(ok + ", defaultGatewayIPs: []"), want: "should have at least 1 items"},
		{name: "three gateways", spec: l2(both + ", defaultGatewayIPs: [10.100.0.1, 'fd10::1', 10.100.0.2]"), want: "must have at most 2 items"},
		{name: "gateway outside", spec: l2(ok + ", defaultGatewayIPs: [10.101.0.1]"), want: "defaultGatewayIPs must belong to one of the subnets specified in the subnets field"},
		{name: "one of two gateways outside", spec: l2(both + ", defaultGatewayIPs: [10.101.0.1, 'fd10::1']"), want: "defaultGatewayIPs must belong to one of the subnets specified in the subnets field"},
		{name: "gateway of one family", spec: l2(both + ", defaultGatewayIPs: [10.100.0.1]"), want: "defaultGatewayIPs must be specified for all IP families"},
		{name: "gateways of one family", spec: l2(both + ", defaultGatewayIPs: [10.100.0.1, 10.100.0.2]"), want: "When 2 IPs are set, they must be from different IP families"},
		{name: "gateway outside infrastructure", spec: l2(ok + ", infrastructureSubnets: [10.100.1.0/24], defaultGatewayIPs: [10.100.0.1]"), want: "defaultGatewayIPs have to belong to infrastructureSubnets"},
		{name: "reserved invalid", spec: l2(ok + ", reservedSubnets: [10.100.1.0]"), want: "CIDR is invalid"},
		{name: "reserved too long", spec: l2(ok + ", reservedSubnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "reserved empty", spec: l2(ok + ", reservedSubnets: []"), want: "should have at least 1 items"},
		{name: "reserved outside", spec: l2(ok + ", reservedSubnets: [10.101.0.0/24]"), want: "reservedSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "reserved containing the subnet", spec: l2(ok + ", reservedSubnets: [10.0.0.0/8]"), want: "reservedSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "reserved with host bits", spec: l2(ok + ", reservedSubnets: [10.100.1.1/24]"), want: "reservedSubnets must be a masked network address"},
		{name: "reserved without subnets", spec: l2("role: Secondary, ipam: {mode: Disabled}, reservedSubnets: [10.100.1.0/24]"), want: "reservedSubnets must be unset when subnets is unset"},
		{name: "infrastructure invalid", spec: l2(ok + ", infrastructureSubnets: [10.100.1.0]"), want: "CIDR is invalid"},
		{name: "infrastructure too long", spec: l2(ok + ", infrastructureSubnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "infrastructure empty", spec: l2(ok + ", infrastructureSubnets: []"), want: "should have at least 1 items"},
		{name: "infrastructure outside", spec: l2(ok + ", infrastructureSubnets: [10.101.0.0/24]"), want: "infrastructureSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "infrastructure with host bits", spec: l2(ok + ", infrastructureSubnets: [10.100.1.1/24]"), want: "infrastructureSubnets must be a masked network address"},
		{name: "infrastructure without subnets", spec: l2("role: Primary, ipam: {mode: Disabled}, infrastructureSubnets: [10.100.1.0/24]"), want: "infrastructureSubnets must be unset when subnets is unset"},
		{name: "infrastructure in reserved", spec: l2(ok + ", infrastructureSubnets: [10.100.1.0/24], reservedSubnets: [10.100.0.0/20]"), want: "infrastructureSubnets and reservedSubnets must not overlap"},
		{name: "reserved in infrastructure", spec: l2(ok + ", infrastructureSubnets: [10.100.0.0/20], reservedSubnets: [10.100.1.0/24]"), want: "infrastructureSubnets and reservedSubnets must not overlap"},

		{name: "nothing changes", spec: l2(everything), update: l2(everything)},
		{name: "mtu set later", spec: l2(ok), update: l2(ok + ", mtu: 1300"), want: immutable},
		{name: "mtu unset later", spec: l2(ok + ", mtu: 1300"), update: l2(ok), want: immutable},
		{name: "role changes", spec: l2(ok), update: l2(sec), want: immutable},
		{name: "subnets change", spec: l2(ok), update: l2("role: Primary, subnets: [10.101.0.0/16]"), want: immutable},
		{name: "subnet added", spec: l2(ok), update: l2(both), want: immutable},
		{name: "join set later", spec: l2(ok), update: l2(ok + join), want: immutable},
		{name: "join unset later", spec: l2(ok + join), update: l2(ok), want: immutable},
		{name: "reserved set later", spec: l2(ok), update: l2(ok + ", reservedSubnets: [10.100.1.0/24]"), want: immutable},
		{name: "infrastructure set later", spec: l2(ok), update: l2(ok + ", infrastructureSubnets: [10.100.1.0/24]"), want: immutable},
		{name: "gateway set later", spec: l2(ok), update: l2(ok + ", defaultGatewayIPs: [10.100.0.1]"), want: immutable},
		{name: "ipam set later", spec: l2(ok), update: l2(ok + ", ipam: {lifecycle: Persistent}"), want: immutable},
		{name: "ipam unset later", spec: l2(ok + ", ipam: {lifecycle: Persistent}"), update: l2(ok), want: immutable},
		{name: "becomes layer3", spec: l2(ok), update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]"), want: "topology is immutable"},
	})
}

// blocks is a YAML list of n CIDRs, numbered from 1.
func blocks(format string, n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = "'" + fmt.Sprintf(format, i+1) + "'"
	}
	return "[" + strings.Join(out, ", ") + "]"
}
