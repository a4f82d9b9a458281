// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/bench/proc"
	"bulkhead/test/native"
)

// shape is what a cluster has when its first node starts.
type shape struct {
	networks, nodes int
	services, pods  int // of each network; pods are spread over all nodes
	topology        network.Topology
	noOverlay       bool
	changes         bool // measure changes and a restart too
}

func (s shape) String() string {
	return fmt.Sprintf("%d networks × %d nodes × %d services × %d pods", s.networks, s.nodes, s.services, s.pods)
}

// result is what one shape cost on node1.
type result struct {
	shape      shape
	committed  time.Duration // from the zone's start to its last row
	southbound time.Duration // and to northd having written the southbound database; 0: not within followed
	switched   time.Duration // and to ovn-controller having written the flows; 0: not within followed
	cpu        time.Duration // of the zone
	peak       int64         // of the zone, and of the one after the restart
	traffic    traffic
	flows      int // OpenFlow flows of br-int
	logical    int // logical flows
	daemons    []daemon
	changes    []change
	restart    traffic
	restartCPU time.Duration
}

// daemon is one of OVN's processes after everything is built.
type daemon struct {
	name   string
	cpu    time.Duration
	memory int64
}

// change is the cost of one more object, the median of several.
type change struct {
	name   string
	took   time.Duration // from the request to the last row
	writes int
	bytes  int64

	// Pods: from the request to the southbound row, the interface's OpenFlow port, the
	// port's claim, and its installed flows.
	row, numbered, claimed, bound time.Duration
}

// quiet is how long a zone must write nothing to be taken as done.
const quiet = 3 * time.Second

// changesOfEach is the number of objects of each kind by which changes are measured.
const changesOfEach = 7

// bench is a shape's cluster and its node.
type bench struct {
	*cluster
	o     options
	shape shape
	host  *native.Host
	proxy *proxy
	pids  map[string]*exec.Cmd
}

func runShape(ctx context.Context, o options, s shape) (*result, error) {
	r := &result{shape: s}
	if err := withShape(ctx, o, s, func(b *bench) error { return b.measure(ctx, r) }); err != nil {
		return nil, err
	}
	return r, nil
}

// withShape calls f with a cluster that has all objects of a shape, and a node with empty databases.
func withShape(ctx context.Context, o options, s shape, f func(*bench) error) (err error) {
	o.progress("%s: create the objects", s)
	c, err := startCluster(ctx, o.controller)
	if err != nil {
		return err
	}
	b := &bench{cluster: c, o: o, shape: s}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := b.createObjects(ctx); err != nil {
		return fmt.Errorf("create the objects of %s: %w", s, err)
	}
	// A first zone gives the node's pods their addresses; its databases are dropped.
	if err := b.withNode(func() error { return b.assignAddresses(ctx) }); err != nil {
		return fmt.Errorf("assign addresses: %w", err)
	}
	if err := b.withNode(func() error { return f(b) }); err != nil {
		return fmt.Errorf("measure %s: %w", s, err)
	}
	return nil
}

// createObjects creates what the shape has and waits until the cluster controller is done
// with it.
func (b *bench) createObjects(ctx context.Context) error {
	s := b.shape
	if err := each(ctx, s.nodes, b.createNode); err != nil {
		return err
	}
	if err := each(ctx, s.networks, func(ctx context.Context, i int) error { return b.createNetwork(ctx, s, i) }); err != nil {
		return err
	}
	if err := b.poll(ctx, "the cluster controller has given ids to all nodes and networks", func() error { return b.checkIDs(ctx) }); err != nil {
		return err
	}
	return each(ctx, s.networks, func(ctx context.Context, i int) error {
		for j := range s.pods {
			if err := b.createPod(ctx, s.topologyOf(i), i, j, j%s.nodes); err != nil {
				return err
			}
		}
		for j := range s.services {
			if err := b.createService(ctx, s, i, j); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bench) checkIDs(ctx context.Context) error {
	nads, err := b.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nads.Items {
		if n.Annotations[network.AnnotationNetworkID] == "" {
			return fmt.Errorf("%s/%s has no id", n.Namespace, n.Name)
		}
	}
	if len(nads.Items) < b.shape.networks {
		return fmt.Errorf("%d of %d NADs", len(nads.Items), b.shape.networks)
	}
	nodes, err := b.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if n.Annotations[network.AnnotationNodeID] == "" {
			return fmt.Errorf("node %s has no id", n.Name)
		}
	}
	return nil
}

// withNode runs f with new OVN databases behind a proxy.
func (b *bench) withNode(f func() error) (err error) {
	ns, err := native.Namespace("bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, native.DeleteNamespace(ns)) }()
	tree, err := native.FindTree()
	if err != nil {
		return err
	}
	if b.host, err = native.NewHost(tree, nodeName(0), ns); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, b.host.Output())
		}
		err = errors.Join(err, b.host.Stop())
	}()
	b.pids = map[string]*exec.Cmd{}
	if b.proxy, err = startProxy(b.host.Path("proxy.sock"), b.host.Path("nb.sock")); err != nil {
		return err
	}
	defer b.proxy.Close()
	return errors.Join(f(), b.stopZone())
}

func (b *bench) startZone() error {
	return b.cluster.startZone("unix:"+b.host.Path("proxy.sock"), b.host.Sock("sb"))
}

