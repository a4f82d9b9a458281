// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"bulkhead/pkg/network"
)

// Build returns the desired state of a source's mirror. It is the actual state in
// two cases: while the namespace is being deleted, because its slices are deleted
// with it, and while the primary network is unknown, so that Services keep their
// endpoints.
func Build(in Inputs, have State) State {
	want := State{Source: in.Source, Mirrors: map[string]Mirror{}}
	switch {
	case in.NamespaceDeleting:
		return have
	case in.Slice == nil:
		return want
	case in.NetworkUnknown != "":
		return have
	case in.Network == nil:
		return want
	}
	service := ServiceOf(in.Slice)
	if service == "" {
		return want
	}
	endpoints := in.endpoints()
	if len(endpoints) == 0 {
		return want // no mirror without endpoints
	}
	name := MirrorName(in.Source.Name)
	want.Mirrors[name] = Mirror{
		Namespace: in.Source.Namespace, Name: name, Source: in.Source.Name, Service: service, Network: in.Network.Name,
		Managed: true, OwnerUID: in.Slice.UID, AddressType: in.Slice.AddressType, Endpoints: endpoints, Ports: in.Slice.Ports,
	}
	return want
}

// endpoints returns the source's endpoints with their addresses on the network.
// They are sorted, so that a change of the source's order causes no write. Of several
// with the same address, target and node the first stays: the author of a slice may
// repeat an endpoint, and each node builds what the mirror has.
func (in Inputs) endpoints() []discoveryv1.Endpoint {
	v4, v6 := in.Network.Families()
	is4 := in.Slice.AddressType == discoveryv1.AddressTypeIPv4
	if is4 && !v4 || !is4 && !v6 {
		return nil
	}
	var out []discoveryv1.Endpoint
	seen := map[endpointID]struct{}{}
	for i := range in.Slice.Endpoints {
		e := in.Slice.Endpoints[i] // its pointers are shared with the cache
		if e.Addresses = in.addresses(&e, is4); len(e.Addresses) == 0 {
			continue
		}
		id := endpointID{address: e.Addresses[0], target: target(e)}
		if e.NodeName != nil {
			id.node = *e.NodeName
		}
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b discoveryv1.Endpoint) int {
		return cmp.Or(strings.Compare(a.Addresses[0], b.Addresses[0]), strings.Compare(target(a), target(b)))
	})
	return out
}

// endpointID is what distinguishes a mirror's endpoints. Consumers of EndpointSlices
// use only the first address.
type endpointID struct{ address, target, node string }

func target(e discoveryv1.Endpoint) string {
	if e.TargetRef == nil {
		return ""
	}
	return e.TargetRef.Kind + "/" + e.TargetRef.Namespace + "/" + e.TargetRef.Name
}

// addresses returns the addresses of one endpoint on the network. An endpoint
// without any is omitted.
func (in Inputs) addresses(e *discoveryv1.Endpoint, is4 bool) []string {
	if ref, ok := podOf(in.Source.Namespace, e); ok {
		pod, known := in.Pods[ref]
		if !known || e.TargetRef.UID != "" && e.TargetRef.UID != pod.UID {
			return nil // deleted, or not in the cache yet: its event enqueues the source
		}
		if !pod.HostNetwork {
			return in.podAddress(pod, is4)
		}
	}
	var out []string
	for _, raw := range e.Addresses {
		a, err := netip.ParseAddr(raw)
		if err != nil || a.Is4() != is4 {
			continue
		}
		for _, s := range in.resolve(a, is4) {
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// podAddress returns the pod's address on the network, of the slice's IP family.
// Consumers of EndpointSlices use only an endpoint's first address. Addresses
// outside the network are ignored, because the pod's annotation is not trusted.
func (in Inputs) podAddress(pod Pod, is4 bool) []string {
	for _, a := range network.FilterFamilies(pod.Addresses, is4, !is4) {
		if in.Network.Contains(a) {
			return []string{a.String()}
		}
	}
	return nil
}

// resolve maps the address of an endpoint without a pod reference. Addresses on
// the network, and those outside the cluster, including nodes', are unchanged. A
// pod's address on the cluster default network becomes that pod's address on the
// network. Other addresses of the cluster must not be reachable from the network.
func (in Inputs) resolve(a netip.Addr, is4 bool) []string {
	if in.Network.Contains(a) {
		return []string{a.String()}
	}
	if pod, ok := in.ByAddress[a]; ok {
		return in.podAddress(pod, is4)
	}
	if in.Plan.RefusedEndpoint(*in.Network, a) != "" {
		return nil
	}
	return []string{a.String()}
}
