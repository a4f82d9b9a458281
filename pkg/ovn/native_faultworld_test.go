// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
	"bulkhead/test/api"
	"bulkhead/test/native"
)

// zoneProcessEnv names the directory of a zone that the test binary runs as a process of
// its own, in place of its tests.
const zoneProcessEnv = "BULKHEAD_TEST_ZONE"

// runZoneProcess runs the zone of node1 with the files of the directory until it is killed, and
// prints a line when it is ready.
func runZoneProcess(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "bulkhead.conf"))
	if err != nil {
		return err
	}
	cfg, err := config.Parse(string(text))
	if err != nil {
		return err
	}
	cfg.Kubernetes.NodeName, cfg.Kubernetes.Kubeconfig = "node1", filepath.Join(dir, "kubeconfig")
	cfg.NBAddress, cfg.SBAddress = "unix:"+filepath.Join(dir, "nbproxy.sock"), "unix:"+filepath.Join(dir, "sbproxy.sock")
	ctx := context.Background()
	log := process.SetLog(ctx, os.Stderr, cfg.LogLevel)
	clients, err := kube.NewClients(cfg.Kubernetes, "bulkhead-zone")
	if err != nil {
		return err
	}
	z, err := NewZone(cfg, clients.Kube, clients.NAD, nil, log)
	if err != nil {
		return err
	}
	z.addresses.lowest = true // pods that are created again have the same rows
	go func() {
		for !z.ready.Load() {
			time.Sleep(2 * time.Millisecond)
		}
		fmt.Println("ready")
	}()
	return z.Run(ctx)
}

// faultConfig is the configuration of the zone process.
const faultConfig = `[default]
cluster-subnets = 10.244.0.0/16/24, fd44::/48/64
service-cidrs = 10.96.0.0/16, fd96::/112
[observe]
log-level = debug
`

// zoneProcess is a running zone.
type zoneProcess struct {
	cmd    *exec.Cmd
	ready  chan struct{} // closed when it is ready
	exited chan struct{} // closed when it has ended
}

// kill ends the zone as kill -9 does and returns when it has ended.
func (p *zoneProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// fault is what happens at a step.
type fault struct {
	kind faultKind
	n    int // the step, from 1
}

type faultKind string

const (
	noFault    faultKind = "no fault"
	killBefore faultKind = "kill -9 before write" // the database never sees the transaction
	killAfter  faultKind = "kill -9 after write"  // the zone never sees the reply
	cutAt      faultKind = "cut before message"
	cutWithin  faultKind = "cut within message"
)

func (f fault) String() string {
	if f.kind == noFault {
		return string(noFault)
	}
	return fmt.Sprintf("%s %d", f.kind, f.n)
}

// injector counts what passes between the zone and its databases, and causes a fault at a
// step. While it decides, nothing passes.
type injector struct {
	mu       sync.Mutex
	zone     *zoneProcess
	armed    fault
	fired    chan struct{} // closed when the fault has happened
	writes   int           // transactions since it was armed
	replies  int           // to them
	messages int           // connections, requests and replies since it was armed
}

func (i *injector) arm(f fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed, i.fired, i.writes, i.replies, i.messages = f, make(chan struct{}), 0, 0, 0
}

func (i *injector) count() (writes, messages int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.writes, i.messages
}

func (i *injector) happened() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.fired:
		return true
	default:
		return false
	}
}

func (i *injector) onMessage(m native.Message) native.Verdict {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.messages++
	switch {
	case m.Write && m.Reply:
		i.replies++
	case m.Write:
		i.writes++
	}
	var verdict native.Verdict
	switch f := i.armed; {
	case f.kind == killBefore && m.Write && !m.Reply && i.writes == f.n, f.kind == killAfter && m.Write && m.Reply && i.replies == f.n:
		i.zone.kill()
		verdict = native.Cut
	case f.kind == cutAt && i.messages == f.n:
		verdict = native.Cut
	case f.kind == cutWithin && i.messages == f.n:
		verdict = native.CutHalf
	default:
		return native.Pass
	}
	i.armed = fault{}
	close(i.fired)
	return verdict
}

// faultWorld is a node with real OVN, an API server, and the zone as a process of its own
// behind proxies.
type faultWorld struct {
	*zoneUnderTest
	t        *testing.T
	tree     native.Tree
	kube     kubernetes.Interface
	nads     nadclient.Interface
	injector *injector
	zone     *zoneProcess
	log      *os.File
	uids     map[string]string // of pods that were created: namespace and name
	pods     map[string]*faultPod
	probes   *probes
	proxies  []*native.Proxy
	// What arrives: always; with what a change creates; and what breakIsolation lets through besides, always
	// and with that.
	always, withX, withGreen, withPort, withWeb map[arrival]bool
	broken, brokenX, brokenGreen, brokenWeb     map[arrival]bool
	// Daemons of OVN, which tests kill.
	central native.Central
	ovs     native.Switch
}

