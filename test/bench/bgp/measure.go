// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
	"bulkhead/test/api"
	"bulkhead/test/bench/controller"
	"bulkhead/test/bench/proc"
	"bulkhead/test/bench/report"
)

const (
	frrNamespace = "frr-k8s-system"
	fabricLabel  = "bench.bulkhead/fabric"
	ownLabel     = "bench.bulkhead/own"
)

// phase is one change and what it cost.
type phase struct {
	took    time.Duration // until the last object has it
	objects int           // FRRConfigurations that were written
	cpu     time.Duration // of the controller
}

type result struct {
	all, network, node phase
	bytes              int // of all generated FRRConfigurations, as JSON
	peak               int64
}

func (r result) figures(o options) []report.Figure {
	line := func(what string, p phase) report.Figure {
		return report.Figure{
			Name: what,
			Value: fmt.Sprintf("%s, %d objects, controller %s CPU, %s an object",
				report.Seconds(p.took), p.objects, report.Seconds(p.cpu), report.Millis(p.cpu/time.Duration(max(p.objects, 1)))),
		}
	}
	size := fmt.Sprintf("%d networks, %d nodes: ", o.networks, o.nodes)
	return []report.Figure{
		line(size+"one RouteAdvertisements until accepted and everything is generated", r.all),
		line(size+"one network more", r.network),
		line(size+"one node more", r.node),
		{Name: size + "generated objects", Value: report.Megabytes(int64(r.bytes))},
		{Name: size + "controller's memory, peak", Value: report.Megabytes(r.peak)},
	}
}

// bench is an API server and the controller.
type bench struct {
	client.Client
	env     *api.Env
	process *controller.Process
}

func measure(ctx context.Context, o options) (r result, err error) {
	env, err := api.Start(ctx, api.Options{Fairness: true})
	if err != nil {
		return r, fmt.Errorf("start the API server: %w", err)
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	b := &bench{env: env}
	if err := b.install(ctx); err != nil {
		return r, err
	}
	if err := b.startController(ctx, o.controller); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.process.Stop()) }()
	o.progress("the controller runs")

	if err := each(ctx, o.nodes, func(ctx context.Context, i int) error { return b.Create(ctx, node(i)) }); err != nil {
		return r, fmt.Errorf("create nodes: %w", err)
	}
	if err := each(ctx, o.networks, b.createNetwork); err != nil {
		return r, fmt.Errorf("create networks: %w", err)
	}
	if err := b.wait(ctx, "all networks have NADs", func(ctx context.Context) (bool, error) { return b.created(ctx, o.networks) }); err != nil {
		return r, err
	}
	o.progress("%d nodes and %d networks", o.nodes, o.networks)

	if r.all, err = b.phase(ctx, func() error { return b.Create(ctx, advertisements()) }, o.nodes, o.networks); err != nil {
		return r, err
	}
	o.progress("advertised")
	if r.network, err = b.phase(ctx, func() error { return b.createNetwork(ctx, o.networks) }, o.nodes, o.networks+1); err != nil {
		return r, err
	}
	o.progress("one network more")
	if r.node, err = b.phase(ctx, func() error { return b.Create(ctx, node(o.nodes)) }, o.nodes+1, o.networks+1); err != nil {
		return r, err
	}
	o.progress("one node more")
	list, err := b.generated(ctx)
	if err != nil {
		return r, err
	}
	for _, c := range list {
		raw, err := json.Marshal(c)
		if err != nil {
			return r, fmt.Errorf("encode %s: %w", c.Name, err)
		}
		r.bytes += len(raw)
	}
	_, r.peak, err = proc.Memory(b.process.PID())
	return r, err
}

// install installs the manifests, the FRRConfigurations' definition, and one with a session of each IP
// family.
func (b *bench) install(ctx context.Context) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/metallb/frr-k8s").Output()
	if err != nil {
		return fmt.Errorf("find the module of frr-k8s: %w", err)
	}
	deploy := filepath.Join(api.Root(), "deploy")
	crd := filepath.Join(strings.TrimSpace(string(dir)), "config/crd/bases/frrk8s.metallb.io_frrconfigurations.yaml")
	if err := b.env.Install(ctx, filepath.Join(deploy, "crds"), filepath.Join(deploy, "admission"), filepath.Join(deploy, "config.yaml"), filepath.Join(deploy, "install.yaml"), crd); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, udnv1.AddToScheme, frrv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("register API types: %w", err)
		}
	}
	admin := rest.CopyConfig(b.env.Admin)
	admin.QPS = -1
	if b.Client, err = client.New(admin, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	if err := b.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: frrNamespace}}); err != nil {
		return fmt.Errorf("create the namespace of frr-k8s: %w", err)
	}
	base := &frrv1.FRRConfiguration{
		ObjectMeta: metav1.ObjectMeta{Namespace: frrNamespace, Name: "bench", Labels: map[string]string{fabricLabel: ""}},
		Spec: frrv1.FRRConfigurationSpec{BGP: frrv1.BGPConfig{Routers: []frrv1.Router{{ASN: 64512, Neighbors: []frrv1.Neighbor{
			{ASN: 64512, Address: "192.0.2.1"}, {ASN: 64512, Address: "2001:db8::1"},
		}}}}},
	}
	if err := b.Create(ctx, base); err != nil {
		return fmt.Errorf("create the base FRRConfiguration: %w", err)
	}
	return nil
}

