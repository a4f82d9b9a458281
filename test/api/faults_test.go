// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

var everyWrite = flag.Bool("every-write", os.Getenv("BULKHEAD_FULL") != "", "TestLeaderCrashesAtWrite crashes at every write, not at a sample of them")

// crashController is a cluster controller that crashes at a write: it loses the connection to
// the API server, cannot release its lease, and exits.
type crashController struct {
	at      int64 // the write, counted from 1; 0 for none
	sent    bool  // whether that write still reaches the API server
	count   atomic.Int64
	dead    atomic.Bool
	crashed chan struct{}
	exited  chan error
	cancel  context.CancelFunc
}

var errCrashed = errors.New("the controller has crashed")

func startCrashController(cfg config.Config, at int, sent bool) *crashController {
	ctx, cancel := context.WithCancel(context.Background())
	m := &crashController{at: int64(at), sent: sent, crashed: make(chan struct{}), exited: make(chan error, 1), cancel: cancel}
	restConfig := rest.CopyConfig(env.Controller)
	restConfig.Wrap(m.wrap)
	go func() { m.exited <- cluster.Run(ctx, cfg, restConfig, testLog()) }()
	return m
}

func (m *crashController) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if m.dead.Load() {
			return nil, errCrashed
		}
		fatal := isWrite(req) && m.count.Add(1) == m.at
		if fatal && !m.sent {
			m.crash()
			return nil, errCrashed
		}
		resp, err := next.RoundTrip(req)
		if fatal {
			m.crash()
		}
		if err == nil && m.dead.Load() { // a response after the crash is lost, too
			_ = resp.Body.Close()
			return nil, errCrashed
		}
		return resp, err
	})
}

func (m *crashController) crash() {
	if m.dead.CompareAndSwap(false, true) {
		m.cancel()
		close(m.crashed)
	}
}

// stop stops the controller and waits until it has exited.
func (m *crashController) stop(t *testing.T) {
	t.Helper()
	m.cancel()
	if err := <-m.exited; err != nil && !m.dead.Load() {
		t.Errorf("controller failed: %v", err)
	}
}

func testLog() *slog.Logger {
	var out io.Writer = io.Discard
	if testing.Verbose() {
		out = os.Stderr
	}
	return slog.New(slog.NewTextHandler(out, nil))
}

func (w fixture) removeLease() {
	w.remove(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}})
}

// The leader crashes before or after any of its writes, and a successor takes
// over: it completes every network, keeps the ids and leaves nothing orphaned.
func TestLeaderCrashesAtWrite(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	for _, ns := range []string{"a", "b", "c", "d"} {
		defer w.remove(w.namespace("die-"+ns, true, "first="+fmt.Sprint(ns <= "c"), "second="+fmt.Sprint(ns >= "b")))
	}
	defer w.remove(w.namespace("die-one", true))
	defer w.remove(w.namespace("die-two", true))
	w.removeLease()
	whole := startCrashController(testConfig(t), 0, false)
	w.scenario()
	whole.stop(t)
	all := int(whole.count.Load())
	t.Logf("the scenario takes %d writes", all)

	start, step := time.Now(), 1
	if !*everyWrite {
		step = 4
	}
	faults, attempts := 0, 0
	for n := 1; n <= all; n += step {
		for _, sent := range []bool{false, true} {
			at := n
			if sent && step > 1 {
				at += step / 2 // lost responses are sampled at other writes than lost requests
			}
			attempts++
			if w.crashAt(t, at, sent, n%2 == 0) {
				faults++
			}
			if t.Failed() {
				t.Fatalf("after the leader crashed at write %d of %d (sent: %v)", at, all, sent)
			}
		}
	}
	t.Logf("%d crashes in %d attempts, %s", faults, attempts, time.Since(start).Round(time.Second))
	if faults < attempts/2 {
		t.Errorf("the leader crashed in %d of %d attempts only", faults, attempts)
	}
}

// crashAt runs the scenario with a leader that crashes at a write, and reports
// whether it did. With warm, its successor is already running, with synced caches;
// else it is started after the crash.
func (w fixture) crashAt(t *testing.T, at int, sent, warm bool) bool {
	t.Helper()
	o := w.observe()
	first := startCrashController(testConfig(t), at, sent)
	var second *crashController
	if warm {
		Eventually(t, func() error {
			l := &coordinationv1.Lease{}
			if err := w.Get(w.ctx, client.ObjectKey{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}, l); err != nil {
				return err
			}
			if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
				return errors.New("there is no leader")
			}
			return nil
		})
		second = startCrashController(testConfig(t), 0, false)
	}
	finished, succeeded := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(succeeded)
		select {
		case <-first.crashed:
		case <-finished:
			return
		}
		<-first.exited
		first.exited <- nil
		// Instead of waiting for the lease to expire:
		err := w.Delete(w.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}})
		if client.IgnoreNotFound(err) != nil {
			t.Errorf("delete the lease: %v", err)
		}
		if second == nil {
			second = startCrashController(testConfig(t), 0, false)
		}
	}()
	w.scenario()
	o.check(t)
	close(finished)
	<-succeeded
	first.stop(t)
	if second != nil {
		second.stop(t)
	}
	w.removeLease()
	return first.dead.Load()
}

