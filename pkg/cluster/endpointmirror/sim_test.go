// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// sim is the reconciler with an API server and a cache that lags behind it.
type sim struct {
	t             rapid.TB
	ctx           context.Context
	server, cache *fakeAPI
	r             *Reconciler
	queue         workqueue.TypedRateLimitingInterface[Source]
	errors        int
}

func newSim(t rapid.TB) *sim {
	s := &sim{t: t, ctx: context.Background(), server: newFakeAPI(), cache: newFakeAPI()}
	s.restart()
	return s
}

// restart replaces the reconciler, as when another process becomes the leader
// with a filled cache.
func (s *sim) restart() {
	s.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Source](time.Hour, time.Hour))
	target := &Kube{Cache: s.cache, Client: s.server, Now: func() time.Time { return time.Unix(0, 0) }, Log: slog.New(slog.DiscardHandler)}
	s.r = NewReconciler(s.cache, testPlan, target, slog.New(slog.DiscardHandler))
	for _, key := range s.cache.keys() {
		s.notify(nil, s.cache.objects[key], true)
	}
}

// notify calls the event handlers for a change of an object in the cache.
func (s *sim) notify(old, current client.Object, initial bool) {
	dispatch[slice](s, s.r.sliceEvents(), old, current, initial)
	dispatch[*corev1.Pod](s, s.r.podEvents(), old, current, initial)
	dispatch[nad](s, s.r.nadEvents(), old, current, initial)
	dispatch[meta](s, s.r.namespaceEvents(), old, current, initial)
}

type events[T client.Object] interface {
	Create(context.Context, event.TypedCreateEvent[T], queue)
	Update(context.Context, event.TypedUpdateEvent[T], queue)
	Delete(context.Context, event.TypedDeleteEvent[T], queue)
}

func dispatch[T client.Object](s *sim, h events[T], old, current client.Object, initial bool) {
	o, existed := old.(T)
	n, exists := current.(T)
	switch {
	case existed && exists:
		h.Update(s.ctx, event.TypedUpdateEvent[T]{ObjectOld: o, ObjectNew: n}, s.queue)
	case existed:
		h.Delete(s.ctx, event.TypedDeleteEvent[T]{Object: o}, s.queue)
	case exists:
		h.Create(s.ctx, event.TypedCreateEvent[T]{Object: n, IsInInitialList: initial}, s.queue)
	}
}

// undelivered returns the kinds of which the cache lacks changes.
func (s *sim) undelivered() []string {
	var out []string
	for kind, changes := range s.server.pending {
		if len(changes) > 0 {
			out = append(out, kind)
		}
	}
	slices.Sort(out)
	return out
}

// deliver applies the next change of a kind to the cache.
func (s *sim) deliver(kind string) {
	next := s.server.pending[kind][0]
	s.server.pending[kind] = s.server.pending[kind][1:]
	old := s.cache.objects[next.key]
	if next.object == nil {
		delete(s.cache.objects, next.key)
	} else {
		s.cache.objects[next.key] = next.object
	}
	s.notify(old, next.object, false)
}

// reconcile reconciles the next key of the queue.
func (s *sim) reconcile() {
	key, _ := s.queue.Get()
	if _, err := s.r.Reconcile(s.ctx, key); err != nil {
		s.errors++
		s.queue.Add(key)
	}
	s.queue.Done(key)
}

// drain delivers all changes and reconciles all keys.
func (s *sim) drain() {
	for n := 0; s.queue.Len() > 0 || len(s.undelivered()) > 0; n++ {
		for _, key := range s.undelivered() {
			s.deliver(key)
		}
		for remaining := s.queue.Len(); remaining > 0; remaining-- {
			s.reconcile()
		}
		if n > 500 {
			s.t.Fatalf("does not converge: undelivered %v, %d keys, %d errors", s.undelivered(), s.queue.Len(), s.errors)
		}
	}
}

// checkMirrors compares the mirrors on the server with those that Build returns
// for inputs from all objects there.
func (s *sim) checkMirrors() {
	s.t.Helper()
	want, got := map[string]Mirror{}, map[string]Mirror{}
	for _, key := range s.server.keys() {
		x, ok := s.server.objects[key].(slice)
		if !ok {
			continue
		}
		if _, mirror := SourceOf(x); mirror {
			m := mirrorOf(x)
			got[x.Namespace+"/"+x.Name] = m
			continue
		}
		for name, m := range Build(s.expectedInputs(x), State{}).Mirrors {
			want[x.Namespace+"/"+name] = m
		}
	}
	if d := cmp.Diff(want, got, sameState); d != "" {
		s.t.Fatalf("(-want +got):\n%s", d)
	}
}

