// SPDX-License-Identifier: Apache-2.0

// Package agent configures a node. Informers fill a cache, their events enqueue
// keys in one queue, and a reconciler per kind of key configures the kernel and
// Open vSwitch. There is no goroutine, timer or watch per network.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/process"
	"bulkhead/pkg/vrf"
)

// OVS is what the agent uses from pkg/ovs.
type OVS interface {
	ReadNode(ctx context.Context, name string, conf config.OVS, plan network.Plan) (ovs.Facts, error)
	SyncChassis(ctx context.Context, node network.Node, in ovs.Inputs) error
	SyncManagement(ctx context.Context, node network.Node, nets []network.Network, kept []int) error
	ListPods(ctx context.Context) ([]ovs.PodPort, error)
}

// Flows is what the agent uses from the external bridge's flow reconciler.
type Flows interface {
	SetNode(node ovs.Facts, localnets []network.Network, peers []network.Node)
	// SetNetwork sets a network that has a gateway router, with the ports of its services
	// that are reached from outside it. pods are the subnets of this node's pods.
	SetNetwork(n network.Network, pods []netip.Prefix, ports []flows.ServicePort)
	DeleteNetwork(id int)
	Keep(ids []int)                    // flows of these networks stay while the networks are not set
	MarkComplete()                     // every network is set: others' flows are removed
	Isolate(ctx context.Context) error // returns once nothing passes between networks on the bridge
}

// Kernel is what the agent uses from pkg/vrf.
type Kernel interface {
	vrf.Target
	HasIPv6() bool
	DeviceIndex(table int) int // of our VRF device with that table; 0: none
	Links(ctx context.Context) ([]vrf.Link, error)
	Conflicts(ctx context.Context) ([]string, error)
}

// HostNet is what the agent uses from pkg/hostnet.
type HostNet interface {
	Reconcile(ctx context.Context, in hostnet.Inputs) error
	Expect(pods []hostnet.Pod, networks []hostnet.Network)
	Status() hostnet.Status
	Guard(row loader.DoorRow) error
	PodOf(cgroup uint64) (uid string, ok bool)
}

// API is what the agent writes to the Kubernetes API: its Node, and events.
type API interface {
	Annotate(ctx context.Context, annotations map[string]string) error
	SetCondition(ctx context.Context, c Condition) error
	Event(warning bool, reason, message string)
	PodEvent(pod Pod, reason, message string) // a warning
}

// Parts are the dependencies of the agent.
type Parts struct {
	Config   config.Config
	Cache    *Cache
	Queue    *Queue
	Failures *Failures
	OVS      OVS
	Flows    Flows // nil: the external bridge is not managed
	Kernel   Kernel
	Firewall *firewall.Target // nil: no nft
	HostNet  HostNet          // nil: no eBPF
	API      API
	// KubeletMark is the mark that eBPF sets on kubelet's sockets; 0: none.
	KubeletMark uint32
	// KubeletCgroup finds kubelet's cgroup where there is no mark; nil: not needed.
	KubeletCgroup func() firewall.Cgroup
	// PodRoots finds the cgroups that contain all pods; nil if nft cannot match
	// packets by their socket.
	PodRoots func() ([]firewall.Cgroup, error)
	// Firewalls finds rules of other firewalls that affect networks; nil: no nft.
	Firewalls func() (firewall.Conflicts, error)
	// Servers lists the node's servers, whose ports pods do not get; nil: pods get no ports
	// of the node.
	Servers func() ([]hostnet.Server, error)
	// Conntrack reads the size of the conntrack table; nil: it is not watched.
	Conntrack func() (Conntrack, error)
	Features  func() []Feature                 // as they are now
	Counters  func() ([]loader.Counter, error) // nil: no eBPF
	Metrics   *prometheus.Registry             // the process's; New adds the agent's
	Log       *slog.Logger
}

// Feature is a kernel feature that the agent uses.
type Feature struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why it is missing
	Costs  string `json:"costs,omitempty"`  // what does not work without it
}

// Agent wires the cache, the queue and its reconcilers together.
type Agent struct {
	config    config.Config
	cache     *Cache
	queue     *Queue
	failures  *Failures
	firstSync *firstSync
	node      *nodeReconciler
	networks  *networkReconciler
	gateways  *gatewayReconciler
	ports     *portReconciler
	hosts     *hostReconciler
	conflicts *conflictReconciler
	conntrack *conntrackReader
	reporter  *reporter
	refusals  refusalReporter
	states    *stateReader
	metrics   reconcileMetrics
	registry  *prometheus.Registry
	log       *slog.Logger
}

