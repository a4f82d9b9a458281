// SPDX-License-Identifier: Apache-2.0

// Package endpointmirror repeats the EndpointSlices of Services in namespaces
// with a primary network of their own, with the addresses that the endpoints
// have on that network. Kubernetes' own slices carry the addresses on the
// cluster default network, which a tenant does not reach.
package endpointmirror

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// Source names an EndpointSlice that may have a mirror. It is the key of the
// reconciler's queue.
type Source struct{ Namespace, Name string }

func (s Source) String() string { return s.Namespace + "/" + s.Name }

// PodRef names a pod.
type PodRef struct{ Namespace, Name string }

// Pod is what of a pod decides its address in a mirror.
type Pod struct {
	UID         types.UID
	HostNetwork bool
	Addresses   []netip.Addr // on the network; empty: not attached to it, or not yet
}

// Inputs is everything that decides what a source's mirror should be.
type Inputs struct {
	Source            Source
	Slice             *discoveryv1.EndpointSlice // nil: gone. Never modified, nor is what it points to
	NamespaceDeleting bool                       // the namespace is being deleted
	NetworkUnknown    string                     // why it is not known which network is the namespace's; "" for known
	Network           *network.Network           // the namespace's primary one; nil: the cluster default network
	Plan              network.Plan
	Pods              map[PodRef]Pod     // that endpoints refer to
	ByAddress         map[netip.Addr]Pod // pods by their address on the cluster default network, where an endpoint has it
}

// Mirror is one mirrored EndpointSlice as far as it is ours.
type Mirror struct {
	Namespace, Name string
	Source          string // the source's name
	Service         string
	Network         string
	Managed         bool // carries our managed-by label
	Exposed         bool // carries the label that kube-proxy and DNS go by, which is the source's alone
	OwnerUID        types.UID
	AddressType     discoveryv1.AddressType
	Endpoints       []discoveryv1.Endpoint
	Ports           []discoveryv1.EndpointPort

	// Known of actual mirrors only.
	UID             types.UID
	ResourceVersion string
}

// Serves tells whether the mirror have is as m wants it.
func (m Mirror) Matches(have Mirror) bool {
	return m.Source == have.Source && m.Service == have.Service && m.Network == have.Network && m.Managed == have.Managed &&
		m.Exposed == have.Exposed && m.OwnerUID == have.OwnerUID && m.AddressType == have.AddressType &&
		equality.Semantic.DeepEqual(m.Endpoints, have.Endpoints) && equality.Semantic.DeepEqual(m.Ports, have.Ports)
}

// State is a source's mirrors by name: one, or none; more where somebody
// copied one.
type State struct {
	Source  Source
	Mirrors map[string]Mirror
}

// MirrorName is the name of a source's mirror. It follows from the source's
// name, so that creating it twice fails; the hash keeps apart sources whose
// names had to be cut, and mirrors from other slices.
func MirrorName(source string) string {
	sum := sha256.Sum256([]byte(source))
	suffix := "-udn-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:10])
	const limit = 253 // of names in the API
	if len(source) > limit-len(suffix) {
		source = strings.TrimRight(source[:limit-len(suffix)], "-.")
	}
	return source + suffix
}

// SourceOf is whose mirror a slice is: its controller reference says so or,
// where somebody has removed that, the annotation that we left. Both count
// only beside another mark of ours, the label or the name: without, the slice
// is somebody else's.
func SourceOf(s *discoveryv1.EndpointSlice) (Source, bool) {
	if ref := metav1.GetControllerOfNoCopy(s); ref != nil {
		ours := ref.Kind == "EndpointSlice" && strings.HasPrefix(ref.APIVersion, discoveryv1.GroupName+"/") &&
			(s.Labels[discoveryv1.LabelManagedBy] == network.EndpointSliceManager || s.Name == MirrorName(ref.Name))
		return Source{s.Namespace, ref.Name}, ours
	}
	source := s.Annotations[network.AnnotationSource]
	return Source{s.Namespace, source}, source != "" && s.Name == MirrorName(source)
}

// ServiceOf is the Service whose endpoints the slice lists; "" for slices that
// have no mirror: of no Service, of names instead of addresses, ending, or
// mirrors themselves.
func ServiceOf(s *discoveryv1.EndpointSlice) string {
	if s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6 ||
		s.DeletionTimestamp != nil || s.Labels[discoveryv1.LabelManagedBy] == network.EndpointSliceManager {
		return ""
	}
	if _, mirror := SourceOf(s); mirror {
		return ""
	}
	return s.Labels[discoveryv1.LabelServiceName]
}

// podOf is the pod that an endpoint refers to.
func podOf(namespace string, e *discoveryv1.Endpoint) (PodRef, bool) {
	ref := e.TargetRef
	if ref == nil || ref.Kind != "Pod" || ref.Name == "" {
		return PodRef{}, false
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	return PodRef{namespace, ref.Name}, true
}

// isDefault tells whether an address is one of the cluster default network's
// pods'.
func isDefault(plan network.Plan, a netip.Addr) bool {
	for _, s := range plan.ClusterSubnets {
		if s.CIDR.Contains(a) {
			return true
		}
	}
	return false
}
