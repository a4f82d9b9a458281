// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadfake "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned/fake"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// The fake NAD client is older than streaming lists and never ends one.
func TestMain(m *testing.M) {
	_ = os.Setenv("KUBE_FEATURE_WatchListClient", "false")
	os.Exit(m.Run())
}

// fakeNB is Fake with what the zone needs besides.
type fakeNB struct {
	*Fake
	down atomic.Bool
}

func (f *fakeNB) Connected() bool                       { return !f.down.Load() }
func (f *fakeNB) SetName(context.Context, string) error { return f.err() }

func (f *fakeNB) err() error {
	if f.down.Load() {
		return errNotConnected
	}
	return nil
}

func (f *fakeNB) Read(ctx context.Context, o Owner) (State, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Fake.Read(ctx, o)
}

func (f *fakeNB) Apply(ctx context.Context, ops []Op) error {
	if err := f.err(); err != nil {
		return err
	}
	return f.Fake.Apply(ctx, ops)
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

// world is a zone with a fake API and fake databases.
type world struct {
	t      *testing.T
	kube   *fake.Clientset
	nads   *nadfake.Clientset
	nb     *fakeNB
	sb     *fakeSB
	zone   *Zone
	events *record.FakeRecorder
	pods   int // made so far: no two have one UID
	stop   func()

	registry prometheus.Registerer // of the zone's metrics; may be nil
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, kube: fake.NewClientset(), nads: nadfake.NewSimpleClientset(), nb: &fakeNB{Fake: &Fake{}}, sb: &fakeSB{have: map[string]Chassis{}}}
	w.namespace("plain", false)
	w.namespace("red", true)
	return w
}

// run starts a zone; a second call starts another in its place.
func (w *world) run() {
	w.t.Helper()
	if w.stop != nil {
		w.stop()
	}
	cfg, err := config.Parse("")
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.Kubernetes.NodeName, cfg.Workers = "node1", 4
	z, err := NewZone(cfg, w.kube, w.nads, w.registry, quietLog())
	if err != nil {
		w.t.Fatal(err)
	}
	w.events = record.NewFakeRecorder(100)
	z.nb, z.sb, z.events = w.nb, w.sb, w.events
	w.zone = z
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- z.serve(ctx) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("serve: %v", err)
			}
		})
	}
	w.t.Cleanup(w.stop)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) namespace(name string, labelled bool) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if labelled {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	_, err := w.kube.CoreV1().Namespaces().Create(context.Background(), ns, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) node(id int, annotated bool) {
	n := testNode(id, fmt.Sprintf("node%d", id), network.SharedGateway)
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{}}}
	if annotated {
		a, err := n.AgentAnnotations()
		w.must(err)
		obj.Annotations = a
		obj.Annotations[network.AnnotationNodeID] = fmt.Sprint(id)
	}
	ctx, api := context.Background(), w.kube.CoreV1().Nodes()
	if _, err := api.Get(ctx, n.Name, metav1.GetOptions{}); err == nil {
		_, err = api.Update(ctx, obj, metav1.UpdateOptions{})
		w.must(err)
		return
	}
	_, err := api.Create(ctx, obj, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) nad(namespace, name, netName string, id int, subnets string) {
	w.nadOf(namespace, name, id, network.NetConf{Name: netName, Topology: "layer3", Role: "primary", Subnets: subnets})
}

