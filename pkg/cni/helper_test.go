// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

func prefixes(s ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(s))
	for i, x := range s {
		out[i] = netip.MustParsePrefix(x)
	}
	return out
}

func subnets(t network.Topology, list string) []network.Subnet {
	s, err := network.ParseSubnets(list, t)
	if err != nil {
		panic(err)
	}
	return s
}

var plan = network.Plan{ClusterSubnets: subnets(network.Layer3, "10.244.0.0/16/24,fd00:10:244::/48/64"), ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:10:96::/112"),
	Join: prefixes("100.64.0.0/16", "fd98::/64"), ClusterMTU: 1400}

var (
	defaultNet = network.Network{Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets: plan.ClusterSubnets, JoinSubnets: plan.Join}
	blue = network.Network{ID: 7, Name: "ns_blue", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1300,
		Subnets: subnets(network.Layer3, "10.20.0.0/16/24,fd20::/48/64"), JoinSubnets: prefixes("100.65.0.0/16", "fd99::/64")}
)

// annotation is what the zone writes for a pod with a primary network.
func annotation(t testing.TB, pod int) network.PodNetworks {
	t.Helper()
	nth := func(p string) netip.Prefix {
		x := netip.MustParsePrefix(p)
		a, _ := network.NthAddr(x, uint64(pod))
		return netip.PrefixFrom(a, x.Bits())
	}
	return network.PodNetworks{
		network.DefaultName: network.NewPodNetwork(defaultNet, plan, []netip.Prefix{nth("10.244.2.0/24"), nth("fd00:10:244:2::/64")}, true),
		"ns/blue":           network.NewPodNetwork(blue, plan, []netip.Prefix{nth("10.20.2.0/24"), nth("fd20:0:0:2::/64")}, false),
	}
}

func request(command, sandbox string) Request {
	return Request{Command: command, CNIVersion: "1.0.0", Network: NetworkName, Sandbox: sandbox, NetNS: "/ns/" + sandbox, IfName: "eth0",
		Namespace: "ns", Pod: "pod", UID: "uid-1"}
}

// wire is r as the plugin sends it.
func (r Request) wire(t testing.TB) []byte {
	t.Helper()
	conf := map[string]any{"cniVersion": r.CNIVersion, "name": r.Network, "type": network.CNIType}
	if r.NAD != "" {
		conf["netAttachDefName"] = r.NAD
	}
	if r.Valid != nil {
		conf["cni.dev/valid-attachments"] = r.Valid
	}
	c, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(Wire{Config: c, Env: map[string]string{"CNI_COMMAND": r.Command, "CNI_CONTAINERID": r.Sandbox, "CNI_NETNS": r.NetNS, "CNI_IFNAME": r.IfName,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + r.Namespace + ";K8S_POD_NAME=" + r.Pod + ";K8S_POD_UID=" + r.UID}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// world is everything around the server.
type world struct {
	mu       sync.Mutex
	pods     map[string]*corev1.Pod
	watchers []chan struct{}
	primary  map[string]*network.NAD
	why      error // of Primary
	nads     map[string]network.NAD
	ports    map[string]Port
	connects bool // ovn-controller is at work
	bound    chan struct{}
	statuses chan string
	failPort error
}

func newWorld() *world {
	nad := network.NAD{Namespace: "ns", Name: "blue", Network: blue}
	return &world{pods: map[string]*corev1.Pod{}, primary: map[string]*network.NAD{"ns": &nad}, nads: map[string]network.NAD{"ns/blue": nad},
		ports: map[string]Port{}, connects: true, bound: make(chan struct{}), statuses: make(chan string, 100)}
}

func (w *world) setPod(uid string, a network.PodNetworks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: types.UID(uid)}}
	if a != nil {
		raw, err := a.Render()
		if err != nil {
			panic(err)
		}
		p.Annotations = map[string]string{network.AnnotationPodNetworks: raw}
	}
	w.pods["ns/pod"] = p
	for _, ch := range w.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (w *world) Get(namespace, name string) (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.pods[namespace+"/"+name]
	return p, ok
}

func (w *world) Changed(string, string) (<-chan struct{}, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ch := make(chan struct{}, 1)
	w.watchers = append(w.watchers, ch)
	return ch, func() {}
}

func (w *world) Primary(namespace string) (*network.NAD, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.primary[namespace], w.why
}

func (w *world) NAD(key string) (network.NAD, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, ok := w.nads[key]
	return n, ok
}

func (w *world) Ensure(_ context.Context, ports []Port) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failPort != nil {
		return w.failPort
	}
	for _, p := range ports {
		for name, old := range w.ports {
			if old.LSP == p.LSP {
				delete(w.ports, name)
			}
		}
		w.ports[p.Name] = p
	}
	return nil
}

func (w *world) Delete(_ context.Context, sandbox, attachment string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, p := range w.ports {
		if p.Sandbox == sandbox && p.Attachment == attachment {
			delete(w.ports, name)
		}
	}
	return nil
}

func (w *world) DeleteNames(_ context.Context, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		delete(w.ports, n)
	}
	return nil
}

func (w *world) List(context.Context) ([]Port, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Port
	for _, p := range w.ports {
		out = append(out, p)
	}
	return out, nil
}

func (w *world) portNames() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for n := range w.ports {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (w *world) WaitInstalled(ctx context.Context, ports []Port) error {
	w.mu.Lock()
	ok := w.connects
	for _, p := range ports {
		ok = ok && w.ports[p.Name] == p
	}
	bound := w.bound
	w.mu.Unlock()
	if ok {
		return nil
	}
	select {
	case <-bound:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("ovn-controller has not bound it"), ctx.Err())
	}
}

func (w *world) WriteStatus(_ context.Context, _, _, _, status string) error {
	w.statuses <- status
	return nil
}

func (w *world) server(links Links) *Server {
	s := NewServer(Config{Default: defaultNet, NetworksWait: time.Minute, PortsWait: time.Minute}, w, w, w, links, w)
	s.SetReady("")
	return s
}
