// SPDX-License-Identifier: Apache-2.0

// Package udn turns UserDefinedNetworks and ClusterUserDefinedNetworks into
// NetworkAttachmentDefinitions, one in each namespace of the network, and says
// in their status what has become of them.
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

// Kind is o's kind in the API.
func (o Owner) Kind() string {
	if o.Cluster() {
		return "ClusterUserDefinedNetwork"
	}
	return "UserDefinedNetwork"
}

// Network is the name of o's network.
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

// Request is what the owner asks for, whichever its kind.
type Request struct {
	Owner
	UID         types.UID
	Generation  int64
	Deleting    bool
	Labels      map[string]string
	Annotations map[string]string
	Selector    *metav1.LabelSelector // of a ClusterUserDefinedNetwork
	Topology    udnv1.NetworkTopology
	Role        udnv1.NetworkRole
	Layer3      *udnv1.Layer3Config
	Layer2      *udnv1.Layer2Config
	Localnet    *udnv1.LocalnetConfig
	NoOverlay   *udnv1.NoOverlayOptions
	Transport   udnv1.TransportOption // never empty
}

// Namespace is a namespace that a network could be in.
type Namespace struct {
	Name    string
	Labeled bool // has the label of namespaces with a primary network
	// Foreign names what stands in the way under the NAD's own name, and
	// Primary, for an owner that asks for a primary network, what already is
	// the namespace's; "" is nothing.
	Foreign, Primary string
	Full             bool // as many networks as a namespace may have, without this one
	// Older says that pods of the namespace run without the primary network.
	Older error
}

// Inputs is everything that decides what an owner's NADs and status should be.
type Inputs struct {
	Owner      Owner
	Request    *Request // nil: the owner is gone
	Invalid    string   // why the request cannot be served at all
	Conf       network.NetConf
	ID         int                 // the network's; 0: none was given
	Idle       bool                // it had an id and has no use for it any more
	Namespaces []Namespace         // that the owner selects and that are not being deleted
	Users      map[string][]string // pods that use the NAD, by namespace
	Beyond     Beyond              // nodes that the subnets do not hold
	Failing    Failing             // nodes that have not built the network
	Advertised []Advertisement     // of transport NoOverlay: who makes the pods' routes known
}

// Advertisement is a RouteAdvertisements that advertises a network's pods.
type Advertisement struct {
	Name     string
	Accepted bool
}

// admits tells whether the namespace may have the request's network at all.
func (r *Request) admits(ns Namespace) bool { return ns.Labeled || !r.Primary() }

// Phase is where a NAD is in its life.
type Phase int

// A NAD that is gone is not in State at all.
const (
	Present     Phase = iota
	Terminating       // deleted, and held by our finalizer
)

// NAD is one NetworkAttachmentDefinition as far as it is ours.
type NAD struct {
	Namespace, Name string
	Phase           Phase
	Config          string
	Labels          map[string]string // others on the object are left alone
	Annotations     map[string]string
	OwnerUID        types.UID
	Finalizer       bool

	// Known of actual NADs only.
	UID             types.UID
	ResourceVersion string
	OtherFinalizers []string
}

// Key is the NAD's key in pod annotations.
func (n NAD) Key() string { return network.NADKey(n.Namespace, n.Name) }

// Serves tells whether the NAD have is as n wants it.
func (n NAD) Serves(have NAD) bool {
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

// State is an owner's side of the world: its own finalizer, and its NADs by
// namespace.
type State struct {
	Owner      Owner
	Finalizer  bool
	NADs       map[string]NAD
	Conditions []metav1.Condition
}

// Problem is one reason why a network is not everywhere it should be.
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

// sortedKeys makes the order of operations and messages the same every time.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// list renders names as "[a, b]", cut where a condition's message would
// become longer than the API allows.
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
