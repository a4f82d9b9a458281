// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/cluster/endpointmirror"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// mirrorFixture is a namespace with a dual-stack primary network.
type mirrorFixture struct {
	fixture
	ns, net string
}

func mirrorConfig(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Parse("[default]\ncluster-subnets = 10.244.0.0/16/24,fd10:244::/48/64\nservice-cidrs = 10.96.0.0/16,fd10:96::/112\n" +
		"[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func newMirrorFixture(t testing.TB, name string) mirrorFixture {
	t.Helper()
	m := mirrorFixture{newFixture(t), name, name + "-net"}
	ns := m.namespace(name, true, "team="+name)
	t.Cleanup(func() { m.remove(ns) })
	c := newCUDN(m.net, name, "10.120.0.0/16", "fd20:120::/48")
	m.create(c)
	t.Cleanup(func() { m.remove(c) })
	m.waitCreated(c, "["+name+"]")
	return m
}

// addresses is the pod annotation that a zone writes; last is the last part of
// each address.
func (m mirrorFixture) addresses(last int) string {
	return fmt.Sprintf(`{"default":{"ip_addresses":["10.244.1.%[1]d/24","fd10:244:0:1::%[1]d/64"],"mac_address":"0a:58:0a:f4:01:05","role":"infrastructure-locked"},`+
		`"%[2]s/%[3]s":{"ip_addresses":["10.120.1.%[1]d/24","fd20:120:0:1::%[1]d/64"],"mac_address":"0a:58:0a:78:01:05","role":"primary"}}`, last, m.ns, m.net)
}

// createEndpointPod creates a pod; with last 0, without its annotation.
func (m mirrorFixture) createEndpointPod(name string, last int, hostNetwork bool) *corev1.Pod {
	m.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{HostNetwork: hostNetwork, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if last > 0 {
		p.Annotations[network.AnnotationPodNetworks] = m.addresses(last)
	}
	m.create(p)
	return p
}

func endpointOf(p *corev1.Pod, ready bool, address string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}}
	if p != nil {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	return e
}

// createSlice creates an EndpointSlice of a Service as the manager does; "" is by
// hand.
func (m mirrorFixture) createSlice(name, service, manager string, family discoveryv1.AddressType, es ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	m.t.Helper()
	port, proto, portName := int32(8080), corev1.ProtocolTCP, "http"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: m.ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: family, Endpoints: es, Ports: []discoveryv1.EndpointPort{{Name: &portName, Protocol: &proto, Port: &port}},
	}
	if manager != "" {
		s.Labels[discoveryv1.LabelManagedBy] = manager
	}
	m.create(s)
	return s
}

const kubernetesManager = "endpointslice-controller.k8s.io"

func (m mirrorFixture) mirrorOf(source string) (*discoveryv1.EndpointSlice, error) {
	s := &discoveryv1.EndpointSlice{}
	return s, m.Get(m.ctx, client.ObjectKey{Namespace: m.ns, Name: endpointmirror.MirrorName(source)}, s)
}

// waitMirror waits until the source's mirror has exactly these addresses, with "!"
// appended to those that are not ready; without addresses, until there is no mirror.
func (m mirrorFixture) waitMirror(source string, want ...string) *discoveryv1.EndpointSlice {
	m.t.Helper()
	var s *discoveryv1.EndpointSlice
	Eventually(m.t, func() (err error) {
		s, err = m.mirrorOf(source)
		if len(want) == 0 {
			if client.IgnoreNotFound(err) == nil && err != nil {
				return nil
			}
			return fmt.Errorf("%s has a mirror: %v, %v", source, s.Endpoints, err)
		}
		if err != nil {
			return err
		}
		var got []string
		for _, e := range s.Endpoints {
			a := strings.Join(e.Addresses, "+")
			if r := e.Conditions.Ready; r != nil && !*r {
				a += "!"
			}
			got = append(got, a)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the mirror of %s has %v, want %v", source, got, want)
		}
		return nil
	})
	return s
}

func (m mirrorFixture) patch(o client.Object, body string) {
	m.t.Helper()
	if err := m.Patch(m.ctx, o, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
		m.t.Fatal(err)
	}
}

