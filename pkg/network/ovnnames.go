// SPDX-License-Identifier: Apache-2.0

package network

import "strings"

// OVN object names. Those of the cluster default network are OVN-Kubernetes'.
// Those of other networks contain the network's name unchanged: if characters
// were replaced, two networks could share a name. The zone, which creates the
// rows, and the agent, which creates the OVS ports for them, use the same names.

// Prefix is the prefix of the names of n's OVN objects.
func (n Network) Prefix() string {
	if n.IsDefault() {
		return ""
	}
	return n.Name + "_"
}

// NodeSwitch is the node's switch. It connects pods, management port and
// cluster router.
func (n Network) NodeSwitch(node string) string { return n.Prefix() + node }

// ClusterRouter routes between node switch, join switch and transit switch.
func (n Network) ClusterRouter() string { return n.Prefix() + "ovn_cluster_router" }

// GatewayRouter routes between the network and the node's external bridge.
func (n Network) GatewayRouter(node string) string { return "GR_" + n.Prefix() + node }

// ExternalSwitch connects the gateway router to the external bridge.
func (n Network) ExternalSwitch(node string) string { return "ext_" + n.Prefix() + node }

// TransitSwitch connects the zones.
func (n Network) TransitSwitch() string { return n.Prefix() + "transit_switch" }

// Layer2Switch is the switch of a Layer 2 network. It spans the zones.
func (n Network) Layer2Switch() string { return n.Prefix() + "ovn_layer2_switch" }

// TransitRouter routes between a primary Layer 2 network's switch and the gateway
// routers of all nodes. It spans the zones.
func (n Network) TransitRouter() string { return n.Prefix() + "transit_router" }

// LocalnetSwitch is the node's switch of a Localnet network.
func (n Network) LocalnetSwitch() string { return n.Prefix() + "ovn_localnet_switch" }

// LocalnetPort is the localnet port for which ovn-controller connects
// LocalnetSwitch to the bridge of the physical network.
func (n Network) LocalnetPort() string { return n.Prefix() + "ovn_localnet_port" }

// LocalnetPatch is the OVS patch port that ovn-controller creates for LocalnetPort on the
// bridge of the physical network.
func (n Network) LocalnetPatch() string { return "patch-" + n.LocalnetPort() + "-to-br-int" }

// ManagementLSP is the logical port of the node's management port on n, the
// iface-id of ManagementPort.
func (n Network) ManagementLSP(node string) string { return "k8s-" + n.Prefix() + node }

// ExternalLSP is the localnet port for which ovn-controller connects n's
// external switch to the external bridge.
func (n Network) ExternalLSP(bridge, node string) string { return bridge + "_" + n.Prefix() + node }

// ExternalPatch is the OVS patch port on the external bridge that
// ovn-controller creates for ExternalLSP.
func (n Network) ExternalPatch(bridge, node string) string {
	return "patch-" + n.ExternalLSP(bridge, node) + "-to-br-int"
}

// UplinkRouter finds the neighbours to which packets that leave the node go. No network,
// namespace or pod has a name that begins or ends with "_", so names with "__" are free.
func UplinkRouter(node string) string { return "uplink__" + node }

// UplinkSwitch connects the uplink router to the external bridge.
func UplinkSwitch(node string) string { return "ext_uplink__" + node }

// UplinkLSP is the localnet port for which ovn-controller connects UplinkSwitch to
// the external bridge.
func UplinkLSP(bridge, node string) string { return bridge + "_uplink__" + node }

// UplinkPatch is the OVS patch port on the external bridge that ovn-controller
// creates for UplinkLSP.
func UplinkPatch(bridge, node string) string {
	return "patch-" + UplinkLSP(bridge, node) + "-to-br-int"
}

// PodLSP is the logical port of a pod on the network of a NAD (DefaultName for
// the cluster default network), the iface-id of the pod's interface. Namespaces
// contain no ".", so no two pods have the same port name. CheckPodPort finds
// conflicts with other ports.
func PodLSP(nadKey, namespace, pod string) string {
	if nadKey == DefaultName {
		return namespace + "_" + pod
	}
	return strings.Replace(nadKey, "/", ".", 1) + "_" + namespace + "_" + pod
}
