// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// repeated returns a slice with each of the endpoints 1,000 times.
func repeated(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return sourceSlice(discoveryv1.AddressTypeIPv4, slices.Repeat(endpoints, 1000)...)
}

// An endpoint that a slice's author repeats is in the mirror once. Endpoints that differ in address, target or node stay.
func TestRepeatedEndpoints(t *testing.T) {
	on := func(node string, e discoveryv1.Endpoint) discoveryv1.Endpoint {
		e.NodeName = &node
		return e
	}
	n := tenant("n", "10.20.0.0/16")
	for name, tt := range map[string]struct {
		endpoints []discoveryv1.Endpoint
		want      int
	}{
		"of a pod":                           {[]discoveryv1.Endpoint{endpoint("a", "10.244.1.5")}, 1},
		"without a pod":                      {[]discoveryv1.Endpoint{endpoint("", "203.0.113.9")}, 1},
		"equal once they are in the network": {[]discoveryv1.Endpoint{endpoint("", "10.244.1.5"), endpoint("", "10.20.1.5")}, 1},
		"other addresses":                    {[]discoveryv1.Endpoint{endpoint("", "203.0.113.9"), endpoint("", "203.0.113.10")}, 2},
		"other targets":                      {[]discoveryv1.Endpoint{endpoint("a", "10.244.1.5"), endpoint("", "10.20.1.5")}, 2},
		"other nodes":                        {[]discoveryv1.Endpoint{on("n1", endpoint("", "203.0.113.9")), on("n2", endpoint("", "203.0.113.9")), endpoint("", "203.0.113.9")}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			in := inputs(repeated(tt.endpoints...), n)
			if got := Build(in, State{}).Mirrors[MirrorName(in.Source.Name)].Endpoints; len(got) != tt.want {
				t.Errorf("the mirror has %d endpoints, want %d", len(got), tt.want)
			}
		})
	}
}

// A pod or address that a slice's author repeats is read once.
func TestRepeatedDependencies(t *testing.T) {
	s := repeated(endpoint("a", "10.244.1.5"), endpoint("", "10.244.1.6"), endpoint("b", "10.244.1.7"))
	want := []dependency{namespaceDependency(Source{s.Namespace, s.Name}), {PodRef: PodRef{"red", "a"}},
		{addr: netip.MustParseAddr("10.244.1.6")}, {PodRef: PodRef{"red", "b"}}}
	if got := dependenciesOf(s, testPlan); !slices.Equal(got, want) {
		t.Errorf("%d dependencies, %v, want %v", len(got), got[:min(len(got), 6)], want)
	}
}
