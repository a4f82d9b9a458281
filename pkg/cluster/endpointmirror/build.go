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

// Build says what a source's mirror should be. It does not depend on what
// there is, but in two cases in which nothing is touched: a namespace that
// ends takes its slices along, and while it is not known which network is the
// namespace's, services go on with the endpoints they have.
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
		return want // whether there was one before or not
	}
	name := MirrorName(in.Source.Name)
	want.Mirrors[name] = Mirror{
		Namespace: in.Source.Namespace, Name: name, Source: in.Source.Name, Service: service, Network: in.Network.Name,
		Managed: true, OwnerUID: in.Slice.UID, AddressType: in.Slice.AddressType, Endpoints: endpoints, Ports: in.Slice.Ports,
	}
	return want
}

// endpoints are the source's, with their addresses on the network. They are
// sorted: the order of the source's says nothing, and a change of it must not
// cost a write.
func (in Inputs) endpoints() []discoveryv1.Endpoint {
	v4, v6 := in.Network.Families()
	is4 := in.Slice.AddressType == discoveryv1.AddressTypeIPv4
	if is4 && !v4 || !is4 && !v6 {
		return nil
	}
	var out []discoveryv1.Endpoint
	for i := range in.Slice.Endpoints {
		e := in.Slice.Endpoints[i] // what it points to is shared with the cache
		if e.Addresses = in.addresses(&e, is4); len(e.Addresses) > 0 {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b discoveryv1.Endpoint) int {
		return cmp.Or(strings.Compare(a.Addresses[0], b.Addresses[0]), strings.Compare(target(a), target(b)))
	})
	return out
}

func target(e discoveryv1.Endpoint) string {
	if e.TargetRef == nil {
		return ""
	}
	return e.TargetRef.Kind + "/" + e.TargetRef.Namespace + "/" + e.TargetRef.Name
}

// addresses are where one endpoint is reached on the network; none leaves the
// endpoint out.
func (in Inputs) addresses(e *discoveryv1.Endpoint, is4 bool) []string {
	if ref, ok := podOf(in.Source.Namespace, e); ok {
		pod, known := in.Pods[ref]
		if !known || e.TargetRef.UID != "" && e.TargetRef.UID != pod.UID {
			return nil // gone, or not seen yet: its event completes the mirror
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

// ofPod is the pod's address on the network, of the slice's family. Readers
// use an endpoint's first address alone, and so is there one. An address that
// is not the network's own is never passed on, whatever the pod says.
func (in Inputs) podAddress(pod Pod, is4 bool) []string {
	for _, a := range pod.Addresses {
		if a.Is4() == is4 && in.Network.Contains(a) {
			return []string{a.String()}
		}
	}
	return nil
}

// byAddress is where an address that no pod explains is reached: those on the
// network itself and those outside the cluster as they are (a node's is one of
// them), a pod's on the cluster default network by its address on this one.
// What else belongs to the cluster cannot be reached from the network, and
// must not be.
func (in Inputs) resolve(a netip.Addr, is4 bool) []string {
	if in.Network.Contains(a) {
		return []string{a.String()}
	}
	if pod, ok := in.ByAddress[a]; ok {
		return in.podAddress(pod, is4)
	}
	if inCluster(*in.Network, in.Plan, a) {
		return nil
	}
	return []string{a.String()}
}

// inCluster tells whether an address belongs to the cluster or to the
// network's own routers.
func inCluster(n network.Network, plan network.Plan, a netip.Addr) bool {
	for _, ranges := range [][]netip.Prefix{
		plan.ServiceCIDRs, plan.Join, plan.Transit, plan.Masquerade, plan.UDNJoin, n.JoinSubnets, n.Transit,
	} {
		for _, p := range ranges {
			if p.Contains(a) {
				return true
			}
		}
	}
	return isDefault(plan, a)
}