func (s *sim) expectedInputs(x slice) Inputs {
	in := Inputs{Source: Source{x.Namespace, x.Name}, Slice: x, Plan: testPlan, Pods: map[PodRef]Pod{}, ByAddress: map[netip.Addr]Pod{}}
	lookup := kube.Lookup{Cache: s.server, Plan: testPlan}
	primary, err := lookup.Primary(s.ctx, x.Namespace)
	if err != nil || primary == nil {
		return in
	}
	in.Network = &primary.Network
	behind := map[netip.Addr]string{} // namespace of the pod in ByAddress
	for _, key := range s.server.keys() {
		p, ok := s.server.objects[key].(*corev1.Pod)
		if !ok {
			continue
		}
		pod := Pod{UID: p.UID, HostNetwork: p.Spec.HostNetwork}
		nets, _ := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
		if theirs, err := lookup.Primary(s.ctx, p.Namespace); err == nil && theirs != nil && theirs.Network.Name == in.Network.Name {
			for _, ip := range nets[theirs.Key()].IPs {
				pod.Addresses = append(pod.Addresses, ip.Addr())
			}
		}
		in.Pods[PodRef{p.Namespace, p.Name}] = pod
		for _, ip := range nets["default"].IPs {
			if _, found := in.ByAddress[ip.Addr()]; len(pod.Addresses) > 0 && (!found || p.Namespace == x.Namespace && p.Namespace != behind[ip.Addr()]) {
				in.ByAddress[ip.Addr()], behind[ip.Addr()] = pod, p.Namespace
			}
		}
	}
	return in
}

func namespaceObject(name string, label bool) *metav1.PartialObjectMetadata {
	ns := namespaceMeta()
	ns.Name = name
	if label {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	return ns
}

func nadObject(namespace, name, net, subnets string) *nadv1.NetworkAttachmentDefinition {
	n := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Annotations: map[string]string{network.AnnotationNetworkID: "7"}}}
	n.Spec.Config = fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":%q,"netAttachDefName":"%s/%s"}`,
		net, subnets, namespace, name)
	return n
}

// podObject returns pod number n of a namespace, with addresses on the network of
// a NAD, or without addresses.
func podObject(namespace string, n int, nad string, address int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("pod-", n)}}
	if nad != "" {
		p.Annotations = map[string]string{network.AnnotationPodNetworks: fmt.Sprintf(
			`{"default":{"ip_addresses":["%s/24"],"mac_address":"0a:58:0a:f4:00:05","role":"infrastructure-locked"},`+
				`"%s/%s":{"ip_addresses":["10.20.1.%d/24","fd20:0:0:1::%d/64"],"mac_address":"0a:58:0a:14:01:05","role":"primary"}}`,
			defaultOf(namespace, address), namespace, nad, 10+n, 10+n)}
	}
	return p
}

func defaultOf(namespace string, n int) string {
	return fmt.Sprintf("10.244.%d.%d", namespace[0], 10+n)
}

