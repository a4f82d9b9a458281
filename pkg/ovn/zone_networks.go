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
)

// self is this node; not Ready until cluster role and agent have said enough.
// The agent tells of the gateway with the rest: where it cannot be read, what
// an earlier zone built stays.
func (z *Zone) self() network.Node {
	n := z.nodes.node(z.cfg.Kubernetes.NodeName)
	if !hasGatewayFacts(n) {
		return network.Node{Name: n.Name}
	}
	return n
}

// describe is the network with that name, if it is one that we build.
func (z *Zone) describe(name string) (network.Network, bool) {
	if name == network.DefaultName {
		return z.cfg.DefaultNetwork, true
	}
	n, ok := z.catalog.Network(name)
	return n, ok && n.Carried() == nil
}

// state is what is known of a network.
func (z *Zone) state(name string) *netState {
	st, ok := z.nets[name]
	if !ok {
		st = &netState{pods: map[string]PodPort{}, dirty: map[Part]struct{}{}, waiting: map[string]struct{}{}}
		z.nets[name] = st
	}
	return st
}

// dirty lets parts of a network be compared again.
func (z *Zone) dirty(name string, parts ...Part) {
	st := z.state(name)
	for _, p := range parts {
		st.dirty[p] = struct{}{}
	}
	z.netQueue.Add(name)
}

func (z *Zone) dirtyAll(parts ...Part) {
	z.dirty(network.DefaultName, parts...)
	for _, name := range z.catalog.Networks() {
		z.dirty(name, parts...)
	}
	for name := range z.nets {
		z.dirty(name, parts...)
	}
}

// job is one reconcile of a network: everything that its rows follow from.
type job struct {
	known   bool
	deleted bool // nobody describes it any more
	net     network.Network
	node    network.Node
	in      Inputs
	parts   []Part
	// unknown are peers whose rows stay as they are.
	unknown map[string]struct{}
}

// take is the next job of a network; ok is false when there is nothing to do
// now, and an event will come.
func (z *Zone) take(name string) (j job, ok bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	st := z.state(name)
	if !z.begun || !z.self().Ready() {
		return j, false
	}
	j.net, j.known = z.describe(name)
	switch {
	case j.known:
		st.net = j.net
	case len(st.pods) > 0:
		// Its description is gone, pods still use it: it stays as it was.
		j.net, j.known, j.deleted = st.net, true, !z.catalog.Names(name)
	case z.catalog.Names(name):
		// It cannot be used now; what is there stays, as a typing mistake
		// must not cut off pods.
		st.dirty = map[Part]struct{}{}
		z.works(name)
		z.forgetFailure(name) // what is wrong is the NAD, which is told by itself
		z.tried(name)
		return j, false
	default:
		j.net, j.deleted = st.net, true
	}
	// What nobody describes goes at once: begun says that every description
	// there is has been read, and that others are not built yet, or cannot be,
	// is their own affair. Two may even want one port's name.
	if len(st.dirty) == 0 {
		return j, false
	}
	for _, p := range AllParts {
		if _, ok := st.dirty[p]; ok {
			j.parts = append(j.parts, p)
		}
	}
	st.dirty = map[Part]struct{}{}
	j.node = z.self()
	j.in = Inputs{Plan: z.cfg.Plan, PhysicalNetwork: z.cfg.OVS.PhysicalNetwork}
	if slices.Contains(j.parts, PartPeers) {
		j.in.Peers, j.unknown = z.nodes.peers()
	}
	for _, key := range slices.Sorted(maps.Keys(st.pods)) {
		j.in.Pods = append(j.in.Pods, st.pods[key])
	}
	return j, true
}