// sliceWrites counts the controller's writes of EndpointSlices. It leaves out
// deletions of a barrier's mirror, which the garbage collector may do first.
func sliceWrites(c *testController) (n int, list string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(c.by)) {
		if strings.Contains(k, "/endpointslices") && !(strings.HasPrefix(k, "DELETE") && strings.Contains(k, "/barrier")) {
			n += c.by[k]
			list += fmt.Sprintf("\n  %d × %s", c.by[k], k)
		}
	}
	return n, list
}

// Mirrors follow a Service's slices: pods, IP families, readiness, host network,
// addresses that are assigned later, and deletion.
func TestEndpointMirrorFollowsService(t *testing.T) {
	needAPI(t)
	c := startController(t, mirrorConfig(t))
	m := newMirrorFixture(t, "mirror")
	a, late, host := m.createEndpointPod("a", 5, false), m.createEndpointPod("late", 0, false), m.createEndpointPod("host", 0, true)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: "web"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}
	m.create(svc)
	setOwner := func(s *discoveryv1.EndpointSlice) {
		yes := true
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: svc.UID, Controller: &yes, BlockOwnerDeletion: &yes}}
		if err := m.Update(m.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	v4 := m.createSlice("web-four1", "web", kubernetesManager, discoveryv1.AddressTypeIPv4,
		endpointOf(late, true, "10.244.1.6"), endpointOf(a, true, "10.244.1.5"), endpointOf(host, true, "192.168.7.1"))
	v6 := m.createSlice("web-six11", "web", kubernetesManager, discoveryv1.AddressTypeIPv6, endpointOf(a, true, "fd10:244:0:1::5"))
	setOwner(v4)
	setOwner(v6)
	mirror := m.waitMirror("web-four1", "10.120.1.5", "192.168.7.1")
	m.waitMirror("web-six11", "fd20:120:0:1::5")
	if mirror.Labels[discoveryv1.LabelManagedBy] != "endpointslice-mirror-controller.k8s.ovn.org" || mirror.Labels["k8s.ovn.org/service-name"] != "web" ||
		mirror.Labels[discoveryv1.LabelServiceName] != "" || mirror.Annotations["k8s.ovn.org/source-endpointslice"] != "web-four1" ||
		mirror.Annotations["k8s.ovn.org/endpointslice-network"] != network.CUDNName(m.net) {
		t.Errorf("labels %v, annotations %v", mirror.Labels, mirror.Annotations)
	}
	if len(mirror.Ports) != 1 || *mirror.Ports[0].Port != 8080 || mirror.Endpoints[0].TargetRef == nil || mirror.Endpoints[0].TargetRef.UID != a.UID {
		t.Errorf("ports %v, endpoints %v", mirror.Ports, mirror.Endpoints)
	}

	// The zone assigns the pod's addresses: the pod's event, not a retry,
	// completes the mirror.
	start := time.Now()
	m.patch(late, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, network.AnnotationPodNetworks, m.addresses(6)))
	m.waitMirror("web-four1", "10.120.1.5", "10.120.1.6", "192.168.7.1")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the mirror was complete after %s: it waited for a timer", took)
	}

	v4.Endpoints[1].Conditions.Ready = new(bool)
	if err := m.Update(m.ctx, v4); err != nil {
		t.Fatal(err)
	}
	mirror = m.waitMirror("web-four1", "10.120.1.5!", "10.120.1.6", "192.168.7.1")

	// A change of fields that the mirror does not copy causes no write.
	before, _ := sliceWrites(c)
	m.patch(v4, `{"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-01T00:00:00Z"},"labels":{"more":"labels"}}}`)
	m.barrier("barrier")
	if again := m.waitMirror("web-four1", "10.120.1.5!", "10.120.1.6", "192.168.7.1"); again.ResourceVersion != mirror.ResourceVersion {
		t.Error("the mirror was written though nothing that it copies changed")
	}
	if n, list := sliceWrites(c); n != before+1 {
		t.Errorf("%d writes of EndpointSlices, want the barrier's one:%s", n-before, list)
	}

	// Mirrors do not block the foreground deletion of the Service.
	if err := m.Delete(m.ctx, svc, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	m.waitGone(svc)
	m.waitMirror("web-four1")
	m.waitMirror("web-six11")
}

// barrier waits until the controller has reconciled all earlier changes.
func (m mirrorFixture) barrier(name string) {
	m.t.Helper()
	s := m.createSlice(name, name, "", discoveryv1.AddressTypeIPv4, endpointOf(nil, true, "203.0.113.1"))
	m.waitMirror(name, "203.0.113.1")
	m.remove(s)
	m.waitMirror(name)
}