// After any sequence of changes to slices, pods, networks, namespaces and mirrors,
// and with any delay of the cache, the mirrors reach the desired state, no
// reconcile fails, and a restart writes nothing.
func TestConvergence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t)
		namespaces := []string{"alpha", "beta", "plain"}
		if rapid.Bool().Draw(t, "usual start") {
			for _, ns := range namespaces {
				s.server.put(namespaceObject(ns, ns != "plain"))
				s.server.put(nadObject(ns, "net", "shared", "10.20.0.0/16/24"))
			}
			s.drain()
		}
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if kinds := s.undelivered(); len(kinds) > 0 && rapid.Bool().Draw(t, "deliver") {
				s.deliver(rapid.SampledFrom(kinds).Draw(t, "kind"))
				continue
			}
			if s.queue.Len() > 0 && rapid.Bool().Draw(t, "work") {
				s.reconcile()
				continue
			}
			s.randomChange(t, rapid.SampledFrom(namespaces).Draw(t, "namespace"), step)
		}
		s.drain()
		s.checkMirrors()
		if s.errors > 0 || s.server.redundant > 0 {
			t.Fatalf("%d reconciles failed, %d redundant writes", s.errors, s.server.redundant)
		}
		writes := s.server.writes
		s.restart()
		s.drain()
		if s.server.writes != writes {
			t.Fatalf("%d writes after a restart", s.server.writes-writes)
		}
		for _, key := range s.server.keys() {
			s.server.remove(key)
		}
		s.drain()
		if i := &s.r.deps; len(i.byDependency)+len(i.bySource)+len(i.podsByAddr)+len(s.r.target.writes.bySource) > 0 {
			t.Fatalf("all objects are deleted, but the indexes hold %v %v %v %v", i.byDependency, i.bySource, i.podsByAddr, s.r.target.writes.bySource)
		}
	})
}

// sliceObject returns a custom slice with endpoints outside the cluster.
func sliceObject(namespace, name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: "svc"}}, AddressType: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// Mirrors stay unchanged while the primary network is unknown or the namespace is
// being deleted, and are updated afterwards.
func TestMirrorsStayUnchanged(t *testing.T) {
	valid := nadObject("alpha", "net", "shared", "10.20.0.0/16/24")
	deleting := namespaceObject("alpha", true)
	deleting.DeletionTimestamp = ptr(metav1.Now())
	for name, tt := range map[string]struct{ during, after []client.Object }{
		"malformed NAD":        {[]client.Object{nadObject("alpha", "net", "shared", "10.20.0.0/16/99")}, []client.Object{valid.DeepCopy()}},
		"two primary networks": {[]client.Object{nadObject("alpha", "second", "other", "10.30.0.0/16/24")}, nil},
		"deleting":             {[]client.Object{deleting}, []client.Object{namespaceObject("alpha", true)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t)
			s.server.put(namespaceObject("alpha", true))
			s.server.put(valid.DeepCopy())
			s.server.put(sliceObject("alpha", "svc-0", "203.0.113.9"))
			s.server.put(sliceObject("alpha", "svc-1", "203.0.113.9"))
			s.drain()
			s.checkMirrors()
			for _, o := range tt.during {
				s.server.put(o)
			}
			s.drain()
			writes := s.server.writes
			s.server.put(sliceObject("alpha", "svc-0", "203.0.113.10"))
			s.server.put(sliceObject("alpha", "svc-2", "203.0.113.11"))
			s.drain()
			if s.server.writes != writes {
				t.Errorf("%d writes, want none", s.server.writes-writes)
			}
			for _, o := range tt.after {
				s.server.put(o)
			}
			if tt.after == nil {
				s.server.remove(keyOf(tt.during[0]))
			}
			s.drain()
			s.checkMirrors()
		})
	}
}

// Slices and pods of namespaces without a primary network are ignored and not
// indexed.
func TestDefaultNetworkIgnored(t *testing.T) {
	s := newSim(t)
	s.server.put(namespaceObject("plain", false))
	s.drain()
	const n = 10000
	start := time.Now()
	for i := range n {
		s.server.put(sliceObject("plain", fmt.Sprint("svc-", i), "10.244.1.5"))
		s.deliver("EndpointSlice")
		p := podObject("plain", i, "", 0)
		s.server.put(p)
		s.deliver("Pod")
	}
	t.Logf("%s per event", time.Since(start)/(2*n))
	if s.queue.Len() > 0 || s.server.writes > 0 || len(s.r.deps.bySource)+len(s.r.deps.podsByAddr) > 0 {
		t.Errorf("%d keys, %d writes, %d sources and %d addresses indexed", s.queue.Len(), s.server.writes, len(s.r.deps.bySource), len(s.r.deps.podsByAddr))
	}
}

