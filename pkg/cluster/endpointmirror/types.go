// SPDX-License-Identifier: Apache-2.0

// Package endpointmirror mirrors the EndpointSlices of Services in namespaces
// with a primary network, with the endpoints' addresses on that network.
// Kubernetes' own slices have addresses on the cluster default network, which
// the tenant's pods cannot reach.
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

// Pod is the relevant state of a pod.
type Pod struct {
	UID         types.UID
	HostNetwork bool
	Addresses   []netip.Addr // on the network; empty if it is not attached (yet)
}

// Inputs are the inputs of Build.
type Inputs struct {
	Source            Source
	Slice             *discoveryv1.EndpointSlice // nil if deleted; shared with the cache, never modified
	NamespaceDeleting bool
	NetworkUnknown    string           // why the namespace's primary network cannot be determined; "" if it can
	Network           *network.Network // the namespace's primary network, nil for the cluster default network
	Plan              network.Plan
	Pods              map[PodRef]Pod     // that endpoints refer to
	ByAddress         map[netip.Addr]Pod // pods by the address on the cluster default network that an endpoint has
}

// Mirror is a mirror, with the fields that this package writes.
type Mirror struct {
	Namespace, Name string
	Source          string // name of the source
	Service         string
	Network         string
	Managed         bool // has our managed-by label
	Exposed         bool // has the label by which kube-proxy and DNS select slices, which a mirror must not have
	OwnerUID        types.UID
	AddressType     discoveryv1.AddressType
	Endpoints       []discoveryv1.Endpoint
	Ports           []discoveryv1.EndpointPort

	// Set for actual mirrors only.
	UID             types.UID
	ResourceVersion string
}

// Matches reports whether the actual mirror have is in the desired state m.
func (m Mirror) Matches(have Mirror) bool {
	return m.Source == have.Source && m.Service == have.Service && m.Network == have.Network && m.Managed == have.Managed &&
		m.Exposed == have.Exposed && m.OwnerUID == have.OwnerUID && m.AddressType == have.AddressType &&
		equality.Semantic.DeepEqual(m.Endpoints, have.Endpoints) && equality.Semantic.DeepEqual(m.Ports, have.Ports)
}

// State is a source's mirrors by name: at most one, unless a user copied it.
type State struct {
	Source  Source
	Mirrors map[string]Mirror
}

// MirrorName returns the name of a source's mirror. It is derived from the
// source's name, so that creating it twice fails. The hash distinguishes sources
// whose names are truncated, and mirrors from other slices.
func MirrorName(source string) string {
	sum := sha256.Sum256([]byte(source))
	suffix := "-udn-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:10])
	const limit = 253 // of names in the API
	if len(source) > limit-len(suffix) {
		source = strings.TrimRight(source[:limit-len(suffix)], "-.")
	}
	return source + suffix
}

// SourceOf returns the source of a mirror, by its controller reference or, if
// that was removed, by its annotation. Without our label or a mirror's name the
// slice belongs to another controller or user, and SourceOf returns false.
func SourceOf(s *discoveryv1.EndpointSlice) (Source, bool) {
	if ref := metav1.GetControllerOfNoCopy(s); ref != nil {
		ours := ref.Kind == "EndpointSlice" && strings.HasPrefix(ref.APIVersion, discoveryv1.GroupName+"/") &&
			(s.Labels[discoveryv1.LabelManagedBy] == network.EndpointSliceManager || s.Name == MirrorName(ref.Name))
		return Source{s.Namespace, ref.Name}, ours
	}
	source := s.Annotations[network.AnnotationSource]
	return Source{s.Namespace, source}, source != "" && s.Name == MirrorName(source)
}

// ServiceOf returns the Service of a slice. It returns "" for slices that have no
// mirror: slices without a Service, with names instead of addresses, being
// deleted, or mirrors themselves.
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

// podOf returns the pod that an endpoint refers to.
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

// isDefault reports whether an address is in the cluster default network's
// subnets.
func isDefault(plan network.Plan, a netip.Addr) bool {
	for _, s := range plan.ClusterSubnets {
		if s.CIDR.Contains(a) {
			return true
		}
	}
	return false
}