func newFaultWorld(t *testing.T) *faultWorld {
	t.Helper()
	tree := debianTree(t)
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if os.Getenv(api.BinEnv) == "" {
		t.Skip(api.BinEnv + " names no directory with kube-apiserver and etcd")
	}
	ctx := context.Background()
	w := &faultWorld{t: t, tree: tree, injector: &injector{fired: make(chan struct{})}, uids: map[string]string{}, pods: map[string]*faultPod{}}
	w.zoneUnderTest = &zoneUnderTest{node: testNode(1, "node1", network.SharedGateway), host: newHost(t, tree, "node1", namespace(t, "node1"))}
	env := must(api.Start(ctx, api.Options{}))(t)
	t.Cleanup(func() { _ = env.Stop() })
	w.ok(env.Install(ctx, filepath.Join(api.Root(), "deploy/crds")))
	w.kube, w.nads = kubernetes.NewForConfigOrDie(env.Admin), nadclient.NewForConfigOrDie(env.Admin)
	w.central = must(w.StartCentral())(t)
	w.ovs = must(w.StartOVS(w.node, "", ""))(t)
	for _, db := range []string{"nb", "sb"} {
		p := must(native.StartProxy(w.Path(db+"proxy.sock"), w.Path(db+".sock"), w.injector.onMessage, w.injector.onMessage))(t)
		t.Cleanup(p.Close)
		w.proxies = append(w.proxies, p)
	}
	for name, text := range map[string]string{"kubeconfig": api.Kubeconfig(env.Admin), "bulkhead.conf": faultConfig} {
		w.ok(os.WriteFile(w.Path(name), []byte(text), 0o600))
	}
	w.log = must(os.Create(w.Path("zone.log")))(t)
	t.Cleanup(func() { _ = w.log.Close() })
	w.probes = newProbes(t)
	return w
}

// disconnect ends the zone's connections to its databases.
func (w *faultWorld) disconnect() {
	for _, p := range w.proxies {
		p.Disconnect()
	}
}

// start starts a zone.
func (w *faultWorld) start() {
	w.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), zoneProcessEnv+"="+w.Dir)
	cmd.Stderr = w.log
	out, err := cmd.StdoutPipe()
	w.ok(err)
	p := &zoneProcess{cmd: cmd, ready: make(chan struct{}), exited: make(chan struct{})}
	w.injector.mu.Lock()
	defer w.injector.mu.Unlock()
	w.ok(api.StartChild(cmd))
	w.zone, w.injector.zone = p, p
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				close(p.ready)
			}
		}
		_ = cmd.Wait()
		close(p.exited)
	}()
	w.t.Cleanup(p.kill)
}

// running starts a zone unless one runs, and waits until it is ready.
func (w *faultWorld) running() {
	w.t.Helper()
	select {
	case <-w.zone.exited:
		w.start()
	default:
	}
	select {
	case <-w.zone.ready:
	case <-w.zone.exited:
		w.t.Fatal("the zone has ended")
	case <-time.After(time.Minute):
		w.t.Fatal("the zone is not ready after a minute")
	}
}

