// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadfake "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned/fake"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
)

// fakeNB implements Northbound with a Fake. Like NB, it reports the rows that are changed
// or deleted, by the zone too.
type fakeNB struct {
	*Fake
	down    atomic.Bool
	whole   atomic.Int64 // reads of whole networks
	changed func(network string, u Unit, deleted bool)
}

func (f *fakeNB) Connected() bool                       { return !f.down.Load() }
func (f *fakeNB) SetName(context.Context, string) error { return f.err() }

func (f *fakeNB) err() error {
	if f.down.Load() {
		return ovsdb.ErrNotConnected
	}
	return nil
}

func (f *fakeNB) Read(ctx context.Context, s Selection) (State, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	if s.Units == nil {
		f.whole.Add(1)
	}
	return f.Fake.Read(ctx, s)
}

func (f *fakeNB) Lookup(ctx context.Context, rows State) (State, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Fake.Lookup(ctx, rows)
}

func (f *fakeNB) Apply(ctx context.Context, ops []Op) error {
	if err := f.err(); err != nil {
		return err
	}
	if err := f.Fake.Apply(ctx, ops); err != nil {
		return err
	}
	for _, op := range ops {
		if op.Verb == Update || op.Verb == Delete {
			name, u := parseUnitMark(op.Row.Unit)
			go f.changed(name, u, op.Verb == Delete)
		}
	}
	return nil
}

type fakeSB struct {
	mu   sync.Mutex
	have map[string]Chassis
}

func (f *fakeSB) ReadChassis(context.Context) ([]Chassis, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Chassis
	for _, c := range f.have {
		out = append(out, c)
	}
	return out, nil
}

func (f *fakeSB) ApplyChassis(_ context.Context, ops []ChassisOp) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		delete(f.have, op.Chassis.Name)
		if op.Verb != Delete {
			f.have[op.Chassis.Name] = op.Chassis
		}
	}
	return nil
}

// zoneEnv is a zone with a fake API server and fake databases.
type zoneEnv struct {
	ingress []string             // ingress namespaces
	edit    func(*config.Config) // changes the zone's configuration; may be nil
	t       *testing.T
	kube    *fake.Clientset
	nads    *nadfake.Clientset
	nb      *fakeNB
	sb      *fakeSB
	zone    *Zone
	events  *record.FakeRecorder
	health  *fakeHealth
	pods    int // created so far, for unique UIDs
	stop    func()
	// corrected is how many rows audits correct: 0 unless a test loses events, so that no audit
	// hides that the zone does.
	corrected float64

	registry prometheus.Registerer // for the zone's metrics; may be nil
}

func newZoneEnv(t *testing.T) *zoneEnv {
	env := &zoneEnv{t: t, kube: fake.NewClientset(), nads: nadfake.NewSimpleClientset(), nb: &fakeNB{Fake: &Fake{}}, sb: &fakeSB{have: map[string]Chassis{}}}
	env.selectPods()
	env.namespace("plain", false)
	env.namespace("red", true)
	return env
}

// selectPods makes the API server's fake select pods by node and label, as the API
// server does.
func (env *zoneEnv) selectPods() {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	matches := func(r clienttesting.ListRestrictions, obj runtime.Object) bool {
		pod, ok := obj.(*corev1.Pod)
		return ok && (r.Fields == nil || r.Fields.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName})) && (r.Labels == nil || r.Labels.Matches(labels.Set(pod.Labels)))
	}
	env.kube.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, ok := action.(clienttesting.ListAction)
		if !ok {
			return false, nil, nil
		}
		all, err := env.kube.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
		if found, ok := all.(*corev1.PodList); ok {
			found.Items = slices.DeleteFunc(found.Items, func(p corev1.Pod) bool { return !matches(list.GetListRestrictions(), &p) })
		}
		return true, all, err
	})
	env.kube.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		selected, ok := action.(clienttesting.WatchActionImpl)
		if !ok {
			return false, nil, nil
		}
		w, err := env.kube.Tracker().Watch(pods, action.GetNamespace(), selected.ListOptions)
		if err != nil {
			return true, nil, err
		}
		r := clienttesting.ListRestrictions{Labels: selected.WatchRestrictions.Labels, Fields: selected.WatchRestrictions.Fields}
		return true, newFilteredWatch(w, func(obj runtime.Object) bool { return matches(r, obj) }), nil
	})
}

// filteredWatch passes on some events. Unlike watch.Filter, it also ends when nobody
// reads them any more.
type filteredWatch struct {
	inner watch.Interface
	out   chan watch.Event
	stop  func()
}

func newFilteredWatch(inner watch.Interface, matches func(runtime.Object) bool) *filteredWatch {
	done := make(chan struct{})
	f := &filteredWatch{inner: inner, out: make(chan watch.Event), stop: sync.OnceFunc(func() { close(done); inner.Stop() })}
	go func() {
		defer close(f.out)
		for e := range inner.ResultChan() {
			if e.Type != watch.Bookmark && e.Type != watch.Error && !matches(e.Object) {
				continue
			}
			select {
			case f.out <- e:
			case <-done:
				return
			}
		}
	}()
	return f
}

func (f *filteredWatch) ResultChan() <-chan watch.Event { return f.out }
func (f *filteredWatch) Stop()                          { f.stop() }

