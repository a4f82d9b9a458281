// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// writes counts a controller's write requests, except leases and events, by
// method and path.
type writes struct {
	mu sync.Mutex
	by map[string]int
}

func (w *writes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if isWrite(req) {
			w.mu.Lock()
			w.by[req.Method+" "+req.URL.Path]++
			w.mu.Unlock()
		}
		return next.RoundTrip(req)
	})
}

func isWrite(req *http.Request) bool {
	path := req.URL.Path
	return req.Method != http.MethodGet && !strings.Contains(path, "/leases") && !strings.Contains(path, "/events")
}

func (w *writes) total() (n int, list string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, c := range w.by {
		n += c
		list += fmt.Sprintf("\n  %d × %s", c, k)
	}
	return n, list
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testController is a running cluster controller.
type testController struct {
	*writes
	stop func()
}

func testConfig(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Parse("[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// startController runs the cluster controller until the test ends or stop is called.
// wraps intercept its requests to the API server.
func startController(t testing.TB, cfg config.Config, wraps ...transport.WrapperFunc) *testController {
	t.Helper()
	c := &testController{writes: &writes{by: map[string]int{}}}
	restConfig := rest.CopyConfig(env.Controller)
	restConfig.Wrap(c.wrap)
	for _, w := range wraps {
		restConfig.Wrap(w)
	}
	var logs io.Writer = io.Discard
	if testing.Verbose() {
		logs = os.Stderr
	}
	ctx, cancel := context.WithCancel(context.Background())
	exited := make(chan error, 1)
	go func() { exited <- cluster.Run(ctx, cfg, restConfig, slog.New(slog.NewTextHandler(logs, nil))) }()
	var once sync.Once
	c.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-exited; err != nil {
				t.Errorf("controller failed: %v", err)
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

const controllerProcessEnv = "BULKHEAD_TEST_CONTROLLER_KUBECONFIG"

// controllerProcess runs the cluster controller in this process, which a test started
// and can kill.
func controllerProcess() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	restConfig, err := clientcmd.BuildConfigFromFlags("", os.Getenv(controllerProcessEnv))
	if err == nil {
		restConfig.QPS, restConfig.Burst = 1000, 2000 // the configuration's defaults
		var cfg config.Config
		if cfg, err = config.Parse("[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n"); err == nil {
			err = cluster.Run(ctx, cfg, restConfig, slog.New(slog.NewTextHandler(io.Discard, nil)))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func startControllerProcess(t *testing.T) *exec.Cmd {
	t.Helper()
	file := t.TempDir() + "/kubeconfig"
	if err := os.WriteFile(file, []byte(Kubeconfig(env.Controller)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), controllerProcessEnv+"="+file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// fixture is an administrator's client with helpers that fail the test.
type fixture struct {
	client.WithWatch
	t   testing.TB
	ctx context.Context
}

func newFixture(t testing.TB) fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, udnv1.AddToScheme, nadv1.AddToScheme, frrv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.NewWithWatch(env.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return fixture{c, t, context.Background()}
}

func (w fixture) create(o client.Object) {
	w.t.Helper()
	if err := w.Create(w.ctx, o); err != nil {
		w.t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
}

// remove deletes o, and succeeds if it does not exist.
func (w fixture) remove(o client.Object) {
	w.t.Helper()
	if err := client.IgnoreNotFound(w.Delete(w.ctx, o)); err != nil {
		w.t.Fatalf("delete %T %s: %v", o, o.GetName(), err)
	}
}

// namespace creates a namespace; primary adds the label of primary networks.
func (w fixture) namespace(name string, primary bool, labels ...string) *corev1.Namespace {
	w.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if primary {
		ns.Labels[network.LabelPrimaryUDN] = ""
	}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		ns.Labels[k] = v
	}
	w.create(ns)
	return ns
}

func layer3(cidrs ...udnv1.CIDR) *udnv1.Layer3Config {
	l := &udnv1.Layer3Config{Role: udnv1.NetworkRolePrimary}
	for _, c := range cidrs {
		l.Subnets = append(l.Subnets, udnv1.Layer3Subnet{CIDR: c})
	}
	return l
}

func newUDN(ns, name string, cidrs ...udnv1.CIDR) *udnv1.UserDefinedNetwork {
	return &udnv1.UserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: udnv1.UserDefinedNetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: layer3(cidrs...)}}
}

// newCUDN selects namespaces by the label team.
func newCUDN(name, team string, cidrs ...udnv1.CIDR) *udnv1.ClusterUserDefinedNetwork {
	return &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: udnv1.ClusterUserDefinedNetworkSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": team}},
		Network:           udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: layer3(cidrs...)},
	}}
}

// waitCondition waits until o's condition has the status and its reason or message
// contains each text.
func (w fixture) waitCondition(o client.Object, kind string, status metav1.ConditionStatus, text ...string) {
	w.t.Helper()
	Eventually(w.t, func() error {
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		c := meta.FindStatusCondition(conditionsOf(o), kind)
		if c == nil {
			return fmt.Errorf("%s has no condition %s", o.GetName(), kind)
		}
		if c.Status != status {
			return fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message)
		}
		for _, t := range text {
			if !strings.Contains(c.Reason+": "+c.Message, t) {
				return fmt.Errorf("%s is %q %q, want %q in it", kind, c.Reason, c.Message, t)
			}
		}
		return nil
	})
}

func conditionsOf(o client.Object) []metav1.Condition {
	switch o := o.(type) {
	case *udnv1.UserDefinedNetwork:
		return o.Status.Conditions
	case *udnv1.ClusterUserDefinedNetwork:
		return o.Status.Conditions
	case *udnv1.RouteAdvertisements:
		return o.Status.Conditions
	}
	return nil
}

func (w fixture) waitCreated(o client.Object, text ...string) {
	w.t.Helper()
	w.waitCondition(o, udnv1.ConditionNetworkCreated, metav1.ConditionTrue, append([]string{udnv1.ReasonNADCreated}, text...)...)
}

func (w fixture) nad(ns, name string) *nadv1.NetworkAttachmentDefinition {
	w.t.Helper()
	n := &nadv1.NetworkAttachmentDefinition{}
	if err := w.Get(w.ctx, client.ObjectKey{Namespace: ns, Name: name}, n); err != nil {
		w.t.Fatalf("get NAD %s/%s: %v", ns, name, err)
	}
	return n
}

func (w fixture) waitGone(o client.Object) {
	w.t.Helper()
	Eventually(w.t, func() error {
		err := w.Get(w.ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%T %s still exists: %v, finalizers %v, deleted %v", o, o.GetName(), err, o.GetFinalizers(), o.GetDeletionTimestamp())
	})
}

// createPodUsing creates a pod with an annotation that uses the NADs.
func (w fixture) createPodUsing(ns, name string, nads ...string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	entries := []string{`"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","role":"infrastructure-locked"}`}
	for _, n := range nads {
		entries = append(entries, fmt.Sprintf(`%q:{"ip_addresses":["10.100.0.3/24"],"mac_address":"0a:58:0a:64:00:03","role":"primary"}`, n))
	}
	p.Annotations[network.AnnotationPodNetworks] = "{" + strings.Join(entries, ",") + "}"
	w.create(p)
	return p
}