func (w *world) nadOf(namespace, name string, id int, c network.NetConf) {
	c.CNIVersion, c.Type, c.NetAttachDefName = network.CNIVersion, network.CNIType, namespace+"/"+name
	conf, err := json.Marshal(c)
	w.must(err)
	obj := &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{network.AnnotationNetworkID: fmt.Sprint(id)}},
		Spec:       nadv1.NetworkAttachmentDefinitionSpec{Config: string(conf)},
	}
	ctx, api := context.Background(), w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace)
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); err == nil {
		_, err = api.Update(ctx, obj, metav1.UpdateOptions{})
		w.must(err)
		return
	}
	_, err = api.Create(ctx, obj, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) pod(namespace, name string, annotations map[string]string) {
	w.pods++
	_, err := w.kube.CoreV1().Pods(namespace).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%s-%d", namespace, name, w.pods)), Annotations: annotations, CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: "node1"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) deletePod(namespace, name string) {
	w.must(w.kube.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// networks is what the pod has been told.
func (w *world) networks(namespace, name string) network.PodNetworks {
	pod, err := w.kube.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
	w.must(err)
	out, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	w.must(err)
	return out
}

func (w *world) row(id string) (Row, bool) {
	for _, r := range w.nb.Rows() {
		if r.ID == id {
			return r, true
		}
	}
	return Row{}, false
}

// wait lets everything happen that can, retries included, until f holds. The
// time that passes is the bubble's.
func (w *world) wait(what string, f func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		if f() {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s", what)
		}
	}
}

// settled lets a minute of the bubble's time pass: all that is delayed or tried
// again is done by then.
func (w *world) settled() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func (w *world) has(id string) bool { _, ok := w.row(id); return ok }

func (w *world) waitFor(id string) Row {
	w.t.Helper()
	w.wait("row "+id, func() bool { return w.has(id) })
	r, _ := w.row(id)
	return r
}

const redNet = "red_net"

func TestZoneLifeOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, false) // without id and facts
		w.pod("red", "a", nil)
		w.pod("plain", "p", nil)
		w.run()
		time.Sleep(100 * time.Millisecond)
		if n := len(w.nb.Rows()); n != 0 {
			t.Fatalf("%d rows before the node has an id", n)
		}
		w.node(1, true)
		w.waitFor("plain_p")
		w.wait("warning", func() bool {
			select {
			case e := <-w.events.Events:
				return strings.Contains(e, "Warning ErrorAllocatingPod") && strings.Contains(e, "no primary network yet")
			default:
				return false
			}
		})
		if w.has("red_a") || len(w.networks("red", "a")) != 0 {
			t.Fatal("a tenant's pod without a network has a port or addresses")
		}
		w.wait("ready", w.zone.Ready)

		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		udn, cdn := w.waitFor("red.net_red_a"), w.waitFor("red_a")
		if !slices.ContainsFunc(cdn.In, isWeak) {
			t.Errorf("default-network port is not locked: %v", cdn.In)
		}
		if slices.ContainsFunc(udn.In, isWeak) {
			t.Errorf("the tenant's own port is locked: %v", udn.In)
		}
		w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
		got := w.networks("red", "a")
		if got["default"].Role != network.RoleInfrastructureLocked || got["red/net"].Role != network.RolePrimary {
			t.Errorf("roles: %+v", got)
		}
		if want := netip.MustParsePrefix("10.10.0.3/24"); got["red/net"].IPs[0] != want {
			t.Errorf("address %v, want %v", got["red/net"].IPs, want)
		}
		lsp := udn.Model.(*nbdb.LogicalSwitchPort)
		if want := "0a:58:0a:0a:00:03 10.10.0.3"; lsp.Addresses[0] != want || lsp.PortSecurity[0] != want {
			t.Errorf("port %v", lsp)
		}

		w.deletePod("red", "a")
		w.wait("ports gone", func() bool { return !w.has("red.net_red_a") && !w.has("red_a") })
		w.must(w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "net", metav1.DeleteOptions{}))
		w.wait("network gone", func() bool { return !w.has("red_net_ovn_cluster_router") })
		for _, r := range w.nb.Rows() {
			if strings.Contains(r.ID, redNet) {
				t.Errorf("left behind: %s", r)
			}
		}
	})
}

func TestZoneRestartChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.node(2, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.nb.Add(Row{Table: nbdb.LogicalSwitchTable, ID: "theirs", Model: &nbdb.LogicalSwitch{Name: "theirs"}})
		for i := range 5 {
			w.pod("red", fmt.Sprintf("p%d", i), nil)
		}
		w.run()
		for i := range 5 {
			w.wait("annotations", func() bool { return len(w.networks("red", fmt.Sprintf("p%d", i))) == 2 })
		}
		w.settled()
		before, chassis := w.nb.Rows().Dump(), len(w.sb.have)
		if chassis != 1 {
			t.Errorf("%d remote chassis", chassis)
		}
		w.stop()
		w.pod("red", "new", nil) // must not get the address of one that was there
		w.kube.ClearActions()
		w.run()
		w.wait("new pod", func() bool { return len(w.networks("red", "new")) == 2 })
		w.settled()
		if got := w.networks("red", "new")["red/net"].IPs[0]; got != netip.MustParsePrefix("10.10.0.8/24") {
			t.Errorf("new pod got %v", got)
		}
		w.deletePod("red", "new")
		w.settled()
		if got := w.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
		patches := 0
		for _, a := range w.kube.Actions() {
			if a.GetVerb() == "patch" {
				patches++
			}
		}
		if patches != 1 {
			t.Errorf("%d patches after a restart, want the new pod's", patches)
		}
		batches := w.nb.Batches
		w.run()
		w.wait("ready", w.zone.Ready)
		w.settled()
		if w.nb.Batches != batches {
			t.Errorf("%d transactions after a restart with nothing changed", w.nb.Batches-batches)
		}
	})
}

func TestZoneDatabaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.node(2, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.pod("red", "a", nil)
		w.run()
		w.waitFor("red.net_red_a")
		w.settled()
		before := w.nb.Rows().Dump()
		w.nb.down.Store(true)
		w.nb.mu.Lock()
		w.nb.rows = nil
		w.nb.mu.Unlock()
		if w.zone.Ready() {
			t.Error("ready without a database")
		}
		w.nb.down.Store(false)
		w.zone.onConnect()
		w.settled()
		if got := w.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
	})
}

// A NAD that goes, or breaks, under running pods leaves them as they are.
func TestZoneNetworkOutlivesItsDescription(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node(1, true)
				w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
				w.pod("red", "a", nil)
				w.run()
				w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
				w.settled()
				before, told := w.nb.Rows().Dump(), w.networks("red", "a")
				if restart {
					w.stop()
				}
				w.must(w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "net", metav1.DeleteOptions{}))
				if restart {
					w.run()
					w.wait("ready", w.zone.Ready)
				}
				w.settled()
				if got := w.nb.Rows().Dump(); got != before {
					t.Errorf("rows were\n%s\nare\n%s", before, got)
				}
				if got := w.networks("red", "a"); len(got) != len(told) {
					t.Errorf("annotation was %v, is %v", told, got)
				}
				w.deletePod("red", "a")
				w.wait("network gone with its last pod", func() bool { return !w.has("red_net_ovn_cluster_router") })
			})
		})
	}
}

func TestZoneBrokenNetworksHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.namespace("bad", true)
		w.namespace("small", true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.nad("bad", "net", "bad_net", 2, "10.96.0.0/16/24")     // overlaps services
		w.nad("small", "net", "small_net", 3, "10.11.0.0/30/30") // .1, .2 and no more
		w.pod("bad", "a", nil)
		w.pod("small", "a", nil)
		w.pod("red", "a", nil)
		w.run()
		w.waitFor("red.net_red_a")
		w.wait("ready", w.zone.Ready)
		if w.has("bad_net_ovn_cluster_router") || w.has("bad_a") || w.has("small_a") {
			t.Error("built what cannot be")
		}
		reasons := map[string]bool{}
		w.wait("both warnings", func() bool {
			select {
			case e := <-w.events.Events:
				reasons["overlap"] = reasons["overlap"] || strings.Contains(e, "overlaps the cluster's service-cidrs")
				reasons["full"] = reasons["full"] || strings.Contains(e, "small_net")
			default:
			}
			return reasons["overlap"] && reasons["full"]
		})
	})
}

func TestZonePeersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		w.run()
		w.wait("ready", w.zone.Ready)
		w.node(2, true)
		w.waitFor("red_net_tstor-node2")
		w.waitFor("tstor-node2")
		w.must(w.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
		w.wait("peer gone", func() bool {
			return !slices.ContainsFunc(w.nb.Rows(), func(r Row) bool { return externalIDs(r.Model)[markPart] == string(PartPeers) })
		})
		w.wait("chassis gone", func() bool { c, _ := w.sb.ReadChassis(context.Background()); return len(c) == 0 })
	})
}

func TestZoneAddressesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.nad("red", "net", redNet, 1, "10.10.0.0/16/29") // .3 to .6
		w.run()
		for i := range 4 {
			w.pod("red", fmt.Sprintf("p%d", i), nil)
		}
		for i := range 4 {
			w.waitFor(fmt.Sprintf("red.net_red_p%d", i))
		}
		w.pod("red", "late", nil)
		w.wait("warning", func() bool {
			select {
			case e := <-w.events.Events:
				return strings.Contains(e, "10.10.0.0/29")
			default:
				return false
			}
		})
		// A completed pod gives its address to the one that waits.
		pod, err := w.kube.CoreV1().Pods("red").Get(context.Background(), "p1", metav1.GetOptions{})
		w.must(err)
		pod.Status.Phase = corev1.PodSucceeded
		_, err = w.kube.CoreV1().Pods("red").UpdateStatus(context.Background(), pod, metav1.UpdateOptions{})
		w.must(err)
		w.waitFor("red.net_red_late")
		w.wait("completed pod's port gone", func() bool { return !w.has("red.net_red_p1") })
	})
}
