// SPDX-License-Identifier: Apache-2.0

// Package agent puts the parts of a node together: what the API server says
// goes into a Store, events become keys in one queue, and each key makes one
// thing what it should be. There is no goroutine, timer or watch per network.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/vrf"
)

// Retries of what failed.
const firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second

// settle is how long changes of the node-wide parts are gathered, so that a
// start with hundreds of networks makes few transactions of them.
const settle = 20 * time.Millisecond

// OVS is what the agent needs of pkg/ovs.
type OVS interface {
	NodeFacts(ctx context.Context, name string, conf config.OVS, plan network.Plan) (network.Node, error)
	SyncChassis(ctx context.Context, node network.Node, in ovs.Inputs) error
	SyncManagement(ctx context.Context, node network.Node, nets []network.Network) error
	ListPods(ctx context.Context) ([]ovs.PodPort, error)
}

// Flows is what the agent needs of the external bridge's keeper.
type Flows interface {
	SetNetworks(nets []network.Network)
	Close(ctx context.Context) error // returns once nothing passes between networks there
}

// Kernel is what the agent needs of pkg/vrf.
type Kernel interface {
	vrf.Target
	HasIPv6() bool
	DeviceIndex(table int) int // of our VRF device with that table; 0: none
	Links(ctx context.Context) ([]vrf.Link, error)
}

// HostNet is what the agent needs of pkg/hostnet.
type HostNet interface {
	Reconcile(ctx context.Context, in hostnet.Inputs) error
	Status() hostnet.Status
	Guard(row loader.DoorRow) error
	PodOf(cgroup uint64) (uid string, ok bool)
}

// API is what the agent writes to the Kubernetes API: its own Node, and events.
type API interface {
	Annotate(ctx context.Context, annotations map[string]string) error
	SetCondition(ctx context.Context, c Condition) error
	Event(warning bool, reason, message string)
	PodEvent(pod Pod, reason, message string) // a warning
}

// Parts are the boundaries of the agent.
type Parts struct {
	Config   config.Config
	Store    *Cache
	OVS      OVS
	Flows    Flows // nil: the external bridge is left alone
	Kernel   Kernel
	Firewall *firewall.Target // nil: nft cannot be used here
	HostNet  HostNet          // nil: eBPF cannot be used here
	API      API
	// KubeletMark is what eBPF gives kubelet's sockets; 0: it does not.
	KubeletMark uint32
	// KubeletCgroup finds kubelet's cgroup without eBPF; nil: not needed.
	KubeletCgroup func() firewall.Cgroup
	// PodRoots finds the cgroups that hold all pods; nil where nft cannot match
	// packets by their socket.
	PodRoots   func() []firewall.Cgroup
	Features   []Feature
	Counters   func() ([]loader.Counter, error) // nil: no eBPF
	OnReady    func()                           // called once, when the first full run is done
	OnNetworks func()                           // called when NADs or namespaces' labels changed
	Log        *slog.Logger
	Now        func() time.Time
}

// Feature is something of the kernel that is used, and why it is missing if it is.
type Feature struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
	// Costs says what is lost without it.
	Costs string `json:"costs,omitempty"`
}

// kind is what a key is about.
type kind int

const (
	aNetwork  kind = iota // VRF, routes and rules of the network with the key's id
	thePorts              // management ports of all networks
	theHosts              // eBPF and nft: host-network processes and kubelet
	theNode               // chassis, facts, annotations
	theReport             // condition and events
	everything
)

type key struct {
	kind kind
	id   int
}

func (k key) String() string {
	switch k.kind {
	case aNetwork:
		return fmt.Sprintf("network id %d", k.id)
	case thePorts:
		return "management ports"
	case theHosts:
		return "host-network processes"
	case theNode:
		return "node"
	case theReport:
		return "node condition"
	default:
		return "everything"
	}
}

