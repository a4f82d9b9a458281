// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// sim is a cluster in memory with the reconciler. Its API server is also the
// cache, and its queue is a list that drain processes.
type sim struct {
	t      reporter
	ctx    context.Context
	api    client.Client
	target *faultyTarget
	r      *Reconciler
	events *events.FakeRecorder
	queue  []Key
	uids   int
	clock  time.Time
	marks  idlease.Memory

	lateClaims bool // the CRD of IPAMClaims is installed after the process has started, before Restore
}

// reporter is a *testing.T or a *rapid.T.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// faultyTarget fails before or after a write.
type faultyTarget struct {
	Target
	writes int
	// The number of the write that fails, and whether it takes effect.
	failAt int
	after  bool
}

var errFault = errors.New("the process was killed")

func (f *faultyTarget) Apply(ctx context.Context, ops []Op) error {
	for _, op := range ops {
		f.writes++
		if f.writes == f.failAt && !f.after {
			return errFault
		}
		if err := f.Target.Apply(ctx, []Op{op}); err != nil {
			return err
		}
		if f.writes == f.failAt {
			return errFault
		}
	}
	return nil
}

// everyPhase ignores field selectors, because the fake API server does not
// support the one for phases.
type everyPhase struct{ client.Reader }

func (e everyPhase) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	opts = slices.DeleteFunc(opts, func(o client.ListOption) bool { _, ok := o.(client.MatchingFieldsSelector); return ok })
	return e.Reader.List(ctx, l, opts...)
}

func testPlan(t testing.TB) network.Plan {
	t.Helper()
	cfg, err := config.Parse("[default]\ncluster-subnets = 10.244.0.0/16/24,fd10:244::/48/64\nservice-cidrs = 10.96.0.0/16,fd96::/112\n")
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Plan
}

func newSim(t testing.TB) *sim {
	t.Helper()
	return newSimFor(t, testPlan(t))
}

func newSimFor(t reporter, plan network.Plan) *sim {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, nadv1.AddToScheme, ipamclaimv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatalf("%v", err)
		}
	}
	s := &sim{t: t, ctx: context.Background(), clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&ipamclaimv1.IPAMClaim{}).Build()
	s.restart(plan)
	return s
}

// restart replaces the reconciler, as when another process becomes the leader.
func (s *sim) restart(plan network.Plan) {
	s.events = events.NewFakeRecorder(1000)
	live := everyPhase{s.api}
	s.target = &faultyTarget{Target: &Kube{Cache: s.api, Live: live, Client: s.api, Now: func() time.Time { return s.clock }}}
	s.r = NewReconciler(plan, time.Hour, s.api, live, s.target, &s.marks, func() time.Time { return s.clock }, s.events, slog.New(slog.DiscardHandler))
	if s.lateClaims {
		s.r.discover.watch = func() error { s.r.hasClaims.Store(true); return nil }
	} else {
		s.r.hasClaims.Store(true)
	}
	s.queue = nil
	s.r.setEnqueue(func(k Key) { s.queue = append(s.queue, k) })
	var nads nadv1.NetworkAttachmentDefinitionList
	s.must(s.api.List(s.ctx, &nads))
	for i := range nads.Items { // as a controller does before its first Reconcile
		s.notifyNAD(&nads.Items[i])
	}
	s.must(s.r.Restore(s.ctx))
	var pods corev1.PodList
	s.must(s.api.List(s.ctx, &pods))
	for i := range pods.Items {
		s.queue = append(s.queue, Key{Namespace: pods.Items[i].Namespace, Name: pods.Items[i].Name})
	}
	var claims ipamclaimv1.IPAMClaimList
	s.must(s.api.List(s.ctx, &claims))
	for i := range claims.Items {
		s.queue = append(s.queue, Key{Claim: true, Namespace: claims.Items[i].Namespace, Name: claims.Items[i].Name})
	}
}

func (s *sim) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v", err)
	}
}

func (s *sim) meta(namespace, name string, annotations map[string]string) metav1.ObjectMeta {
	s.uids++
	s.clock = s.clock.Add(time.Second)
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("uid-%d", s.uids)),
		CreationTimestamp: metav1.NewTime(s.clock), Annotations: annotations}
}

