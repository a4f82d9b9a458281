// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// hostReconciler configures nft and eBPF: which of the host network's processes
// reach which networks and locked addresses.
type hostReconciler struct {
	config        config.Config
	cache         *Cache
	queue         *Queue
	kernel        Kernel
	firewall      *firewall.Reconciler // nil: no nft
	hostNet       HostNet              // nil: no eBPF
	doors         *doorReader
	node          *nodeReconciler
	networks      *networkReconciler
	kubeletMark   uint32
	kubeletCgroup func() firewall.Cgroup
	podRoots      func() ([]firewall.Cgroup, error)
	log           *slog.Logger

	expecting   sync.Mutex  // held from the read of the pods until eBPF knows them
	recheck     atomic.Bool // the next reconcile reads the nft table
	tableExists atomic.Bool // a reconcile of the nft table has succeeded
	runs        *runs
	servers     func() ([]hostnet.Server, error) // the node's

	portsMu      sync.Mutex
	ports        []firewall.HostPort // as read last
	portProblems []Problem           // host ports that are not reached
}

func newHostReconciler(p Parts, node *nodeReconciler, doors *doorReader, networks *networkReconciler) *hostReconciler {
	r := &hostReconciler{config: p.Config, cache: p.Cache, queue: p.Queue, kernel: p.Kernel, hostNet: p.HostNet, doors: doors, node: node, networks: networks,
		kubeletMark: p.KubeletMark, kubeletCgroup: p.KubeletCgroup, podRoots: p.PodRoots, servers: p.Servers, log: p.Log, runs: newRuns()}
	if p.Firewall != nil {
		r.firewall = &firewall.Reconciler{Target: p.Firewall, Log: p.Log, SearchInterval: time.Second}
	}
	return r
}

// reconcile configures nft before eBPF: nft only restricts, and does not depend
// on what eBPF permits.
func (r *hostReconciler) reconcile(ctx context.Context) error {
	run := r.runs.begin()
	notEnforced, err := r.configure(ctx)
	r.runs.end(run, notEnforced)
	return err
}

// expectPods tells eBPF of the host-network pods at once: their cgroups appear soon, and a reconcile that runs may take long.
func (r *hostReconciler) expectPods() {
	if r.hostNet == nil {
		return
	}
	r.expecting.Lock()
	defer r.expecting.Unlock()
	pods, used := r.cache.HostPods(), map[int]bool{}
	for _, p := range pods {
		used[p.NetworkID] = true
	}
	r.hostNet.Expect(pods, r.hostNetworks(func(n network.Network) bool { return used[n.ID] }))
}

// configureTimeout ends an nft process that hangs: all pods that start wait for it. A reconcile takes a minute on a very busy node.
const configureTimeout = 10 * time.Minute

// configure configures nft and eBPF. notEnforced says which restrictions are not
// enforced.
func (r *hostReconciler) configure(ctx context.Context) (notEnforced, err error) {
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	r.expectPods()
	locked, ingress := r.cache.Locked(), r.cache.Ingress(r.config.IngressNamespaces)
	var errs, unenforced []error
	if r.firewall != nil {
		in, err := r.firewallInputs(locked, ingress)
		var ops []firewall.Op
		if err == nil {
			ops, err = r.firewall.Reconcile(ctx, in, r.recheck.Swap(false))
		}
		for _, op := range ops {
			r.log.Debug("nft operation", "operation", op.String())
		}
		if err != nil {
			err = fmt.Errorf("nftables: %w", err)
			errs, unenforced = append(errs, err), append(unenforced, err)
		} else {
			r.tableExists.Store(true)
			if after, due := r.firewall.SearchDue(); due {
				r.queue.keys.AddAfter(key{kind: kindHosts}, after)
			}
		}
	}
	if r.hostNet != nil {
		rows, err := r.doors.rows(ctx)
		if err != nil {
			return errors.Join(append(unenforced, err)...), errors.Join(append(errs, err)...)
		}
		in := hostnet.Inputs{Pods: r.cache.HostPods(), Networks: r.hostNetworks(func(network.Network) bool { return true }), Services: r.config.Plan.ServiceCIDRs, Masquerade: r.config.Plan.Masquerade, Locked: locked, Doors: rows}
		for _, p := range r.node.addresses() {
			in.Locals = append(in.Locals, p.Addr())
		}
		in.Others = r.node.otherAddresses()
		r.addIngress(&in, ingress)
		if err := r.hostNet.Reconcile(ctx, in); err != nil {
			err = fmt.Errorf("host network: %w", err)
			errs = append(errs, err)
			if errors.Is(err, hostnet.ErrNotEnforced) {
				unenforced = append(unenforced, err)
			}
		}
		r.queue.enqueueBatched(kindReport)
	}
	if r.firewall == nil && r.hostNet == nil {
		unenforced = append(unenforced, errors.New("this node has neither nftables nor eBPF"))
	}
	return errors.Join(unenforced...), errors.Join(errs...)
}

// firewallChanged is called for each transaction on the nft table. It enqueues
// the host network if somebody else made the transaction.
func (r *hostReconciler) firewallChanged(generation uint32) {
	if r.firewall != nil && r.firewall.Changed(generation) {
		r.queue.EnqueueHosts()
		r.queue.enqueueConflicts()
	}
}

