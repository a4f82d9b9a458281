// SPDX-License-Identifier: Apache-2.0

package api

import "strings"

// withKind sets the kind of every case.
func withKind(kind string, cases []schemaCase) []schemaCase {
	for i := range cases {
		cases[i].kind = kind
	}
	return cases
}

func localnetCases() []schemaCase {
	base := "role: Secondary, physicalNetworkName: tenantblue"
	ok := base + ", subnets: [192.168.0.0/16]"
	both := base + ", subnets: [192.168.0.0/16, 'fd10::/64']"
	excludes := ", excludeSubnets: [192.168.0.0/30]"
	vlan := ", vlan: {mode: Access, access: {id: 200}}"
	off := base + ", ipam: {mode: Disabled}"
	const subnetsIff = "Subnets is required with ipam.mode is Enabled or unset, and forbidden otherwise"
	return withKind(kindNetwork, []schemaCase{
		{name: "minimal", spec: localnet(ok)},
		{name: "without addresses", spec: localnet(off)},
		{name: "without addresses, mtu and vlan", spec: localnet(off + ", mtu: 9000" + vlan)},
		{name: "IPAM on", spec: localnet(ok + ", ipam: {mode: Enabled}")},
		{name: "everything", spec: localnet(both + ", excludeSubnets: [192.168.0.0/30, 'fd10::/126'], mtu: 9000, vlan: {mode: Access, access: {id: 200}}, ipam: {mode: Enabled, lifecycle: Persistent}")},
		{name: "host bits", spec: localnet(base + ", subnets: [192.168.0.1/16], excludeSubnets: [192.168.1.1/24]")},
		{name: "exclude all", spec: localnet(ok + ", excludeSubnets: [192.168.0.0/16]")},
		{name: "25 excludes", spec: localnet(ok + ", excludeSubnets: " + blocks("192.168.%d.0/24", 25))},
		{name: "26 excludes", spec: localnet(ok + ", excludeSubnets: " + blocks("192.168.%d.0/24", 26)), want: "must have at most 25 items"},
		{name: "vlan 1", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 1}}")},
		{name: "vlan 4094", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 4094}}")},
		{name: "IPv6 mtu 1280", spec: localnet(both + ", mtu: 1280")},
		{name: "physical name of 253", spec: localnet("role: Secondary, physicalNetworkName: " + strings.Repeat("a", 253) + ", subnets: [192.168.0.0/16]")},
		{name: "physical name with dots and spaces", spec: localnet("role: Secondary, physicalNetworkName: 'br ex.1_a', subnets: [192.168.0.0/16]")},

		{name: "section missing", spec: "topology: Localnet", want: "spec.localnet is required when topology is Localnet and forbidden otherwise"},
		{name: "section of another topology", spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]") + "\nlocalnet: {" + ok + "}", want: "spec.localnet is required when topology is Localnet and forbidden otherwise"},
		{name: "layer2's section too", spec: localnet(ok) + "\nlayer2: {role: Primary, subnets: [10.1.0.0/16]}", want: "spec.layer2 is required when topology is Layer2 and forbidden otherwise"},
		{name: "role missing", spec: localnet("physicalNetworkName: x, subnets: [192.168.0.0/16]"), want: "localnet.role: Required value"},
		{name: "primary", spec: localnet("role: Primary, physicalNetworkName: x, subnets: [192.168.0.0/16]"), want: "Unsupported value: \"Primary\""},
		{name: "physical name missing", spec: localnet("role: Secondary, subnets: [192.168.0.0/16]"), want: "physicalNetworkName: Required value"},
		{name: "physical name empty", spec: localnet("role: Secondary, physicalNetworkName: '', subnets: [192.168.0.0/16]"), want: "at least 1 chars"},
		{name: "physical name with a colon", spec: localnet("role: Secondary, physicalNetworkName: 'a:b', subnets: [192.168.0.0/16]"), want: "physicalNetworkName cannot contain `,` or `:` characters"},
		{name: "physical name with a comma", spec: localnet("role: Secondary, physicalNetworkName: 'a,b', subnets: [192.168.0.0/16]"), want: "physicalNetworkName cannot contain `,` or `:` characters"},
		{name: "physical name of 254", spec: localnet("role: Secondary, physicalNetworkName: " + strings.Repeat("a", 254) + ", subnets: [192.168.0.0/16]"), want: "Too long"},
		{name: "subnets missing", spec: localnet(base), want: subnetsIff},
		{name: "subnets missing with IPAM on", spec: localnet(base + ", ipam: {mode: Enabled}"), want: subnetsIff},
		{name: "subnets with IPAM off", spec: localnet(ok + ", ipam: {mode: Disabled}"), want: subnetsIff},
		{name: "subnets empty", spec: localnet(base + ", subnets: []"), want: "should have at least 1 items"},
		{name: "three subnets", spec: localnet(base + ", subnets: [10.1.0.0/16, 'fd10::/64', 'fd11::/64']"), want: "must have at most 2 items"},
		{name: "subnets of one family", spec: localnet(base + ", subnets: ['fd10::/64', 'fd11::/64']"), want: "When 2 CIDRs are set, they must be from different IP families"},
		{name: "subnet invalid", spec: localnet(base + ", subnets: [300.0.0.0/24]"), want: "CIDR is invalid"},
		{name: "subnet too long", spec: localnet(base + ", subnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "excludes without subnets", spec: localnet(off + excludes), want: "excludeSubnets must be unset when subnets is unset"},
		{name: "excludes outside", spec: localnet(ok + ", excludeSubnets: [192.169.0.0/30]"), want: "excludeSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "excludes of the other family", spec: localnet(ok + ", excludeSubnets: ['fd10::/126']"), want: "excludeSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "excludes containing the subnet", spec: localnet(ok + ", excludeSubnets: [192.0.0.0/8]"), want: "excludeSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "excludes invalid", spec: localnet(ok + ", excludeSubnets: [192.168.0.0/300]"), want: "CIDR is invalid"},
		{name: "excludes too long", spec: localnet(ok + ", excludeSubnets: ['" + strings.Repeat("1", 44) + "']"), want: "Too long"},
		{name: "excludes empty", spec: localnet(ok + ", excludeSubnets: []"), want: "should have at least 1 items"},
		{name: "persistent with IPAM off", spec: localnet(base + ", ipam: {mode: Disabled, lifecycle: Persistent}"), want: "lifecycle Persistent is only supported when ipam.mode is Enabled"},
		{name: "ipam empty", spec: localnet(ok + ", ipam: {}"), want: "should have at least 1 properties"},
		{name: "ipam mode unknown", spec: localnet(ok + ", ipam: {mode: Sometimes}"), want: "Unsupported value: \"Sometimes\""},
		{name: "lifecycle unknown", spec: localnet(ok + ", ipam: {lifecycle: Forever}"), want: "Unsupported value: \"Forever\""},
		{name: "mtu 575", spec: localnet(ok + ", mtu: 575"), want: "should be greater than or equal to 576"},
		{name: "mtu 65537", spec: localnet(ok + ", mtu: 65537"), want: "should be less than or equal to 65536"},
		{name: "IPv6 mtu 1279", spec: localnet(both + ", mtu: 1279"), want: "MTU should be greater than or equal to 1280 when IPv6 subnet is used"},
		{name: "vlan 0", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 0}}"), want: "should be greater than or equal to 1"},
		{name: "vlan 4095", spec: localnet(ok + ", vlan: {mode: Access, access: {id: 4095}}"), want: "should be less than or equal to 4094"},
		{name: "vlan without id", spec: localnet(ok + ", vlan: {mode: Access, access: {}}"), want: "vlan.access.id: Required value"},
		{name: "vlan without access", spec: localnet(ok + ", vlan: {mode: Access}"), want: "vlan access config is required when vlan mode is 'Access'"},
		{name: "vlan without mode", spec: localnet(ok + ", vlan: {access: {id: 7}}"), want: "vlan.mode: Required value"},
		{name: "vlan mode unknown", spec: localnet(ok + ", vlan: {mode: Trunk}"), want: "Unsupported value: \"Trunk\""},

		{name: "nothing changes", spec: localnet(ok + excludes + vlan), update: localnet(ok + excludes + vlan)},
		{name: "mtu changes", spec: localnet(ok + ", mtu: 1400"), update: localnet(ok + ", mtu: 9000")},
		{name: "mtu set later", spec: localnet(ok), update: localnet(ok + ", mtu: 1400")},
		{name: "mtu unset later", spec: localnet(ok + ", mtu: 1400"), update: localnet(ok)},
		{name: "mtu changes too low", spec: localnet(both), update: localnet(both + ", mtu: 1279"), want: "MTU should be greater than or equal to 1280 when IPv6 subnet is used"},
		{name: "vlan changes", spec: localnet(ok + vlan), update: localnet(ok + ", vlan: {mode: Access, access: {id: 3}}")},
		{name: "vlan set later", spec: localnet(ok), update: localnet(ok + vlan)},
		{name: "vlan unset later", spec: localnet(ok + vlan), update: localnet(ok)},
		{name: "excludes change", spec: localnet(ok + excludes), update: localnet(ok + ", excludeSubnets: [192.168.9.0/24]")},
		{name: "excludes set later", spec: localnet(ok), update: localnet(ok + excludes)},
		{name: "excludes unset later", spec: localnet(ok + excludes), update: localnet(ok)},
		{name: "excludes change to outside", spec: localnet(ok + excludes), update: localnet(ok + ", excludeSubnets: [10.0.0.0/24]"), want: "excludeSubnets must be subnetworks of the networks specified in the subnets field"},
		{name: "physical name changes", spec: localnet(ok), update: localnet("role: Secondary, physicalNetworkName: other, subnets: [192.168.0.0/16]")},
		{name: "physical name changes to a bad one", spec: localnet(ok), update: localnet("role: Secondary, physicalNetworkName: 'a,b', subnets: [192.168.0.0/16]"), want: "physicalNetworkName cannot contain `,` or `:` characters"},
		{name: "subnets change", spec: localnet(ok), update: localnet(base + ", subnets: [192.169.0.0/16]"), want: "subnets is immutable"},
		{name: "subnet added", spec: localnet(ok), update: localnet(both), want: "subnets is immutable"},
		{name: "subnets set later", spec: localnet(off), update: localnet(ok), want: "subnets is immutable"},
		{name: "subnets unset later", spec: localnet(ok), update: localnet(off), want: "subnets is immutable"},
		{name: "ipam set later", spec: localnet(ok), update: localnet(ok + ", ipam: {lifecycle: Persistent}"), want: "ipam is immutable"},
		{name: "ipam unset later", spec: localnet(ok + ", ipam: {lifecycle: Persistent}"), update: localnet(ok), want: "ipam is immutable"},
		{name: "ipam changes", spec: localnet(ok + ", ipam: {mode: Enabled}"), update: localnet(ok + ", ipam: {mode: Enabled, lifecycle: Persistent}"), want: "ipam is immutable"},
		{name: "becomes layer2", spec: localnet(ok), update: l2("role: Secondary, subnets: [192.168.0.0/16]"), want: "topology is immutable"},
	})
}

