// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net/netip"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

var defaultNetwork = network.Network{Name: "default", Topology: network.Layer3, Role: network.RolePrimary, Subnets: subnets("10.244.0.0/16/24", "fd10:244::/48/64")}

// advertised are networks that BGP advertises. The subnets of the last contain those of the first.
var advertised = []network.Network{
	{ID: 7, Topology: network.Layer3, Role: network.RolePrimary, AdvertisedVRFs: "default", Subnets: subnets("10.66.0.0/16/24", "fd66::/48/64")},
	{ID: 8, Topology: network.Layer3, Role: network.RolePrimary, AdvertisedVRFs: "default", Subnets: subnets("10.77.0.0/16/24")},
	{ID: 9, Topology: network.Layer3, Role: network.RolePrimary, Transport: network.TransportNoOverlay, AdvertisedVRFs: "default", Subnets: subnets("10.64.0.0/10/24", "fd66::/32/64")},
	{ID: 10, Name: network.CUDNName("lite"), Topology: network.Layer3, Role: network.RolePrimary, AdvertisedVRFs: "auto", Subnets: subnets("10.66.0.0/16/24")},
}

func subnets(list ...string) []network.Subnet {
	var out []network.Subnet
	for _, text := range list {
		s, err := network.ParseSubnet(text, network.Layer3)
		if err != nil {
			panic(err)
		}
		out = append(out, s)
	}
	return out
}

func genInputs(t *rapid.T) Inputs {
	pool := addrs("10.244.1.5", "10.244.1.6", "10.244.1.7", "fd10::5", "fd10::6", "::ffff:10.244.1.8")
	in := Inputs{Locked: rapid.SliceOf(rapid.SampledFrom(pool)).Draw(t, "locked")}
	switch rapid.IntRange(0, 2).Draw(t, "kubelet") {
	case 1:
		in.Mark = mark
	case 2:
		in.Cgroup = Cgroup{"system.slice/kubelet.service", uint64(rapid.IntRange(1, 3).Draw(t, "cgroup id"))}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "pod roots") {
		in.PodRoots = append(in.PodRoots, Cgroup{fmt.Sprintf("kubepods%d.slice", i), uint64(i + 9)})
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "networks") {
		in.Networks = append(in.Networks, network.Network{ID: i + 1})
	}
	in.Networks = append(in.Networks, rapid.SliceOfNDistinct(rapid.SampledFrom(advertised), 0, -1, func(n network.Network) int { return n.ID }).Draw(t, "advertised networks")...)
	in.Default, in.NodeID, in.Loose = defaultNetwork, rapid.IntRange(0, 2).Draw(t, "node id"), rapid.Bool().Draw(t, "loose")
	if rapid.Bool().Draw(t, "default network without an overlay") {
		in.Default.Transport, in.Default.OutboundSNAT = network.TransportNoOverlay, rapid.SampledFrom([]string{"enabled", "disabled"}).Draw(t, "SNAT")
	}
	in.Mode = rapid.SampledFrom([]network.GatewayMode{network.SharedGateway, network.LocalGateway}).Draw(t, "mode")
	in.Bridge = rapid.SampledFrom([]string{"", "br-ex"}).Draw(t, "bridge")
	in.Services = rapid.SliceOf(rapid.SampledFrom(services)).Draw(t, "services")
	in.Plan = plan
	in.NodePorts = rapid.SliceOfDistinct(rapid.SampledFrom(nodePorts), func(p NodePort) NodePort { return p }).Draw(t, "node ports")
	in.LocalPorts = rapid.SliceOfDistinct(rapid.SampledFrom(localPorts), func(p LocalPort) LocalPort { return p }).Draw(t, "ports with traffic policy Local")
	in.HostPorts = rapid.SliceOf(rapid.SampledFrom(hostPorts)).Draw(t, "host ports")
	if rapid.Bool().Draw(t, "ingress") {
		in.Ingress = &Ingress{Pods: rapid.SliceOfDistinct(rapid.SampledFrom(ingress.Pods), func(a netip.Addr) netip.Addr { return a }).Draw(t, "ingress pods"),
			ClusterIPs: rapid.SliceOfDistinct(rapid.SampledFrom(ingress.ClusterIPs), func(c ClusterIP) netip.Addr { return c.Addr }).Draw(t, "cluster IPs")}
	}
	in.Node = rapid.SampledFrom([][]netip.Addr{nil, nodeAddresses[:1], nodeAddresses}).Draw(t, "node's addresses")
	return in
}
