// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"bulkhead/pkg/config"
	"bulkhead/pkg/healthcheck"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
	"bulkhead/pkg/process"
)

// Northbound is the interface of the zone to its northbound database.
type Northbound interface {
	Target
	SetName(ctx context.Context, name string) error
	Connected() bool
}

// Southbound is the interface of the zone to its southbound database.
type Southbound interface {
	ReadChassis(ctx context.Context) ([]Chassis, error)
	ApplyChassis(ctx context.Context, ops []ChassisOp) error
}

// Zone reconciles one node's OVN databases with the Kubernetes API.
type Zone struct {
	cfg  config.Config
	log  *slog.Logger
	kube kubernetes.Interface
	nads nadclient.Interface
	nb   Northbound
	sb   Southbound

	events   record.EventRecorder
	podStore cache.Indexer // this node's pods
	// remotePods are other nodes' pods on Layer 2 networks.
	remotePods   cache.Indexer
	slices       cache.Indexer
	nsLister     corelisters.NamespaceLister // for pods' networks: the newest label that is known
	queueMetrics *process.QueueMetrics
	podQueue     process.Queue[string] // "namespace/name"
	queue        *unitQueue            // networks and the keys below
	failures     *failureReport
	health       healthChecks
	end          context.CancelCauseFunc // ends serve, which returns the cause
	// addresses has a lock of its own, which may be taken while mu is held.
	addresses *podAddresses

	mu         sync.Mutex // guards the fields below up to ready; never held across I/O
	nadIndex   *network.NADIndex
	nodes      *nodeIndex
	ownUID     types.UID // of this Node
	installed  bool      // this node's transport is the configured one
	alone      bool      // no other node existed when the networks were last enqueued
	nets       map[string]*netState
	advertised map[string]network.Network // tenants' advertised networks, by name
	imported   []ImportedRoute            // that BGP has learned
	pods       map[string]*podState
	// namespaces (true: with the label of a primary network) and services reflect the events that have
	// been handled. The informers' caches are ahead of these: with them, the owner of an external
	// address would change without an event.
	namespaces  map[string]bool
	services    cache.Indexer                // of the cluster
	served      map[string]string            // by service: the network that it was last built on
	lastReports map[string]lastReport        // by service, if something of it is not served
	claims      network.Claims[externalPort] // services that claim external addresses
	defaultOnly map[string]map[string]string // by namespace and pod: UIDs of pods without a primary network
	initial     map[string]struct{}          // UIDs of the pods of the informer's first list
	pending     map[string]struct{}          // networks not yet tried since the start, and keyCleanup
	keptPorts   map[string]keptPorts         // by pod: undesired ports, kept because the pod runs
	withoutNAD  map[string]string            // by deleted NAD: the network on which other nodes' pods keep their ports
	audited     string                       // the network that was audited last
	// unconfirmed are, by network, the operations that the last audit found necessary and did not
	// apply yet.
	unconfirmed map[string]map[string]struct{}
	synced      bool // the handlers have seen the informers' first lists
	restored    bool // pod addresses are restored and pending is filled
	ready       atomic.Bool
	leaving     atomic.Bool // the node is being removed
	metrics     metrics
}

// Keys in queue other than networks: a network's name has no "/".
const (
	keyChassis = "/chassis"
	keyCleanup = "/cleanup"
	// keyFailures writes this Node's failures annotation.
	keyFailures = "/failures"
	// keyAudit enqueues the audit of the next network. auditKey begins with it.
	keyAudit = "/audit"
)

// netState is the zone's state of a network.
type netState struct {
	net       network.Network // as last described by a NAD
	pods      map[string]PodPort
	hostPorts *hostPortIndex // see Zone.hostPortIndex
}

// podState is the networks and addresses assigned to a pod.
type podState struct {
	uid         string
	defaultOnly bool                  // on the cluster default network without a primary network
	undecided   bool                  // on the cluster default network, locked; the primary network is to be added
	ports       map[string]attachment // by NAD key
}

// attachment is a pod's port on a network.
type attachment struct {
	network string
	port    PodPort
	cluster bool // the cluster controller allocated the addresses
}

// NewZone returns the zone of the node that cfg names. Run starts it. registry
// may be nil.
func NewZone(cfg config.Config, k kubernetes.Interface, nads nadclient.Interface, registry prometheus.Registerer, log *slog.Logger) (*Zone, error) {
	if cfg.Kubernetes.NodeName == "" {
		return nil, errors.New("node name is empty: set --node-name")
	}
	queues := process.NewQueueMetrics(registry)
	z := &Zone{
		cfg: cfg, log: log.With("node", cfg.Kubernetes.NodeName), kube: k, nads: nads, metrics: newMetrics(registry),
		queueMetrics: queues, podQueue: process.NewQueue[string]("pods", queues), queue: newUnitQueue(queues),
		nadIndex: network.NewNADIndex(), nodes: newNodeIndex(cfg.Kubernetes.NodeName), nets: map[string]*netState{}, advertised: map[string]network.Network{}, pods: map[string]*podState{}, served: map[string]string{}, lastReports: map[string]lastReport{},
		namespaces: map[string]bool{}, services: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		defaultOnly: map[string]map[string]string{}, initial: map[string]struct{}{}, pending: map[string]struct{}{}, keptPorts: map[string]keptPorts{}, withoutNAD: map[string]string{}, unconfirmed: map[string]map[string]struct{}{},
	}
	z.failures = newFailureReport(cfg.Kubernetes.NodeName, k, z.log, z.metrics.failing, func() { z.queue.Add(keyFailures) })
	z.addresses = newPodAddresses(z.log, func(pods []string) {
		for _, key := range pods {
			z.podQueue.Add(key)
		}
	})
	return z, nil
}

