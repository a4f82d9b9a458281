// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/bgp"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/cluster/udn"
	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// addBGP adds the controller of RouteAdvertisements and of the managed fabric. networks
// restores the networks' ids, and receives the VRFs into which each is advertised.
func addBGP(mgr manager.Manager, check *transportCheck, cfg config.Config, ids *netid.Allocator, networks *udn.Reconciler, log *slog.Logger) error {
	report := reportDefault(mgr, cfg, log)
	target := &bgp.Kube{Client: mgr.GetClient(), Now: time.Now, Log: log}
	r := bgp.NewReconciler(bgp.Options{
		Fabric:  bgp.Fabric{Topology: cfg.BGP.Topology, ASN: cfg.BGP.ASN, Namespace: cfg.BGP.FRRNamespace, Default: cfg.BGP.ManagedDefault},
		Default: cfg.DefaultNetwork,
		Restore: networks.Restore,
		NetworkOf: func(ctx context.Context, c *udnv1.ClusterUserDefinedNetwork) (network.Network, bool, error) {
			return networkOf(ctx, c, cfg.Plan, ids.IDOf, mgr.GetCache())
		},
		Advertised: func(byNetwork map[string][]string) {
			networks.SetAdvertised(byNetwork)
			report(len(byNetwork[network.DefaultName]) > 0)
		},
	}, mgr.GetCache(), target, log)
	// One worker: there is one key.
	c, err := newController(mgr, check, "bgp", 1, r, func(bgp.Key) []any { return nil })
	if err != nil {
		return err
	}
	if err := r.Watch(c); err != nil {
		return err
	}
	sessions := &bgp.SessionReconciler{Topology: cfg.BGP.Topology, Namespace: cfg.BGP.FRRNamespace, Cache: mgr.GetCache(), Client: mgr.GetClient(),
		Events: shortNotes{mgr.GetEventRecorder("bulkhead-cluster")}, Now: time.Now, Log: log}
	d, err := newController(mgr, check, "bgpsessions", 1, sessions, func(k bgp.SessionKey) []any { return []any{"node", string(k)} })
	if err != nil {
		return err
	}
	return sessions.Watch(d)
}

// networkOf returns the network of a ClusterUserDefinedNetwork, with its id. If its specification is refused, because of
// a subnet that was appended by mistake or of a configuration that has changed, the network is what the nodes have: its
// NADs say so. Its pods keep their addresses and must stay reachable, and no subnet that was refused is advertised.
func networkOf(ctx context.Context, c *udnv1.ClusterUserDefinedNetwork, plan network.Plan, idOf func(name string) int, nads client.Reader) (n network.Network, ok bool, err error) {
	req := udn.FromCUDN(c)
	id := idOf(req.Owner.Network())
	if _, n, err := req.NetConf(plan); err == nil {
		n.ID = id
		return n, true, nil
	}
	if id == 0 {
		return n, false, nil
	}
	list, err := udn.NADs(ctx, nads, req.Owner)
	if err != nil {
		return n, false, err
	}
	for i := range list {
		conf, err := network.ParseNetConf(list[i].Spec.Config)
		if err != nil || kube.Released(&list[i]) {
			continue
		}
		if n, err := conf.Network(id, plan); err == nil {
			return n, true, nil
		}
	}
	return n, false, nil
}

// reportDefault returns the function that reports whether the cluster default network is
// advertised, which it must be without an overlay: by a log line and an event on the lease of
// the leader election, whenever that changes. Its calls are sequential.
func reportDefault(mgr manager.Manager, cfg config.Config, log *slog.Logger) func(bool) {
	if !cfg.DefaultNetwork.Advertised() {
		return func(bool) {}
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: cfg.Kubernetes.LeaseNamespace, Name: leaseName},
	}
	events := shortNotes{mgr.GetEventRecorder("bulkhead-cluster")}
	var last *bool
	return func(ok bool) {
		if last != nil && *last == ok {
			return
		}
		last = &ok
		if ok {
			log.Info("the cluster default network, which has no overlay, is advertised", "network", network.DefaultName)
			events.Eventf(lease, nil, corev1.EventTypeNormal, "NoOverlayConfigurationReady", "Advertise", "The cluster default network is advertised.")
			return
		}
		const missing = "the cluster default network has no overlay, and no RouteAdvertisements advertises it, so pods on different nodes cannot reach each other: create one with networkSelectionType DefaultNetwork, or see the condition Accepted of those that exist"
		log.Error(missing, "network", network.DefaultName)
		events.Eventf(lease, nil, corev1.EventTypeWarning, "NoRouteAdvertisements", "Advertise", missing)
	}
}