func (s *sim) namespace(name string, primary bool) {
	s.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if primary {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	s.must(s.api.Create(s.ctx, ns))
}

// nad creates a NAD with the given id. conf is its JSON without the common keys.
func (s *sim) nad(namespace, name string, id int, networkName, conf string) *nadv1.NetworkAttachmentDefinition {
	s.t.Helper()
	n := &nadv1.NetworkAttachmentDefinition{ObjectMeta: s.meta(namespace, name, map[string]string{
		network.AnnotationNetworkID: fmt.Sprint(id), network.AnnotationNetworkName: networkName,
	})}
	n.Spec.Config = fmt.Sprintf(`{"cniVersion":"1.1.0","type":"ovn-k8s-cni-overlay","name":%q,"netAttachDefName":"%s/%s",%s}`, networkName, namespace, name, conf)
	s.must(s.api.Create(s.ctx, n))
	s.notifyNAD(n)
	return n
}

func (s *sim) notifyNAD(n *nadv1.NetworkAttachmentDefinition) {
	s.r.nadEvents().CreateFunc(s.ctx, nadCreated(n), nil)
}

// pod creates a pod and drains the queue.
func (s *sim) pod(namespace, name string, annotations map[string]string) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{ObjectMeta: s.meta(namespace, name, annotations), Spec: corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	s.must(s.api.Create(s.ctx, p))
	s.queue = append(s.queue, Key{Namespace: namespace, Name: name})
	s.drain()
	return p
}

func (s *sim) markRunning(namespace, name string) {
	s.t.Helper()
	p := &corev1.Pod{}
	s.must(s.api.Get(s.ctx, types.NamespacedName{Namespace: namespace, Name: name}, p))
	p.Status.Phase = corev1.PodRunning
	s.must(s.api.Status().Update(s.ctx, p))
}

// reportIPs sets the addresses that kubelet reports once the pod's interfaces exist.
func (s *sim) reportIPs(namespace, name string) {
	s.t.Helper()
	p := &corev1.Pod{}
	s.must(s.api.Get(s.ctx, types.NamespacedName{Namespace: namespace, Name: name}, p))
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.0.9"}}
	s.must(s.api.Status().Update(s.ctx, p))
}

func (s *sim) remove(o client.Object) {
	s.t.Helper()
	s.must(client.IgnoreNotFound(s.api.Delete(s.ctx, o)))
	k := Key{Namespace: o.GetNamespace(), Name: o.GetName()}
	if c, ok := o.(*ipamclaimv1.IPAMClaim); ok {
		s.notifyClaim(c)
		return
	}
	s.queue = append(s.queue, k)
	s.drain()
}

func (s *sim) claim(namespace, name, networkName string) *ipamclaimv1.IPAMClaim {
	s.t.Helper()
	c := &ipamclaimv1.IPAMClaim{ObjectMeta: s.meta(namespace, name, nil), Spec: ipamclaimv1.IPAMClaimSpec{Network: networkName, Interface: "ovn-udn1"}}
	s.must(s.api.Create(s.ctx, c))
	s.notifyClaim(c)
	return c
}

func (s *sim) notifyClaim(c *ipamclaimv1.IPAMClaim) {
	s.t.Helper()
	s.queue = append(s.queue, Key{Claim: true, Namespace: c.Namespace, Name: c.Name})
	s.r.mu.Lock()
	s.r.tracker.waiting.notifyAll(topicClaim(c.Namespace + "/" + c.Name))
	s.r.mu.Unlock()
	s.drain()
}

// drain reconciles until the queue is empty. After a fault it restarts.
func (s *sim) drain() {
	s.t.Helper()
	for n := 0; len(s.queue) > 0; n++ {
		if n > 10000 {
			s.t.Fatalf("the queue does not empty: %v", s.queue)
		}
		k := s.queue[0]
		s.queue = slices.DeleteFunc(s.queue[1:], func(o Key) bool { return o == k })
		if _, err := s.r.Reconcile(s.ctx, k); errors.Is(err, errFault) {
			s.restart(s.r.lookup.Plan)
		} else if err != nil {
			s.t.Fatalf("%v: %v", k, err)
		}
	}
}

// entry returns the entry of the pod's annotation with the given key.
func (s *sim) entry(namespace, name, key string) (network.PodNetwork, bool) {
	s.t.Helper()
	p := &corev1.Pod{}
	s.must(s.api.Get(s.ctx, types.NamespacedName{Namespace: namespace, Name: name}, p))
	nets, err := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
	s.must(err)
	n, ok := nets[key]
	return n, ok
}

// ips returns the addresses of a pod's entry: "" for no entry, "none" for no
// addresses.
func (s *sim) ips(namespace, name, key string) string {
	s.t.Helper()
	n, ok := s.entry(namespace, name, key)
	if !ok {
		return ""
	}
	if len(n.IPs) == 0 {
		return "none"
	}
	return join(n.IPs)
}

func (s *sim) wantEvent(parts ...string) {
	s.t.Helper()
	select {
	case e := <-s.events.Events:
		for _, p := range append(parts, "Warning ErrorAllocatingPod") {
			if !strings.Contains(e, p) {
				s.t.Errorf("event %q does not contain %q", e, p)
			}
		}
	default:
		s.t.Errorf("no event with %q", parts)
	}
}

func (s *sim) wantNoEvent() {
	s.t.Helper()
	select {
	case e := <-s.events.Events:
		s.t.Errorf("event %q", e)
	default:
	}
}

func (s *sim) status(namespace, name string) ipamclaimv1.IPAMClaimStatus {
	s.t.Helper()
	c := &ipamclaimv1.IPAMClaim{}
	s.must(s.api.Get(s.ctx, types.NamespacedName{Namespace: namespace, Name: name}, c))
	return c.Status
}

func (s *sim) missing(o client.Object) bool {
	return apierrors.IsNotFound(s.api.Get(s.ctx, client.ObjectKeyFromObject(o), o))
}

const primaryL2 = `"topology":"layer2","role":"primary","subnets":"10.20.0.0/24"`

// A pod gets addresses beside the zone's entry, keeps them across a restart, which
// writes nothing, and releases them when it is deleted.
func TestPodLifecycle(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	p := s.pod("red", "a", map[string]string{network.AnnotationPodNetworks: `{"default":{"ip_addresses":["10.244.1.3/24"],"mac_address":"0a:58:0a:f4:01:03","role":"infrastructure-locked"}}`})
	if got := s.ips("red", "a", "red/net"); got != "10.20.0.3/24" {
		t.Errorf("pod has %q", got)
	}
	if got := s.ips("red", "a", "default"); got != "10.244.1.3/24" {
		t.Errorf("the zone's entry is %q", got)
	}
	if got, want := s.r.Usage(), []Usage{{"red_net", "ipv4", 1, 256}}; !slices.Equal(got, want) {
		t.Errorf("usage %v, want %v", got, want)
	}
	s.wantNoEvent()
	s.restart(s.r.lookup.Plan)
	s.drain()
	if s.target.writes != 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
	if got := s.ips("red", "a", "red/net"); got != "10.20.0.3/24" {
		t.Errorf("after a restart the pod has %q", got)
	}
	s.remove(p)
	if a := s.r.tracker.allocators["red_net"]; a == nil || !a.Empty() {
		t.Error("addresses are still allocated after all pods were deleted")
	}
}

// A pod whose interfaces exist keeps its addresses across a restart while its networks are being
// deleted, also if its init containers still run.
func TestRestoreWhileNADIsDeleted(t *testing.T) {
	for name, tt := range map[string]struct {
		reported  bool // kubelet has reported the pod's addresses
		requested bool // the pod still requests its secondary network
	}{
		"requested": {false, true}, "reported": {true, true}, "no longer requested": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t)
			s.namespace("red", true)
			nads := []*nadv1.NetworkAttachmentDefinition{s.nad("red", "net", 7, "red_net", primaryL2), s.nad("red", "more", 8, "red_more", secondaryL2)}
			p := s.pod("red", "a", secondaryRequest("more"))
			before, _ := s.entry("red", "a", "red/net")
			s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
			s.wantIPs("red", "a", "red/more", "10.30.0.1/24")
			if tt.reported {
				s.reportIPs("red", "a")
			}
			if !tt.requested {
				s.must(s.api.Get(s.ctx, client.ObjectKeyFromObject(p), p))
				delete(p.Annotations, network.AnnotationNetworks)
				s.must(s.api.Update(s.ctx, p))
			}
			for _, n := range nads {
				s.startDeletion(n)
			}
			s.restart(s.r.lookup.Plan)
			s.drain()
			s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
			s.wantIPs("red", "a", "red/more", "10.30.0.1/24")
			if after, _ := s.entry("red", "a", "red/net"); after.TunnelID != before.TunnelID || s.target.writes > 0 {
				t.Errorf("tunnel id %d, was %d; %d writes", after.TunnelID, before.TunnelID, s.target.writes)
			}
			s.wantNoEvent()
			// A new pod gets no address of a network that is being deleted.
			s.pod("red", "late", nil)
			s.wantIPs("red", "late", "red/net", "")
			s.restart(s.r.lookup.Plan)
			s.drain()
			s.wantIPs("red", "late", "red/net", "")
		})
	}
}
