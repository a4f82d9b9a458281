// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// service creates or replaces a Service with port 80 named "http".
func (env *zoneEnv) service(namespace, name string, age int, edit func(*corev1.ServiceSpec), clusterIPs ...string) {
	env.t.Helper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), CreationTimestamp: metav1.Unix(int64(1000-age), 0)},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIPs: clusterIPs,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
	}
	if edit != nil {
		edit(&s.Spec)
	}
	ctx, api := context.Background(), env.kube.CoreV1().Services(namespace)
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); err == nil {
		_, err = api.Update(ctx, s, metav1.UpdateOptions{})
		env.must(err)
		return
	}
	_, err := api.Create(ctx, s, metav1.CreateOptions{})
	env.must(err)
}

// endpoints creates or replaces the EndpointSlice of a service: Kubernetes' own, or
// the mirror on a network.
func (env *zoneEnv) endpoints(namespace, service, mirroredOn string, addresses ...string) {
	env.t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service + "-1", Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	if mirroredOn != "" {
		s.Name, s.Labels = mirroredOn+"-"+service, map[string]string{network.LabelMirrorService: service, discoveryv1.LabelManagedBy: network.EndpointSliceManager}
		s.Annotations = map[string]string{network.AnnotationMirrorOn: mirroredOn}
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: ptr("node1")})
	}
	ctx, api := context.Background(), env.kube.DiscoveryV1().EndpointSlices(namespace)
	if _, err := api.Get(ctx, s.Name, metav1.GetOptions{}); err == nil {
		_, err = api.Update(ctx, s, metav1.UpdateOptions{})
		env.must(err)
		return
	}
	_, err := api.Create(ctx, s, metav1.CreateOptions{})
	env.must(err)
}

// vips returns the virtual addresses of all load balancers on switches, with backends,
// by network.
func (env *zoneEnv) vips() map[string]string {
	out := map[string]string{}
	for _, r := range env.nb.Rows() {
		if lb, ok := r.Model.(*nbdb.LoadBalancer); ok && strings.HasSuffix(r.ID, "_switch") {
			for vip, backends := range lb.Vips {
				out[externalIDs(lb)[markNetwork]+" "+vip] = backends
			}
		}
	}
	return out
}

func (env *zoneEnv) waitForVIPs(desc string, want map[string]string) {
	env.t.Helper()
	env.settle()
	if got := env.vips(); !maps.Equal(got, want) {
		env.t.Errorf("%s: services are %v, want %v", desc, got, want)
	}
}

// A service is on the network of its namespace, with the endpoints that the mirror
// names there, and on no other. It does not matter what is created first.
func TestZoneServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.service("red", "early", 0, nil, "10.96.0.2")
		env.endpoints("red", "early", redNet, "10.10.0.3")
		env.run()
		env.service("plain", "web", 0, nil, "10.96.0.3")
		env.endpoints("plain", "web", "", "10.244.0.9")
		env.waitForVIPs("before the network", map[string]string{"default 10.96.0.3:80": "10.244.0.9:8080"})

		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.service("red", "web", 0, nil, "10.96.0.4")
		env.endpoints("red", "web", "", "10.244.0.5") // the pods' addresses on the default network
		env.endpoints("red", "web", redNet, "10.10.0.4")
		env.endpoints("red", "other", "another_net", "10.10.0.4")
		env.service("red", "headless", 0, nil, "None")
		env.service("red", "name", 0, func(s *corev1.ServiceSpec) { s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "example.org" })
		want := map[string]string{"default 10.96.0.3:80": "10.244.0.9:8080", redNet + " 10.96.0.2:80": "10.10.0.3:8080", redNet + " 10.96.0.4:80": "10.10.0.4:8080"}
		env.waitForVIPs("with the network", want)
		batches := env.nb.Batches
		env.endpoints("red", "web", redNet, "10.10.0.4", "10.10.1.4")
		want[redNet+" 10.96.0.4:80"] = "10.10.0.4:8080,10.10.1.4:8080"
		env.waitForVIPs("one more endpoint", want)
		if n := env.nb.Batches - batches; n != 1 {
			t.Errorf("one more endpoint took %d transactions", n)
		}
		env.run()
		env.waitForVIPs("after a restart", want)

		// A NAD that names another's network, and has no id of it, brings no service there.
		env.namespace("evil", true)
		env.nad("evil", "net", redNet, 0, "10.10.0.0/16/24")
		env.service("evil", "web", 0, nil, "10.96.0.5")
		env.endpoints("evil", "web", redNet, "10.10.0.3")
		env.waitForVIPs("with a NAD that names the network", want)
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("evil").Delete(context.Background(), "net", metav1.DeleteOptions{}))

		// An unusable NAD changes nothing.
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/nonsense")
		env.settle()
		env.endpoints("red", "web", redNet, "10.10.1.4")
		want[redNet+" 10.96.0.4:80"] = "10.10.0.4:8080,10.10.1.4:8080"
		env.waitForVIPs("with an unusable NAD", want)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		want[redNet+" 10.96.0.4:80"] = "10.10.1.4:8080"
		env.waitForVIPs("with the NAD again", want)

		env.must(env.kube.CoreV1().Services("red").Delete(context.Background(), "web", metav1.DeleteOptions{}))
		delete(want, redNet+" 10.96.0.4:80")
		env.waitForVIPs("a deleted service", want)
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "net", metav1.DeleteOptions{}))
		delete(want, redNet+" 10.96.0.2:80")
		env.waitForVIPs("a deleted network", want)
	})
}