// Agent runs the node.
type Agent struct {
	Parts
	queue   workqueue.TypedRateLimitingInterface[key]
	keeper  *firewall.Keeper
	metrics metrics
	nft     nftCounts
	started atomic.Bool // the API's lists were read once: before that nothing may be removed

	mu       sync.Mutex
	node     network.Node
	nets     map[int]netStatus
	outside  map[string]string // part that runs beside the queue → its last error
	failing  map[key]string    // key → last error
	since    map[key]time.Time // key → when it began to fail
	pending  map[key]struct{}  // of the first full run
	ready    bool              // first full run done
	reported map[string]string // problems told as events: reason → message
	recheck  bool              // read the nft table anew
	// connecting are pods' interfaces that Open vSwitch does not have yet, by name.
	connecting map[string]podDoor
	// Runs of theHosts that began and ended; hostsEnded is closed and made anew
	// by each that ends.
	hostsBegun, hostsEnd int
	hostsEnded           chan struct{}
	hostsErr             error // of the last run: what could not be closed
}

// nftCounts are counters of the nft table as last read.
type nftCounts struct {
	sync.Mutex
	made     atomic.Bool // the table is there
	counters map[string]uint64
	at       time.Time
}

// netStatus is what the last run saw and did.
type netStatus struct {
	net    network.Network
	result vrf.Result
	err    error
	at     time.Time
}

// New makes an agent; Run runs it.
func New(p Parts) *Agent {
	if p.Now == nil {
		p.Now = time.Now
	}
	a := &Agent{Parts: p, metrics: newMetrics(), nets: map[int]netStatus{}, failing: map[key]string{}, since: map[key]time.Time{}, outside: map[string]string{}, reported: map[string]string{}, pending: map[key]struct{}{}, connecting: map[string]podDoor{}, hostsEnded: make(chan struct{})}
	if p.Firewall != nil {
		a.keeper = &firewall.Keeper{Target: p.Firewall}
	}
	// Exponential for each key, and no limit for all of them together: a start
	// with hundreds of networks must not wait in line.
	a.queue = workqueue.NewTypedRateLimitingQueue[key](workqueue.NewTypedMaxOfRateLimiter[key](
		workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry),
		&workqueue.TypedBucketRateLimiter[key]{Limiter: rate.NewLimiter(rate.Inf, 0)}))
	return a
}

// Run works until ctx ends. What is in the kernel stays then.
func (a *Agent) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range max(a.Config.Workers, 1) {
		wg.Go(func() { a.work(ctx) })
	}
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			a.queue.ShutDown()
			wg.Wait()
			return nil
		case <-tick.C:
			a.Resync()
		}
	}
}

// resync is how often everything is compared anew, in case an event was lost
// or there is none (nft). It reads; it writes only where something differs.
const resync = time.Minute

// Resync looks at everything anew.
func (a *Agent) Resync() {
	a.mu.Lock()
	a.recheck = true
	a.mu.Unlock()
	a.queue.Add(key{kind: everything})
}

// Start says that the Store holds what the API server has: from now on what is
// not in it may be removed.
func (a *Agent) Start() {
	for _, nad := range a.Store.Settle() {
		a.Log.Warn("NetworkAttachmentDefinition is refused", "nad", nad.Key(), "network", nad.Network.Name, "error", nad.Err)
	}
	a.started.Store(true)
	a.mu.Lock()
	a.pending[key{aNetwork, network.DefaultID}] = struct{}{}
	for _, n := range a.Store.Networks() {
		a.pending[key{aNetwork, n.ID}] = struct{}{}
	}
	for _, k := range []kind{thePorts, theHosts, theNode} {
		a.pending[key{kind: k}] = struct{}{}
	}
	a.mu.Unlock()
	a.queue.Add(key{kind: theNode})
	a.queue.Add(key{kind: everything})
}

// Networks asks for a look at these networks, and at what depends on them.
func (a *Agent) Networks(ids ...int) {
	if len(ids) == 0 || !a.started.Load() {
		return
	}
	for _, id := range ids {
		a.queue.Add(key{aNetwork, id})
	}
	a.queue.AddAfter(key{kind: thePorts}, settle)
	a.queue.AddAfter(key{kind: theHosts}, settle)
}

// Hosts asks for a look at host-network processes and locked addresses.
func (a *Agent) Hosts() {
	if a.started.Load() {
		a.queue.AddAfter(key{kind: theHosts}, settle)
	}
}

