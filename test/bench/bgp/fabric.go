// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/bgp"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/test/bench/report"
)

// fabricFigures are the sessions of a node and the size of its generated FRRConfigurations in the
// managed fabric, with one network without an overlay. They are built, not applied.
func fabricFigures() []report.Figure {
	var out []report.Figure
	for _, topology := range []string{config.FullMesh, config.RouteReflectors} {
		for _, nodes := range []int{3, 50, 500} {
			sessions, size := fabric(topology, nodes)
			out = append(out, report.Figure{
				Name:  fmt.Sprintf("managed fabric, %s, %d nodes", topology, nodes),
				Value: fmt.Sprintf("%d to %d sessions of a node, %.1f to %.1f kB of its objects", sessions[0], sessions[1], float64(size[0])/1000, float64(size[1])/1000),
			})
		}
	}
	return out
}

// fabric returns the smallest and largest number of sessions of a node, and size of its objects.
func fabric(topology string, count int) (sessions, size [2]int) {
	sky := bgp.Network{
		Network: network.Network{
			ID: 1, Name: network.CUDNName("sky"), Topology: network.Layer3, Role: network.RolePrimary, Transport: network.TransportNoOverlay, OutboundSNAT: "enabled",
			Subnets: []network.Subnet{{CIDR: netip.MustParsePrefix("10.0.0.0/12"), HostLen: 24}},
		},
		CUDN: "sky", Labels: map[string]string{bgp.LabelFabric: bgp.LabelFabricValue},
	}
	in := bgp.Inputs{Namespace: frrNamespace, Networks: []bgp.Network{sky}}
	for id := 1; id <= count; id++ {
		name := fmt.Sprintf("node-%d", id)
		a := netip.AddrFrom4([4]byte{172, 18, byte(id >> 8), byte(id)})
		in.Nodes = append(in.Nodes, bgp.Node{Name: name, ID: id, Labels: map[string]string{corev1.LabelHostname: name}, InternalIPs: []netip.Addr{a}, Addresses: []netip.Addr{a}})
	}
	managed := bgp.BuildManaged(bgp.Fabric{Topology: topology, ASN: 64512, Namespace: frrNamespace}, []string{"sky"}, in.Nodes, nil)
	for _, c := range managed.Bases {
		in.Configurations = append(in.Configurations, *c)
	}
	for _, ra := range managed.Advertisements {
		in.Advertisements = append(in.Advertisements, *ra)
	}
	perNode := map[string][2]int{}
	for _, c := range bgp.Build(in).Configurations {
		raw, _ := json.Marshal(c) // API types are always encoded
		n := perNode[c.Spec.NodeSelector.MatchLabels[corev1.LabelHostname]]
		for _, r := range c.Spec.BGP.Routers {
			n[0] += len(r.Neighbors)
		}
		n[1] += len(raw)
		perNode[c.Spec.NodeSelector.MatchLabels[corev1.LabelHostname]] = n
	}
	first := true
	for _, n := range perNode {
		if first {
			sessions, size, first = [2]int{n[0], n[0]}, [2]int{n[1], n[1]}, false
		}
		sessions = [2]int{min(sessions[0], n[0]), max(sessions[1], n[0])}
		size = [2]int{min(size[0], n[1]), max(size[1], n[1])}
	}
	return sessions, size
}
