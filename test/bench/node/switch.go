// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/test/bench/proc"
	"bulkhead/test/native"
)

// switchResult is what a number of networks, each with a pod, cost the external bridge.
type switchResult struct {
	networks int
	flows    int
	// Lookups in flow tables of one packet: an ARP request from the wire, a reply to a gateway
	// router, and a packet from the wire to a node port; of the bridge, and with OVN's.
	broadcast, reply, service lookups
	// One more network of each topology: OpenFlow operations and their time.
	operations int
	change     time.Duration
	traffic    traffic
	answered   int // pods that got their own answer, of all at once from one port
	// control is the traffic with as many ports of the switch, but only the first number of
	// networks: the userspace datapath asks each port whether it has received something.
	control *traffic
}

// traffic is what a switch does under load.
type traffic struct {
	// Processor time of ovs-vswitchd in stormTime: idle, and under 1,000 ARP requests a second.
	idle, storm time.Duration
	// From a pod to a host outside.
	bytesPerSecond, connectionsPerSecond float64
}

// lookups are a packet's lookups in flow tables.
type lookups struct{ bridge, all int }

const (
	stormTime = 10 * time.Second
	stormRate = 1000 // a second
	nodePort  = 30080
)

// switchNode is the node with OVN, its external bridge and a namespace outside it.
type switchNode struct {
	*native.Host
	ctx      context.Context
	o        options
	plan     network.Plan
	node     network.Node
	nb       *ovn.NB
	vswitchd *exec.Cmd
	outside  string // namespace
	pods     []string
	router   int // OpenFlow ports of the external bridge
	uplink   int
	cleanup  []func() error
}

// measureSwitch measures with each number of networks, and returns what it has after a failure.
func measureSwitch(ctx context.Context, o options) (out []switchResult, err error) {
	s := &switchNode{ctx: ctx, o: o, plan: benchPlan(), node: benchNode()}
	defer func() {
		for _, f := range slices.Backward(s.cleanup) {
			err = errors.Join(err, f())
		}
	}()
	if err := s.start(); err != nil {
		return nil, err
	}
	var controls []*traffic
	for i, n := range o.sizes {
		r, err := s.measure(n)
		if err != nil {
			return out, fmt.Errorf("%d networks: %w", n, err)
		}
		if i == 0 {
			if controls, err = s.controls(); err != nil {
				return out, fmt.Errorf("%d networks, more ports: %w", n, err)
			}
		}
		r.control = controls[i]
		out = append(out, r)
	}
	return out, nil
}

