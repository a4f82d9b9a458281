// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
)

// self returns this node. It is not Ready until the cluster controller and the agent
// have annotated it. The agent writes the gateway with its other annotations:
// while the gateway cannot be read, the rows of an earlier zone stay.
func (z *Zone) self() network.Node {
	n := z.nodes.node(z.cfg.Kubernetes.NodeName)
	if !hasGatewayFacts(n) {
		return network.Node{Name: n.Name}
	}
	return n
}

// desiredNetwork returns the network with that name, if a usable NAD describes it.
func (z *Zone) desiredNetwork(name string) (network.Network, bool) {
	if name == network.DefaultName {
		return z.cfg.DefaultNetwork, true
	}
	return z.nadIndex.Network(name)
}

// state returns the state of a network, creating it if needed.
func (z *Zone) state(name string) *netState {
	st, ok := z.nets[name]
	if !ok {
		st = &netState{pods: map[string]PodPort{}}
		z.nets[name] = st
	}
	return st
}

// networks returns the names of the networks that the zone knows, sorted: those that NADs
// describe, and those that pods still use.
func (z *Zone) networks() []string {
	names := append(z.nadIndex.Networks(), network.DefaultName)
	names = slices.AppendSeq(names, maps.Keys(z.nets))
	slices.Sort(names)
	return slices.Compact(names)
}

// enqueueNetworks enqueues units of all networks, or all units for none: first those of the cluster default network,
// which has the address sets that other networks' rows name.
func (z *Zone) enqueueNetworks(units ...Unit) {
	z.queue.AddUnits(network.DefaultName, units...)
	for _, name := range z.networks() {
		if name != network.DefaultName {
			z.queue.AddUnits(name, units...)
		}
	}
}

// job is one reconcile of a network: the inputs of its rows.
type job struct {
	known   bool // the network is to be built
	deleted bool // no NAD describes the network
	net     network.Network
	node    network.Node
	in      Inputs
	units   []Unit // nil: all
	audit   bool   // compare all rows, though no event has changed anything
	// unknown are the peers whose rows are kept unchanged.
	unknown map[string]struct{}
	// someUnknown: of the cluster default network, whether the addresses of some peers are not
	// known.
	someUnknown bool
	// unknownPods are the units of other nodes' pods whose rows are kept unchanged.
	unknownPods map[Unit]struct{}
}

// nextJob returns the next job of a network. ok is false if there is nothing to
// do until the next event.
func (z *Zone) nextJob(name string) (j job, ok bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	st := z.state(name)
	if !z.restored || !z.self().Ready() {
		return j, false
	}
	j.net, j.known = z.desiredNetwork(name)
	switch {
	case j.known:
		st.net = j.net
	case len(st.pods) > 0:
		// The description is gone but pods use the network: keep it.
		j.net, j.known, j.deleted = st.net, true, !z.nadIndex.HasNADs(name)
	case z.nadIndex.HasNADs(name):
		// Its NADs are unusable. Keep its rows: a typo must not cut off pods.
		z.queue.take(name)
		z.failures.clearError(name)
		z.failures.clear(name) // the refused NAD is reported instead
		z.markTried(name)
		return j, false
	default:
		j.net, j.deleted = st.net, true
	}
	// A network that no NAD describes is deleted at once: every NAD has been read
	// by now. The deletion does not wait for other networks to be built: one of
	// them may need a port name that this one has.
	if j.units, j.audit, ok = z.queue.take(name); !ok {
		return j, false
	}
	if !j.known {
		return j, true // remove needs only the name, and the zone may know no more of it
	}
	j.node = z.self()
	j.in = Inputs{Plan: z.cfg.Plan, PhysicalNetwork: z.cfg.OVS.PhysicalNetwork, OneNode: z.nodes.alone(), Exposed: z.exposed(), BGP: BGP{Loose: z.cfg.BGP.LooseIsolation}}
	// Most events are of a pod or a service: they do not pay for what depends on all nodes and networks.
	if j.net.IsDefault() && (j.units == nil || slices.Contains(j.units, topologyUnit) || slices.Contains(j.units, importUnit)) {
		z.addBGPInputs(&j.in.BGP)
		j.in.ImportedRoutes = z.importedRoutes()
		peers, unknown := z.nodes.peers()
		j.someUnknown = len(unknown) > 0 || slices.ContainsFunc(peers, func(n network.Node) bool { return !hasGatewayFacts(n) })
	}
	if j.units == nil {
		j.in.Peers, j.unknown = z.nodes.peers()
		for _, key := range slices.Sorted(maps.Keys(st.pods)) {
			j.in.Pods = append(j.in.Pods, z.buildPort(j.net, st.pods[key]))
		}
		z.addRemotePods(&j, z.remotePodsOn(name))
		j.in.Services = z.servicesOn(j.net)
		return j, true
	}
	for _, u := range j.units {
		switch u.Kind {
		case KindPeer:
			if j.in.Peers == nil {
				j.in.Peers, j.unknown = z.nodes.peers()
			}
		case KindPod:
			j.in.Pods = append(j.in.Pods, z.portsOn(j.net, u.Name)...)
		case KindRemote:
			z.addRemotePods(&j, []string{u.Name})
		case KindService:
			j.in.Services = append(j.in.Services, z.serviceOn(j.net, u.Name)...)
		}
	}
	return j, true
}

