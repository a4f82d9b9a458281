// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/bgp"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/cluster/udn"
	"bulkhead/pkg/config"
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
		NetworkOf: func(c *udnv1.ClusterUserDefinedNetwork) (network.Network, error) {
			return networkOf(c, cfg.Plan, ids.IDOf)
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

// networkOf returns the network of a ClusterUserDefinedNetwork, with its id. One that exists stays advertised if a changed
// configuration conflicts with it: its pods keep their addresses.
func networkOf(c *udnv1.ClusterUserDefinedNetwork, plan network.Plan, idOf func(name string) int) (network.Network, error) {
	req := udn.FromCUDN(c)
	_, n, err := req.NetConf(plan)
	n.ID = idOf(req.Owner.Network())
	if errors.As(err, new(udn.ConflictError)) && n.ID > 0 {
		return n, nil
	}
	return n, err
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