// Services without a selector: slices written by hand, or mirrored by Kubernetes
// from Endpoints.
func TestEndpointMirrorWithoutSelector(t *testing.T) {
	needAPI(t)
	startController(t, mirrorConfig(t))
	m := newMirrorFixture(t, "manual")
	m.createEndpointPod("a", 5, false)
	m.createSlice("by-hand", "ext", "", discoveryv1.AddressTypeIPv4,
		endpointOf(nil, true, "203.0.113.9"), endpointOf(nil, true, "10.120.9.9"), endpointOf(nil, true, "10.244.1.5"),
		endpointOf(nil, true, "10.244.66.6"), endpointOf(nil, true, "100.64.0.9"))
	m.createSlice("from-endpoints", "ext", "endpointslicemirroring-controller.k8s.io", discoveryv1.AddressTypeIPv6,
		endpointOf(nil, true, "fd10:244:0:1::5"), endpointOf(nil, true, "fd10:244::66"), endpointOf(nil, true, "2001:db8::9"))
	m.createSlice("names", "ext", "", discoveryv1.AddressTypeFQDN, endpointOf(nil, true, "example.org"))
	m.createSlice("strangers", "ext", "", discoveryv1.AddressTypeIPv4, endpointOf(nil, true, "10.244.66.6"))
	m.waitMirror("by-hand", "10.120.1.5", "10.120.9.9", "203.0.113.9")
	m.waitMirror("from-endpoints", "2001:db8::9", "fd20:120:0:1::5")
	// The pod with the address is created after the slice.
	m.createEndpointPod("b", 7, false)
	m.createSlice("late", "ext", "", discoveryv1.AddressTypeIPv4, endpointOf(nil, true, "10.244.1.8"))
	b := m.createEndpointPod("c", 8, false)
	m.waitMirror("late", "10.120.1.8")
	m.remove(b)
	m.waitMirror("late")
	m.barrier("barrier")
	for _, none := range []string{"names", "strangers"} {
		if s, err := m.mirrorOf(none); err == nil {
			t.Errorf("%s has a mirror: %v", none, s.Endpoints)
		}
	}
}

// Only namespaces with a primary network have mirrors, which follow the network;
// the controller leaves other controllers' slices alone.
func TestEndpointMirrorFollowsNetwork(t *testing.T) {
	needAPI(t)
	c := startController(t, mirrorConfig(t))
	w := newFixture(t)
	plain := mirrorFixture{w, "mirror-plain", ""}
	ns := w.namespace(plain.ns, false)
	defer w.remove(ns)
	plain.createSlice("web-plain", "web", kubernetesManager, discoveryv1.AddressTypeIPv4, endpointOf(nil, true, "203.0.113.9"))

	// The slice is older than the network.
	first := mirrorFixture{w, "mirror-net", "mirror-one"}
	ns = w.namespace(first.ns, true, "team=mirror-net")
	defer w.remove(ns)
	first.createSlice("web-1", "web", "", discoveryv1.AddressTypeIPv4, endpointOf(nil, true, "203.0.113.9"), endpointOf(nil, true, "10.131.0.9"))
	one := newCUDN("mirror-one", "mirror-net", "10.130.0.0/16")
	w.create(one)
	defer w.remove(one)
	first.waitMirror("web-1", "10.131.0.9", "203.0.113.9")

	// Another controller's slice with our label.
	theirs := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: first.ns, Name: "theirs", Labels: map[string]string{
		discoveryv1.LabelManagedBy: network.EndpointSliceManager, network.LabelMirrorService: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{endpointOf(nil, true, "192.0.2.1")}}
	w.create(theirs)

	// The controller repairs a changed mirror.
	mirror := first.waitMirror("web-1", "10.131.0.9", "203.0.113.9")
	for _, body := range []string{
		`{"endpoints":[{"addresses":["192.0.2.66"]}]}`,
		`{"metadata":{"labels":null}}`,
		`{"metadata":{"ownerReferences":null}}`,
		`{"metadata":{"annotations":null}}`,
		`{"metadata":{"labels":{"kubernetes.io/service-name":"web"}}}`,
	} {
		first.patch(mirror.DeepCopy(), body)
		Eventually(t, func() error {
			m, err := first.mirrorOf("web-1")
			if err != nil {
				return err
			}
			if !equality.Semantic.DeepEqual(m.Endpoints, mirror.Endpoints) || !maps.Equal(m.Labels, mirror.Labels) ||
				!maps.Equal(m.Annotations, mirror.Annotations) || !equality.Semantic.DeepEqual(m.OwnerReferences, mirror.OwnerReferences) {
				return fmt.Errorf("not repaired after patch %s: %+v", body, m)
			}
			return nil
		})
	}
	w.remove(mirror)
	first.waitMirror("web-1", "10.131.0.9", "203.0.113.9")

	// Another network, with other subnets.
	w.remove(one)
	w.waitGone(one)
	first.waitMirror("web-1")
	two := newCUDN("mirror-two", "mirror-net", "10.131.0.0/16", "fd20:131::/48")
	w.create(two)
	defer w.remove(two)
	mirror = first.waitMirror("web-1", "10.131.0.9", "203.0.113.9")
	if mirror.Annotations[network.AnnotationMirrorOn] != network.CUDNName("mirror-two") {
		t.Errorf("annotations %v", mirror.Annotations)
	}
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(theirs), theirs); err != nil || theirs.DeletionTimestamp != nil || theirs.Generation != 1 {
		t.Errorf("the other controller's slice: %v, %+v", err, theirs.ObjectMeta)
	}
	if _, err := plain.mirrorOf("web-plain"); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a slice on the cluster default network has a mirror: %v", err)
	}

	// The source is recreated with another IP family.
	src := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: first.ns, Name: "web-1"}}
	w.remove(src)
	first.createSlice("web-1", "web", "", discoveryv1.AddressTypeIPv6, endpointOf(nil, true, "2001:db8::9"))
	first.waitMirror("web-1", "2001:db8::9")
	w.remove(src)
	first.waitMirror("web-1")
	if n, list := sliceWrites(c); strings.Contains(list, plain.ns) {
		t.Errorf("%d writes, some on the cluster default network:%s", n, list)
	}
}

