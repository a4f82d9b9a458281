// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// parsed returns a service as the informer's events store it.
func parsed(t *testing.T, s *corev1.Service) service {
	t.Helper()
	trimmed, err := trimService(s)
	if err != nil {
		t.Fatal(err)
	}
	return parseService(trimmed.(*corev1.Service))
}

func TestAllowedServices(t *testing.T) {
	object := func(namespace string, ips []string, ports ...corev1.ServicePort) service {
		return parsed(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s", Labels: map[string]string{"a": "b"}}, Spec: corev1.ServiceSpec{ClusterIPs: ips, Ports: ports}})
	}
	dns := []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 53}, {Port: 53}}
	c := NewCache()
	c.SetNamespace("tenant", Namespace{Labelled: true})
	for _, s := range []struct {
		key     string
		service service
		changed bool
	}{
		{"kube-system/s", object("kube-system", []string{"10.96.0.10", "fd10:96::a"}, dns...), true},
		{"kube-system/s", object("kube-system", []string{"10.96.0.10", "fd10:96::a"}, dns...), false},
		{"default/s", object("default", []string{"None"}, dns...), false},
		{"tenant/s", object("tenant", []string{"10.96.0.20"}, dns...), true},
		{"default/other", object("default", []string{"10.96.0.30"}, dns...), true},
	} {
		if networks, got := c.SetService(s.key, s.service); got != s.changed || len(networks) > 0 {
			t.Errorf("%s: cluster IPs changed %t, networks %v", s.key, got, networks)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, s := range c.AllowedServices([]string{"default/s", "kube-system/s", "missing/s", "tenant/s"}) {
			got = append(got, fmt.Sprint(s.Addr, " ", s.Protocol, " ", s.Port))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("services %q, want %q", got, want)
		}
	}
	// A tenant's own service is not reached, whatever the configuration lists.
	expect("10.96.0.10 tcp 53", "10.96.0.10 udp 53", "fd10:96::a tcp 53", "fd10:96::a udp 53")
	if got := fmt.Sprint(c.AllowedAddresses([]string{"kube-system/s", "tenant/s"})); got != "[10.96.0.10 fd10:96::a]" {
		t.Errorf("addresses %s", got)
	}
	if _, changed := c.SetService("kube-system/s", service{}); !changed {
		t.Error("a deleted service changes nothing")
	}
	if _, changed := c.SetService("kube-system/s", service{}); changed {
		t.Error("a service that is gone is deleted again")
	}
	expect()
}

