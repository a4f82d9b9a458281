// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
	"bulkhead/test/bench/proc"
)

// kernelResult is what a number of networks cost a node's kernel.
type kernelResult struct {
	Networks int
	// One more network of each topology: operations and time, of the VRFs with their routes
	// and rules and of the firewall.
	Operations, Elements int
	VRF, Firewall        time.Duration
	// A start with nothing changed: operations, time and processor time for all networks.
	StartOperations int
	Start, StartCPU time.Duration
	Peak            int64 // peak memory of this process
	Rules           int   // of both IP families
	// Route lookups of a packet without a mark and of one with the last network's, IPv4 and
	// IPv6.
	Unmarked, Tenant [2]time.Duration
}

// kernelBridge is the external bridge of the measured namespace: an ordinary link.
const kernelBridge = "br-ex"

// measureKernel measures in a new network namespace of this machine, which needs VRF devices,
// and prints the results as JSON, one line for each size.
func measureKernel(ctx context.Context, sizes []int) error {
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	if _, err := netns.New(); err != nil {
		return fmt.Errorf("create a network namespace: %w", err)
	}
	k := &kernelNode{plan: benchPlan(), node: benchNode()}
	if err := k.prepare(); err != nil {
		return fmt.Errorf("prepare the namespace: %w", err)
	}
	if err := k.open(); err != nil {
		return err
	}
	defer k.kernel.Close()
	if err := vrf.Probe(); err != nil {
		return err
	}
	for _, n := range sizes {
		r, err := k.measure(ctx, n)
		if err != nil {
			return fmt.Errorf("%d networks: %w", n, err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	}
	return nil
}

// kernelNode is the namespace with the agent's packages that change the kernel.
type kernelNode struct {
	plan     network.Plan
	node     network.Node
	kernel   *vrf.Kernel
	firewall *firewall.Reconciler
	networks []network.Network // with state in the kernel
}

// prepare creates the external bridge with the node's addresses and default routes.
func (k *kernelNode) prepare() error {
	if err := addDummy(kernelBridge); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(kernelBridge)
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(bridge)); err != nil {
		return err
	}
	for _, a := range k.node.Addresses {
		if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	for _, hop := range k.node.NextHops {
		r := &netlink.Route{Dst: ipNet(netip.PrefixFrom(hop, 0).Masked()), Gw: hop.AsSlice(), LinkIndex: bridge.Attrs().Index, Flags: int(netlink.FLAG_ONLINK)}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("add the default route via %s: %w", hop, err)
		}
	}
	for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+path, []byte("1"), 0); err != nil {
			return err
		}
	}
	return addDummy(network.Network{}.ManagementPort())
}

// open opens the kernel and the firewall as a new agent does.
func (k *kernelNode) open() (err error) {
	if k.kernel != nil {
		k.kernel.Close()
	}
	if k.kernel, err = vrf.Open("/proc/sys", kernelBridge, nil); err != nil {
		return fmt.Errorf("open the kernel: %w", err)
	}
	target, err := firewall.Open()
	if err != nil {
		return fmt.Errorf("open the firewall: %w", err)
	}
	k.firewall = &firewall.Reconciler{Target: target}
	return nil
}

// reconcile reconciles networks and the firewall, and returns how many operations that took.
func (k *kernelNode) reconcile(ctx context.Context, networks ...network.Network) (operations, elements int, inVRF, inFirewall time.Duration, err error) {
	start := time.Now()
	for _, n := range networks {
		r, err := vrf.Reconcile(ctx, k.kernel, n, k.node, vrf.Inputs{Plan: k.plan, IPv6: true})
		if err == nil && len(r.Waiting) > 0 {
			err = fmt.Errorf("it waits for %v", r.Waiting)
		}
		if err != nil {
			return 0, 0, 0, 0, fmt.Errorf("network %s: %w", n.Name, err)
		}
		operations += len(r.Ops)
	}
	inVRF = time.Since(start)
	start = time.Now()
	var own []netip.Addr
	for _, a := range k.node.Addresses {
		own = append(own, a.Addr())
	}
	in := firewall.Inputs{Networks: k.networks, NodeID: k.node.ID, Mode: k.node.Mode, Bridge: kernelBridge,
		Plan: k.plan, Node: own, Kubelet: firewall.Kubelet{Mark: network.KubeletMark}}
	// As for pods with a locked address and a node port on each network.
	for _, n := range k.networks {
		in.Locked = append(in.Locked, netip.AddrFrom4([4]byte{10, 244, byte(n.ID >> 8), byte(n.ID)}))
		for _, r := range k.plan.MasqueradeGateway(n) {
			in.NodePorts = append(in.NodePorts, firewall.NodePort{Protocol: "tcp", Port: uint16(30000 + n.ID), Router: r.Addr()})
		}
	}
	ops, err := k.firewall.Reconcile(ctx, in, false)
	if err != nil {
		return 0, 0, 0, 0, fmt.Errorf("firewall: %w", err)
	}
	return operations, len(ops), inVRF, time.Since(start), nil
}

// measure measures with n networks, of which those of the last size exist.
func (k *kernelNode) measure(ctx context.Context, n int) (r kernelResult, err error) {
	r.Networks = n
	for id := len(k.networks) + 1; id <= n+2; id++ {
		if err := addDummy(benchNetwork(id).ManagementPort()); err != nil {
			return r, err
		}
		if id <= n {
			k.networks = append(k.networks, benchNetwork(id))
		}
	}
	if _, _, _, _, err = k.reconcile(ctx, append(slices.Clone(k.networks), k.defaultNetwork())...); err != nil {
		return r, err
	}

	// A new agent finds everything as it should be.
	before := ownCPU()
	start := time.Now()
	if err := k.open(); err != nil {
		return r, err
	}
	operations, elements, _, _, err := k.reconcile(ctx, append(slices.Clone(k.networks), k.defaultNetwork())...)
	if err != nil {
		return r, err
	}
	r.StartOperations, r.Start, r.StartCPU = operations+elements, time.Since(start), ownCPU()-before

	if r.Unmarked, r.Tenant, err = k.lookups(n); err != nil {
		return r, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			return r, fmt.Errorf("list rules: %w", err)
		}
		r.Rules += len(rules)
	}

	more := []network.Network{benchNetwork(n + 1), benchNetwork(n + 2)}
	k.networks = append(k.networks, more...)
	if r.Operations, r.Elements, r.VRF, r.Firewall, err = k.reconcile(ctx, more...); err != nil {
		return r, err
	}
	if _, r.Peak, err = proc.Memory(os.Getpid()); err != nil {
		return r, err
	}
	return r, nil
}

func (k *kernelNode) defaultNetwork() network.Network {
	return network.Network{ID: network.DefaultID, Name: network.DefaultName, Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400, Subnets: k.plan.ClusterSubnets}
}

func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func addDummy(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add link %s: %w", name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