// rows returns the rows of the northbound database, of all clients, without the columns that
// OVN writes, and the remote chassis of the southbound database. It replaces the UIDs of pods,
// which differ when a pod is created again.
func (w *faultWorld) rows() (string, error) {
	out, err := w.Run("ovsdb-client", "dump", "--format=json", w.Sock("nb"), "OVN_Northbound")
	if err != nil {
		return "", err
	}
	chassis, err := w.Run("ovn-sbctl", "--no-leader-only", "--format=json", "--columns=name,hostname,other_config,external_ids", "find", "Chassis", "other_config:is-remote=true")
	if err != nil {
		return "", err
	}
	written := map[string][]string{
		"Logical_Switch_Port": {"up"}, "Logical_Router_Port": {"status"},
		"NB_Global": {"_uuid", "nb_cfg", "nb_cfg_timestamp", "sb_cfg", "sb_cfg_timestamp", "hv_cfg", "hv_cfg_timestamp", "options", "connections", "ssl"},
	}
	var lines []string
	for text := range strings.Lines(out + strings.TrimSpace(chassis)) {
		var table struct {
			Caption  string              `json:"caption"`
			Headings []string            `json:"headings"`
			Data     [][]json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal([]byte(text), &table); err != nil {
			return "", fmt.Errorf("read the dump %.100q: %w", text, err)
		}
		name := cmp.Or(strings.TrimSuffix(table.Caption, " table"), "remote Chassis")
		for _, row := range table.Data {
			line := name
			for i, column := range table.Headings {
				if !slices.Contains(written[name], column) {
					line += fmt.Sprintf(" %s=%s", column, row[i])
				}
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n")
	for uid, pod := range w.uids {
		text = strings.ReplaceAll(text, uid, "uid of "+pod)
	}
	return text, nil
}

// difference returns the lines that only one of two texts has.
func difference(want, have string) string {
	var out []string
	for _, side := range []struct{ mark, text, other string }{{"-", want, have}, {"+", have, want}} {
		other := strings.Split(side.other, "\n")
		for line := range strings.SplitSeq(side.text, "\n") {
			if !slices.Contains(other, line) {
				out = append(out, side.mark+" "+line)
			}
		}
	}
	return strings.Join(out, "\n")
}

// reached waits until the databases have these rows.
func (w *faultWorld) reached(what, want string) {
	w.t.Helper()
	eventually(w.t, what+": the databases have the rows of an uninterrupted run", func() error {
		have, err := w.rows()
		if err == nil && have != want {
			err = fmt.Errorf("missing (-) and surplus (+) rows:\n%s", difference(want, have))
		}
		return err
	})
}

// settled restarts the zone, which must find nothing to do, and returns the rows.
func (w *faultWorld) settled(what string) string {
	w.t.Helper()
	w.zone.kill()
	before := must(w.rows())(w.t)
	w.injector.arm(fault{})
	w.running()
	if writes, _ := w.injector.count(); writes != 0 {
		w.t.Errorf("%s: the next zone wrote %d transactions, want none\n%s", what, writes, difference(before, must(w.rows())(w.t)))
	}
	return before
}

// faultPod is a pod and its interfaces, which stay when the pod is deleted and are its
// successor's.
type faultPod struct {
	namespace, name string
	ns              string // network namespace
	nets            network.PodNetworks
}

func (p *faultPod) key() string { return p.namespace + "/" + p.name }

// link is the name of the pod's interface on a network.
func (p *faultPod) link(nad string) string {
	if nad == network.DefaultName {
		return p.namespace + p.name + "0"
	}
	return p.namespace + p.name + "1"
}

// createPod creates a pod and tells Open vSwitch its UID, so that its interfaces are bound as soon
// as it has ports.
func (w *faultWorld) createPod(namespace, name string, annotations map[string]string) {
	w.t.Helper()
	p, err := w.kube.CoreV1().Pods(namespace).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	w.ok(err)
	w.uids[string(p.UID)] = namespace + "/" + name
	if known := w.pods[namespace+"/"+name]; known != nil {
		for nad := range known.nets {
			w.must("ovs-vsctl", "--db="+w.Sock("ovs"), "set", "Interface", known.link(nad), "external_ids:iface-id-ver="+string(p.UID))
		}
	}
}

func (w *faultWorld) deletePod(namespace, name string) {
	w.t.Helper()
	w.ok(w.kube.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
}

// plugPod waits for a pod's networks and gives the pod its interfaces.
func (w *faultWorld) plugPod(namespaceName, name string) {
	w.t.Helper()
	p := &faultPod{namespace: namespaceName, name: name}
	w.pods[p.key()] = p
	var uid string
	eventually(w.t, "networks of "+p.key(), func() error {
		pod, err := w.kube.CoreV1().Pods(p.namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		uid = string(pod.UID)
		if p.nets, err = network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks]); err == nil && len(p.nets) == 0 {
			err = fmt.Errorf("there are none")
		}
		return err
	})
	p.ns = namespace(w.t, "f"+namespaceName+name)
	for nad, n := range p.nets {
		var routes []string
		for _, r := range n.Routes {
			routes = append(routes, fmt.Sprintf("%s via %s", r.Dest, r.NextHop))
		}
		for _, gw := range n.Gateways {
			routes = append(routes, fmt.Sprintf("%s via %s", defaultRoute(gw), gw))
		}
		w.plug(network.PodLSP(nad, p.namespace, p.name), uid, p.ns, p.link(nad), n.MAC, n.IPs, routes...)
	}
	w.probes.listen(p.key(), p.ns)
}

// addrs returns a pod's addresses on a network.
func (w *faultWorld) addrs(pod, nad string) []netip.Addr {
	var out []netip.Addr
	for _, ip := range w.pods[pod].nets[nad].IPs {
		out = append(out, ip.Addr())
	}
	if len(out) == 0 {
		w.t.Fatalf("pod %s has no addresses on %s", pod, nad)
	}
	return out
}