// portsOn returns a pod's ports on a network, sorted by NAD.
func (z *Zone) portsOn(n network.Network, pod string) []PodPort {
	var out []PodPort
	ports := z.podPorts(pod)
	for _, key := range slices.Sorted(maps.Keys(ports)) {
		if ports[key].network == n.Name {
			out = append(out, z.buildPort(n, ports[key].port))
		}
	}
	return out
}

// syncNetwork reconciles a network's rows in one transaction.
func (z *Zone) syncNetwork(ctx context.Context, name string) error {
	j, ok := z.nextJob(name)
	if !ok {
		return nil
	}
	if j.audit {
		return z.audit(ctx, name, j)
	}
	defer prometheus.NewTimer(z.metrics.networks).ObserveDuration()
	var err error
	id, inUse := j.net.ID, j.deleted
	if j.known {
		err = z.build(ctx, name, j)
	} else {
		var rowsID int
		rowsID, inUse, err = z.remove(ctx, name)
		id = cmp.Or(id, rowsID)
	}
	var prefix string
	if j.deleted {
		prefix = deletedPrefix
	}
	connected := z.nb.Connected()
	z.mu.Lock()
	defer z.mu.Unlock()
	var permanent permanentError
	switch {
	case errors.As(err, &permanent):
		if z.failures.setError(name, permanent.error) {
			z.log.Warn("network is not built on this node", "network", name, "error", permanent.error)
		}
		z.failures.record(name, id, prefix+z.failures.reason(name, permanent.error))
		z.markFailed(name)
		return nil // an event follows any change that can help
	case err != nil:
		z.queue.mark(name, j.units...)
		if failed, ok := failedUnits(err); ok {
			z.serveHealth(name, j, failed)
		}
		if connected && !errors.Is(err, ovsdb.ErrNotConnected) && ctx.Err() == nil {
			z.failures.setError(name, err)
			z.failures.record(name, id, prefix+z.failures.reason(name, err))
			z.markFailed(name)
		} // else the connection failed, not the network
		return fmt.Errorf("network %s: %w", name, err)
	}
	z.serveHealth(name, j, nil)
	z.failures.clearError(name)
	if inUse {
		z.failures.record(name, id, deletedPrefix+"pods still use it")
	} else {
		z.failures.clear(name)
	}
	z.markTried(name)
	return nil
}

// permanentError is a reason not to build a network that retries do not change.
type permanentError struct{ error }

// markFailed records that a network known at the start has been tried and failed. That does not keep the zone from being
// ready, except for the cluster default network: without it no pod starts.
func (z *Zone) markFailed(name string) {
	if name != network.DefaultName {
		z.markTried(name)
	}
}

// markTried records that a network known at the start has been tried.
func (z *Zone) markTried(name string) {
	_, first := z.pending[name]
	delete(z.pending, name)
	if first && z.allTried() {
		z.queue.Add(keyFailures)
	}
	if len(z.pending) == 0 && !z.ready.Swap(true) {
		z.log.Info("all networks known at the start have been tried", "failing", z.failures.failingNetworks())
	}
}