func (b *bench) startController(ctx context.Context, binary string) error {
	kubeconfig := filepath.Join(b.env.Dir, "controller.kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(api.Kubeconfig(b.env.Controller)), 0o600); err != nil {
		return fmt.Errorf("write the controller's kubeconfig: %w", err)
	}
	log, err := os.Create(filepath.Join(b.env.Dir, "controller.log"))
	if err != nil {
		return fmt.Errorf("create the controller's log: %w", err)
	}
	defer log.Close()
	if b.process, err = controller.Start(binary, log, "--role=cluster", "--kubeconfig="+kubeconfig); err != nil {
		return err
	}
	return b.wait(ctx, "the controller is ready", func(ctx context.Context) (bool, error) { return b.process.Ready(ctx), nil })
}

func node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%03d", i)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
}

// createNetwork creates a primary network with a subnet of its own, and its namespace.
func (b *bench) createNetwork(ctx context.Context, i int) error {
	name := fmt.Sprintf("net-%04d", i)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{network.LabelPrimaryUDN: "", ownLabel: name}}}
	if err := b.Create(ctx, ns); err != nil {
		return err
	}
	cidr := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x20, byte(i >> 8), byte(i)}), 48)
	return b.Create(ctx, &udnv1.ClusterUserDefinedNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fabricLabel: ""}},
		Spec: udnv1.ClusterUserDefinedNetworkSpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{ownLabel: name}},
			Network: udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: &udnv1.Layer3Config{
				Role: udnv1.NetworkRolePrimary, Subnets: []udnv1.Layer3Subnet{{CIDR: udnv1.CIDR(cidr.String()), HostSubnet: 64}},
			}},
		},
	})
}

// advertisements selects all networks.
func advertisements() *udnv1.RouteAdvertisements {
	selector := metav1.LabelSelector{MatchLabels: map[string]string{fabricLabel: ""}}
	return &udnv1.RouteAdvertisements{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: udnv1.RouteAdvertisementsSpec{
		Advertisements: []udnv1.AdvertisementType{udnv1.PodNetwork}, FRRConfigurationSelector: selector,
		NetworkSelectors: []udnv1.NetworkSelector{{
			NetworkSelectionType:              udnv1.ClusterUserDefinedNetworks,
			ClusterUserDefinedNetworkSelector: &udnv1.ClusterUserDefinedNetworkSelector{NetworkSelector: selector},
		}},
	}}
}

// created reports whether n networks are created.
func (b *bench) created(ctx context.Context, n int) (bool, error) {
	var list udnv1.ClusterUserDefinedNetworkList
	if err := b.List(ctx, &list); err != nil {
		return false, err
	}
	for i := range list.Items {
		if meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, udnv1.ConditionNetworkCreated) {
			n--
		}
	}
	return n == 0, nil
}

func (b *bench) generated(ctx context.Context) ([]frrv1.FRRConfiguration, error) {
	var list frrv1.FRRConfigurationList
	err := b.List(ctx, &list, client.InNamespace(frrNamespace), client.HasLabels{"k8s.ovn.org/route-advertisements"})
	return list.Items, err
}

// phase makes a change, and waits until the RouteAdvertisements is accepted and each node's object has
// one prefix of each network.
func (b *bench) phase(ctx context.Context, change func() error, nodes, networks int) (p phase, err error) {
	before, err := b.generated(ctx)
	if err != nil {
		return p, err
	}
	versions := map[string]string{}
	for _, c := range before {
		versions[c.Name] = c.ResourceVersion
	}
	pid := b.process.PID()
	used, err := proc.CPU(pid)
	if err != nil {
		return p, err
	}
	start := time.Now()
	if err := change(); err != nil {
		return p, fmt.Errorf("make the change: %w", err)
	}
	err = b.wait(ctx, fmt.Sprintf("%d networks are advertised from %d nodes", networks, nodes), func(ctx context.Context) (bool, error) {
		var ra udnv1.RouteAdvertisements
		if err := b.Get(ctx, client.ObjectKey{Name: "all"}, &ra); err != nil {
			return false, err
		}
		list, err := b.generated(ctx)
		if err != nil || len(list) != nodes || !meta.IsStatusConditionTrue(ra.Status.Conditions, udnv1.ConditionAccepted) {
			return false, err
		}
		p.objects = 0
		for _, c := range list {
			if len(c.Spec.BGP.Routers) != 1 || len(c.Spec.BGP.Routers[0].Prefixes) != networks {
				return false, nil
			}
			if versions[c.Name] != c.ResourceVersion {
				p.objects++
			}
		}
		return true, nil
	})
	if err != nil {
		return p, err
	}
	p.took = time.Since(start)
	now, err := proc.CPU(pid)
	p.cpu = now - used
	return p, err
}

// each calls f for 0 to n-1, several at a time.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// wait calls f until it returns true or an error.
func (b *bench) wait(ctx context.Context, what string, f func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := f(ctx)
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if done {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		}
	}
}