// New makes an agent; Run runs it, and Watch fills its cache.
func New(p Parts) *Agent {
	node := &nodeReconciler{config: p.Config, cache: p.Cache, queue: p.Queue, ovs: p.OVS, flows: p.Flows, api: p.API, log: p.Log,
		peers: newPeers(p.Config.Kubernetes.NodeName, p.Queue, func() {
			enqueueAllGateways(p.Queue, p.Cache)
			p.Queue.EnqueueHosts()
		}, p.Log)}
	first := newFirstSync(node, p.Log, func() {
		if p.Flows != nil {
			p.Flows.MarkComplete()
		}
	})
	networks := &networkReconciler{config: p.Config, cache: p.Cache, queue: p.Queue, kernel: p.Kernel, flows: p.Flows, node: node, log: p.Log, last: map[int]networkResult{}, newDevices: map[int]time.Time{}}
	gateways := &gatewayReconciler{config: p.Config, cache: p.Cache, flows: p.Flows, node: node}
	ports := &portReconciler{config: p.Config, cache: p.Cache, ovs: p.OVS, node: node, networks: networks}
	doors := &doorReader{facts: doorFacts{p.Config, p.Cache}, kernel: p.Kernel, ovs: p.OVS, hostNet: p.HostNet, connecting: map[string]podDoor{}}
	hosts := newHostReconciler(p, node, doors, networks)
	conflicts := &conflictReconciler{kernel: p.Kernel, firewalls: p.Firewalls}
	conntrack := &conntrackReader{cache: p.Cache, table: p.Conntrack, log: p.Log}
	reporter := &reporter{plan: p.Config.Plan, node: node, features: p.Features, cache: p.Cache, queue: p.Queue, failures: p.Failures, networks: networks, hosts: hosts, conflicts: conflicts, conntrack: conntrack, hostNet: p.HostNet, api: p.API}
	states := &stateReader{config: p.Config, cache: p.Cache, kernel: p.Kernel, hostNet: p.HostNet, node: node, networks: networks, reporter: reporter,
		counters:  &counters{ebpf: p.Counters, firewall: p.Firewall, hosts: hosts, log: p.Log},
		firstSync: first, kubeletMark: p.KubeletMark, kubeletCgroup: p.KubeletCgroup}
	metrics := newReconcileMetrics()
	p.Metrics.MustRegister(metrics.seconds, metrics.errors, collector{states})
	return &Agent{config: p.Config, cache: p.Cache, queue: p.Queue, failures: p.Failures, firstSync: first,
		node: node, networks: networks, gateways: gateways, ports: ports, hosts: hosts, conflicts: conflicts, conntrack: conntrack, reporter: reporter,
		refusals: refusalReporter{cache: p.Cache, hostNet: p.HostNet, api: p.API, log: p.Log},
		states:   states, metrics: metrics, registry: p.Metrics, log: p.Log}
}

// resyncInterval is how often everything is reconciled without an event, in
// case an event was lost, and because nft sends none for some changes.
const resyncInterval = time.Minute

// Run reconciles until ctx ends. It leaves the node as it is then.
func (a *Agent) Run(ctx context.Context) error {
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		tick := time.NewTicker(resyncInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				a.resync()
			}
		}
	}()
	a.queue.keys.Run(ctx, a.config.Workers, a.reconcile, func(k key, attempts int, err error) {
		a.log.Warn("reconcile failed, will retry", "key", k.String(), "attempts", attempts, "error", err)
	})
	<-stop
	return nil
}

// resync reconciles everything, and reads the nft table and the size of the conntrack table.
func (a *Agent) resync() {
	a.conntrack.read()
	a.hosts.recheck.Store(true)
	a.queue.enqueueConflicts()
	a.queue.keys.Add(key{kind: kindAll})
	a.queue.keys.Add(key{kind: kindReport}) // the condition's heartbeat
}

// Watch runs the informers, and begins to reconcile when the cache is synced.
// It waits for that as long as the API server is unreachable. networksChanged
// is called when NADs or namespaces' labels changed. It returns when ctx ends, or with a
// network.ErrTransport, after it has set the Node's condition.
func (a *Agent) Watch(ctx context.Context, informers *Informers, networksChanged func()) error {
	watching, end := context.WithCancelCause(ctx)
	defer end(nil)
	handlers := eventHandlers{config: a.config, cache: a.cache, queue: a.queue, node: a.node, networksChanged: networksChanged, expectPods: a.hosts.expectPods, refuse: end, log: a.log}
	err := handlers.run(watching, informers)
	if err == nil {
		err = a.node.watchPeers(watching, informers.peers)
	}
	if err == nil && watching.Err() == nil {
		a.start()
		<-watching.Done()
	}
	if refused := context.Cause(watching); errors.Is(refused, network.ErrTransport) {
		condition := Condition{Type: ConditionDegraded, Status: conditionTrue, Reason: "TransportChanged", Message: "the agent does not run: " + refused.Error()}
		return errors.Join(refused, a.reporter.api.SetCondition(ctx, condition))
	}
	return err
}

// start is called when the cache is synced. From then on the agent removes
// what the cache does not hold.
func (a *Agent) start() {
	for _, nad := range a.cache.MarkSynced() {
		a.log.Warn("NetworkAttachmentDefinition is refused", "nad", nad.Key(), "network", nad.Network.Name, "error", nad.Err)
	}
	keys := []key{{kindNetwork, network.DefaultID}, {kindGateway, network.DefaultID}, {kind: kindPorts}, {kind: kindHosts}, {kind: kindNode}, {kind: kindAll}}
	for _, n := range a.cache.Networks() {
		keys = append(keys, key{kindNetwork, n.ID}, key{kindGateway, n.ID})
	}
	a.conntrack.read()
	a.firstSync.start(keys)
	a.queue.synced.Store(true)
	a.queue.enqueueConflicts()
	a.queue.keys.Add(key{kind: kindNode})
	a.queue.keys.Add(key{kind: kindAll})
}