// Ready reports whether every network known at the start has been built or has
// failed on its own, leftovers of deleted networks have been tried, and the
// cluster default network is built.
func (z *Zone) Ready() bool { return z.ready.Load() && z.nb != nil && z.nb.Connected() }

// ServesServices returns why load balancers should not send connections to this node's Services, nil if they should
// (KEP-3836: not while the node is being removed).
func (z *Zone) ServesServices() error {
	switch {
	case z.leaving.Load():
		return errors.New("the node is being removed")
	case !z.Ready():
		return errors.New("not every known network is built")
	}
	return nil
}

// Run runs the zone until ctx ends.
func (z *Zone) Run(ctx context.Context) error {
	nb := NewNB(z.cfg.NBAddress, z.log, z.onConnect, z.onRowChanged)
	sb := NewSB(z.cfg.SBAddress, z.log, func() { z.queue.Add(keyChassis) }, func() { z.queue.Add(keyChassis) })
	z.nb, z.sb = nb, sb
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { nb.Run(ctx) })
	wg.Go(func() { sb.Run(ctx) })
	err := z.serve(ctx)
	cancel()
	wg.Wait()
	return err
}

// serve runs the zone against z.nb and z.sb, until ctx ends or z.end is called.
func (z *Zone) serve(ctx context.Context) error {
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	z.end = end
	err := z.work(serving)
	if cause := context.Cause(serving); cause != nil && ctx.Err() == nil {
		return cause
	}
	return err
}

func (z *Zone) work(ctx context.Context) error {
	defer z.podQueue.ShutDown()
	defer z.queue.ShutDown()
	stopEvents := z.startEvents(ctx)
	defer stopEvents()
	if z.health == nil {
		z.health = healthcheck.New(z.log, z.queueMetrics, z.healthPortFailed)
	}
	if err := z.startInformers(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	z.onSynced()
	z.queue.AddAfter(keyAudit, auditPause)
	var wg sync.WaitGroup
	wg.Go(func() { z.podQueue.Run(ctx, z.cfg.Workers, z.syncPod, z.logFailure("pod")) })
	wg.Go(func() { z.health.Run(ctx) })
	wg.Go(func() { z.queue.Run(ctx, z.cfg.Workers, z.syncKey, z.logFailure("network")) })
	wg.Wait()
	return nil
}

// startEvents starts the recorder of Kubernetes events.
func (z *Zone) startEvents(ctx context.Context) (stop func()) {
	if z.events != nil {
		return func() {}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(eventSink(z.kube))
	z.events = broadcaster.NewRecorder(eventScheme, corev1.EventSource{Component: "bulkhead-zone", Host: z.cfg.Kubernetes.NodeName})
	return broadcaster.Shutdown
}

// logFailure returns the function that logs failed reconciles; kind is the log
// key of the queue's keys.
func (z *Zone) logFailure(kind string) func(key string, attempts int, err error) {
	return func(key string, attempts int, err error) {
		if !errors.Is(err, ovsdb.ErrNotConnected) { // the connection logs its loss, once
			z.log.Error("reconcile failed, will retry", kind, key, "attempts", attempts, "error", err)
		}
	}
}

// syncKey reconciles one key of queue.
func (z *Zone) syncKey(ctx context.Context, key string) error {
	switch {
	case key == keyChassis:
		return z.syncChassis(ctx)
	case key == keyCleanup:
		return z.cleanup(ctx)
	case key == keyFailures:
		return z.writeFailures(ctx)
	case strings.HasPrefix(key, keyAudit):
		z.syncAudit(key)
		return nil
	default:
		return z.syncNetwork(ctx, key)
	}
}

// writeFailures updates this Node's failures annotation.
func (z *Zone) writeFailures(ctx context.Context) error {
	z.mu.Lock()
	if !z.allTried() {
		z.mu.Unlock()
		return nil // until then the previous zone's annotation is the best information
	}
	failures, next := z.failures.networkFailures(time.Now(), z.nadIndex, func(name string) int {
		if st, ok := z.nets[name]; ok {
			return st.net.ID
		}
		return 0
	})
	z.mu.Unlock()
	if next > 0 {
		z.queue.AddAfter(keyFailures, next)
	}
	return z.failures.write(ctx, failures)
}

// syncChassis reconciles the remote chassis in the southbound database.
func (z *Zone) syncChassis(ctx context.Context) error {
	z.mu.Lock()
	node := z.self()
	peers, unknown := z.nodes.peers()
	synced := z.synced
	z.mu.Unlock()
	if !synced || !node.Ready() {
		return nil // the node's next event enqueues this key
	}
	have, err := z.sb.ReadChassis(ctx)
	if err != nil {
		return fmt.Errorf("read remote chassis: %w", err)
	}
	want := BuildChassis(node, peers)
	ops := DiffChassis(append(want, unknownPeerChassis(node, want, have, unknown)...), have)
	for _, op := range ops {
		z.log.Info(op.String())
	}
	return z.sb.ApplyChassis(ctx, ops)
}

// onConnect is called after each connect to the northbound database, which may
// have lost its rows.
func (z *Zone) onConnect() {
	z.metrics.reconnect.Inc()
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.synced {
		z.enqueueNetworks()
		z.queue.Add(keyCleanup)
	}
}

// onRowChanged is called when one of our rows was changed or deleted, by the zone or
// others: a row of that unit.
func (z *Zone) onRowChanged(name string, u Unit, deleted bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch {
	case !z.synced:
	case u == wholeNetwork:
		z.queue.AddUnits(name)
	case deleted && u.Kind == KindTopology:
		z.queue.AddUnits(name) // the deleted row may have contained rows of other units
	default:
		z.queue.AddUnits(name, u)
	}
}