// assignAddresses runs a zone until all objects are complete.
func (b *bench) assignAddresses(ctx context.Context) error {
	for _, db := range []string{"nb", "sb"} {
		if _, err := b.host.Database(db); err != nil {
			return err
		}
	}
	if _, err := b.host.Run("ovn-nbctl", "--no-leader-only", "init"); err != nil {
		return err
	}
	if _, err := b.host.Run("ovn-sbctl", "--no-leader-only", "init"); err != nil {
		return err
	}
	if err := b.startZone(); err != nil {
		return err
	}
	if err := b.settle(ctx, traffic{}); err != nil {
		return err
	}
	return b.poll(ctx, "every pod has addresses and every service its mirrored slice", func() error {
		pods, err := b.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Annotations[network.AnnotationPodNetworks] == "" {
				return fmt.Errorf("pod %s/%s has no addresses", p.Namespace, p.Name)
			}
		}
		mirrors, err := b.kube.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{LabelSelector: network.LabelMirrorService})
		if err != nil {
			return err
		}
		if want := b.shape.networks * b.shape.services; len(mirrors.Items) != want {
			return fmt.Errorf("%d of %d mirrored slices", len(mirrors.Items), want)
		}
		for _, m := range mirrors.Items {
			if len(m.Endpoints) != b.shape.pods {
				return fmt.Errorf("slice %s/%s has %d of %d endpoints", m.Namespace, m.Name, len(m.Endpoints), b.shape.pods)
			}
		}
		return nil
	})
}

// startOVN starts OVN with empty databases. An interface on each network waits for its pod's port.
func (b *bench) startOVN(ctx context.Context) error {
	central, err := b.host.StartCentral()
	if err != nil {
		return err
	}
	ovs, err := b.host.StartOVS(node(0), "", "")
	if err != nil {
		return err
	}
	b.pids = map[string]*exec.Cmd{"NB server": central.NB, "SB server": central.SB, "ovn-northd": central.Northd,
		"ovn-controller": ovs.Controller, "ovs-vswitchd": ovs.VSwitchd}
	if b.shape.pods > 0 {
		for i := range b.shape.networks {
			if err := b.bind(ctx, i, podName(0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure starts a zone on empty databases and measures it.
func (b *bench) measure(ctx context.Context, r *result) error {
	if err := b.startOVN(ctx); err != nil {
		return err
	}
	b.o.progress("%s: start the zone on empty databases", b.shape)
	start := time.Now()
	if err := b.startZone(); err != nil {
		return err
	}
	f := b.follow()
	if err := b.settle(ctx, traffic{}); err != nil {
		f.stop()
		return err
	}
	r.traffic = b.proxy.traffic()
	r.committed = r.traffic.last.Sub(start)
	var err error
	if r.cpu, err = proc.CPU(b.zone.PID()); err != nil {
		f.stop()
		return err
	}
	m, err := f.finish(r.traffic.last)
	if err != nil {
		return err
	}
	if !m.southbound.IsZero() {
		r.southbound = m.southbound.Sub(start)
	}
	if !m.switched.IsZero() {
		r.switched = m.switched.Sub(start)
	}
	if r.flows, r.logical, err = b.countFlows(); err != nil {
		return err
	}
	if b.shape.changes {
		if err := b.measureChanges(ctx, r); err != nil {
			return err
		}
	}
	if _, r.peak, err = proc.Memory(b.zone.PID()); err != nil {
		return err
	}
	for name, cmd := range b.pids {
		d := daemon{name: name}
		if d.memory, _, err = proc.Memory(cmd.Process.Pid); err != nil {
			return err
		}
		if d.cpu, err = proc.CPU(cmd.Process.Pid); err != nil {
			return err
		}
		r.daemons = append(r.daemons, d)
	}
	slices.SortFunc(r.daemons, func(a, b daemon) int { return strings.Compare(a.name, b.name) })
	if b.shape.changes {
		return b.measureRestart(ctx, r)
	}
	return nil
}

func (b *bench) measureRestart(ctx context.Context, r *result) error {
	b.o.progress("%s: restart the zone", b.shape)
	if err := b.stopZone(); err != nil {
		return err
	}
	before := b.proxy.traffic()
	if err := b.startZone(); err != nil {
		return err
	}
	if err := b.poll(ctx, "the zone is ready again", func() error {
		if !b.zone.Ready(ctx) {
			return errors.New("not ready")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := b.settle(ctx, before); err != nil {
		return err
	}
	r.restart = b.proxy.traffic().since(before)
	_, peak, err := proc.Memory(b.zone.PID())
	if err != nil {
		return err
	}
	r.peak = max(r.peak, peak) // a zone that starts reads the rows that it has written before
	r.restartCPU, err = proc.CPU(b.zone.PID())
	return err
}

// settle waits until the zone is ready and has written nothing for a while.
func (b *bench) settle(ctx context.Context, before traffic) error {
	idle := time.Now()
	seen := before.writes
	return b.poll(ctx, "the zone has written everything", func() error {
		if n := b.proxy.traffic().writes; n != seen {
			seen, idle = n, time.Now()
		}
		if !b.zone.Ready(ctx) {
			return errors.New("not ready")
		}
		if rest := quiet - time.Since(idle); rest > 0 {
			return errors.New("it still writes")
		}
		return nil
	})
}

// poll calls f until it succeeds, for at most five minutes.
func (b *bench) poll(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, err)
		}
	}
}