// reconcile reconciles a key and records the outcome.
func (a *Agent) reconcile(ctx context.Context, k key) error {
	start := time.Now()
	err := a.reconcileKind(ctx, k)
	a.metrics.observe(k.kind, time.Since(start), err)
	completes := a.completes(k, err)
	if err != nil || completes { // one that only waits does not show that what failed works again
		a.failures.record(k, err)
	}
	if completes {
		a.firstSync.reconciled(k)
	}
	return err
}

// completes reports whether this reconcile of the key counts for the first sync. These do not: one that created only a
// network's VRF device, one of the management ports before the first kindAll, and a kindAll that failed.
func (a *Agent) completes(k key, err error) bool {
	switch k.kind {
	case kindNetwork:
		return !a.networks.isNewDevice(k.id)
	case kindPorts:
		_, known := a.networks.keptNetworks()
		return known
	case kindAll:
		return err == nil
	}
	return true
}

func (a *Agent) reconcileKind(ctx context.Context, k key) error {
	switch {
	case k.kind == kindReport:
		return a.reporter.reconcile(ctx)
	case !a.queue.synced.Load():
		return nil
	}
	a.node.readFirst(ctx)
	switch k.kind {
	case kindNetwork:
		return a.networks.reconcile(ctx, k.id)
	case kindGateway:
		return a.gateways.reconcile(k.id)
	case kindPorts:
		return a.ports.reconcile(ctx)
	case kindHosts:
		return a.hosts.reconcile(ctx)
	case kindServers:
		a.hosts.checkServers()
		return nil
	case kindConflicts:
		changed, err := a.conflicts.reconcile(ctx)
		if changed {
			a.queue.EnqueueReport()
		}
		return err
	case kindNode:
		return a.node.reconcile(ctx)
	default:
		enqueueAllGateways(a.queue, a.cache)
		return a.networks.reconcileAll(ctx)
	}
}

// Synced is closed when the first sync is complete.
func (a *Agent) Synced() <-chan struct{} { return a.firstSync.done }

// Ready returns why the first sync is not complete, or nil.
func (a *Agent) Ready() error { return a.firstSync.Ready() }

// KernelChanged enqueues what a change of the kernel's links, routes or rules
// affects.
func (a *Agent) KernelChanged(c vrf.Change) {
	switch {
	case c.All:
		if a.queue.synced.Load() {
			a.resync()
		}
	case c.Bridge:
		if c.Flushed {
			a.node.flushed.Store(true)
		}
		a.queue.EnqueueNode()
	case c.Foreign:
		a.queue.enqueueConflicts()
	case c.Links:
		a.queue.EnqueueHosts()
		if c.ID != network.DefaultID {
			a.queue.enqueueNetworkBatched(c.ID)
		}
	default:
		a.queue.enqueueNetworkBatched(c.ID)
	}
}

// FirewallChanged enqueues the host network if another process changed the nft
// table. generation is the transaction's.
func (a *Agent) FirewallChanged(generation uint32) { a.hosts.firewallChanged(generation) }

// ReportRefusals reports in the log, and as events of pods, what the eBPF
// programs refuse, until ctx ends.
func (a *Agent) ReportRefusals(ctx context.Context, r Refusals) error { return a.refusals.run(ctx, r) }

// PodPorts is cni.Ports over Open vSwitch. pod reads a pod from the informer.
func (a *Agent) PodPorts(client *ovs.Client, pod func(namespace, name string) (*corev1.Pod, bool)) cni.Ports {
	return podPortManager{ovs: client, hosts: a.hosts, doors: a.hosts.doors, pod: pod, own: a.config.OVS.PhysicalNetwork, log: a.log}
}

// State reads the agent's state. deep also reads the kernel for each network.
func (a *Agent) State(ctx context.Context, deep bool) State { return a.states.read(ctx, deep) }

// Serve serves on a TCP address and on a unix socket, either of which may be
// empty, until ctx ends:
//
//	/healthz      the process lives
//	/readyz       the first sync is complete
//	/metrics      Prometheus
//	/debug/state  State as JSON; with ?deep=1 the kernel is read for it
//
// Only the socket, which root alone can open, serves the state: it names every
// tenant's pods.
func (a *Agent) Serve(ctx context.Context, public *process.Starting, socket string) error {
	public.Set(process.NewMux(a.Ready, a.registry))
	private := process.NewMux(a.Ready, a.registry)
	private.HandleFunc("/debug/state", a.serveState)
	return process.ServeUnix(ctx, socket, private, a.log)
}

func (a *Agent) serveState(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(a.State(r.Context(), r.URL.Query().Get("deep") != "")); err != nil {
		a.log.Debug("cannot write the state", "error", err)
	}
}
