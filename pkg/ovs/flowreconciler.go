// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// FlowOptions are what a FlowReconciler works on.
type FlowOptions struct {
	Switch flows.Switch
	Bridge string // the external bridge
	Node   string // the node's name
	Plan   network.Plan
	// LooseIsolation is flows.Inputs.Loose.
	LooseIsolation bool
	// RunDir is the directory of ovs-vswitchd's sockets.
	RunDir string
	// Neighbours finds the routers' MAC addresses.
	Neighbours Neighbours
	Log        *slog.Logger
	// Report, if set, is called with the result of each reconcile; nil is success.
	Report func(error)
}

// FlowReconciler reconciles the external bridge's flows. An event builds, compares and
// writes the flows of the networks that it affects, in one bundle. All flows are read at the
// start, when somebody else has changed one or ovs-vswitchd has restarted, and periodically.
type FlowReconciler struct {
	FlowOptions
	Client *Client

	interval time.Duration // between periodic reads; 0: readInterval

	mu        sync.Mutex
	node      Facts
	localnets map[string]int        // VLANs of Localnet networks, by patch port
	peers     []network.Node        // the other nodes
	link      int                   // the bridge's, where these are
	routers   map[netip.Addr]string // MAC addresses of the node's next hops, as far as they are known
	gateways  map[int]gateway       // by network id
	networks  map[string]int        // network ids by patch port
	kept      map[int]bool          // networks, by id, that are not in gateways and whose flows stay
	complete  bool                  // gateways has every other network
	isolated  bool                  // Isolate has succeeded
	changed   changes
	pending   chan struct{}

	expected map[uint64]int      // events of own changes that are still to come, by cookie
	uplinks  map[string]struct{} // interfaces that may be the uplink's; nil: any

	runs sync.Mutex // held while the bridge is read and written
	run  flowState
}

// gateway is a network with its patch port.
type gateway struct {
	patch string
	flows.Gateway
}

// changes say what is to be built again.
type changes struct {
	all      bool         // the bridge or the node
	networks map[int]bool // by id
	stale    bool         // the switch may have other flows than those that were written
}

// flowState is what the reconciler has read and written last.
type flowState struct {
	reader bridgeReader
	bridge flows.Bridge
	in     flows.Inputs
	want   map[uint64]flows.State // by cookie
	// written: want was built from all changes, and the switch has its flows. Otherwise the next
	// reconcile builds and compares everything.
	written bool
}

const (
	// readInterval is long, because the switch reports what changes, and each read runs a
	// program.
	readInterval = time.Minute
	// debounce is the delay between others' change of flows and the read of the bridge.
	// It bounds the cost if another program changes flows all the time.
	debounce = 100 * time.Millisecond
)

// RunDir returns the directory of ovs-vswitchd's sockets, given the database's
// address.
func RunDir(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return filepath.Dir(path)
	}
	return "/var/run/openvswitch"
}

// NewFlowReconciler returns a reconciler of a node's external bridge.
func NewFlowReconciler(client *Client, options FlowOptions) *FlowReconciler {
	return &FlowReconciler{FlowOptions: options, Client: client,
		gateways: map[int]gateway{}, networks: map[string]int{}, pending: make(chan struct{}, 1), changed: changes{networks: map[int]bool{}}, expected: map[uint64]int{},
		run: flowState{reader: bridgeReader{client: client, name: options.Bridge}, want: map[uint64]flows.State{}}}
}