// controls measures the traffic with as many more ports of the integration bridge, which nobody
// uses, as each further number of networks has pods.
func (s *switchNode) controls() (out []*traffic, err error) {
	out = append(out, nil)
	var idle []string
	for _, n := range s.o.sizes[1:] {
		s.o.progress("%d networks and %d ports", len(s.pods), n)
		for len(s.pods)+len(idle) < n {
			name := fmt.Sprintf("idle%d", len(idle))
			for _, argv := range [][]string{
				{"ip", "-n", s.NS, "link", "add", name, "type", "veth", "peer", "name", "peer" + name},
				{"ip", "-n", s.NS, "link", "set", name, "up"}, {"ip", "-n", s.NS, "link", "set", "peer" + name, "up"},
			} {
				if _, err := native.Run(nil, argv...); err != nil {
					return nil, err
				}
			}
			if _, err := s.Run("ovs-vsctl", "--db="+s.Sock("ovs"), "add-port", "br-int", name); err != nil {
				return nil, err
			}
			idle = append(idle, name)
		}
		if err := s.settle(); err != nil {
			return nil, err
		}
		t, err := s.traffic()
		if err != nil {
			return nil, err
		}
		out = append(out, &t)
	}
	for _, name := range idle {
		if _, err := s.Run("ovs-vsctl", "--db="+s.Sock("ovs"), "del-port", name); err != nil {
			return nil, err
		}
		if _, err := native.Run(nil, "ip", "-n", s.NS, "link", "del", name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// namespace creates a namespace that is deleted in the end.
func (s *switchNode) namespace(name string) (string, error) {
	ns, err := native.Namespace(name)
	if err == nil {
		s.cleanup = append(s.cleanup, func() error { return native.DeleteNamespace(ns) })
	}
	return ns, err
}

// start starts OVN and Open vSwitch, and connects the external bridge with the outside.
func (s *switchNode) start() error {
	s.o.progress("start OVN and Open vSwitch")
	tree, err := native.FindTree()
	if err != nil {
		return err
	}
	ns, err := s.namespace("bench")
	if err != nil {
		return err
	}
	if s.Host, err = native.NewHost(tree, s.node.Name, ns); err != nil {
		return err
	}
	s.cleanup = append(s.cleanup, s.Stop)
	if _, err := s.StartCentral(); err != nil {
		return err
	}
	ovs, err := s.StartOVS(s.node, "", "")
	if err != nil {
		return err
	}
	s.vswitchd = ovs.VSwitchd
	s.nb = ovn.NewNB(s.Sock("nb"), slog.New(slog.NewTextHandler(io.Discard, nil)), func() {}, func(string, ovn.Unit, bool) {})
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	running.Go(func() { s.nb.Run(ctx) })
	s.cleanup = append(s.cleanup, func() error { cancel(); running.Wait(); return nil })
	if err := native.Eventually("the client connects", func() error {
		if !s.nb.Connected() {
			return errors.New("not connected")
		}
		return nil
	}); err != nil {
		return err
	}
	if s.outside, err = s.namespace("outside"); err != nil {
		return err
	}
	var hops []netip.Prefix
	for f, hop := range s.node.NextHops {
		hops = append(hops, netip.PrefixFrom(hop, s.node.Addresses[f].Bits()))
	}
	if err := s.ConnectOutside(s.node, s.outside, hops...); err != nil {
		return fmt.Errorf("connect the outside: %w", err)
	}
	if err := s.serve(); err != nil {
		return fmt.Errorf("serve outside: %w", err)
	}
	if err := s.converge(s.defaultNetwork(), ovn.Inputs{}); err != nil {
		return err
	}
	if s.uplink, err = s.ofport(native.OutsideLink); err == nil {
		s.router, err = s.ofport(network.UplinkPatch(s.node.Bridge, s.node.Name))
	}
	return err
}

func (s *switchNode) defaultNetwork() network.Network {
	return network.Network{ID: network.DefaultID, Name: network.DefaultName, Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets: s.plan.ClusterSubnets, JoinSubnets: s.plan.Join, Transit: s.plan.Transit}
}

// converge writes a network's rows.
func (s *switchNode) converge(n network.Network, in ovn.Inputs) error {
	in.Plan, in.PhysicalNetwork, in.OneNode = s.plan, "physnet", true
	want, err := ovn.Build(n, s.node, in)
	if err != nil {
		return err
	}
	have, err := s.nb.Read(s.ctx, ovn.Selection{Network: n.Name, Node: s.node.Name})
	if err != nil {
		return err
	}
	return s.nb.Apply(s.ctx, ovn.Diff(want, have))
}

// ofport waits until a port of the external bridge exists and returns its OpenFlow port.
func (s *switchNode) ofport(name string) (port int, err error) {
	deadline := time.Now().Add(10 * time.Minute) // hundreds of networks
	for {
		if port, err = s.OFPort(name); err == nil {
			return port, nil
		}
		if time.Now().After(deadline) || s.ctx.Err() != nil {
			return 0, fmt.Errorf("wait for port %s: %w", name, errors.Join(err, s.ctx.Err()))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// addNetwork adds a network with a pod, which has a namespace of its own.
func (s *switchNode) addNetwork(id int) error {
	n := benchNetwork(id)
	hosts, err := n.HostSubnets(s.node.ID)
	if err != nil {
		return err
	}
	namespace := fmt.Sprintf("n%d", id)
	pod := ovn.PodPort{NADKey: namespace + "/net", Namespace: namespace, Pod: "p", UID: "uid-" + namespace}
	if n.Topology == network.Layer2 {
		pod.TunnelKey = 10
	}
	var routes []string
	for _, h := range hosts {
		a, ok := network.NthAddr(h, 10)
		if !ok {
			return fmt.Errorf("subnet %s has no tenth address", h)
		}
		pod.IPs = append(pod.IPs, netip.PrefixFrom(a, h.Bits()))
		routes = append(routes, "default via "+n.GatewayIn(h).Addr().String())
	}
	if err := s.converge(n, ovn.Inputs{Pods: []ovn.PodPort{pod}, Services: []ovn.Service{nodePortService(namespace, pod)}}); err != nil {
		return err
	}
	ns, err := s.namespace("pod" + namespace)
	if err != nil {
		return err
	}
	s.pods = append(s.pods, ns)
	return s.Plug(native.Port{LSP: network.PodLSP(pod.NADKey, pod.Namespace, pod.Pod), UID: pod.UID, NS: ns, Link: namespace, MAC: network.MACOf(pod.IPs), IPs: pod.IPs, Routes: routes})
}

// nodePortService returns a service with a node port of its own.
func nodePortService(namespace string, pod ovn.PodPort) ovn.Service {
	id, _ := strconv.Atoi(strings.TrimPrefix(namespace, "n"))
	s := ovn.Service{Namespace: namespace, Name: "s", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(1 + id>>8), byte(id)})}}
	p := ovn.ServicePort{Protocol: "tcp", Port: 80, NodePort: uint16(nodePort + id)}
	for _, a := range pod.IPs {
		p.Endpoints = append(p.Endpoints, ovn.Endpoint{Addr: netip.AddrPortFrom(a.Addr(), 80), Node: "node1"})
	}
	s.Ports = []ovn.ServicePort{p}
	return s
}

// gateway returns a network's gateway, whose patch port must exist.
func (s *switchNode) gateway(n network.Network) (flows.Gateway, error) {
	port, err := s.ofport(n.ExternalPatch(s.node.Bridge, s.node.Name))
	g := flows.Gateway{Network: n.ID, Port: port, Mark: n.ConntrackMark()}
	for _, a := range s.plan.MasqueradeGateway(n) {
		g.Addresses = append(g.Addresses, a.Addr())
	}
	if !n.IsDefault() {
		g.Ports = []flows.ServicePort{{Protocol: "tcp", Port: uint16(nodePort + n.ID)}}
	}
	return g, err
}

func (s *switchNode) inputs() (flows.Bridge, flows.Inputs) {
	return flows.Bridge{Name: s.node.Bridge, Uplinks: []int{s.uplink}, Router: s.router},
		flows.Inputs{Addresses: s.node.Addresses, Links: s.node.Links(), MAC: s.node.BridgeMAC, Masquerade: s.plan.Masquerade, Services: s.plan.ServiceCIDRs,
			Pods: network.Network{Subnets: s.plan.ClusterSubnets}.CIDRs(), Mode: s.node.Mode}
}

// wanted returns the bridge's flows with the gateways.
func (s *switchNode) wanted(gateways []flows.Gateway) (flows.State, error) {
	bridge, in := s.inputs()
	want, err := flows.Build(bridge, in, flows.Hosts{})
	if err != nil {
		return nil, err
	}
	for _, g := range gateways {
		want = append(want, flows.BuildNetwork(bridge, in, g)...)
	}
	return want, nil
}

// measure adds networks until there are n, and measures. Two more networks, of both
// topologies, are added for it.
func (s *switchNode) measure(n int) (r switchResult, err error) {
	r.networks = n
	s.o.progress("%d networks with a pod each", n)
	for id := len(s.pods) + 1; id <= n; id++ {
		if err := s.addNetwork(id); err != nil {
			return r, fmt.Errorf("network %d: %w", id, err)
		}
	}
	for id := n + 1; id <= n+2; id++ { // without pods: their rows stay for the next size
		if err := s.converge(benchNetwork(id), ovn.Inputs{}); err != nil {
			return r, fmt.Errorf("network %d: %w", id, err)
		}
	}
	var gateways []flows.Gateway
	for id := 0; id <= n+2; id++ {
		net := benchNetwork(id)
		if id == 0 {
			net = s.defaultNetwork()
		}
		g, err := s.gateway(net)
		if err != nil {
			return r, err
		}
		gateways = append(gateways, g)
	}
	want, err := s.wanted(gateways[:n+1])
	if err != nil {
		return r, err
	}
	if _, err := flows.Sync(s.ctx, s.OFCtl(), s.node.Bridge, want); err != nil {
		return r, err
	}
	r.flows = len(want)
	if err := s.settle(); err != nil {
		return r, err
	}
	s.o.progress("%d networks: packets", n)
	if err := s.trace(&r, gateways[n]); err != nil {
		return r, err
	}
	if r.traffic, err = s.traffic(); err != nil {
		return r, err
	}
	if r.answered, err = s.askAll(); err != nil {
		return r, err
	}
	bridge, in := s.inputs()
	var more flows.State
	for _, g := range gateways[n+1:] {
		more = append(more, flows.BuildNetwork(bridge, in, g)...)
	}
	ops := flows.Diff(more, nil)
	r.operations = len(ops)
	start := time.Now()
	if err := s.OFCtl().Apply(s.ctx, s.node.Bridge, ops); err != nil {
		return r, err
	}
	r.change = time.Since(start)
	return r, nil
}

// settle waits until OVN has followed, and ovs-vswitchd has become quiet.
func (s *switchNode) settle() error {
	if _, err := s.Run("ovn-nbctl", "--no-leader-only", "--wait=hv", "--timeout=600", "sync"); err != nil {
		return err
	}
	last := time.Duration(0)
	for range 60 {
		used, err := s.vswitchdCPU(time.Second)
		if err != nil {
			return err
		}
		if last != 0 && used < 100*time.Millisecond {
			return nil
		}
		last = used
	}
	return nil // it polls hundreds of ports; the idle figure shows how much that takes
}

// vswitchdCPU returns the processor time that ovs-vswitchd uses in a time.
func (s *switchNode) vswitchdCPU(d time.Duration) (time.Duration, error) {
	before, err := proc.CPU(s.vswitchd.Process.Pid)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	after, err := proc.CPU(s.vswitchd.Process.Pid)
	return after - before, err
}