// randomChange makes one change to the objects on the server.
func (s *sim) randomChange(t *rapid.T, ns string, step int) {
	n := rapid.IntRange(0, 2).Draw(t, "number")
	net := rapid.SampledFrom([]string{"shared", "own-" + ns}).Draw(t, "network")
	remove := func(o client.Object) { s.server.remove(keyOf(o)) }
	src := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprint("svc-", n)}}
	if home := namespaceObject(ns, ns != "plain"); s.server.objects[keyOf(home)] == nil {
		s.server.put(home)
		return
	}
	action := rapid.SampledFrom([]string{"slice", "slice", "slice", "new slice", "no slice", "pod", "pod", "bare pod", "no pod", "nad", "nad", "no nad",
		"namespace", "no namespace", "tamper", "collect"}).Draw(t, "action")
	switch action {
	case "new slice", "slice":
		src.Labels = map[string]string{discoveryv1.LabelServiceName: "svc"}
		src.AddressType = rapid.SampledFrom([]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}).Draw(t, "family")
		if old, ok := s.server.objects[keyOf(src)]; ok && action == "new slice" {
			remove(src)
		} else if ok {
			src.AddressType = old.(slice).AddressType
		}
		for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			of, k := rapid.SampledFrom([]string{"alpha", "beta"}).Draw(t, "pod's namespace"), rapid.IntRange(0, 2).Draw(t, "pod")
			e := discoveryv1.Endpoint{Addresses: []string{defaultOf(of, k)}}
			if rapid.Bool().Draw(t, "by reference") {
				e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: of, Name: fmt.Sprint("pod-", k)}
			}
			src.Endpoints = append(src.Endpoints, e)
		}
		if rapid.Bool().Draw(t, "external") {
			address := map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "203.0.113.9", discoveryv1.AddressTypeIPv6: "2001:db8::9"}
			src.Endpoints = append(src.Endpoints, discoveryv1.Endpoint{Addresses: []string{address[src.AddressType]}})
		}
		s.server.put(src)
	case "no slice":
		remove(src)
	case "pod":
		s.server.put(podObject(ns, n, "net", rapid.IntRange(0, 2).Draw(t, "address")))
	case "bare pod":
		s.server.put(podObject(ns, n, "", 0))
	case "no pod":
		remove(podObject(ns, n, "", 0))
	case "nad":
		s.server.put(nadObject(ns, "net", net, rapid.SampledFrom([]string{"10.20.0.0/16/24", "10.20.0.0/16/24,fd20::/48/64"}).Draw(t, "subnets")))
	case "no nad":
		remove(nadObject(ns, "net", net, ""))
	case "namespace":
		s.server.put(namespaceObject(ns, rapid.Bool().Draw(t, "label")))
	case "no namespace": // its contents are deleted first
		for _, key := range s.server.keys() {
			if s.server.objects[key].GetNamespace() == ns {
				s.server.remove(key)
			}
		}
		remove(namespaceObject(ns, false))
	case "tamper":
		s.tamper(t, src, step)
	case "collect":
		s.collectGarbage()
	}
}

// tamper changes a mirror as another writer.
func (s *sim) tamper(t *rapid.T, src *discoveryv1.EndpointSlice, step int) {
	src.Name = MirrorName(src.Name)
	have, ok := s.server.objects[keyOf(src)].(slice)
	if !ok {
		return
	}
	m := have.DeepCopy()
	switch rapid.SampledFrom([]string{"delete", "label", "reference", "endpoints", "expose", "copy"}).Draw(t, "kind") {
	case "delete":
		s.server.remove(keyOf(src))
		return
	case "label":
		m.Labels = nil
	case "reference":
		m.OwnerReferences = nil
	case "endpoints":
		m.Endpoints = append(m.Endpoints, discoveryv1.Endpoint{Addresses: []string{"192.0.2.66"}})
	case "expose":
		if m.Labels == nil {
			m.Labels = map[string]string{}
		}
		m.Labels[discoveryv1.LabelServiceName] = "svc"
	case "copy":
		if m.OwnerReferences == nil || m.Labels[discoveryv1.LabelManagedBy] == "" {
			return // the copy would not be a mirror
		}
		m.Name, m.UID = fmt.Sprint("copy-", step), ""
	}
	s.server.put(m)
}

// collectGarbage deletes objects without owner, as Kubernetes does.
func (s *sim) collectGarbage() {
	uids := map[types.UID]bool{}
	for _, o := range s.server.objects {
		uids[o.GetUID()] = true
	}
	for _, key := range s.server.keys() {
		if refs := s.server.objects[key].GetOwnerReferences(); len(refs) > 0 && !uids[refs[0].UID] {
			s.server.remove(key)
		}
	}
}