// SetNode sets the node's facts, the Localnet networks that the bridge may connect to the wire,
// and the other nodes, whose addresses these networks must not send from.
func (r *FlowReconciler) SetNode(node Facts, localnets []network.Network, peers []network.Node) {
	vlans := map[string]int{}
	for _, n := range localnets {
		vlans[n.LocalnetPatch()] = n.VLAN
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !reflect.DeepEqual(r.node, node) || !maps.Equal(r.localnets, vlans) || !reflect.DeepEqual(r.peers, peers) {
		r.node, r.localnets, r.peers, r.changed.all = node, vlans, peers, true
		r.notify()
	}
}

// SetNetwork sets a primary network, or the cluster default network, with the ports of its
// services that are reached from outside it. pods are the subnets of this node's pods.
func (r *FlowReconciler) SetNetwork(n network.Network, pods []netip.Prefix, ports []flows.ServicePort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := gateway{Gateway: flows.Gateway{Network: n.ID, Mark: n.ConntrackMark(), Ports: ports}, patch: n.ExternalPatch(r.Bridge, r.Node)}
	v4, v6 := n.Families()
	for _, p := range network.FilterFamilies(r.Plan.MasqueradeGateway(n), v4, v6) {
		g.Addresses = append(g.Addresses, p.Addr())
	}
	if n.Announced() {
		g.Advertised, g.Pods = n.CIDRs(), pods
	}
	if reflect.DeepEqual(r.gateways[n.ID], g) {
		return
	}
	r.forgetPatch(n.ID)
	r.gateways[n.ID], r.networks[g.patch], r.changed.networks[n.ID] = g, n.ID, true
	r.notify()
}

// DeleteNetwork removes the network with that id.
func (r *FlowReconciler) DeleteNetwork(id int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetPatch(id)
	delete(r.gateways, id)
	r.changed.networks[id] = true
	r.notify()
}

// forgetPatch forgets that the patch port of a network belongs to it, unless a network of the same name that was created
// again, with another id, has it by now.
func (r *FlowReconciler) forgetPatch(id int) {
	if patch := r.gateways[id].patch; r.networks[patch] == id {
		delete(r.networks, patch)
	}
}

// Keep makes the flows of the networks with these ids stay while the networks are not set.
func (r *FlowReconciler) Keep(ids []int) {
	kept := map[int]bool{}
	for _, id := range ids {
		kept[id] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !maps.Equal(r.kept, kept) {
		r.kept, r.changed.stale = kept, true
		r.notify()
	}
}

// MarkComplete says that every network is set: flows of others are removed from now on.
func (r *FlowReconciler) MarkComplete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.complete {
		r.complete, r.changed.stale = true, true
		r.notify()
	}
}

func (r *FlowReconciler) notify() {
	select {
	case r.pending <- struct{}{}:
	default:
	}
}

// rowChanged handles a change in the Open vSwitch database.
func (r *FlowReconciler) rowChanged(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, isNetwork := r.networks[name]
	_, isLocalnet := r.localnets[name]
	switch {
	case isNetwork:
		r.changed.networks[id] = true
	case name == r.Bridge, name == anyRow, isLocalnet, name == network.UplinkPatch(r.Bridge, r.Node), r.mayBeUplink(name):
		r.changed.all = true
	default:
		return
	}
	r.notify()
}

// mayBeUplink reports whether a port may be the uplink, or an interface the uplink's.
func (r *FlowReconciler) mayBeUplink(name string) bool {
	_, ok := r.uplinks[name]
	return ok || r.uplinks == nil
}

// flowsChanged handles an event of the switch's flow monitor: a flow with that cookie has
// changed, or, for 0, any may have.
func (r *FlowReconciler) flowsChanged(cookie uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cookie != 0 && r.expected[cookie] > 0 {
		if r.expected[cookie]--; r.expected[cookie] == 0 {
			delete(r.expected, cookie)
		}
		return
	}
	r.changed.stale = true
	r.notify()
}

// Isolate installs the flows that belong to no network, which block traffic between the
// external bridge's patch ports. The agent calls it before it creates the chassis, because
// ovn-controller then connects networks to the bridge. After a success it is a no-op.
func (r *FlowReconciler) Isolate(ctx context.Context) error {
	r.mu.Lock()
	isolated := r.isolated
	r.mu.Unlock()
	if isolated {
		return nil
	}
	err := r.reconcile(ctx, changes{all: true, stale: true})
	r.runs.Lock()
	written := r.run.written // also without an uplink, which is an error
	r.runs.Unlock()
	if !written {
		return err
	}
	r.mu.Lock()
	r.isolated = true
	r.mu.Unlock()
	return nil
}

// errNoFacts: the node's facts are not known yet, so what the bridge has stays.
var errNoFacts = errors.New("the node's facts are not known yet")

// reconcile writes the flows of what has changed.
func (r *FlowReconciler) reconcile(ctx context.Context, c changes) error {
	r.runs.Lock()
	defer r.runs.Unlock()
	r.mu.Lock()
	node, localnets, gateways, complete, kept := r.node, r.localnets, maps.Clone(r.gateways), r.complete, r.kept
	r.mu.Unlock()
	if node.Name == "" {
		return errNoFacts
	}
	s := &r.run
	c.stale = c.stale || !s.written
	s.written = false
	before, problems, err := r.buildBase(ctx, &c, node, localnets)
	if err != nil {
		return err
	}
	for _, id := range s.networks(c, gateways) {
		cookie := flows.Cookie(id)
		before[cookie] = s.want[cookie]
		delete(s.want, cookie)
		g, ok := gateways[id]
		if !ok {
			continue
		}
		ofport, err := r.Client.openFlowPort(ctx, g.patch)
		if err != nil {
			problems = append(problems, err)
			if had := before[cookie]; had != nil {
				s.want[cookie] = had // the network keeps its flows while the database cannot be read
			}
			continue
		}
		g.Port = max(ofport, 0)
		if want := flows.BuildNetwork(s.bridge, s.in, g.Gateway); len(want) > 0 {
			s.want[cookie] = want
		}
	}
	err = r.write(ctx, before, c.stale, func(cookie uint64) bool { return !complete || kept[flows.NetworkOf(cookie)] })
	lost := func(err error) bool { return !errors.Is(err, flows.ErrNoUplink) } // what has no uplink is written
	s.written = err == nil && !slices.ContainsFunc(problems, lost)
	return errors.Join(append(problems, err)...)
}

// buildBase reads the bridge if it may have changed, and builds the flows that belong to no
// network. If their inputs have changed, it sets c.all, because all networks' flows depend on them
// too. before are the flows that they replace. The flows are written in spite of problems.
func (r *FlowReconciler) buildBase(ctx context.Context, c *changes, node Facts, localnets map[string]int) (before map[uint64]flows.State, problems []error, err error) {
	s := &r.run
	before = map[uint64]flows.State{}
	if !c.all && !c.stale {
		return before, nil, nil
	}
	router := network.UplinkPatch(r.Bridge, r.Node)
	bridge, added, err := s.reader.read(ctx, router, localnets)
	r.mu.Lock()
	r.uplinks = s.reader.possibleUplinks()
	r.mu.Unlock()
	if err != nil {
		return before, nil, err
	}
	hosts, err := r.hosts(bridge, node.Node)
	if err != nil {
		problems = append(problems, err)
	}
	in := flows.Inputs{Addresses: node.Addresses, Floating: node.Floating, Links: node.Links(), Reserved: slices.Concat(node.Reserved(), node.Floating, node.Elsewhere), MAC: node.BridgeMAC, Masquerade: r.Plan.Masquerade, Services: r.Plan.ServiceCIDRs,
		Pods: network.Network{Subnets: r.Plan.ClusterSubnets}.CIDRs(), Mode: node.Mode, Loose: r.LooseIsolation}
	c.all = !reflect.DeepEqual(bridge, s.bridge) || !reflect.DeepEqual(in, s.in)
	want, err := flows.Build(bridge, in, hosts)
	if errors.Is(err, flows.ErrNoUplink) {
		problems = append(problems, err)
	} else if err != nil {
		return before, nil, err
	}
	before[flows.CookieBase] = s.want[flows.CookieBase]
	s.bridge, s.in, s.want[flows.CookieBase] = bridge, in, want
	if c.stale {
		added = nil // all ports
	}
	if c.stale || len(added) > 0 {
		if err := s.reader.protect(ctx, router, localnets, added); err != nil {
			problems = append(problems, err)
		}
	}
	return before, problems, nil
}

// networks returns the ids of the networks whose flows are built.
func (s *flowState) networks(c changes, gateways map[int]gateway) []int {
	if !c.all && !c.stale {
		return slices.Collect(maps.Keys(c.networks))
	}
	ids := slices.Collect(maps.Keys(gateways))
	for cookie := range s.want {
		if _, ok := gateways[flows.NetworkOf(cookie)]; !ok && cookie != flows.CookieBase {
			ids = append(ids, flows.NetworkOf(cookie))
		}
	}
	return ids
}

// write writes the flows with the cookies in before, in one bundle, or in several if there are many. With read it compares
// all wanted flows with the switch's flows, otherwise the wanted flows with these cookies with before. An unwanted flow
// of a network stays on the switch if keep returns true for its cookie.
func (r *FlowReconciler) write(ctx context.Context, before map[uint64]flows.State, read bool, keep func(cookie uint64) bool) error {
	s := &r.run
	var want, have flows.State
	if read {
		r.mu.Lock()
		clear(r.expected) // the read sees what has changed until now
		r.mu.Unlock()
		var err error
		if have, err = r.Switch.Read(ctx, r.Bridge); err != nil {
			return err
		}
		for _, w := range s.want {
			want = append(want, w...)
		}
		have = slices.DeleteFunc(have, func(f flows.Flow) bool {
			_, known := s.want[f.Cookie]
			return !known && f.Cookie != flows.CookieBase && keep(f.Cookie)
		})
	} else {
		for cookie := range before {
			want, have = append(want, s.want[cookie]...), append(have, before[cookie]...)
		}
	}
	ops := flows.Diff(want, have)
	if len(ops) == 0 {
		return nil
	}
	var errs []error
	var written []flows.Op
	defer func() { r.logWritten(ctx, written) }()
	apply := func(bundle []flows.Op) error {
		r.expect(bundle)
		err := r.Switch.Apply(ctx, r.Bridge, bundle)
		if err == nil {
			written = append(written, bundle...)
		}
		return err
	}
	for _, bundle := range flows.Bundles(ops) {
		err := apply(bundle)
		if errors.Is(err, flows.ErrUnresponsive) {
			return errors.Join(append(errs, err)...)
		}
		networks := flows.ByNetwork(bundle)
		if err == nil || len(networks) == 1 {
			errs = append(errs, err)
			continue
		}
		for _, own := range networks { // so that one network's refused flows do not keep others from theirs
			errs = append(errs, apply(own))
		}
	}
	return errors.Join(errs...)
}

// logWritten logs a change in one line, and each flow only for debugging: after a restart of ovs-vswitchd there are thousands.
func (r *FlowReconciler) logWritten(ctx context.Context, ops []flows.Op) {
	if len(ops) == 0 {
		return
	}
	deleted, cookies := 0, map[uint64]bool{}
	debug := r.Log.Enabled(ctx, slog.LevelDebug)
	for _, op := range ops {
		cookies[op.Flow.Cookie] = true
		if op.Delete {
			deleted++
		}
		if debug {
			r.Log.Debug("changed a flow of the external bridge", "op", op.String())
		}
	}
	attributes := []any{"added", len(ops) - deleted, "deleted", deleted}
	if cookie := ops[0].Flow.Cookie; len(cookies) == 1 && cookie != flows.CookieBase {
		attributes = append(attributes, "networkID", flows.NetworkOf(cookie))
	}
	r.Log.Info("changed flows of the external bridge", attributes...)
}

// expect notes the events that own changes will cause.
func (r *FlowReconciler) expect(ops []flows.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range ops {
		r.expected[op.Flow.Cookie]++
	}
}

// takeChanges returns and forgets what has changed.
func (r *FlowReconciler) takeChanges() changes {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.changed
	r.changed = changes{networks: map[int]bool{}}
	return c
}

// Run reconciles the flows until ctx ends, from the first SetNode on.
func (r *FlowReconciler) Run(ctx context.Context) {
	r.Client.watchRows(r.rowChanged)
	r.Neighbours.Watch(ctx, r.neighbourChanged)
	watchFlows(ctx, filepath.Join(r.RunDir, r.Bridge+".mgmt"), r.Log, r.flowsChanged)
	tick := time.NewTicker(cmp.Or(r.interval, readInterval))
	defer tick.Stop()
	backoff := 100 * time.Millisecond
	c := changes{all: true, stale: true}
	for ctx.Err() == nil {
		err := r.reconcile(ctx, c)
		if errors.Is(err, errNoFacts) {
			err = nil // SetNode notifies
		} else if r.Report != nil {
			r.Report(err)
		}
		var retry <-chan time.Time
		if err != nil {
			r.Log.Warn("cannot reconcile the external bridge's flows", "error", err)
			retry = time.After(backoff)
			backoff = min(2*backoff, 10*time.Second)
		} else {
			backoff = 100 * time.Millisecond
		}
		stale := false
		select {
		case <-ctx.Done():
		case <-r.pending:
		case <-retry:
			stale = true
		case <-tick.C:
			stale = true
		}
		c = r.takeChanges()
		if c.stale {
			select {
			case <-ctx.Done():
			case <-time.After(debounce):
			}
		}
		c.stale = c.stale || stale
	}
}