func transportCases() []schemaCase {
	ok := l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]")
	l2ok := l2("role: Primary, subnets: [10.100.0.0/16]")
	options := "\nnoOverlayOptions: {outboundSNAT: Enabled, routing: Managed}"
	none := "\ntransport: NoOverlay" + options
	other := "\ntransport: NoOverlay\nnoOverlay: {outboundSNAT: Enabled, routing: Managed}"
	const only = "transport 'NoOverlay' is only supported for Layer3 primary networks"
	const iff = "noOverlayOptions is required if and only if transport is 'NoOverlay'"
	return withKind(kindNetwork, []schemaCase{
		{name: "geneve", spec: ok + "\ntransport: Geneve"},
		{name: "geneve on layer2", spec: l2ok + "\ntransport: Geneve"},
		{name: "no overlay", spec: ok + none},
		{name: "no overlay, the other options", spec: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Disabled, routing: Unmanaged}"},
		{name: "transport unknown", spec: ok + "\ntransport: EVPN", want: "Unsupported value: \"EVPN\""},
		{name: "no overlay without options", spec: ok + "\ntransport: NoOverlay", want: iff},
		{name: "options without transport", spec: ok + options, want: iff},
		{name: "options with geneve", spec: ok + "\ntransport: Geneve" + options, want: iff},
		{name: "snat missing", spec: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {routing: Managed}", want: "outboundSNAT: Required value"},
		{name: "routing missing", spec: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Enabled}", want: "routing: Required value"},
		{name: "snat unknown", spec: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Maybe, routing: Managed}", want: "Unsupported value: \"Maybe\""},
		{name: "routing unknown", spec: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Enabled, routing: Maybe}", want: "Unsupported value: \"Maybe\""},
		{name: "no overlay on layer2", spec: l2ok + none, want: only},
		{name: "no overlay on localnet", spec: localnet("role: Secondary, physicalNetworkName: x, subnets: [192.168.0.0/16]") + none, want: only},
		{name: "no overlay secondary", spec: l3("role: Secondary, subnets: [{cidr: 10.100.0.0/16}]") + none, want: only},

		{name: "OVN-Kubernetes' name of the options", spec: ok + other},
		{name: "both names", spec: ok + none + "\nnoOverlay: {outboundSNAT: Enabled, routing: Managed}", want: "noOverlayOptions and noOverlay are the same settings"},
		{name: "the other name without transport", spec: ok + "\nnoOverlay: {outboundSNAT: Enabled, routing: Managed}", want: iff},
		{name: "the other name, snat missing", spec: ok + "\ntransport: NoOverlay\nnoOverlay: {routing: Managed}", want: "outboundSNAT: Required value"},
		{name: "the other name, routing missing", spec: ok + "\ntransport: NoOverlay\nnoOverlay: {outboundSNAT: Enabled}", want: "routing: Required value"},
		{name: "the other name, snat unknown", spec: ok + "\ntransport: NoOverlay\nnoOverlay: {outboundSNAT: Maybe, routing: Managed}", want: "Unsupported value: \"Maybe\""},
		{name: "the other name, routing unknown", spec: ok + "\ntransport: NoOverlay\nnoOverlay: {outboundSNAT: Enabled, routing: Maybe}", want: "Unsupported value: \"Maybe\""},

		{name: "nothing changes", spec: ok + none, update: ok + none},
		{name: "nothing changes with the other name", spec: ok + other, update: ok + other},
		{name: "the other name's snat changes", spec: ok + other, update: ok + "\ntransport: NoOverlay\nnoOverlay: {outboundSNAT: Disabled, routing: Managed}", want: "noOverlay is immutable"},
		{name: "one name replaces the other", spec: ok + none, update: ok + other, want: "cannot replace each other"},
		{name: "no overlay appends", spec: ok + none, update: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}, {cidr: 10.101.0.0/16}]") + none},
		{name: "geneve set later", spec: ok, update: ok + "\ntransport: Geneve"},
		{name: "geneve unset later", spec: ok + "\ntransport: Geneve", update: ok},
		{name: "no overlay set later", spec: ok, update: ok + none, want: "transport is immutable"},
		{name: "no overlay unset later", spec: ok + none, update: ok, want: "transport is immutable"},
		{name: "geneve becomes no overlay", spec: ok + "\ntransport: Geneve", update: ok + none, want: "transport is immutable"},
		{name: "snat changes", spec: ok + none, update: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Disabled, routing: Managed}", want: "noOverlayOptions is immutable"},
		{name: "routing changes", spec: ok + none, update: ok + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Enabled, routing: Unmanaged}", want: "noOverlayOptions is immutable"},
	})
}

