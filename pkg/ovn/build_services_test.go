// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// endpoints returns endpoints given as "node address:port"; a "-" before the node
// means terminating, a "!" not serving.
func endpoints(list ...string) []Endpoint {
	var out []Endpoint
	for _, e := range list {
		node, addr, _ := strings.Cut(e, " ")
		state := EndpointReady
		switch {
		case strings.HasPrefix(node, "-"):
			state = EndpointTerminating
		case strings.HasPrefix(node, "!"):
			state = EndpointNotServing
		}
		out = append(out, Endpoint{netip.MustParseAddrPort(addr), strings.TrimLeft(node, "-!"), state})
	}
	return out
}

// testService has pods on two nodes, a host-network pod on the first and, in both IP
// families, every kind of address.
func testService(local bool) Service {
	return Service{
		Namespace: "blue", Name: "web", ClusterIPs: addrs("10.96.0.7", "fd96::7"), ExternalIPs: addrs("203.0.113.7", "2001:db8::7"),
		ExternalLocal: local, Affinity: 3 * time.Hour,
		Ports: []ServicePort{
			{Protocol: nbdb.LoadBalancerProtocolTCP, Port: 80, NodePort: 30080, Endpoints: endpoints("node1 10.20.0.3:8080", "node2 10.20.1.3:8080", "node1 [fd20::3]:8080")},
			{Protocol: nbdb.LoadBalancerProtocolUDP, Port: 53, NodePort: 30053, Endpoints: endpoints("node1 172.18.0.1:5353", "node2 172.18.0.2:5353")},
		},
	}
}

func serviceCases() []goldenCase {
	exposed := []ExposedService{{"default", "kubernetes", addrs("10.96.0.1"), false}, {"kube-system", "kube-dns", addrs("10.96.0.10", "fd96::a"), true}}
	serve := func(local bool) func(*network.Node, *Inputs) {
		return func(_ *network.Node, in *Inputs) {
			in.Peers, in.Pods, in.RemotePods, in.OneNode = nil, nil, nil, true
			in.Services, in.Exposed = []Service{testService(local)}, exposed
		}
	}
	shared, local := network.SharedGateway, network.LocalGateway
	layer3, layer2 := testNetwork(7, "blue_net", network.Layer3, network.RolePrimary, "dual"), testNetwork(7, "blue_net", network.Layer2, network.RolePrimary, "ipv4")
	return []goldenCase{
		{name: "layer3-primary-dual-services", net: layer3, mode: shared, edit: serve(false)},
		{name: "layer3-primary-dual-services-etp-local", net: layer3, mode: shared, edit: serve(true)},
		{name: "layer3-primary-dual-services-etp-local-local-gateway", net: layer3, mode: local, edit: serve(true)},
		{name: "layer2-primary-ipv4-services-etp-local-local-gateway", net: layer2, mode: local, edit: serve(true)},
		{name: "layer2-primary-ipv4-services", net: layer2, mode: shared, edit: serve(false)},
		{name: "default-dual-services", net: testDefault(true), mode: shared, edit: serve(false)},
	}
}

// balancersOf returns a network's load balancers by the last part of their names.
func balancersOf(t *testing.T, s Service, edit func(*network.Node)) map[string]*nbdb.LoadBalancer {
	t.Helper()
	n, node := testTenant(7, "blue_net", false), testNode(1, "node1", network.SharedGateway)
	if edit != nil {
		edit(&node)
	}
	rows, err := BuildUnits(n, node, Inputs{Plan: testPlan(false), Services: []Service{s}}, []Unit{serviceUnit(s.Key())})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*nbdb.LoadBalancer{}
	for _, r := range rows {
		if lb, ok := r.Model.(*nbdb.LoadBalancer); ok {
			_, name, _ := strings.Cut(strings.TrimPrefix(r.ID, n.Prefix()), "_")
			out[strings.TrimPrefix(name, s.Key()+"_")] = lb
		}
	}
	return out
}

