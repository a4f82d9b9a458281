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

var everyWrite = flag.Bool("every-write", false, "TestLeaderDiesAtWrite kills at every write, not at a sample of them")

// mortal is a cluster role that can be cut off from the API server at a write:
// from then on it reaches nothing, not even to give back its lease, and ends.
type mortal struct {
	at    int64 // the write, counted from 1; 0: none
	sent  bool  // whether that write still reaches the API server
	count atomic.Int64
	dead  atomic.Bool
	died  chan struct{}
	ended chan error
	end   context.CancelFunc
}

var errCutOff = errors.New("cut off from the API server")

func startMortal(cfg config.Config, at int, sent bool) *mortal {
	ctx, cancel := context.WithCancel(context.Background())
	m := &mortal{at: int64(at), sent: sent, died: make(chan struct{}), ended: make(chan error, 1), end: cancel}
	restConfig := rest.CopyConfig(env.Controller)
	restConfig.Wrap(m.wrap)
	go func() { m.ended <- cluster.Run(ctx, cfg, restConfig, testLog()) }()
	return m
}

func (m *mortal) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if m.dead.Load() {
			return nil, errCutOff
		}
		fatal := isWrite(req) && m.count.Add(1) == m.at
		if fatal && !m.sent {
			m.die()
			return nil, errCutOff
		}
		resp, err := next.RoundTrip(req)
		if fatal {
			m.die()
		}
		if err == nil && m.dead.Load() { // an answer that comes too late is lost, too
			_ = resp.Body.Close()
			return nil, errCutOff
		}
		return resp, err
	})
}

func (m *mortal) die() {
	if m.dead.CompareAndSwap(false, true) {
		m.end()
		close(m.died)
	}
}

// stop ends the role, if it has not ended.
func (m *mortal) stop(t *testing.T) {
	t.Helper()
	m.end()
	if err := <-m.ended; err != nil && !m.dead.Load() {
		t.Errorf("controller ended with: %v", err)
	}
}

func testLog() *slog.Logger {
	var out io.Writer = io.Discard
	if testing.Verbose() {
		out = os.Stderr
	}
	return slog.New(slog.NewTextHandler(out, nil))
}

func (w world) removeLease() {
	w.remove(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}})
}

// The leader dies before or after any of its writes, and another takes over:
// every network becomes what it should be, ids stay, nothing is left behind.
func TestLeaderDiesAtWrite(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	for _, ns := range []string{"a", "b", "c", "d"} {
		defer w.remove(w.namespace("die-"+ns, true, "first="+fmt.Sprint(ns <= "c"), "second="+fmt.Sprint(ns >= "b")))
	}
	defer w.remove(w.namespace("die-one", true))
	defer w.remove(w.namespace("die-two", true))
	w.removeLease()
	whole := startMortal(testConfig(t), 0, false)
	w.scenario()
	whole.stop(t)
	all := int(whole.count.Load())
	t.Logf("the scenario takes %d writes", all)

	start, step := time.Now(), 1
	if !*everyWrite {
		step = 4
	}
	faults := 0
	for n := 1; n <= all; n += step {
		for _, sent := range []bool{false, true} {
			at := n
			if sent && step > 1 {
				at += step / 2 // the sample has other writes lost than answers
			}
			if w.dieAt(t, at, sent, n%2 == 0) {
				faults++
			}
			if t.Failed() {
				t.Fatalf("after the leader died at write %d of %d (sent: %v)", at, all, sent)
			}
		}
	}
	t.Logf("%d deaths in %s", faults, time.Since(start).Round(time.Second))
	if faults == 0 {
		t.Error("nobody died")
	}
}

