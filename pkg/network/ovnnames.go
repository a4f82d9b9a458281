// SPDX-License-Identifier: Apache-2.0

package network

import "strings"

// OVN object names. Those of the cluster default network are the reference's;
// those of any other network are prefixed with the network's name, unchanged:
// replacing characters would let two networks share a name. Both the zone,
// which makes the rows, and the agent, which makes the ports that bind to
// them, take the names from here.

// Prefix stands before the names of n's OVN objects.
func (n Network) Prefix() string {
	if n.IsDefault() {
		return ""
	}
	return n.Name + "_"
}

// NodeSwitch is the node's switch: pods, management port, cluster router.
func (n Network) NodeSwitch(node string) string { return n.Prefix() + node }

// ClusterRouter routes between the node's switch, join and transit switch.
func (n Network) ClusterRouter() string { return n.Prefix() + "ovn_cluster_router" }

// JoinSwitch joins the cluster router with the gateway router.
func (n Network) JoinSwitch() string { return n.Prefix() + "join" }

// GatewayRouter is the node's way out.
func (n Network) GatewayRouter(node string) string { return "GR_" + n.Prefix() + node }

// ExternalSwitch joins the gateway router with the external bridge.
func (n Network) ExternalSwitch(node string) string { return "ext_" + n.Prefix() + node }

// TransitSwitch joins the zones.
func (n Network) TransitSwitch() string { return n.Prefix() + "transit_switch" }

// ManagementLSP is the logical port of the node's interface on n: the iface-id
// of ManagementPort.
func (n Network) ManagementLSP(node string) string { return "k8s-" + n.Prefix() + node }

// ExternalLSP is the localnet port that makes ovn-controller patch n's
// external switch to the external bridge.
func (n Network) ExternalLSP(bridge, node string) string { return bridge + "_" + n.Prefix() + node }

// ExternalPatch is the OVS patch port on the external bridge that
// ovn-controller makes for ExternalLSP.
func (n Network) ExternalPatch(bridge, node string) string {
	return "patch-" + n.ExternalLSP(bridge, node) + "-to-br-int"
}

// PodLSP is the logical port of a pod on the network that the NAD with that
// key names (DefaultName: the cluster default network): the iface-id of the
// pod's interface. A namespace holds no ".", so pods' names never collide with
// each other; CheckPodPort tells of other ports.
func PodLSP(nadKey, namespace, pod string) string {
	if nadKey == DefaultName {
		return namespace + "_" + pod
	}
	return strings.Replace(nadKey, "/", ".", 1) + "_" + namespace + "_" + pod
}