// TestRepliesToPods: with external traffic policy Local, the node's endpoints answer pods of other networks even while
// they get no new connections; those of other nodes do not, nor do clients of another policy need it.
func TestRepliesToPods(t *testing.T) {
	for local, want := range map[bool][]string{
		true:  {`inport == "rtos-blue_net_node1" && ip4.dst == 169.254.0.0/17 && ((ip4.src == 10.20.0.3 && tcp.src == 8080) || (ip4.src == 10.20.0.4 && tcp.src == 8080) || (ip4.src == 10.20.0.5 && tcp.src == 8080))`},
		false: nil,
	} {
		s := testService(local)
		s.Ports = s.Ports[:1]
		s.Ports[0].Endpoints = endpoints("node1 10.20.0.3:8080", "-node1 10.20.0.4:8080", "!node1 10.20.0.5:8080", "!node2 10.20.1.3:8080")
		rows, err := BuildUnits(testTenant(7, "blue_net", false), testNode(1, "node1", network.SharedGateway), Inputs{Plan: testPlan(false), Services: []Service{s}}, []Unit{serviceUnit(s.Key())})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			switch m := r.Model.(type) {
			case *nbdb.LogicalRouterPolicy:
				got = append(got, m.Match)
			case *nbdb.LoadBalancer:
				if backends := m.Vips["203.0.113.7:80"]; strings.HasSuffix(m.Name, "_external") && backends != "10.20.0.3:8080" {
					t.Errorf("local %t: backends %q", local, backends)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("local %t: %q, want %q", local, got, want)
		}
	}
}

func TestServiceBackends(t *testing.T) {
	const vip = "10.96.0.7:80"
	tcp := func(s Service, e ...string) Service {
		s.Namespace, s.Name, s.ClusterIPs = "blue", "web", addrs("10.96.0.7")
		s.Ports = []ServicePort{{Protocol: nbdb.LoadBalancerProtocolTCP, Port: 80, Endpoints: endpoints(e...)}}
		return s
	}
	both := func(backends string) map[string]string {
		return map[string]string{"TCP_switch": backends, "TCP_router": backends}
	}
	for name, c := range map[string]struct {
		service Service
		want    map[string]string // by load balancer
	}{
		"all nodes":         {tcp(Service{}, "node2 10.20.1.3:1", "node1 10.20.0.3:1"), both("10.20.0.3:1,10.20.1.3:1")},
		"the same twice":    {tcp(Service{}, "node1 10.20.0.3:1", "node1 10.20.0.3:1"), both("10.20.0.3:1")},
		"none":              {tcp(Service{}), both("")},
		"other IP family":   {tcp(Service{}, "node1 [fd20::3]:1"), both("")},
		"internal, local":   {tcp(Service{InternalLocal: true}, "node2 10.20.1.3:1", "node1 10.20.0.3:1"), both("10.20.0.3:1")},
		"internal, remote":  {tcp(Service{InternalLocal: true}, "node2 10.20.1.3:1"), both("")},
		"terminating":       {tcp(Service{}, "-node1 10.20.0.3:1", "-node2 10.20.1.3:1"), both("10.20.0.3:1,10.20.1.3:1")},
		"some terminating":  {tcp(Service{}, "-node1 10.20.0.3:1", "node2 10.20.1.3:1"), both("10.20.1.3:1")},
		"not serving":       {tcp(Service{}, "!node1 10.20.0.3:1", "node2 10.20.1.3:1"), both("10.20.1.3:1")},
		"none that serves":  {tcp(Service{}, "!node1 10.20.0.3:1"), both("")},
		"local terminating": {tcp(Service{InternalLocal: true}, "-node1 10.20.0.3:1", "node2 10.20.1.3:1"), both("10.20.0.3:1")},
		"nodes' hosts":      {tcp(Service{}, "node1 172.18.0.1:6443", "node2 172.18.0.2:6443"), both("172.18.0.1:6443,172.18.0.2:6443")},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			for name, lb := range balancersOf(t, c.service, nil) {
				for v, backends := range lb.Vips {
					if got[name] = backends; v != vip {
						t.Errorf("%s has the address %s", name, v)
					}
				}
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Without the external bridge there is no gateway router, and no load balancer that
// only it would have.
func TestServiceWithoutGateway(t *testing.T) {
	s := testService(true)
	got := slices.Sorted(maps.Keys(balancersOf(t, s, func(n *network.Node) { n.BridgeMAC = "" })))
	if want := []string{"TCP_switch", "UDP_switch"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestServiceOptions(t *testing.T) {
	s := testService(true)
	for name, lb := range balancersOf(t, s, nil) {
		// The UDP port has an endpoint in the node's own network.
		if got, want := lb.Options["skip_snat"], map[bool]string{true: "true", false: "false"}[name == "TCP_external"]; got != want {
			t.Errorf("%s: skip_snat %q, want %q", name, got, want)
		}
		if got, want := lb.Options["ct_flush"] == "true", strings.HasPrefix(name, "UDP"); got != want {
			t.Errorf("%s: ct_flush %t, want %t", name, got, want)
		}
		if lb.Options["affinity_timeout"] != "10800" || lb.Options["hairpin_snat_ip"] != "169.254.0.5" {
			t.Errorf("%s: options %v", name, lb.Options)
		}
	}
	if s.Affinity = 24 * time.Hour; balancersOf(t, s, nil)["TCP_router"].Options["affinity_timeout"] != "65535" {
		t.Error("a day's affinity is not cut to OVN's limit")
	}
}

// TestHostEndpointInAnyState: with external traffic policy Local, sources and the answers to other networks' pods depend on
// whether an endpoint is a process of the node, and not on its state: a change would cut the connections of all endpoints.
func TestHostEndpointInAnyState(t *testing.T) {
	for host, keepSource := range map[string]bool{
		"node1 172.18.0.1:8080": false, "-node1 172.18.0.1:8080": false, "!node1 172.18.0.1:8080": false,
		"node2 172.18.0.2:8080": true, "node1 10.20.0.5:8080": true,
	} {
		for _, pod := range []string{"node1 10.20.0.3:8080", "-node1 10.20.0.3:8080"} {
			s := testService(true)
			s.Ports = s.Ports[:1]
			s.Ports[0].Endpoints = endpoints(pod, host)
			rows, err := BuildUnits(testTenant(7, "blue_net", false), testNode(1, "node1", network.SharedGateway), Inputs{Plan: testPlan(false), Services: []Service{s}}, []Unit{serviceUnit(s.Key())})
			if err != nil {
				t.Fatal(err)
			}
			var skip string
			var answers bool
			for _, r := range rows {
				switch m := r.Model.(type) {
				case *nbdb.LoadBalancer:
					if strings.HasSuffix(m.Name, "_external") {
						skip = m.Options["skip_snat"]
					}
				case *nbdb.LogicalRouterPolicy:
					answers = answers || strings.Contains(m.Match, "ip4.src == 10.20.0.3")
				}
			}
			if want := strconv.FormatBool(keepSource); skip != want || answers != keepSource {
				t.Errorf("%s and %s: skip_snat %q, answers to other networks' pods: %t, want %s for both", pod, host, skip, answers, want)
			}
		}
	}
}

// TestRepliesOfOthers: in local gateway mode, a Layer 2 network's router translates back what endpoints of the node send that
// get no new connections. Processes of the node and other nodes' endpoints do not pass it.
func TestRepliesOfOthers(t *testing.T) {
	const published, unused = "169.254.0.24:30080", "169.254.0.5:30080"
	for name, c := range map[string]struct {
		endpoints []string
		want      map[string]string
	}{
		"ready":          {[]string{"node1 10.20.0.3:8080", "node2 10.20.0.4:8080"}, map[string]string{published: "10.20.0.3:8080"}},
		"terminating":    {[]string{"node1 10.20.0.3:8080", "-node1 10.20.0.4:8080", "-node2 10.20.0.5:8080"}, map[string]string{published: "10.20.0.3:8080", unused: "10.20.0.4:8080"}},
		"not serving":    {[]string{"node1 10.20.0.3:8080", "!node1 10.20.0.6:8080", "-node1 10.20.0.4:8080"}, map[string]string{published: "10.20.0.3:8080", unused: "10.20.0.4:8080,10.20.0.6:8080"}},
		"the last":       {[]string{"-node1 10.20.0.3:8080"}, map[string]string{published: "10.20.0.3:8080"}},
		"none serves":    {[]string{"!node1 10.20.0.3:8080"}, map[string]string{published: "", unused: "10.20.0.3:8080"}},
		"nodes' own":     {[]string{"node1 10.20.0.3:8080", "-node1 172.18.0.1:8080"}, map[string]string{published: "10.20.0.3:8080"}},
		"of other nodes": {[]string{"!node2 10.20.0.4:8080"}, map[string]string{published: ""}},
	} {
		for _, topology := range []network.Topology{network.Layer2, network.Layer3} {
			s := testService(true)
			s.Ports = s.Ports[:1]
			s.Ports[0].Endpoints = endpoints(c.endpoints...)
			rows, err := BuildUnits(testNetwork(7, "blue_net", topology, network.RolePrimary, "ipv4"), testNode(1, "node1", network.LocalGateway), Inputs{Plan: testPlan(false), Services: []Service{s}}, []Unit{serviceUnit(s.Key())})
			if err != nil {
				t.Fatal(err)
			}
			want := maps.Clone(c.want)
			if topology == network.Layer3 {
				delete(want, unused) // northd translates back whatever the backends are
			}
			var got map[string]string
			for _, r := range rows {
				if lb, ok := r.Model.(*nbdb.LoadBalancer); ok && strings.HasSuffix(lb.Name, "_local") {
					got = lb.Vips
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s, %s: %v, want %v", name, topology, got, want)
			}
		}
	}
}