func udnOnlyCases() []schemaCase {
	ok := l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]")
	const only = "transport 'NoOverlay' is only supported for ClusterUserDefinedNetworks"
	return withKind(kindUDN, []schemaCase{
		{name: "localnet in a UDN", spec: "topology: Localnet", want: "Unsupported value: \"Localnet\""},
		{name: "geneve in a UDN", spec: ok + "\ntransport: Geneve"},
		{name: "transport unknown", spec: ok + "\ntransport: EVPN", want: "Unsupported value: \"EVPN\""},
		{name: "no overlay", spec: ok + "\ntransport: NoOverlay", want: only},
		{name: "no-overlay options", spec: ok + "\nnoOverlayOptions: {outboundSNAT: Enabled, routing: Managed}", want: only},
		{name: "no overlay, OVN-Kubernetes' name", spec: ok + "\ntransport: NoOverlay\nnoOverlay: {outboundSNAT: Enabled, routing: Managed}", want: only},
		{name: "no overlay set later", spec: ok, update: ok + "\ntransport: NoOverlay", want: only},
	})
}

func cudnCases() []schemaCase {
	network := "\nnetwork: {topology: Layer3, layer3: {role: Primary, subnets: [{cidr: 10.100.0.0/16}]}}"
	selector := "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: red}}"
	return withKind(kindCUDN, []schemaCase{
		{name: "every namespace", spec: "namespaceSelector: {}" + network},
		{name: "selector missing", spec: network, want: "namespaceSelector: Required value"},
		{name: "network missing", spec: selector, want: "network: Required value"},
		{name: "selector changes", spec: selector + network, update: "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [red, blue]}]}" + network},
	})
}

