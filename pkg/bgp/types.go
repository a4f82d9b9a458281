// SPDX-License-Identifier: Apache-2.0

// Package bgp turns RouteAdvertisements into FRRConfigurations, the objects of frr-k8s,
// and generates both for the managed fabric. It is a part of the cluster controller.
//
// An FRRConfiguration that a RouteAdvertisements selects, called a base here, defines
// sessions. For each RouteAdvertisements, base and node there is one generated
// FRRConfiguration, which adds the node's prefixes to the base's sessions; frr-k8s merges
// all objects of a node.
package bgp

import (
	"net/netip"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

const (
	// LabelAdvertisements marks generated FRRConfigurations: the name of the
	// RouteAdvertisements, or a part of a long name.
	LabelAdvertisements = "k8s.ovn.org/route-advertisements"
	// AnnotationSource is the source of a generated FRRConfiguration:
	// <RouteAdvertisements>/<base>/<node>. Its key is the label's, as in OVN-Kubernetes.
	AnnotationSource = LabelAdvertisements
	// AnnotationNetworks are the ids of the networks that a generated FRRConfiguration advertises,
	// comma-separated: two networks may have the same prefixes. Ids, because ten thousand names
	// may be more than the annotations of an object hold.
	AnnotationNetworks = "k8s.ovn.org/advertised-network-ids"
	// LabelFabric marks the objects of the managed fabric: the base FRRConfiguration, and
	// the ClusterUserDefinedNetworks that it carries. Its value is LabelFabricValue.
	LabelFabric      = "k8s.ovn.org/managed-internal-fabric"
	LabelFabricValue = "bgp"

	// Names of our objects: a prefix, and hexadecimal digits of a hash of what they are for.
	generatedPrefix, generatedDigits = "ovnk-generated-", 20
	managedPrefix, managedDigits     = "ovnk-managed-", 10

	// DefaultVRF is FRR's name of the VRF whose table is the main table. In
	// RouteAdvertisements and routers of FRRConfigurations the empty name means it too.
	DefaultVRF = network.VRFDefault
)

// Inputs are the inputs of Build.
type Inputs struct {
	// Namespace is that of frr-k8s. FRRConfigurations elsewhere are not read.
	Namespace      string
	Advertisements []udnv1.RouteAdvertisements
	Configurations []frrv1.FRRConfiguration // of Namespace, generated ones included
	Networks       []Network
	Nodes          []Node
}

// Network is a network that may be advertised.
type Network struct {
	network.Network // ID 0 on another network than the cluster default one: no NAD exists yet
	// Name and labels of the ClusterUserDefinedNetwork; zero for the cluster default network.
	CUDN    string
	Labels  map[string]string
	Created time.Time
}

// Node is a node that advertises.
type Node struct {
	Name   string
	ID     int // 0: not assigned yet
	Labels map[string]string
	// InternalIPs are those of the Node's status: sessions with the node use them.
	InternalIPs []netip.Addr
	// Addresses are all that the node is known to have. A neighbor with one of them is the
	// node itself.
	Addresses []netip.Addr
	NextHops  []netip.Addr // its default gateways
	Mode      network.GatewayMode
}

// State is what Build wants.
type State struct {
	// Configurations are the generated FRRConfigurations by name.
	Configurations map[string]*frrv1.FRRConfiguration
	// Keep has the sources of generated FRRConfigurations that stay as they are, because
	// their inputs are invalid.
	Keep map[Source]bool
	// Accepted is the condition of each RouteAdvertisements, by name.
	Accepted map[string]metav1.Condition
	// Networks are the VRFs into which each network is advertised, network.VRFDefault,
	// network.VRFAuto, and names, by the network's name, sorted.
	Networks map[string][]string
	// Advertisers are the RouteAdvertisements of each entry of Networks.
	Advertisers map[Advertised][]string
}

// Advertised is a network, by name, in a VRF, as State.Networks has them.
type Advertised struct{ Network, VRF string }

// Source is what a generated FRRConfiguration is generated from.
type Source struct{ Advertisements, Base, Node string }

func (s Source) String() string { return s.Advertisements + "/" + s.Base + "/" + s.Node }
