// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"k8s.io/client-go/util/workqueue"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// Northbound is what the zone needs of its northbound database.
type Northbound interface {
	Target
	SetName(ctx context.Context, name string) error
	Connected() bool
}

// Southbound is what the zone needs of its southbound database.
type Southbound interface {
	ReadChassis(ctx context.Context) ([]Chassis, error)
	ApplyChassis(ctx context.Context, ops []ChassisOp) error
}

// Zone keeps one node's OVN databases in step with the Kubernetes API.
type Zone struct {
	cfg  config.Config
	log  *slog.Logger
	kube kubernetes.Interface
	nads nadclient.Interface
	nb   Northbound
	sb   Southbound

	events   record.EventRecorder
	podStore cache.Indexer
	nsLister corelisters.NamespaceLister
	podQueue workqueue.TypedRateLimitingInterface[string] // "namespace/name"
	netQueue workqueue.TypedRateLimitingInterface[string] // network names, and the keys below

	mu      sync.Mutex // guards what follows; never held across I/O
	catalog *network.NADIndex
	nodes   *nodeIndex
	ownUID  types.UID // this Node's
	nets    map[string]*netState
	pods    map[string]*podState
	held    map[string]holding           // by pod: addresses that it has and that were not given back to it
	alone   map[string]map[string]string // by namespace and pod, UIDs of those without a primary network
	initial map[string]struct{}          // UIDs of pods that were there when we started
	pending map[string]struct{}          // networks not yet tried since we started, and keyCleanup
	staying map[string]staying           // by pod: ports that stay only because it runs
	started bool                         // the informers have told everything they knew
	begun   bool                         // pending is filled: the node is ready
	lastErr map[string]string            // by network that is not as it should be

	failures map[string]failure   // by network: what the cluster is to be told
	refused  map[string]time.Time // by NAD key: since when it cannot be used
	said     string               // what this Node's annotation says of failures

	ready   atomic.Bool
	metrics metrics
}

// Keys in netQueue that are no network: "/" cannot occur in a network's name.
const (
	keyChassis = "/chassis"
	keyCleanup = "/cleanup"
	// keyFailures is what fails, told on this Node.
	keyFailures = "/failures"
)

// netState is what the zone knows of a network beyond the catalog.
type netState struct {
	net   network.Network // as last described
	addrs *addresses      // nil until the node has subnets
	pods  map[string]PodPort
	dirty map[Part]struct{}
	// waiting are the pods that got no address because none was free.
	waiting map[string]struct{}
}

// podState is what a pod was given.
type podState struct {
	uid   string
	alone bool             // it was given the cluster default network and no primary one
	ports map[string]given // by NAD key
}

type given struct {
	network string
	port    PodPort
}

const (
	retryFirst = 100 * time.Millisecond
	retryMax   = 30 * time.Second
)

// NewZone makes a zone of the node that cfg names. Run starts it. Its metrics
// go to registry, which may be nil.
func NewZone(cfg config.Config, k kubernetes.Interface, nads nadclient.Interface, registry prometheus.Registerer, log *slog.Logger) (*Zone, error) {
	if cfg.Kubernetes.NodeName == "" {
		return nil, errors.New("node name is empty: give --node-name")
	}
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryMax)
	}
	return &Zone{
		cfg: cfg, log: log.With("node", cfg.Kubernetes.NodeName), kube: k, nads: nads, metrics: newMetrics(registry),
		podQueue: workqueue.NewTypedRateLimitingQueue(limiter()), netQueue: workqueue.NewTypedRateLimitingQueue(limiter()),
		catalog: network.NewNADIndex(), nodes: newNodeIndex(cfg.Kubernetes.NodeName), nets: map[string]*netState{}, pods: map[string]*podState{},
		held: map[string]holding{}, alone: map[string]map[string]string{}, initial: map[string]struct{}{}, pending: map[string]struct{}{}, staying: map[string]staying{}, lastErr: map[string]string{},
		failures: map[string]failure{}, refused: map[string]time.Time{},
	}, nil
}