func routeAdvertisementsCases() []schemaCase {
	cudns := "{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {networkSelector: {matchLabels: {network: blue}}}}"
	singular := strings.Replace(cudns, "Networks,", "Network,", 1)
	spec := func(networks, nodes, advertisements string) string {
		return "networkSelectors: [" + networks + "]\nnodeSelector: " + nodes + "\nfrrConfigurationSelector: {}\nadvertisements: [" + advertisements + "]"
	}
	const nodes = "a 'nodeSelector' can't be specified with 'PodNetwork'"
	const inconsistent = "Inconsistent selector"
	return withKind(kindRA, []schemaCase{
		{name: "cluster user defined networks", spec: spec(cudns, "{}", "PodNetwork")},
		{name: "default network", spec: spec("{networkSelectionType: DefaultNetwork}", "{}", "PodNetwork")},
		{name: "both networks, both advertisements", spec: spec(cudns+", {networkSelectionType: DefaultNetwork}", "{}", "PodNetwork, EgressIP")},
		{name: "egress IP from some nodes", spec: spec(cudns, "{matchLabels: {rack: a}}", "EgressIP")},
		{name: "empty maps select all nodes", spec: spec(cudns, "{matchLabels: {}, matchExpressions: []}", "PodNetwork")},
		{name: "target VRF", spec: spec(cudns, "{}", "PodNetwork") + "\ntargetVRF: auto"},
		{name: "all networks", spec: spec("{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {networkSelector: {}}}", "{}", "PodNetwork")},

		{name: "the proposal's selection type", spec: spec(singular+", {networkSelectionType: DefaultNetwork}", "{}", "PodNetwork")},

		{name: "both selection types", spec: spec(cudns+", "+singular, "{}", "PodNetwork"), want: "remove one of the two selectors"},
		{name: "the proposal's selection type without selector", spec: spec("{networkSelectionType: ClusterUserDefinedNetwork}", "{}", "PodNetwork"), want: inconsistent},
		{name: "target VRF too long", spec: spec(cudns, "{}", "PodNetwork") + "\ntargetVRF: a-name-of-17-char", want: "Too long"},
		{name: "networks missing", spec: "nodeSelector: {}\nfrrConfigurationSelector: {}\nadvertisements: [PodNetwork]", want: "networkSelectors: Required value"},
		{name: "networks empty", spec: spec("", "{}", "PodNetwork"), want: "should have at least 1 items"},
		{name: "three selectors", spec: spec(cudns+", {networkSelectionType: DefaultNetwork}, {networkSelectionType: DefaultNetwork}", "{}", "PodNetwork"), want: "must have at most 2 items"},
		{name: "selector twice", spec: spec(cudns+", "+cudns, "{}", "PodNetwork"), want: "Duplicate value"},
		{name: "selection type missing", spec: spec("{}", "{}", "PodNetwork"), want: "networkSelectionType: Required value"},
		{name: "selection type not advertised", spec: spec("{networkSelectionType: PrimaryUserDefinedNetworks}", "{}", "PodNetwork"), want: "supported values: \"DefaultNetwork\", \"ClusterUserDefinedNetworks\", \"ClusterUserDefinedNetwork\""},
		{name: "selector missing", spec: spec("{networkSelectionType: ClusterUserDefinedNetworks}", "{}", "PodNetwork"), want: inconsistent},
		{name: "selector with the default network", spec: spec("{networkSelectionType: DefaultNetwork, clusterUserDefinedNetworkSelector: {networkSelector: {}}}", "{}", "PodNetwork"), want: inconsistent},
		{name: "network selector missing", spec: spec("{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {}}", "{}", "PodNetwork"), want: "networkSelector: Required value"},
		{name: "nodes missing", spec: "networkSelectors: [" + cudns + "]\nfrrConfigurationSelector: {}\nadvertisements: [PodNetwork]", want: "nodeSelector: Required value"},
		{name: "FRR configurations missing", spec: "networkSelectors: [" + cudns + "]\nnodeSelector: {}\nadvertisements: [PodNetwork]", want: "frrConfigurationSelector: Required value"},
		{name: "advertisements missing", spec: "networkSelectors: [" + cudns + "]\nnodeSelector: {}\nfrrConfigurationSelector: {}", want: "advertisements: Required value"},
		{name: "advertisements empty", spec: spec(cudns, "{}", ""), want: "should have at least 1 items"},
		{name: "three advertisements", spec: spec(cudns, "{}", "PodNetwork, EgressIP, EgressIP"), want: "must have at most 2 items"},
		{name: "advertisement twice", spec: spec(cudns, "{}", "EgressIP, EgressIP"), want: "Duplicate value"},
		{name: "advertisement unknown", spec: spec(cudns, "{}", "Service"), want: "supported values: \"PodNetwork\", \"EgressIP\""},
		{name: "pod network from labelled nodes", spec: spec(cudns, "{matchLabels: {rack: a}}", "PodNetwork"), want: nodes},
		{name: "pod network from selected nodes", spec: spec(cudns, "{matchExpressions: [{key: rack, operator: Exists}]}", "EgressIP, PodNetwork"), want: nodes},

		{name: "everything changes", spec: spec(cudns, "{}", "PodNetwork"), update: spec("{networkSelectionType: DefaultNetwork}", "{matchLabels: {rack: a}}", "EgressIP") + "\ntargetVRF: blue"},
		{name: "pod network added for selected nodes", spec: spec(cudns, "{matchLabels: {rack: a}}", "EgressIP"), update: spec(cudns, "{matchLabels: {rack: a}}", "EgressIP, PodNetwork"), want: nodes},
	})
}