// TestZoneOtherProxies: Services of another proxy, and those that nobody serves, have no load balancers.
func TestZoneOtherProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		for i, label := range []string{"example.com/ours", "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"} {
			name := fmt.Sprint("s", i)
			env.service("plain", name, 0, nil, fmt.Sprint("10.96.0.", 2+i))
			env.endpoints("plain", name, "", "10.244.0.9")
			api := env.kube.CoreV1().Services("plain")
			s, err := api.Get(t.Context(), name, metav1.GetOptions{})
			env.must(err)
			s.Labels = map[string]string{label: ""}
			_, err = api.Update(t.Context(), s, metav1.UpdateOptions{})
			env.must(err)
		}
		env.run()
		env.waitForVIPs("at the start", map[string]string{"default 10.96.0.2:80": "10.244.0.9:8080"})
	})
}

// Of a deleted namespace, the zone may see the services' deletions last.
func TestZoneServicesOfDeletedNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("red-b", true)
		env.namespace("grey", false)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.nad("red-b", "net", redNet, 1, "10.10.0.0/16/24")
		want := map[string]string{"default 10.96.0.9:80": "10.244.0.9:8080"}
		env.service("plain", "stays", 0, nil, "10.96.0.9")
		env.endpoints("plain", "stays", "", "10.244.0.9")
		for _, namespace := range []string{"red-b", "grey"} {
			env.service(namespace, "before", 0, nil, map[string]string{"red-b": "10.96.0.2", "grey": "10.96.0.3"}[namespace])
		}
		env.run()
		env.settle()
		for _, namespace := range []string{"red-b", "grey"} {
			env.service(namespace, "web", 0, nil, map[string]string{"red-b": "10.96.0.4", "grey": "10.96.0.5"}[namespace])
		}
		env.settle()
		if got := env.vips(); len(got) != 5 {
			t.Errorf("services are %v", got)
		}
		ctx := context.Background()
		env.must(env.kube.CoreV1().Namespaces().Delete(ctx, "red-b", metav1.DeleteOptions{}))
		env.must(env.kube.CoreV1().Namespaces().Delete(ctx, "grey", metav1.DeleteOptions{}))
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red-b").Delete(ctx, "net", metav1.DeleteOptions{}))
		pause := func() { time.Sleep(time.Second); synctest.Wait() } // no audit in between
		pause()
		// The deletion of a network's last rows enqueues it once more.
		env.zone.queue.AddUnits("gone_net")
		pause()
		for _, namespace := range []string{"red-b", "grey"} {
			for _, name := range []string{"before", "web"} {
				env.must(env.kube.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
			}
		}
		env.waitForVIPs("after the deletions", want)
	})
}