// allTried reports whether every network known at the start has been tried. For
// the cluster default network a failure suffices, though it stays pending until
// it is built: the failure that keeps the node from being ready must be reported.
func (z *Zone) allTried() bool {
	if !z.restored || len(z.pending) > 1 {
		return false
	}
	for name := range z.pending {
		if !z.failures.recorded(name) {
			return false
		}
	}
	return true
}

func (z *Zone) build(ctx context.Context, name string, j job) error {
	if name == network.DefaultName {
		if err := z.nb.SetName(ctx, j.node.Name); err != nil {
			return err
		}
	}
	ops, err := z.operations(ctx, name, j)
	if err != nil {
		return err
	}
	return z.apply(ctx, name, ops)
}

// operations returns what turns the network's rows into the job's.
func (z *Zone) operations(ctx context.Context, name string, j job) ([]Op, error) {
	have, err := z.nb.Read(ctx, Selection{Network: name, Node: j.node.Name, Units: j.units})
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	j.in.Pods = keepLocks(j.in.Pods, have)
	if j.someUnknown {
		keepNodeAddresses(&j.in.BGP, have)
	}
	want, err := BuildUnits(j.net, j.node, j.in, j.units)
	if err != nil {
		return nil, permanentError{err}
	}
	want = slices.Concat(want, z.runningPodPorts(name, want, have), unknownPeerRows(j, want, have), z.unknownPodRows(name, j.unknownPods, have))
	unmarked, err := z.nb.Lookup(ctx, missing(want, have)) // somebody may have changed a row's marks
	if err != nil {
		return nil, err
	}
	have = append(have, unmarked...)
	return Diff(want, have), nil
}

// missing returns the rows of want that have lacks.
func missing(want, have State) State {
	present := make(map[string]struct{}, len(have))
	for _, r := range have {
		present[r.UUID] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(want), func(r Row) bool { _, ok := present[r.UUID]; return ok })
}

// remove deletes a network that no NAD describes, unless pods still use it. id is
// the network's id if its rows tell it.
func (z *Zone) remove(ctx context.Context, name string) (id int, inUse bool, err error) {
	have, err := z.nb.Read(ctx, Selection{Network: name, Node: z.cfg.Kubernetes.NodeName})
	if err != nil {
		return 0, false, fmt.Errorf("read rows: %w", err)
	}
	id = networkIDOfRows(have)
	if ports := z.runningPodPorts(name, nil, have); len(ports) > 0 {
		z.log.Info("deleted network is kept until its pods are gone", "network", name, "ports", len(ports))
		return id, true, z.apply(ctx, name, Diff(nil, z.endedRemoteRows(name, have)))
	}
	if err := z.apply(ctx, name, Diff(nil, have)); err != nil {
		return id, false, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if st := z.state(name); len(st.pods) == 0 {
		delete(z.nets, name)
		delete(z.unconfirmed, name)
		maps.DeleteFunc(z.withoutNAD, func(_, on string) bool { return on == name })
		z.addresses.forget(name)
		z.updateAdvertised(name)
	}
	return id, false, nil
}

func (z *Zone) apply(ctx context.Context, name string, ops []Op) error {
	if len(ops) == 0 {
		return nil
	}
	for _, op := range ops {
		z.log.Debug(op.String(), "network", name)
	}
	if err := z.nb.Apply(ctx, ops); err != nil {
		return err
	}
	z.log.Info("updated the network's OVN rows", "network", name, "operations", len(ops))
	return nil
}

// cleanup enqueues networks in the database that no NAD describes.
func (z *Zone) cleanup(ctx context.Context) error {
	z.mu.Lock()
	restored := z.restored
	z.mu.Unlock()
	if !restored {
		return nil
	}
	names, err := z.nb.Networks(ctx)
	if err != nil {
		return fmt.Errorf("list networks in the database: %w", err)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	_, first := z.pending[keyCleanup]
	for _, name := range names {
		if _, ok := z.desiredNetwork(name); !ok && !z.nadIndex.HasNADs(name) {
			if first {
				z.pending[name] = struct{}{}
			}
			z.queue.AddUnits(name)
		}
	}
	z.markTried(keyCleanup)
	return nil
}