// scenario creates, changes and deletes networks, and checks each resulting state.
func (w fixture) scenario() {
	w.t.Helper()
	one, two, c := newUDN("die-one", "net", "10.130.0.0/16"), newUDN("die-two", "net", "10.130.0.0/16"), newCUDN("die-net", "", "10.130.0.0/16")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "die-node"}}
	c.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"first": "true"}}
	for _, o := range []client.Object{node, one, c, two} {
		w.create(o)
	}
	w.waitCreated(one)
	w.waitCreated(two)
	w.waitCreated(c, "[die-a, die-b, die-c]")
	Eventually(w.t, func() error {
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		if node.Annotations[network.AnnotationNodeID] == "" {
			return errors.New("the node has no id")
		}
		return nil
	})
	w.checkState()
	ids := map[string]string{}
	for _, ns := range []string{"die-b", "die-c"} {
		ids[ns] = w.nad(ns, "die-net").Annotations[network.AnnotationNetworkID]
	}
	ids["die-two"] = w.nad("die-two", "net").Annotations[network.AnnotationNetworkID]

	if err := w.Patch(w.ctx, c, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"namespaceSelector":{"matchLabels":{"first":null,"second":"true"}}}}`))); err != nil {
		w.t.Fatal(err)
	}
	w.waitCreated(c, "[die-b, die-c, die-d]")
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "die-a", Name: "die-net"}})
	w.checkState()
	for _, ns := range []string{"die-b", "die-c", "die-d"} {
		if got := w.nad(ns, "die-net").Annotations[network.AnnotationNetworkID]; got != ids["die-b"] {
			w.t.Errorf("the network's id in namespace %s is %s, want %s", ns, got, ids["die-b"])
		}
	}

	w.remove(one)
	w.remove(c)
	w.waitGone(one)
	w.waitGone(c)
	w.checkState()
	if got := w.nad("die-two", "net").Annotations[network.AnnotationNetworkID]; got != ids["die-two"] {
		w.t.Errorf("a network had id %s, and has %s after other networks were deleted", ids["die-two"], got)
	}
	w.remove(two)
	w.waitGone(two)
	w.remove(node)
	w.checkState()
}

// The API server crashes and restarts while networks are created: once with a
// lease that outlasts the outage, once with a shorter lease, so that the controller
// exits and is restarted.
func TestAPIServerCrash(t *testing.T) {
	needAPI(t)
	// Longer than an API server needs to start on a busy machine.
	patient, err := config.Parse("[kubernetes]\nlease-duration = 2m\nlease-renew-deadline = 90s\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, prefix string
		cfg          config.Config
		networks     int
	}{{"lease outlasts the outage", "outage", patient, 500}, {"lease expires", "outage-again", testConfig(t), 100}} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			w.waitClean()
			w.removeLease()
			crashAPIServer(t, w, c.cfg, c.prefix, c.networks)
		})
	}
}

func crashAPIServer(t *testing.T, w fixture, cfg config.Config, prefix string, networks int) {
	t.Helper()
	name := func(i int) string { return fmt.Sprintf("%s-%d", prefix, i) }
	w.createParallel(networks, func(i int) client.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"team": name(i), network.LabelPrimaryUDN: ""}}}
	})
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Minute)
	defer cancel()
	var exits atomic.Int64
	var running sync.WaitGroup
	running.Go(func() { // restarts the controller, as kubelet would
		for ctx.Err() == nil {
			if err := cluster.Run(ctx, cfg, env.Controller, testLog()); err != nil {
				exits.Add(1)
				t.Logf("the controller exited: %v", err)
			}
			pause(ctx, 100*time.Millisecond)
		}
	})
	defer running.Wait()
	defer cancel()

	var creators sync.WaitGroup
	for k := range 4 {
		creators.Go(func() {
			for i := k; i < networks; i += 4 {
				for ctx.Err() == nil {
					err := w.Create(ctx, newCUDN(name(i), name(i), "10.131.0.0/16"))
					if err == nil || apierrors.IsAlreadyExists(err) {
						break
					}
					pause(ctx, 50*time.Millisecond)
				}
			}
		})
	}
	ready := func() (n int, err error) {
		var l udnv1.ClusterUserDefinedNetworkList
		if err := w.List(w.ctx, &l); err != nil {
			return 0, err
		}
		for i := range l.Items {
			if allTrue(l.Items[i].Status.Conditions, 3) {
				n++
			}
		}
		return n, nil
	}
	wait := func(want int) {
		t.Helper()
		EventuallyWithin(t, 3*time.Minute, func() error {
			n, err := ready()
			if err == nil && n < want {
				err = fmt.Errorf("%d of %d networks are ready", n, want)
			}
			return err
		})
	}
	for _, share := range []int{networks / 4, networks / 2} {
		wait(share)
		start := time.Now()
		if err := env.Kill("kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		if err := env.Restart(ctx, "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		t.Logf("killed with %d networks ready or more; ready again after %s", share, time.Since(start).Round(100*time.Millisecond))
	}
	restarted := time.Now()
	creators.Wait()
	wait(networks)
	t.Logf("all %d networks are ready %s after the API server's last restart; the controller exited %d times", networks, time.Since(restarted).Round(100*time.Millisecond), exits.Load())
	w.checkState()
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := w.List(w.ctx, &nads); err != nil {
		t.Fatal(err)
	}
	if len(nads.Items) != networks {
		t.Errorf("%d NADs for %d networks", len(nads.Items), networks)
	}
	survives := cfg.Kubernetes.LeaseDuration > time.Minute
	if survives && exits.Load() > 0 {
		t.Errorf("the controller exited %d times though its lease outlasts the outage", exits.Load())
	}
	if !survives && exits.Load() == 0 {
		t.Error("the controller did not exit though its lease is shorter than the outage: its restart was not tested")
	}
	// The namespaces stay: their deletion would keep Kubernetes' own controllers
	// busy for minutes, and later tests delete namespaces.
	for i := range networks {
		w.remove(newCUDN(name(i), name(i)))
	}
	EventuallyWithin(t, 3*time.Minute, func() error {
		var l nadv1.NetworkAttachmentDefinitionList
		var c udnv1.ClusterUserDefinedNetworkList
		if err := errors.Join(w.List(w.ctx, &l), w.List(w.ctx, &c)); err != nil {
			return err
		}
		if len(l.Items)+len(c.Items) > 0 {
			return fmt.Errorf("%d NADs and %d networks remain", len(l.Items), len(c.Items))
		}
		return nil
	})
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Of two controllers only the leader writes.
func TestTwoControllers(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	const networks = 20
	for i := range networks {
		team := fmt.Sprintf("pair-%d", i)
		defer w.remove(w.namespace(team, true, "team="+team))
	}
	a, b := startController(t, testConfig(t)), startController(t, testConfig(t))
	var cudns []*udnv1.ClusterUserDefinedNetwork
	for i := range networks {
		team := fmt.Sprintf("pair-%d", i)
		c := newCUDN(team, team, "10.132.0.0/16")
		w.create(c)
		defer w.remove(c)
		cudns = append(cudns, c)
	}
	for _, c := range cudns {
		w.waitCreated(c)
	}
	w.checkState()
	a.stop()
	b.stop()
	n, list := a.total()
	m, other := b.total()
	if min(n, m) != 0 || n+m != 3*networks {
		t.Errorf("%d and %d writes, want 0 and %d:%s%s", n, m, 3*networks, list, other)
	}
}

// A controller that starts while the API server is away continues once it is back, and until then neither
// exits nor ignores that it is to end.
func TestAPIServerAwayAtStart(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	defer w.remove(w.namespace("away", true))
	cfg, err := config.Parse("[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n")
	if err != nil {
		t.Fatal(err)
	}
	var tried atomic.Int64
	var back atomic.Bool
	away := func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if back.Load() {
				return next.RoundTrip(req)
			}
			tried.Add(1)
			return nil, syscall.ECONNREFUSED
		})
	}
	tries := func() {
		t.Helper()
		n := tried.Load()
		Eventually(t, func() error {
			if tried.Load() < n+2 {
				return errors.New("the controller does not try to reach the API server")
			}
			return nil
		})
	}
	stopped := startController(t, cfg, away)
	tries()
	stopped.stop()

	c := startController(t, cfg, away)
	tries()
	back.Store(true)
	u := newUDN("away", "net", "10.151.0.0/16")
	w.create(u)
	defer w.remove(u)
	w.waitCreated(u)
	c.stop()
}