// Whoever may create services cannot take addresses of the cluster, or another
// service's, by external IPs.
func TestZoneExternalIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		external := func(ips ...string) func(*corev1.ServiceSpec) {
			return func(s *corev1.ServiceSpec) { s.ExternalIPs = ips }
		}
		env.service("red", "old", 9, external("203.0.113.1"), "10.96.0.2")
		env.service("red", "young", 1, external("203.0.113.1", "203.0.113.2", "10.96.0.10", "10.244.0.3", "10.10.0.3", "100.64.0.1", "100.65.0.2", "100.88.0.1", "169.254.0.2", "224.0.0.1", "127.0.0.1"), "10.96.0.3")
		want := map[string]string{redNet + " 10.96.0.2:80": "", redNet + " 10.96.0.3:80": "", redNet + " 203.0.113.1:80": "", redNet + " 203.0.113.2:80": ""}
		owner := func() string {
			for _, r := range env.nb.Rows() {
				if lb, ok := r.Model.(*nbdb.LoadBalancer); ok && strings.HasSuffix(r.ID, "_switch") {
					if _, has := lb.Vips["203.0.113.1:80"]; has {
						return externalIDs(lb)[markService]
					}
				}
			}
			return ""
		}
		env.waitForVIPs("two services", want)
		if owner() != "red/old" {
			t.Errorf("the address is %s's", owner())
		}
		// The nodes with endpoints say so to the service's author.
		said := func() (events []string) {
			for {
				select {
				case e := <-env.events.Events:
					if strings.Contains(e, reasonExternalIP) {
						events = append(events, e)
					}
				default:
					return events
				}
			}
		}
		saidThat := func(want string) (events []string, ok bool) {
			events = said()
			return events, slices.ContainsFunc(events, func(e string) bool { return strings.Contains(e, want) })
		}
		if e := said(); len(e) > 0 {
			t.Errorf("without endpoints: events %q", e)
		}
		env.endpoints("red", "old", redNet, "10.10.0.3")
		env.settle()
		if e := said(); len(e) > 0 {
			t.Errorf("of the older service: events %q", e)
		}
		env.endpoints("red", "young", redNet, "10.10.0.3")
		env.settle()
		events := said()
		if len(events) == 0 {
			t.Error("of the younger service: no event")
		}
		for _, e := range events {
			for _, part := range []string{"external addresses are not served (10)", "10.96.0.10 (it is in 10.96.0.0/16, services' addresses)"} {
				if !strings.Contains(e, part) {
					t.Errorf("event %q does not say %q", e, part)
				}
			}
		}
		env.service("red", "young", 1, external("203.0.113.1"), "10.96.0.3")
		env.settle()
		if e, ok := saidThat("external addresses are not served (1): 203.0.113.1 port 80 (the older service red/old has it): choose others"); !ok {
			t.Errorf("of the younger service, with the older one's address: events %q", e)
		}
		env.endpoints("red", "old", redNet)
		env.endpoints("red", "young", redNet)
		// The other service is younger, but on another port.
		env.service("red", "young", 1, func(s *corev1.ServiceSpec) { s.ExternalIPs, s.Ports[0].Port = []string{"203.0.113.1"}, 81 }, "10.96.0.3")
		env.waitForVIPs("another port", map[string]string{redNet + " 10.96.0.2:80": "", redNet + " 10.96.0.3:81": "", redNet + " 203.0.113.1:80": "", redNet + " 203.0.113.1:81": ""})
		both := func(s *corev1.ServiceSpec) {
			s.ExternalIPs = []string{"203.0.113.1"}
			s.Ports = append(s.Ports, corev1.ServicePort{Name: "other", Port: 81})
		}
		env.service("red", "young", 1, both, "10.96.0.3")
		env.waitForVIPs("one port of two", map[string]string{redNet + " 10.96.0.2:80": "", redNet + " 10.96.0.3:80": "", redNet + " 10.96.0.3:81": "", redNet + " 203.0.113.1:80": "", redNet + " 203.0.113.1:81": ""})
		if owner() != "red/old" {
			t.Errorf("the port that both have is %s's", owner())
		}
		// No node serves a headless service, so it has no address.
		env.service("red", "headless", 20, external("203.0.113.1"), corev1.ClusterIPNone)
		env.settle()
		if owner() != "red/old" {
			t.Errorf("the address that a headless service claims is %s's", owner())
		}
		env.service("red", "young", 1, external("203.0.113.1"), "10.96.0.3")
		env.must(env.kube.CoreV1().Services("red").Delete(context.Background(), "old", metav1.DeleteOptions{}))
		env.waitForVIPs("the older one is deleted", map[string]string{redNet + " 10.96.0.3:80": "", redNet + " 203.0.113.1:80": ""})

		// A load balancer gives an address to the younger one, and the older one claims it: an
		// edit takes nothing from others.
		given, err := env.kube.CoreV1().Services("red").Get(context.Background(), "young", metav1.GetOptions{})
		env.must(err)
		given.Spec.Type, given.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, nil
		given.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		_, err = env.kube.CoreV1().Services("red").Update(context.Background(), given, metav1.UpdateOptions{})
		env.must(err)
		env.service("red", "old", 9, external("203.0.113.1"), "10.96.0.2")
		env.endpoints("red", "old", redNet, "10.10.0.3")
		env.settle()
		if owner() != "red/young" {
			t.Errorf("the load balancer's address is %s's", owner())
		}
		if e, ok := saidThat("203.0.113.1 port 80 (the service red/young has it from a load balancer)"); !ok {
			t.Errorf("of the older service: events %q", e)
		}
		env.must(env.kube.CoreV1().Services("red").Delete(context.Background(), "old", metav1.DeleteOptions{}))

		// The number of ports at external addresses is limited.
		var many []string
		for i := range kube.MaxExternalPorts + 3 {
			many = append(many, fmt.Sprintf("203.1.%d.%d", i/256, i%256))
		}
		env.service("red", "old", 9, external(many...), "10.96.0.2")
		env.endpoints("red", "old", redNet, "10.10.0.3")
		env.settle()
		if e, ok := saidThat("3 more: a service has at most 1024 ports at external addresses"); !ok {
			t.Errorf("of a service with too many addresses: events %q", e)
		}
		vips := -1
		for _, r := range env.nb.Rows() {
			if lb, ok := r.Model.(*nbdb.LoadBalancer); ok && strings.HasSuffix(r.ID, "_switch") && externalIDs(lb)[markService] == "red/old" {
				vips = len(lb.Vips)
			}
		}
		if vips != kube.MaxExternalPorts+1 {
			t.Errorf("%d addresses of a service with too many", vips)
		}
		env.must(env.kube.CoreV1().Services("red").Delete(context.Background(), "old", metav1.DeleteOptions{}))

		// The zone sees an older service before its namespace.
		env.service("plain", "young", 1, external("203.0.113.3"), "10.96.0.5")
		env.service("late", "older", 20, external("203.0.113.3"), "10.96.0.6")
		env.settle()
		env.namespace("late", false)
		env.settle()
		for id, want := range map[string]bool{"plain/young": false, "late/older": true} {
			r := env.waitForRow("Service_" + id + "_TCP_switch")
			if _, has := r.Model.(*nbdb.LoadBalancer).Vips["203.0.113.3:80"]; has != want {
				t.Errorf("%s has the address: %t", id, has)
			}
		}
	})
}