// dieAt runs the scenario with a leader that dies at a write. Its successor
// has waited with its caches filled, or is started then.
func (w world) dieAt(t *testing.T, at int, sent, warm bool) bool {
	t.Helper()
	o := w.observe()
	first := startMortal(testConfig(t), at, sent)
	var second *mortal
	if warm {
		Eventually(t, func() error {
			l := &coordinationv1.Lease{}
			if err := w.Get(w.ctx, client.ObjectKey{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}, l); err != nil {
				return err
			}
			if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
				return errors.New("nobody leads")
			}
			return nil
		})
		second = startMortal(testConfig(t), 0, false)
	}
	finished, succeeded := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(succeeded)
		select {
		case <-first.died:
		case <-finished:
			return
		}
		<-first.ended
		first.ended <- nil
		// The time of its lease is over.
		err := w.Delete(w.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}})
		if client.IgnoreNotFound(err) != nil {
			t.Errorf("delete the lease: %v", err)
		}
		if second == nil {
			second = startMortal(testConfig(t), 0, false)
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

// scenario makes, changes and deletes networks, and looks at each state that
// is reached.
func (w world) scenario() {
	w.t.Helper()
	one, two, c := newUDN("die-one", "net", "10.130.0.0/16"), newUDN("die-two", "net", "10.130.0.0/16"), newCUDN("die-net", "", "10.130.0.0/16")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "die-node"}}
	c.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"first": "true"}}
	for _, o := range []client.Object{node, one, c, two} {
		w.create(o)
	}
	w.created(one)
	w.created(two)
	w.created(c, "[die-a, die-b, die-c]")
	Eventually(w.t, func() error {
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		if node.Annotations[network.AnnotationNodeID] == "" {
			return errors.New("the node has no id")
		}
		return nil
	})
	w.sound()
	ids := map[string]string{}
	for _, ns := range []string{"die-b", "die-c"} {
		ids[ns] = w.nad(ns, "die-net").Annotations[network.AnnotationNetworkID]
	}
	ids["die-two"] = w.nad("die-two", "net").Annotations[network.AnnotationNetworkID]

	if err := w.Patch(w.ctx, c, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"namespaceSelector":{"matchLabels":{"first":null,"second":"true"}}}}`))); err != nil {
		w.t.Fatal(err)
	}
	w.created(c, "[die-b, die-c, die-d]")
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "die-a", Name: "die-net"}})
	w.sound()
	for _, ns := range []string{"die-b", "die-c", "die-d"} {
		if got := w.nad(ns, "die-net").Annotations[network.AnnotationNetworkID]; got != ids["die-b"] {
			w.t.Errorf("the network's id in %s is %s, was %s", ns, got, ids["die-b"])
		}
	}

	w.remove(one)
	w.remove(c)
	w.waitGone(one)
	w.waitGone(c)
	w.sound()
	if got := w.nad("die-two", "net").Annotations[network.AnnotationNetworkID]; got != ids["die-two"] {
		w.t.Errorf("a network's id is %s, was %s before others were deleted", got, ids["die-two"])
	}
	w.remove(two)
	w.waitGone(two)
	w.remove(node)
	w.sound()
}

// The API server dies while networks are made, and comes back: with a lease
// that outlasts it, and with one that does not, where the process ends and is
// started again.
func TestServerDies(t *testing.T) {
	needAPI(t)
	// Longer than an API server takes to start on a machine that is busy.
	patient, err := config.Parse("[kubernetes]\nlease-duration = 2m\nlease-renew-deadline = 90s\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, prefix string
		cfg          config.Config
		networks     int
	}{{"process lives on", "outage", patient, 500}, {"process starts again", "outage-again", testConfig(t), 100}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.settle()
			w.removeLease()
			serverDies(t, w, c.cfg, c.prefix, c.networks)
		})
	}
}

func serverDies(t *testing.T, w world, cfg config.Config, prefix string, networks int) {
	t.Helper()
	name := func(i int) string { return fmt.Sprintf("%s-%d", prefix, i) }
	w.parallel(networks, func(i int) client.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"team": name(i), network.LabelPrimaryUDN: ""}}}
	})
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Minute)
	defer cancel()
	var ends atomic.Int64
	var running sync.WaitGroup
	running.Go(func() { // as kubelet would
		for ctx.Err() == nil {
			if err := cluster.Run(ctx, cfg, env.Controller, testLog()); err != nil {
				ends.Add(1)
				t.Logf("the process ended: %v", err)
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
		t.Logf("killed with %d networks ready or more; back after %s", share, time.Since(start).Round(100*time.Millisecond))
	}
	back := time.Now()
	creators.Wait()
	wait(networks)
	t.Logf("all %d networks are ready %s after the API server was back; the process ended %d times", networks, time.Since(back).Round(100*time.Millisecond), ends.Load())
	w.sound()
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := w.List(w.ctx, &nads); err != nil {
		t.Fatal(err)
	}
	if len(nads.Items) != networks {
		t.Errorf("%d NADs for %d networks", len(nads.Items), networks)
	}
	survives := cfg.Kubernetes.LeaseDuration > time.Minute
	if survives && ends.Load() > 0 {
		t.Errorf("the process ended %d times though its lease outlasts the outage", ends.Load())
	}
	// The namespaces stay: their end would keep Kubernetes' own controllers
	// busy for minutes, and the tests of such an end come later.
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
			return fmt.Errorf("%d NADs and %d networks are left", len(l.Items), len(c.Items))
		}
		return nil
	})
}

// pause waits, but not beyond ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Of two controllers one works: together they write what one does.
func TestTwoControllers(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
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
		w.created(c)
	}
	w.sound()
	a.stop()
	b.stop()
	n, list := a.total()
	m, other := b.total()
	if min(n, m) != 0 || n+m != 3*networks {
		t.Errorf("%d and %d writes, want %d by one of them:%s%s", n, m, 3*networks, list, other)
	}
}