// NodeChanged asks for a look at the node itself.
func (a *Agent) NodeChanged() {
	if a.started.Load() {
		a.queue.AddAfter(key{kind: theNode}, settle)
	}
}

// KernelChanged is told what somebody changed in the kernel.
func (a *Agent) KernelChanged(c vrf.Change) {
	switch {
	case !a.started.Load():
	case c.All:
		a.Resync()
	case c.Bridge:
		a.NodeChanged()
	case c.Links:
		a.Hosts()
	default:
		// Our own changes make events too; they are gathered.
		a.queue.AddAfter(key{aNetwork, c.ID}, settle)
	}
}

func (a *Agent) work(ctx context.Context) {
	for {
		k, stop := a.queue.Get()
		if stop {
			return
		}
		start := a.Now()
		err := a.reconcile(ctx, k)
		a.metrics.observe(k, a.Now().Sub(start), err)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			a.Log.Warn("not done yet; trying again", "what", k.String(), "error", err, "tries", a.queue.NumRequeues(k)+1)
			a.queue.AddRateLimited(k)
		default:
			a.queue.Forget(k)
		}
		a.done(k, err)
		a.queue.Done(k)
	}
}

// done keeps the books of what fails, and of the first full run.
func (a *Agent) done(k key, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.failing[k]
	if err != nil {
		if a.failing[k] = err.Error(); old == "" {
			a.since[k] = a.Now()
			a.queue.AddAfter(key{kind: theReport}, lasting+settle)
		}
	} else {
		delete(a.failing, k)
		delete(a.since, k)
	}
	if a.Store.NodeID() != 0 {
		delete(a.pending, k) // one network that cannot be made does not hold up the node
	}
	if a.started.Load() && len(a.pending) == 0 && !a.ready && a.Store.NodeID() != 0 {
		a.ready = true
		a.Log.Info("first full run done")
		if a.OnReady != nil {
			go a.OnReady()
		}
	}
	if (old != a.failing[k] || k.kind == everything) && k.kind != theReport {
		a.queue.AddAfter(key{kind: theReport}, settle)
	}
}

func (a *Agent) reconcile(ctx context.Context, k key) error {
	switch k.kind {
	case aNetwork:
		return a.reconcileNetwork(ctx, k.id)
	case thePorts:
		return a.reconcilePorts(ctx)
	case theHosts:
		return a.reconcileHosts(ctx)
	case theNode:
		return a.reconcileNode(ctx)
	case theReport:
		return a.report(ctx)
	default:
		return a.lookAtAll(ctx)
	}
}

// Ready tells whether the first full run is done; /readyz asks.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.started.Load():
		return errors.New("waiting for the API server")
	case a.Store.NodeID() == 0:
		return errors.New("waiting for the node's id from the cluster controller")
	case !a.ready:
		return fmt.Errorf("first full run: %d of its parts to do", len(a.pending))
	default:
		return nil
	}
}

// Node is this node, as far as it is known.
func (a *Agent) Node() network.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.node
	n.ID = a.Store.NodeID()
	return n
}

func (a *Agent) everything() {
	if a.started.Load() {
		a.queue.Add(key{kind: everything})
	}
}

// annotationsChanged asks for a look at the node when somebody else changed
// the annotations that are the agent's.
func (a *Agent) annotationsChanged(seen network.Node) {
	want := a.Node()
	want.ID = seen.ID
	if !reflect.DeepEqual(want, seen) {
		a.NodeChanged()
	}
}

// Outcome records how a part that runs beside the queue is doing.
func (a *Agent) Outcome(part string, err error) {
	msg := ""
	if err != nil {
		msg = part + ": " + err.Error()
	}
	a.mu.Lock()
	changed := a.outside[part] != msg
	a.outside[part] = msg
	a.mu.Unlock()
	if changed {
		a.ReportChanged()
	}
}

// ReportChanged asks for a look at what there is to report.
func (a *Agent) ReportChanged() {
	if a.started.Load() {
		a.queue.AddAfter(key{kind: theReport}, settle)
	}
}