// An external address that becomes a node's is that node's, and a service's again once no node has it.
func TestZoneExternalIPOfNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.node(3, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		external := func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"172.18.0.2", "172.18.0.7"} }
		env.service("red", "web", 9, external, "10.96.0.2")
		env.service("red", "young", 1, external, "10.96.0.3")
		with := func(addresses ...string) map[string]string {
			want := map[string]string{redNet + " 10.96.0.2:80": "", redNet + " 10.96.0.3:80": ""}
			for _, a := range addresses {
				want[redNet+" "+a+":80"] = ""
			}
			return want
		}
		env.waitForVIPs("no node's", with("172.18.0.2", "172.18.0.7"))
		env.node(2, true)
		env.waitForVIPs("a new node's", with("172.18.0.7"))
		moved := testNode(3, "node3", network.SharedGateway)
		moved.Addresses = prefixes("172.18.0.7/16")
		a, err := moved.AgentAnnotations()
		env.must(err)
		before := env.annotateNode("node3", a)
		env.waitForVIPs("another node's new address", with())
		env.annotateNode("node3", before)
		env.waitForVIPs("the node has its former address", with("172.18.0.7"))
		env.must(env.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
		env.waitForVIPs("the node is deleted", with("172.18.0.2", "172.18.0.7"))
	})
}

