// SPDX-License-Identifier: Apache-2.0

// Package udn reconciles UserDefinedNetworks and ClusterUserDefinedNetworks: it
// renders a NetworkAttachmentDefinition into each namespace of the network, and
// reports the result in their status.
package udn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// Owner names a UserDefinedNetwork or, without a namespace, a
// ClusterUserDefinedNetwork. It is the key of the reconciler's queue.
type Owner struct{ Namespace, Name string }

// Cluster tells whether o is a ClusterUserDefinedNetwork.
func (o Owner) Cluster() bool { return o.Namespace == "" }

// Kind returns o's kind in the API.
func (o Owner) Kind() string {
	if o.Cluster() {
		return "ClusterUserDefinedNetwork"
	}
	return "UserDefinedNetwork"
}

// Network returns the name of o's network.
func (o Owner) Network() string {
	if o.Cluster() {
		return network.CUDNName(o.Name)
	}
	return network.UDNName(o.Namespace, o.Name)
}

func (o Owner) String() string {
	if o.Cluster() {
		return o.Kind() + " " + o.Name
	}
	return o.Kind() + " " + o.Namespace + "/" + o.Name
}

// Request is the part of an owner's object that the reconciler reads, for both
// kinds.
type Request struct {
	Owner
	UID         types.UID
	Generation  int64
	Deleting    bool
	Labels      map[string]string
	Annotations map[string]string
	Selector    *metav1.LabelSelector // of a ClusterUserDefinedNetwork, else nil
	Topology    udnv1.NetworkTopology
	Role        udnv1.NetworkRole
	Layer3      *udnv1.Layer3Config
	Layer2      *udnv1.Layer2Config
	Localnet    *udnv1.LocalnetConfig
	NoOverlay   *udnv1.NoOverlayOptions
	Transport   udnv1.TransportOption // never empty
}

// Namespace are the inputs of Build for one namespace that the owner selects.
type Namespace struct {
	Name    string
	Labeled bool // has the label of namespaces with a primary network
	// Foreign is the problem of a foreign NAD with the name of ours, "" for
	// none. Primary is the holder of the namespace's primary network if the owner
	// requests one and another has it; "" for none.
	Foreign, Primary string
	Full             bool // has the maximum number of networks, without this one
	// WithoutPrimary is the problem of pods that run without the primary network.
	WithoutPrimary error
}

// Inputs are the inputs of Build and Conditions for one owner.
type Inputs struct {
	Owner         Owner
	Request       *Request // nil if the owner does not exist
	Removed       bool     // the owner is being deleted, and has neither NADs nor our finalizer any more
	Invalid       string   // why the request is invalid as a whole, "" if it is valid
	Conf          network.NetConf
	ID            int                 // the network's id, 0 for none
	NewID         bool                // the id was allocated for these inputs
	Idle          bool                // the network has an id that no NAD uses: release it
	Namespaces    []Namespace         // selected by the owner and not being deleted
	Users         map[string][]string // pods that use the NAD, by namespace
	WithoutSubnet NodesWithoutSubnet  // nodes that the subnets have no host subnet for
	Failing       FailingNodes        // nodes that have not built the network
	Advertised    []Advertisement     // for transport NoOverlay: what advertises the pods' routes
	NoFabric      bool                // routing Managed, and there is no managed fabric
	VRFs          *string             // into which the network is advertised, comma-separated; nil: not known yet
}

// Advertisement is a RouteAdvertisements that advertises a network's pods.
type Advertisement struct {
	Name     string
	Accepted metav1.ConditionStatus // Unknown: the current generation is not judged yet
}

// admits tells whether the namespace's labels allow the request's network.
func (r *Request) admits(ns Namespace) bool { return ns.Labeled || !r.Primary() }

// Phase is a NAD's phase.
type Phase int

// Phases. State does not contain NADs that do not exist.
const (
	Present     Phase = iota
	Terminating       // deleted, but our finalizer blocks its removal
)

// NAD is the part of a NetworkAttachmentDefinition that the reconciler writes.
type NAD struct {
	Namespace, Name string
	Phase           Phase
	Config          string
	Labels          map[string]string // further labels of the object are kept
	Annotations     map[string]string
	OwnerUID        types.UID
	Finalizer       bool

	// Set for actual NADs only.
	UID             types.UID
	ResourceVersion string
	OtherFinalizers []string
}

// Key returns the NAD's key in pod annotations.
func (n NAD) Key() string { return network.NADKey(n.Namespace, n.Name) }

// SatisfiedBy tells whether the actual NAD have needs no repair.
func (n NAD) SatisfiedBy(have NAD) bool {
	return n.Config == have.Config && n.OwnerUID == have.OwnerUID && n.Finalizer == have.Finalizer &&
		contains(have.Labels, n.Labels) && contains(have.Annotations, n.Annotations)
}

func contains(all, some map[string]string) bool {
	for k, v := range some {
		if got, ok := all[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// State is the desired or actual state of an owner: its finalizer and status, and its
// NADs by namespace.
type State struct {
	Owner     Owner
	Finalizer bool
	NADs      map[string]NAD
	Status    Status
}

// hasPrimary reports whether the owner has a NAD in the namespace that may be of a primary network. A
// network that was recreated as secondary leaves the namespace to others.
func (s State) hasPrimary(namespace string) bool {
	n, ok := s.NADs[namespace]
	if !ok {
		return false
	}
	conf, err := network.ParseNetConf(n.Config)
	return err != nil || conf.Role == string(network.RolePrimary)
}

// Status is what we write of an owner's status.
type Status struct {
	Conditions       []metav1.Condition
	ActiveNamespaces []string // of a ClusterUserDefinedNetwork, sorted
}

// Problem is one reason why a network is not in every namespace that it selects.
type Problem struct {
	Namespace string // "" for the network as a whole
	Text      string
}

func (p Problem) String() string {
	if p.Namespace == "" {
		return p.Text
	}
	return fmt.Sprintf("namespace %s: %s", p.Namespace, p.Text)
}

// sortedKeys makes the order of operations and messages deterministic.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// list renders names as "[a, b]", shortened so that a condition's message stays
// within the API's limit.
func list(names []string) string {
	const limit = 20000
	var b strings.Builder
	b.WriteByte('[')
	for i, n := range names {
		if b.Len()+len(n) > limit {
			fmt.Fprintf(&b, " and %d more", len(names)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(n)
	}
	b.WriteByte(']')
	return b.String()
}