// A restarted controller writes nothing when all mirrors are up to date; and a
// namespace with mirrors can be deleted.
func TestEndpointMirrorRestartAndNamespaceDeletion(t *testing.T) {
	needAPI(t)
	first := startController(t, mirrorConfig(t))
	m := newMirrorFixture(t, "mirror-restart")
	const services = 20
	want := map[string][]string{}
	for i := range services {
		p := m.createEndpointPod(fmt.Sprint("p", i), 10+i, false)
		v4, v6, hand := fmt.Sprintf("svc-%d-four", i), fmt.Sprintf("svc-%d-six", i), fmt.Sprintf("svc-%d-hand", i)
		m.createSlice(v4, "svc", kubernetesManager, discoveryv1.AddressTypeIPv4, endpointOf(p, true, fmt.Sprint("10.244.1.", 10+i)))
		m.createSlice(v6, "svc", kubernetesManager, discoveryv1.AddressTypeIPv6, endpointOf(p, true, fmt.Sprint("fd10:244:0:1::", 10+i)))
		m.createSlice(hand, "svc", "", discoveryv1.AddressTypeIPv4, endpointOf(nil, true, fmt.Sprint("10.244.1.", 10+i)))
		want[v4], want[v6], want[hand] = []string{fmt.Sprint("10.120.1.", 10+i)}, []string{fmt.Sprint("fd20:120:0:1::", 10+i)}, []string{fmt.Sprint("10.120.1.", 10+i)}
	}
	for source, addresses := range want {
		m.waitMirror(source, addresses...)
	}
	first.stop()
	if n, list := sliceWrites(first); n != len(want) {
		t.Errorf("%d writes for %d mirrors:%s", n, len(want), list)
	}
	second := startController(t, mirrorConfig(t))
	m.barrier("barrier") // the controller is the leader
	m.barrier("barrier") // the queue has all existing slices before this one
	if n, list := sliceWrites(second); n != 2 {
		t.Errorf("after a restart %d writes, want the 2 of the barriers:%s", n, list)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.ns}}
	m.remove(ns)
	m.waitGone(ns)
	second.stop()
	n, _ := sliceWrites(second)
	t.Logf("%d writes of EndpointSlices while the namespace with %d mirrors was deleted", n-2, len(want))
}