// TestPublishedPorts: which ports of services are reached from outside which network, as
// services, namespaces and networks come and go in any order.
func TestPublishedPorts(t *testing.T) {
	c, cfg := NewCache(), testConfig(t)
	expect := func(when string, id int, want ...string) {
		t.Helper()
		var got []string
		for _, p := range c.PublishedPorts(id) {
			text := fmt.Sprintf("%s %d", p.Protocol, p.Port)
			if p.Addr.IsValid() {
				text += " " + p.Addr.String()
			}
			if p.Claimed {
				text += " claimed"
			}
			got = append(got, text)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: network %d has %q, want %q", when, id, got, want)
		}
	}
	set := func(key string, age time.Duration, edit func(*corev1.Service), want ...int) {
		t.Helper()
		namespace, name, _ := strings.Cut(key, "/")
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
			Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Port: 80}}}}
		edit(s)
		if got, _ := c.SetService(key, parsed(t, s)); !slices.Equal(got, want) {
			t.Errorf("%s changes networks %v, want %v", key, got, want)
		}
	}
	nodePort := func(port int32) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Ports[0].NodePort = port }
	}
	balancer := func(ip string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, []corev1.LoadBalancerIngress{{IP: ip}}
			s.Spec.ExternalIPs = []string{ip, "203.0.113.9"}
		}
	}
	// The service's namespace is not known yet: it may be the default network's.
	set("red/web", time.Hour, nodePort(30080), network.DefaultID)
	expect("before the namespace", network.DefaultID, "tcp 30080")
	if !c.SetNamespace("red", Namespace{Labelled: true}).Services {
		t.Error("the namespace's label does not affect its service")
	}
	expect("before the NAD", network.DefaultID)
	c.SetNAD(nad(cfg, "red", "net", 1))
	expect("with the NAD", 1, "tcp 30080")
	c.SetNAD(network.NAD{Namespace: "red", Name: "net", Err: errors.New("not JSON")})
	expect("with an unreadable NAD", 1, "tcp 30080")
	// The cluster controller updates the network's NADs one after another.
	other, updated := nad(cfg, "red-b", "net", 1), nad(cfg, "red", "net", 1)
	other.Network.Name, updated.Network.MTU = updated.Network.Name, 1300
	c.SetNAD(nad(cfg, "red", "net", 1))
	c.SetNAD(other)
	c.MarkSynced()
	c.SetNAD(updated)
	if n, _ := c.NAD("red/net"); n.Err == nil {
		t.Error("a NAD that differs from the network's other one is usable")
	}
	expect("with NADs that differ", 1, "tcp 30080")
	c.SetNAD(nad(cfg, "red", "net", 1))
	c.DeleteNAD("red-b/net")
	c.SetNAD(nad(cfg, "red", "net", 1))
	c.SetNamespace("blue", Namespace{Labelled: true})
	c.SetNAD(nad(cfg, "blue", "net", 2))

	// Two networks' services have one address: the older has it.
	set("blue/lb", time.Minute, balancer("203.0.113.7"), 2)
	expect("alone", 2, "tcp 80 203.0.113.7", "tcp 80 203.0.113.9 claimed")
	set("red/lb", time.Hour, balancer("203.0.113.7"), 1, 2)
	expect("the older", 1, "tcp 30080", "tcp 80 203.0.113.7", "tcp 80 203.0.113.9 claimed")
	expect("the younger", 2)
	set("red/lb", time.Hour, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.7", "203.0.113.9"} }, 1, 2)
	expect("the older claims what a load balancer gave the younger", 1, "tcp 30080", "tcp 80 203.0.113.9 claimed")
	expect("the younger", 2, "tcp 80 203.0.113.7")
	set("plain/a", time.Hour, balancer("203.0.113.8"), network.DefaultID, 1) // blue/lb has not had .9
	expect("the same age: the first by name", network.DefaultID, "tcp 80 203.0.113.8", "tcp 80 203.0.113.9 claimed")
	expect("the second by name", 1, "tcp 30080")

	if got, _ := c.SetService("plain/a", service{}); !slices.Equal(got, []int{network.DefaultID, 1}) {
		t.Errorf("a deleted service changes networks %v", got)
	}
	expect("after the deletion", network.DefaultID)
	expect("after the deletion", 1, "tcp 30080", "tcp 80 203.0.113.9 claimed")
	var ports []string
	for _, p := range c.NodePorts(cfg.Plan, cfg.DefaultNetwork) {
		ports = append(ports, fmt.Sprint(p.Protocol, " ", p.Port, " ", p.Router))
	}
	if want := []string{"tcp 30080 169.254.0.11"}; !slices.Equal(ports, want) {
		t.Errorf("node ports %v, want %v", ports, want)
	}
	c.DeleteNAD("red/net")
	expect("without the NAD", 1)
	expect("without the NAD", network.DefaultID)
}