// Whoever may write EndpointSlices cannot name addresses of other networks, or of the
// cluster's routers and hosts.
func TestZoneEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		wrong := []string{"10.96.0.10", "100.64.0.1", "100.65.0.2", "100.88.0.1", "169.254.0.2", "169.254.0.12"}
		env.service("red", "web", 0, nil, "10.96.0.4")
		env.endpoints("red", "web", redNet, append(wrong, "10.10.0.4", "10.244.0.3", "203.0.113.9", "172.18.0.2")...)
		env.service("plain", "web", 0, nil, "10.96.0.3")
		env.endpoints("plain", "web", "", append(wrong, "10.244.0.3", "203.0.113.9", "172.18.0.2")...)
		env.waitForVIPs("endpoints", map[string]string{
			redNet + " 10.96.0.4:80": "10.10.0.4:8080,172.18.0.2:8080,203.0.113.9:8080", "default 10.96.0.3:80": "10.244.0.3:8080,172.18.0.2:8080,203.0.113.9:8080"})
	})
}

// All networks have a way to the exposed services of the cluster default network, and
// to no service of a namespace with another network.
func TestZoneExposedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("default", false)
		env.namespace("kube-system", true) // with a primary network of its own
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		ways := func() []string {
			var out []string
			for _, r := range env.nb.Rows() {
				if p, ok := r.Model.(*nbdb.LogicalRouterPolicy); ok && p.Action == nbdb.LogicalRouterPolicyActionReroute {
					out = append(out, externalIDs(p)[markNetwork]+" "+externalIDs(p)[markExposed]+" "+strings.Fields(p.Match)[len(strings.Fields(p.Match))-1])
				}
			}
			slices.Sort(out)
			return out
		}
		env.service("default", "kubernetes", 0, nil, "10.96.0.1")
		env.service("kube-system", "kube-dns", 0, nil, "10.96.0.10")
		env.service("default", "web", 0, nil, "10.96.0.11")
		env.settle()
		if got, want := ways(), []string{redNet + " default/kubernetes 10.96.0.1"}; !slices.Equal(got, want) {
			t.Errorf("exposed services are %v, want %v", got, want)
		}
		env.service("default", "kubernetes", 0, nil, "10.96.0.99")
		env.settle()
		if got, want := ways(), []string{redNet + " default/kubernetes 10.96.0.99"}; !slices.Equal(got, want) {
			t.Errorf("exposed services are %v, want %v", got, want)
		}
		env.must(env.kube.CoreV1().Services("default").Delete(context.Background(), "kubernetes", metav1.DeleteOptions{}))
		env.settle()
		if got := ways(); len(got) > 0 {
			t.Errorf("a deleted service is exposed: %v", got)
		}
	})
}

