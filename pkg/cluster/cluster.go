// SPDX-License-Identifier: Apache-2.0

// Package cluster is the cluster controller: one leader-elected process per cluster that
// reads and writes the Kubernetes API only. It runs the reconcilers of the packages
// below on one set of informers.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/bgp"
	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/cluster/nad"
	"bulkhead/pkg/cluster/nadusers"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/cluster/nodeid"
	"bulkhead/pkg/cluster/systemid"
	"bulkhead/pkg/cluster/udn"
	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/process"
)

// leaseName is the name of the leader election lease.
const leaseName = "bulkhead-cluster"

// Run runs the cluster controller until ctx ends or the lease is lost.
func Run(ctx context.Context, cfg config.Config, restConfig *rest.Config, log *slog.Logger) error {
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	var synced atomic.Bool
	ready := func() error {
		if !synced.Load() {
			return errors.New("caches are not synced yet")
		}
		return nil
	}
	if err := process.ServeTCP(ctx, cfg.Listen, process.NewMux(ready, ctrlmetrics.Registry), log); err != nil {
		return err
	}
	if err := waitForAPIServer(ctx, restConfig, log); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	mgr, err := newManager(cfg, restConfig, log)
	if err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		synced.Store(mgr.GetCache().WaitForCacheSync(ctx))
		return nil
	})); err != nil {
		return fmt.Errorf("add the wait for cache sync: %w", err)
	}
	check, err := newTransportCheck(mgr, cfg.DefaultNetwork, log)
	if err != nil {
		return fmt.Errorf("add the check of the transport: %w", err)
	}
	marks := idlease.New(mgr.GetAPIReader(), mgr.GetClient(), cfg.Kubernetes.LeaseNamespace, log)
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		select {
		case <-marks.Claimed():
			return fmt.Errorf("lease %s/%s: %w", cfg.Kubernetes.LeaseNamespace, idlease.Name, idlease.ErrClaimed)
		case <-ctx.Done():
			return nil
		}
	})); err != nil {
		return fmt.Errorf("add the watch of the id lease: %w", err)
	}
	ids := netid.New(cfg.MaxNetworks, cfg.IDAge, marks, time.Now)
	networks, err := addNetworks(ctx, mgr, check, cfg, ids, log)
	if err != nil {
		return fmt.Errorf("set up the network controllers: %w", err)
	}
	if err := addBGP(mgr, check, cfg, ids, networks, log); err != nil {
		return fmt.Errorf("set up the BGP controller: %w", err)
	}
	nodes, err := addNodeID(ctx, mgr, check, cfg, marks, log)
	if err != nil {
		return fmt.Errorf("set up the node id controller: %w", err)
	}
	if err := addSystemID(mgr, check, log); err != nil {
		return fmt.Errorf("set up the controller of shared system-ids: %w", err)
	}
	addresses, err := addPodAddr(mgr, check, cfg, marks, log)
	if err != nil {
		return fmt.Errorf("set up the pod address controller: %w", err)
	}
	metrics := newCollector(mgr.GetCache(), synced.Load, map[string]func() (int, int){"network-ids": ids.Usage, "node-ids": nodes.Usage}, addresses.Usage)
	// Only the leader reports them: a sum over two processes would count twice.
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if err := ctrlmetrics.Registry.Register(metrics); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
		<-ctx.Done()
		ctrlmetrics.Registry.Unregister(metrics)
		return nil
	})); err != nil {
		return fmt.Errorf("add metrics: %w", err)
	}
	if err := addEndpointMirror(ctx, mgr, check, cfg, log); err != nil {
		return fmt.Errorf("set up the endpoint mirror: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the cluster controller: %w", err)
	}
	return nil
}

