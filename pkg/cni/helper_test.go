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
	Join: prefixes("100.64.0.0/16", "fd98::/64"), UnderlayMTU: 1500, ClusterMTU: 1400}

var (
	defaultNet = network.Network{Name: "default", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets: plan.ClusterSubnets, JoinSubnets: plan.Join}
	blue = network.Network{ID: 7, Name: "ns_blue", Topology: network.Layer3, Role: network.RolePrimary, MTU: 1300,
		Subnets: subnets(network.Layer3, "10.20.0.0/16/24,fd20::/48/64"), JoinSubnets: prefixes("100.65.0.0/16", "fd99::/64")}
)

// annotation returns the pod-networks annotation of a pod with a primary network.
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

// wire returns r as the plugin sends it.
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

// fakeDeps implements the server's dependencies: Pods, Networks, Ports and
// StatusWriter.
type fakeDeps struct {
	mu         sync.Mutex
	pods       map[string]*corev1.Pod
	watchers   []chan struct{}
	primary    map[string]*network.NAD
	primaryErr error // returned by Primary
	nads       map[string]network.NAD
	foreign    map[string]struct{} // keys of other CNI plugins' NADs
	ports      map[string]Port
	mapped     string // physical network
	bindsPorts bool   // ovn-controller binds ports
	bound      chan struct{}
	statuses   chan string
	statusErrs chan error // of the next writes of the status
	ensureErr  error      // returned by Ensure
}

func newFakeDeps() *fakeDeps {
	nad := network.NAD{Namespace: "ns", Name: "blue", Network: blue}
	return &fakeDeps{pods: map[string]*corev1.Pod{}, primary: map[string]*network.NAD{"ns": &nad}, nads: map[string]network.NAD{"ns/blue": nad},
		ports: map[string]Port{}, bindsPorts: true, bound: make(chan struct{}), statuses: make(chan string, 100), statusErrs: make(chan error, 10)}
}

func (d *fakeDeps) setPod(uid string, a network.PodNetworks) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: types.UID(uid)}}
	if a != nil {
		raw, err := a.Render()
		if err != nil {
			panic(err)
		}
		p.Annotations = map[string]string{network.AnnotationPodNetworks: raw}
	}
	d.pods["ns/pod"] = p
	for _, ch := range d.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (d *fakeDeps) Get(namespace, name string) (*corev1.Pod, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.pods[namespace+"/"+name]
	return p, ok
}

func (d *fakeDeps) Changed(string, string) (<-chan struct{}, func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ch := make(chan struct{}, 1)
	d.watchers = append(d.watchers, ch)
	return ch, func() {}
}

func (d *fakeDeps) Primary(namespace string) (*network.NAD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.primary[namespace], d.primaryErr
}

func (d *fakeDeps) NAD(key string) (network.NAD, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.nads[key]
	return n, ok
}

func (d *fakeDeps) Foreign(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.foreign[key]
	return ok
}

func (d *fakeDeps) Ensure(_ context.Context, ports []Port) (replaced []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ensureErr != nil {
		return nil, d.ensureErr
	}
	for _, p := range ports {
		for name, old := range d.ports {
			if old.LSP == p.LSP && name != p.Name {
				delete(d.ports, name)
				replaced = append(replaced, name)
			}
		}
		d.ports[p.Name] = p
	}
	return replaced, nil
}

func (d *fakeDeps) Delete(_ context.Context, sandbox, attachment string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, p := range d.ports {
		if p.Sandbox == sandbox && p.Attachment == attachment {
			delete(d.ports, name)
		}
	}
	return nil
}

func (d *fakeDeps) DeleteNames(_ context.Context, names []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range names {
		delete(d.ports, n)
	}
	return nil
}

func (d *fakeDeps) List(context.Context) ([]Port, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Port
	for _, p := range d.ports {
		out = append(out, p)
	}
	return out, nil
}

func (d *fakeDeps) portNames() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for n := range d.ports {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (d *fakeDeps) Mapped(_ context.Context, physicalNetwork string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mapped == physicalNetwork, nil
}

func (d *fakeDeps) WaitInstalled(ctx context.Context, ports []Port) error {
	d.mu.Lock()
	ok := d.bindsPorts
	for _, p := range ports {
		ok = ok && d.ports[p.Name] == p
	}
	bound := d.bound
	d.mu.Unlock()
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

func (d *fakeDeps) WriteStatus(_ context.Context, _, _, _, status string) error {
	select {
	case err := <-d.statusErrs:
		return err
	default:
	}
	d.statuses <- status
	return nil
}

func (d *fakeDeps) server(links Links) *Server {
	s := NewServer(Config{Default: defaultNet, Plan: plan, NetworksWait: time.Minute, PortsWait: time.Minute}, d, d, d, links, d)
	s.SetReady("")
	return s
}