// lock returns once the default-network address of a pod in the cache is locked, if it must
// be: restrictions are in place before the pod is reachable. Concurrent calls
// share a reconcile. The error says what is not enforced. A failure to permit
// something does not block the pod; the node condition reports it.
func (r *hostReconciler) lock(ctx context.Context, p Pod) error {
	if len(p.lockedAddresses()) == 0 && !p.HostNetwork {
		return nil
	}
	run := r.runs.next()
	r.queue.keys.Add(key{kind: kindHosts})
	notEnforced, err := r.runs.wait(ctx, run)
	switch {
	case err != nil:
		return fmt.Errorf("pod %s: its default-network address is not locked yet: %w", p.Key(), err)
	case notEnforced != nil:
		return fmt.Errorf("pod %s: its default-network address cannot be locked: %w", p.Key(), notEnforced)
	default:
		return nil
	}
}

func (r *hostReconciler) firewallInputs(locked []hostnet.LockedAddr, ingress *firewall.Ingress) (firewall.Inputs, error) {
	in := firewall.Inputs{Ingress: ingress, Locked: make([]netip.Addr, 0, len(locked)), Networks: r.cache.Networks(), Default: r.config.DefaultNetwork, NodeID: r.node.Node().ID, Loose: r.config.BGP.LooseIsolation,
		Mode: r.config.OVS.GatewayMode, Bridge: r.config.OVS.ExternalBridge,
		Services: r.cache.AllowedServices(r.config.AllowedServices), Plan: r.config.Plan}
	kept, _ := r.networks.keptNetworks()
	for _, id := range kept { // with the id alone, pods can still send out of the network, and its processes into it
		in.Networks = append(in.Networks, network.Network{ID: id})
	}
	for _, l := range locked {
		in.Locked = append(in.Locked, l.Addr)
		for _, p := range l.Open {
			in.Open = append(in.Open, firewall.Port{Addr: l.Addr, Protocol: p.Protocol, Port: p.Port})
		}
	}
	in.NodePorts = r.cache.NodePorts(r.config.Plan, r.config.DefaultNetwork)
	node := r.node.lastKnown()
	for _, p := range node.Addresses {
		in.Node = append(in.Node, p.Addr())
	}
	in.Links, in.Reserved = node.Links(), slices.Concat(node.Reserved(), r.node.otherAddresses())
	if in.Mode == network.LocalGateway {
		in.LocalPorts = r.cache.LocalPorts(r.config.Plan, r.config.DefaultNetwork, in.Node, r.node.refusedExternal)
	}
	in.HostPorts, _ = r.updateHostPorts()
	if r.podRoots != nil {
		var err error
		if in.PodRoots, err = r.podRoots(); err != nil {
			return in, fmt.Errorf("find the cgroups of pods: %w", err) // without them there would be no rules for pods
		}
	}
	in.Mark = r.kubeletMark
	if in.Mark == 0 && r.kubeletCgroup != nil {
		in.Kubelet.Cgroup = r.kubeletCgroup()
	}
	return in, nil
}

// hostNetworks are the networks that are wanted, as eBPF needs them.
func (r *hostReconciler) hostNetworks(wanted func(network.Network) bool) []hostnet.Network {
	nets := r.cache.Networks()
	out := make([]hostnet.Network, 0, len(nets))
	for _, n := range nets {
		if !wanted(n) {
			continue
		}
		x := hostnet.Network{ID: n.ID, Name: n.Name, Mark: n.PacketMark(), Subnets: n.CIDRs()}
		if !r.networks.isNewDevice(n.ID) {
			x.VRFIfindex = r.kernel.DeviceIndex(r.config.Plan.VRFTable(n))
		}
		own := managementAddresses(n, r.cache.NodeID())
		v4, _ := network.FirstOfFamily(own, netip.IPv4Unspecified())
		v6, _ := network.FirstOfFamily(own, netip.IPv6Unspecified())
		x.Host4, x.Host6 = v4.Addr(), v6.Addr()
		out = append(out, x)
	}
	return out
}

// managementAddresses are a node's addresses on a network; none without a node id
// or a host subnet.
func managementAddresses(n network.Network, nodeID int) []netip.Prefix {
	hosts, err := n.HostSubnets(nodeID)
	if err != nil {
		return nil
	}
	out := make([]netip.Prefix, len(hosts))
	for i, h := range hosts {
		out[i] = n.ManagementIn(h)
	}
	return out
}

// runs counts the runs of a reconcile of which there is at most one at a time,
// so that callers can wait for one that begins after their change.
type runs struct {
	mu           sync.Mutex
	begun, ended int
	err          error         // of the last run that ended
	changed      chan struct{} // closed and replaced when a run ends
}

func newRuns() *runs { return &runs{changed: make(chan struct{})} }

// next is the number of the next run.
func (r *runs) next() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun + 1
}

func (r *runs) begin() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
	return r.begun
}

func (r *runs) end(run int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.err = run, err
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait waits until a run has ended and returns the error of the last run; err
// is ctx's.
func (r *runs) wait(ctx context.Context, run int) (failed, err error) {
	for {
		r.mu.Lock()
		done, failed, changed := r.ended >= run, r.err, r.changed
		r.mu.Unlock()
		if done {
			return failed, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