// newZone makes a zone that is not started.
func (env *zoneEnv) newZone() *Zone {
	env.t.Helper()
	cfg, err := config.Parse("")
	if err != nil {
		env.t.Fatal(err)
	}
	cfg.Kubernetes.NodeName, cfg.Workers, cfg.IngressNamespaces = "node1", 4, env.ingress
	if env.edit != nil {
		env.edit(&cfg)
	}
	z, err := NewZone(cfg, env.kube, env.nads, env.registry, quietLog())
	if err != nil {
		env.t.Fatal(err)
	}
	env.events = record.NewFakeRecorder(100)
	env.nb.changed = z.onRowChanged
	env.health = &fakeHealth{served: map[string]string{}}
	z.nb, z.sb, z.events, z.health = env.nb, env.sb, env.events, env.health
	env.zone = z
	return z
}

// run starts a zone. A further call stops it and starts another.
func (env *zoneEnv) run() {
	env.t.Helper()
	if env.stop != nil {
		env.stop()
	}
	z := env.newZone()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- z.serve(ctx) }()
	var once sync.Once
	env.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				env.t.Errorf("serve: %v", err)
			}
			if n := testutil.ToFloat64(z.metrics.corrections); n != env.corrected {
				env.t.Errorf("audits have corrected %v rows, want %v", n, env.corrected)
			}
		})
	}
	env.t.Cleanup(env.stop)
}

func (env *zoneEnv) must(err error) {
	env.t.Helper()
	if err != nil {
		env.t.Fatal(err)
	}
}

func (env *zoneEnv) namespace(name string, labelled bool) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if labelled {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	_, err := env.kube.CoreV1().Namespaces().Create(context.Background(), ns, metav1.CreateOptions{})
	env.must(err)
}

func (env *zoneEnv) node(id int, annotated bool) {
	n := testNode(id, fmt.Sprintf("node%d", id), network.SharedGateway)
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{}}}
	if annotated {
		a, err := n.AgentAnnotations()
		env.must(err)
		obj.Annotations = a
		obj.Annotations[network.AnnotationNodeID] = fmt.Sprint(id)
	}
	ctx, api := context.Background(), env.kube.CoreV1().Nodes()
	if _, err := api.Get(ctx, n.Name, metav1.GetOptions{}); err == nil {
		_, err = api.Update(ctx, obj, metav1.UpdateOptions{})
		env.must(err)
		return
	}
	_, err := api.Create(ctx, obj, metav1.CreateOptions{})
	env.must(err)
}

func (env *zoneEnv) nad(namespace, name, netName string, id int, subnets string) {
	env.nadOf(namespace, name, id, network.NetConf{Name: netName, Topology: "layer3", Role: "primary", Subnets: subnets})
}

func (env *zoneEnv) nadOf(namespace, name string, id int, c network.NetConf) {
	c.CNIVersion, c.Type, c.NetAttachDefName = network.CNIVersion, network.CNIType, namespace+"/"+name
	conf, err := json.Marshal(c)
	env.must(err)
	annotations := map[string]string{network.AnnotationNetworkID: fmt.Sprint(id), network.AnnotationNetworkName: c.Name}
	if id == 0 { // the cluster controller has not written them
		annotations = nil
	}
	obj := &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
		Spec:       nadv1.NetworkAttachmentDefinitionSpec{Config: string(conf)},
	}
	if network.IsUDNName(c.Name) {
		obj.OwnerReferences = ownedBy(c.Name)
	}
	ctx, api := context.Background(), env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace)
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); err == nil {
		_, err = api.Update(ctx, obj, metav1.UpdateOptions{})
		env.must(err)
		return
	}
	_, err = api.Create(ctx, obj, metav1.CreateOptions{})
	env.must(err)
}

// ownedBy returns the owner references of a NAD that the cluster controller rendered.
func ownedBy(networkName string) []metav1.OwnerReference {
	owner := &metav1.ObjectMeta{Name: "net", UID: types.UID("uid-of-" + networkName)}
	return []metav1.OwnerReference{*metav1.NewControllerRef(owner, udnv1.GroupVersion.WithKind("UserDefinedNetwork"))}
}

func (env *zoneEnv) pod(namespace, name string, annotations map[string]string) {
	env.pods++
	_, err := env.kube.CoreV1().Pods(namespace).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%s-%d", namespace, name, env.pods)), Annotations: annotations, CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: "node1"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}, metav1.CreateOptions{})
	env.must(err)
}

func (env *zoneEnv) deletePod(namespace, name string) {
	env.must(env.kube.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// networks returns the pod's annotated networks.
func (env *zoneEnv) networks(namespace, name string) network.PodNetworks {
	pod, err := env.kube.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
	env.must(err)
	out, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	env.must(err)
	return out
}

func (env *zoneEnv) row(id string) (Row, bool) {
	for _, r := range env.nb.Rows() {
		if r.ID == id {
			return r, true
		}
	}
	return Row{}, false
}

// waitUntil lets the zone run, including its retries, until f holds. The time is
// the synctest bubble's.
func (env *zoneEnv) waitUntil(desc string, f func() bool) {
	env.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		if f() {
			return
		}
		if time.Now().After(deadline) {
			env.t.Fatalf("condition never held: %s", desc)
		}
	}
}

// settle lets a minute of the bubble's time pass, enough for everything delayed or
// retried.
func (env *zoneEnv) settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func (env *zoneEnv) has(id string) bool { _, ok := env.row(id); return ok }

func (env *zoneEnv) waitForRow(id string) Row {
	env.t.Helper()
	env.waitUntil("row "+id, func() bool { return env.has(id) })
	r, _ := env.row(id)
	return r
}