func newManager(cfg config.Config, restConfig *rest.Config, log *slog.Logger) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, udnv1.AddToScheme, nadv1.AddToScheme, ipamclaimv1.AddToScheme, frrv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	// Let the client choose the content type per kind: protobuf for built-in kinds.
	restConfig = rest.CopyConfig(restConfig)
	restConfig.ContentType, restConfig.AcceptContentTypes = "", ""

	yes, retry := true, cfg.Kubernetes.LeaseRenewDeadline/5
	mgr, err := manager.New(restConfig, manager.Options{
		Scheme: scheme, Logger: logr.FromSlogHandler(log.Handler()),
		LeaderElection: true, LeaderElectionID: leaseName, LeaderElectionNamespace: cfg.Kubernetes.LeaseNamespace,
		LeaseDuration: &cfg.Kubernetes.LeaseDuration, RenewDeadline: &cfg.Kubernetes.LeaseRenewDeadline, RetryPeriod: &retry,
		LeaderElectionReleaseOnCancel: true,
		// process.ServeTCP serves both, and limits connections.
		HealthProbeBindAddress: "0",
		Metrics:                metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{
			DefaultTransform:             trim,
			DefaultUnsafeDisableDeepCopy: &yes, // no reconciler modifies cached objects
			ByObject: map[client.Object]cache.ByObject{
				// Completed pods use no network, so the API server filters them out.
				&corev1.Pod{}: {
					Field:     fields.ParseSelectorOrDie("status.phase!=Succeeded,status.phase!=Failed"),
					Transform: trimPod,
				},
				&discoveryv1.EndpointSlice{}: {Transform: trimSlice},
				kube.Metadata("Node"):        {Transform: trimNode},
				kube.Metadata("Namespace"):   {Transform: trimNamespace},
				&corev1.Node{}:               {Transform: bgp.TrimNode},
				bgp.CRD():                    {Field: fields.OneTermEqualSelector("metadata.name", bgp.CRD().Name)},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return mgr, nil
}

// addNetworks adds the controllers of networks: of UserDefinedNetworks and
// ClusterUserDefinedNetworks, and of hand-written NADs. They share the id allocator.
// It returns the reconciler of the former.
func addNetworks(ctx context.Context, mgr manager.Manager, check *transportCheck, cfg config.Config, ids *netid.Allocator, log *slog.Logger) (*udn.Reconciler, error) {
	for _, add := range []func(context.Context, client.FieldIndexer) error{udn.AddIndexes, nad.AddIndexes, nadusers.AddIndexes} {
		if err := add(ctx, mgr.GetFieldIndexer()); err != nil {
			return nil, err
		}
	}
	events := shortNotes{mgr.GetEventRecorder("bulkhead-cluster")}
	// Our writes have no unknown fields, and validating that costs the API server
	// another decoding of each write.
	writer := client.WithFieldValidation(mgr.GetClient(), metav1.FieldValidationIgnore)
	target := &udn.Kube{Cache: mgr.GetCache(), Client: writer, Events: events, Now: time.Now}
	networks := udn.NewReconciler(cfg, mgr.GetCache(), mgr.GetAPIReader(), target, ids, log)
	c, err := newController(mgr, check, "network", cfg.Workers, networks, func(o udn.Owner) []any { return []any{"network", o.Network()} })
	if err != nil {
		return nil, err
	}
	if err := networks.Watch(c, mgr.GetCache()); err != nil {
		return nil, err
	}
	handWritten := nad.NewReconciler(cfg, mgr.GetCache(), &nad.Kube{Client: mgr.GetClient(), Events: events}, ids, networks.Restore, log)
	// One worker: two NADs of one network must not be reconciled concurrently.
	d, err := newController(mgr, check, "nad", 1, handWritten, func(k nad.Key) []any { return []any{"nad", k.String()} })
	if err != nil {
		return nil, err
	}
	return networks, handWritten.Watch(d, mgr.GetCache())
}

func addNodeID(ctx context.Context, mgr manager.Manager, check *transportCheck, cfg config.Config, marks idlease.HighWater, log *slog.Logger) (*nodeid.Reconciler, error) {
	if err := nodeid.AddIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	r := nodeid.NewReconciler(mgr.GetCache(), mgr.GetAPIReader(), mgr.GetClient(), cfg.DefaultNetwork, cfg.IDAge, marks, time.Now, log)
	c, err := newController(mgr, check, "nodeid", 1, r, func(r reconcile.Request) []any { return []any{"node", r.Name} })
	if err != nil {
		return nil, err
	}
	return r, r.Watch(c, mgr.GetCache())
}

func addSystemID(mgr manager.Manager, check *transportCheck, log *slog.Logger) error {
	r := systemid.NewReconciler(mgr.GetCache(), mgr.GetClient(), log)
	c, err := newController(mgr, check, "systemid", 1, r, func(r reconcile.Request) []any { return []any{"node", r.Name} })
	if err != nil {
		return err
	}
	return r.Watch(c, mgr.GetCache())
}

// newController returns a controller whose log lines have the key's values. It reconciles
// nothing before the check has passed.
func newController[K comparable](mgr manager.Manager, check *transportCheck, name string, workers int, r reconcile.TypedReconciler[K], values func(K) []any) (controller.TypedController[K], error) {
	anyName := true // tests run several managers in one process
	// The priority queue of controller-runtime 0.24 can deadlock on shutdown, which
	// delays the next leader by the grace period.
	priority := false
	c, err := controller.NewTyped(name, mgr, controller.TypedOptions[K]{
		Reconciler: afterCheck[K]{r, check}, MaxConcurrentReconciles: workers, SkipNameValidation: &anyName, UsePriorityQueue: &priority,
		LogConstructor: func(key *K) logr.Logger {
			log := mgr.GetLogger().WithValues("controller", name)
			if key != nil {
				log = log.WithValues(values(*key)...)
			}
			return log
		},
		RateLimiter: process.NewRateLimiter[K](),
	})
	if err != nil {
		return nil, fmt.Errorf("make controller %s: %w", name, err)
	}
	return c, nil
}