// TestLocalPorts: a service with external traffic policy Local is reached at its external address, but
// not by one of another network's pods that the fabric knows.
func TestLocalPorts(t *testing.T) {
	c, cfg := NewCache(), testConfig(t)
	for i, ns := range []string{"red", "blue"} {
		n := nad(cfg, ns, "net", i+1)
		if ns == "blue" {
			n.Network.Subnets, n.Network.AdvertisedVRFs = []network.Subnet{{CIDR: netip.MustParsePrefix("10.30.0.0/16")}}, "default"
		}
		c.SetNAD(n)
		c.SetNamespace(ns, Namespace{Labelled: true})
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.9"}, Type: corev1.ServiceTypeNodePort,
		ExternalIPs: []string{"203.0.113.7", "10.30.1.5"}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}}}
	c.SetService("red/web", parsed(t, s))
	var got []string
	for _, p := range c.LocalPorts(cfg.Plan, cfg.DefaultNetwork, []netip.Addr{netip.MustParseAddr("192.0.2.10")}, func(network.Network, flows.ServicePort) bool { return false }) {
		got = append(got, fmt.Sprint(p.Protocol, " ", p.Addr, " ", p.Port.Port))
	}
	if slices.Sort(got); !slices.Equal(got, []string{"tcp 192.0.2.10 30080", "tcp 203.0.113.7 80"}) {
		t.Errorf("ports %q", got)
	}
}

// TestLayer2RouteToServices: a Layer 2 network has a route to each service that all networks
// reach, as such services come and go. Networks of other topologies have none.
func TestLayer2RouteToServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		conf := network.NetConf{Name: "shop_net", Topology: "layer2", Role: "primary", Subnets: "10.20.0.0/16"}
		n, err := conf.Network(7, f.agent.config.Plan)
		f.agent.cache.SetNAD(network.NAD{Namespace: "shop", Name: "net", Network: n, Err: err})
		f.agent.cache.SetNAD(nad(f.agent.config, "ns", "net", 8))
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "networks ready", func() bool { return f.state(7).State == StateReady && f.state(8).State == StateReady })
		routes := func() string {
			f.kernel.mu.Lock()
			defer f.kernel.mu.Unlock()
			var out []string
			for r := range f.kernel.Routes {
				if r.Dst.IsSingleIP() && r.Dst.Addr().As4()[0] == 172 {
					out = append(out, fmt.Sprint(r.Dst, " src ", r.Src, " table ", r.Table))
				}
			}
			slices.Sort(out)
			return strings.Join(out, "\n")
		}
		service := func(namespace, name, ip string) *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 53}}}}
		}
		f.events().setService(service("plain", "web", "172.30.0.20"))
		f.events().setService(service("kube-system", "kube-dns", "172.30.0.10"))
		eventually(t, "a route", func() bool { return routes() == "172.30.0.10/32 src 10.20.0.2 table 100007" })
		f.events().deleteService("kube-system/kube-dns")
		eventually(t, "no route", func() bool { return routes() == "" })
	})
}