// syncNetwork brings a network's rows in line, in one transaction.
func (z *Zone) syncNetwork(ctx context.Context, name string) error {
	j, ok := z.take(name)
	if !ok {
		return nil
	}
	defer prometheus.NewTimer(z.metrics.networks).ObserveDuration()
	var err error
	id, stays := j.net.ID, j.deleted
	if j.known {
		err = z.build(ctx, name, j)
	} else {
		var was int
		was, stays, err = z.remove(ctx, name)
		id = cmp.Or(id, was)
	}
	var prefix string
	if j.deleted {
		prefix = deletedButThere
	}
	connected := z.nb.Connected()
	z.mu.Lock()
	defer z.mu.Unlock()
	var no refusal
	switch {
	case errors.As(err, &no):
		if z.fails(name, no.error) {
			z.log.Warn("network is not built on this node", "network", name, "error", no.error)
		}
		z.noteFailure(name, id, prefix+z.because(name, no.error))
		z.tried(name)
		return nil // an event that can help will come
	case err != nil:
		st := z.state(name)
		for _, p := range AllParts {
			st.dirty[p] = struct{}{}
		}
		if connected && !errors.Is(err, errNotConnected) && ctx.Err() == nil {
			z.fails(name, err)
			z.noteFailure(name, id, prefix+z.because(name, err))
			if name != network.DefaultName { // which every pod is on: without it the node is not ready
				z.tried(name)
			}
		} // else it was not the network that failed
		return fmt.Errorf("network %s: %w", name, err)
	}
	z.works(name)
	if stays {
		z.noteFailure(name, id, deletedButThere+"pods run on it")
	} else {
		z.forgetFailure(name)
	}
	z.tried(name)
	return nil
}

// refusal says why a network cannot be built: trying again would not help.
type refusal struct{ error }

// fails notes why a network is not as it should be; true for a new reason.
func (z *Zone) fails(name string, err error) bool {
	was, text := z.lastErr[name], err.Error()
	z.lastErr[name] = text
	z.metrics.failing.Set(float64(len(z.lastErr)))
	return was != text
}

func (z *Zone) works(name string) {
	delete(z.lastErr, name)
	z.metrics.failing.Set(float64(len(z.lastErr)))
}

// tried notes that a network known at the start has had its turn: one that
// fails holds up no other.
func (z *Zone) tried(name string) {
	_, first := z.pending[name]
	delete(z.pending, name)
	if first && z.everyTried() {
		z.netQueue.Add(keyFailures)
	}
	if len(z.pending) == 0 && !z.ready.Swap(true) {
		z.log.Info("every known network has been tried", "failing", slices.Sorted(maps.Keys(z.lastErr)))
	}
}

func (z *Zone) build(ctx context.Context, name string, j job) error {
	if name == network.DefaultName {
		if err := z.nb.SetName(ctx, j.node.Name); err != nil {
			return err
		}
	}
	have, err := z.nb.Read(ctx, Owner{Network: name, Node: j.node.Name, Parts: j.parts})
	if err != nil {
		return fmt.Errorf("read rows: %w", err)
	}
	j.in.Pods = asLocked(j.in.Pods, have)
	want, err := BuildParts(j.net, j.node, j.in, j.parts)
	if err != nil {
		return refusal{err}
	}
	want = slices.Concat(want, z.alive(name, want, have), asTheyWere(j.node, want, have, j.unknown))
	return z.apply(ctx, name, Diff(want, have))
}

// remove deletes a network that nobody describes, unless pods still run on it:
// then stays is true. id is the network's, as far as its rows tell.
func (z *Zone) remove(ctx context.Context, name string) (id int, stays bool, err error) {
	have, err := z.nb.Read(ctx, Owner{Network: name, Node: z.cfg.Kubernetes.NodeName, Parts: AllParts})
	if err != nil {
		return 0, false, fmt.Errorf("read rows: %w", err)
	}
	id = idOfRows(have)
	if alive := z.alive(name, nil, have); len(alive) > 0 {
		z.log.Info("network stays while its pods run", "network", name, "ports", len(alive))
		return id, true, nil
	}
	if err := z.apply(ctx, name, Diff(nil, have)); err != nil {
		return id, false, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if st := z.state(name); len(st.pods) == 0 && len(st.dirty) == 0 {
		delete(z.nets, name)
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
	z.log.Info("network changed", "network", name, "operations", len(ops))
	return nil
}

// cleanup looks for networks in the database that nobody describes.
func (z *Zone) cleanup(ctx context.Context) error {
	z.mu.Lock()
	begun := z.begun
	z.mu.Unlock()
	if !begun {
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
		if _, ok := z.describe(name); !ok && !z.catalog.Names(name) {
			if first {
				z.pending[name] = struct{}{}
			}
			z.dirty(name, AllParts...)
		}
	}
	z.tried(keyCleanup)
	return nil
}