// Ready tells whether every network known at the start is built or has failed
// by itself, what was left of deleted ones has been looked at, and the cluster
// default network is built.
func (z *Zone) Ready() bool { return z.ready.Load() && z.nb != nil && z.nb.Connected() }

// Run serves until ctx ends.
func (z *Zone) Run(ctx context.Context) error {
	nb := NewNB(z.cfg.NBAddress, z.log, z.found, z.lost)
	sb := NewSB(z.cfg.SBAddress, z.log, func() { z.netQueue.Add(keyChassis) }, func() { z.netQueue.Add(keyChassis) })
	z.nb, z.sb = nb, sb
	var wg sync.WaitGroup
	wg.Go(func() { nb.Run(ctx) })
	wg.Go(func() { sb.Run(ctx) })
	err := z.serve(ctx)
	wg.Wait()
	return err
}

// serve runs the zone against z.nb and z.sb.
func (z *Zone) serve(ctx context.Context) error {
	stopEvents := z.startEvents(ctx)
	defer stopEvents()
	if err := z.startInformers(ctx); err != nil {
		return err
	}
	z.start()
	var wg sync.WaitGroup
	for range z.cfg.Workers {
		wg.Go(func() { work(ctx, z.podQueue, z.log, "pod", z.syncPod) })
		wg.Go(func() { work(ctx, z.netQueue, z.log, "network", z.syncKey) })
	}
	<-ctx.Done()
	z.podQueue.ShutDown()
	z.netQueue.ShutDown()
	wg.Wait()
	return nil
}

// startEvents starts telling the API server what went wrong with its objects.
func (z *Zone) startEvents(ctx context.Context) (stop func()) {
	if z.events != nil {
		return func() {}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(eventSink(z.kube))
	z.events = broadcaster.NewRecorder(eventScheme, corev1.EventSource{Component: "bulkhead-zone", Host: z.cfg.Kubernetes.NodeName})
	return broadcaster.Shutdown
}

// work takes keys from a queue until it is shut down. What fails is tried
// again, later each time.
func work(ctx context.Context, q workqueue.TypedRateLimitingInterface[string], log *slog.Logger, kind string, sync func(context.Context, string) error) {
	for {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		if err := sync(ctx, key); err != nil && ctx.Err() == nil {
			if !errors.Is(err, errNotConnected) { // the connection's loss was logged, once
				log.Error("reconcile failed, will retry", kind, key, "error", err)
			}
			q.AddRateLimited(key)
		} else {
			q.Forget(key)
		}
		q.Done(key)
	}
}

// syncKey is one reconcile of the network queue.
func (z *Zone) syncKey(ctx context.Context, key string) error {
	switch key {
	case keyChassis:
		return z.syncChassis(ctx)
	case keyCleanup:
		return z.cleanup(ctx)
	case keyFailures:
		return z.tellFailures(ctx)
	default:
		return z.syncNetwork(ctx, key)
	}
}

// syncChassis names the zone and keeps the other nodes' chassis.
func (z *Zone) syncChassis(ctx context.Context) error {
	z.mu.Lock()
	node := z.self()
	peers, unknown := z.nodes.peers()
	started := z.started
	z.mu.Unlock()
	if !started || !node.Ready() {
		return nil // the node's event comes back here
	}
	have, err := z.sb.ReadChassis(ctx)
	if err != nil {
		return fmt.Errorf("read remote chassis: %w", err)
	}
	want := BuildChassis(node, peers)
	ops := DiffChassis(append(want, chassisAsTheyWere(want, have, unknown)...), have)
	for _, op := range ops {
		z.log.Info(op.String())
	}
	return z.sb.ApplyChassis(ctx, ops)
}

// found is called when the northbound database was reached: it may be empty.
func (z *Zone) found() {
	z.metrics.reconnect.Inc()
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.started {
		z.dirtyAll(AllParts...)
		z.netQueue.Add(keyCleanup)
	}
}

// lost is called when a row of ours went, whoever deleted it.
func (z *Zone) lost(name string, part Part) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !z.started {
		return
	}
	if part == PartTopology {
		z.dirty(name, AllParts...) // it may have listed rows of the others
		return
	}
	z.dirty(name, part)
}