// TestHostReconciles: the host network is reconciled for events that concern this node, and not for others: tenants choose
// how often those happen, and pods wait for a reconcile to end.
func TestHostReconciles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t, func(p *Parts) { p.Config.IngressNamespaces = []string{"edge"} })
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 4))
		f.events().changeNamespace("shop", Namespace{Labelled: true})
		eventually(t, "network ready", func() bool { return f.state(4).State == StateReady })
		service := func(namespace, name string, nodePort int32) *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
				Spec: corev1.ServiceSpec{ClusterIPs: []string{"172.30.0.20"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: nodePort}}}}
		}
		shared := func(namespace string) network.NAD {
			n := nad(f.agent.config, namespace, "net", 4)
			n.Network.Name = "shop_net"
			return n
		}
		advertised := nad(f.agent.config, "shop", "net", 4)
		advertised.Network.AdvertisedVRFs = "default"
		for _, c := range []struct {
			what  string
			event func()
			want  bool
		}{
			{"a service that publishes nothing", func() { f.events().setService(service("shop", "web", 0)) }, false},
			{"it is deleted", func() { f.events().deleteService("shop/web") }, false},
			{"a service with a node port", func() { f.events().setService(service("shop", "web", 30080)) }, true},
			{"the same again", func() { f.events().setService(service("shop", "web", 30080)) }, false},
			{"a service that all networks reach", func() { f.events().setService(service("kube-system", "kube-dns", 0)) }, true},
			{"the same NAD", func() { f.setNAD(nad(f.agent.config, "shop", "net", 4)) }, false},
			{"another namespace joins the network", func() { f.setNAD(shared("empty")) }, false},
			{"it leaves", func() { f.events().deleteNAD("empty/net") }, false},
			{"a service of a namespace that will join", func() { f.events().setService(service("busy", "web", 30081)) }, true},
			{"its namespace has a network", func() { f.events().changeNamespace("busy", Namespace{Labelled: true}) }, true},
			{"it joins", func() { f.setNAD(shared("busy")) }, true},
			{"it leaves the network", func() { f.events().deleteNAD("busy/net") }, true},
			{"a pod of a namespace that will join", func() { f.setPod(Pod{UID: "u", Namespace: "calm", Name: "web"}) }, true},
			{"the pod's namespace joins", func() { f.setNAD(shared("calm")) }, true},
			{"the network is advertised", func() { f.setNAD(advertised) }, true},
			{"a namespace without labels", func() { f.events().changeNamespace("plain", Namespace{}) }, false},
			{"a namespace with the label, which ingress pods may reach", func() { f.events().changeNamespace("plain", Namespace{Labelled: true}) }, true},
			{"the same namespace", func() { f.events().changeNamespace("plain", Namespace{Labelled: true}) }, false},
			{"an ingress pod", func() { f.setPod(Pod{UID: "i", Namespace: "edge", Name: "router", HostNetwork: true}) }, true},
			{"a service that it reaches", func() { f.events().setService(service("shop", "api", 0)) }, true},
		} {
			time.Sleep(time.Second) // the clock of the test: what came before is done
			before := f.hostCount()
			c.event()
			time.Sleep(time.Second)
			if got := f.hostCount() > before; got != c.want {
				t.Errorf("%s: reconciled %t, want %t", c.what, got, c.want)
			}
		}
	})
}

// The cluster default network's flows are built from the services of all namespaces: the event of a network builds them only if
// it has namespaces with services or with pods of this node.
func TestNetworksWithoutServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeFlows{}
		f := newFakeNode(t, func(p *Parts) { p.Flows = fake })
		events := f.events()
		service := func(namespace string, port int32) {
			s, err := trimService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
				Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.20"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: port}}}})
			if err != nil {
				t.Fatal(err)
			}
			events.setService(s.(*corev1.Service))
		}
		service("shop", 30080)
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil && len(fake.ports(network.DefaultID)) == 1 })
		builds := func() int {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			return fake.sets[network.DefaultID]
		}
		time.Sleep(time.Second)
		before := builds()
		const networks = 20
		for id := 1; id <= networks; id++ {
			namespace := fmt.Sprint("tenant", id)
			events.changeNamespace(namespace, Namespace{Labelled: true})
			f.setNAD(nad(f.agent.config, namespace, "net", id))
			time.Sleep(100 * time.Millisecond)
		}
		eventually(t, "the networks", func() bool {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			return len(fake.networks) == networks+1
		})
		// The resync of each minute builds all.
		if got := builds() - before; got > 1 {
			t.Errorf("%d networks without services built the cluster default network's flows %d times", networks, got)
		}
		service("tenant1", 30081)
		eventually(t, "a service of a network", func() bool { return len(fake.ports(1)) == 1 })
		events.changeNamespace("shop", Namespace{Labelled: true})
		f.setNAD(nad(f.agent.config, "shop", "net", networks+1))
		start := time.Now()
		eventually(t, "the service that leaves the cluster default network", func() bool {
			return len(fake.ports(network.DefaultID)) == 0 && len(fake.ports(networks+1)) == 1
		})
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the service left after %s, by the resync", took)
		}
	})
}