func TestNewService(t *testing.T) {
	timeout := int32(600)
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.2", "fd96::2"}, ExternalIPs: []string{"203.0.113.1", "203.0.113.1"},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, InternalTrafficPolicy: ptr(corev1.ServiceInternalTrafficPolicyLocal),
			SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}},
			Ports: []corev1.ServicePort{{Name: "a", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}, {Name: "b", Protocol: corev1.ProtocolSCTP, Port: 80}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "203.0.113.2"}, {IP: "203.0.113.3", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example.org"},
		}}},
	}
	conditions := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	slice := &discoveryv1.EndpointSlice{
		Ports: []discoveryv1.EndpointPort{{Name: ptr("a"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}, {Name: ptr("a"), Port: ptr(int32(1)), Protocol: ptr(corev1.ProtocolUDP)}, {Name: ptr("b")}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.10.0.3", "10.10.0.33"}, NodeName: ptr("node1")},
			{Addresses: []string{"10.10.0.4"}, Conditions: conditions(true, true, false)},
			{Addresses: []string{"10.10.0.5"}, Conditions: conditions(false, true, true)},
			{Addresses: []string{"10.10.0.6"}, Conditions: conditions(false, false, true)},
			{Addresses: []string{"10.10.0.7"}, Conditions: conditions(false, true, false)},
		},
	}
	got, ok := newService(s, []*discoveryv1.EndpointSlice{slice})
	if want := "[203.0.113.2 203.0.113.1]"; !ok || strings.Join(texts(got.ExternalIPs), " ") != strings.Trim(want, "[]") {
		t.Errorf("external addresses %v, want %v", got.ExternalIPs, want)
	}
	if !got.ExternalLocal || !got.InternalLocal || got.Affinity != 10*time.Minute {
		t.Errorf("got %+v", got)
	}
	if len(got.Ports) != 2 || got.Ports[0].NodePort != 30080 || got.Ports[1].Protocol != nbdb.LoadBalancerProtocolSCTP || len(got.Ports[1].Endpoints) > 0 {
		t.Fatalf("ports %+v", got.Ports)
	}
	want := endpoints("node1 10.10.0.3:8080", " 10.10.0.4:8080", "- 10.10.0.5:8080", "! 10.10.0.6:8080", "! 10.10.0.7:8080")
	if !slices.Equal(got.Ports[0].Endpoints, want) {
		t.Errorf("endpoints %+v, want %+v", got.Ports[0].Endpoints, want)
	}
}

// TestZoneNeedsNodePorts: a node in local gateway mode says which service has external addresses that
// it cannot serve, and no other does.
func TestZoneNeedsNodePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		a, err := testNode(1, "node1", network.LocalGateway).AgentAnnotations()
		env.must(err)
		env.annotateNode("node1", a)
		env.run()
		serve := func(nodePort int32, policy corev1.ServiceExternalTrafficPolicy) {
			env.service("plain", "web", 0, func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalTrafficPolicy, s.ExternalIPs = corev1.ServiceTypeLoadBalancer, policy, []string{"203.0.113.1"}
				s.Ports[0].NodePort = nodePort
			}, "10.96.0.3")
			env.settle()
		}
		events := func() (n int) {
			for {
				select {
				case e := <-env.events.Events:
					if !strings.Contains(e, reasonNodePorts) || !strings.Contains(e, "allocateLoadBalancerNodePorts") {
						t.Error(e)
					}
					n++
				default:
					return n
				}
			}
		}
		serve(0, corev1.ServiceExternalTrafficPolicyLocal)
		if n := events(); n != 0 {
			t.Errorf("without endpoints on the node: %d events", n)
		}
		env.endpoints("plain", "web", "", "10.244.0.9")
		env.settle()
		if events() == 0 {
			t.Error("without node ports: no event")
		}
		serve(30080, corev1.ServiceExternalTrafficPolicyLocal)
		serve(0, corev1.ServiceExternalTrafficPolicyCluster)
		if n := events(); n != 0 {
			t.Errorf("with node ports, or traffic policy Cluster: %d events", n)
		}
	})
}

// The author of a Service whose cluster IP nodes do not reach learns it from the nodes that have its endpoints.
func TestZoneClusterIPOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.run()
		events := func() (n int) {
			env.settle()
			for {
				select {
				case e := <-env.events.Events:
					if strings.Contains(e, reasonClusterIP) && strings.Contains(e, "10.107.0.3") && strings.Contains(e, "10.96.0.0/16") {
						n++
					}
				default:
					return n
				}
			}
		}
		env.service("plain", "inside", 0, nil, "10.96.0.3")
		env.service("plain", "web", 0, nil, "10.107.0.3")
		if n := events(); n != 0 {
			t.Errorf("without endpoints on the node: %d events", n)
		}
		env.endpoints("plain", "inside", "", "10.244.0.9")
		env.endpoints("plain", "web", "", "10.244.0.9")
		if n := events(); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}
