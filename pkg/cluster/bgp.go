// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"log/slog"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/bgp"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/cluster/udn"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// addBGP adds the controller of RouteAdvertisements and of the managed fabric. advertised
// receives the VRFs into which each network is advertised.
func addBGP(mgr manager.Manager, cfg config.Config, ids *netid.Allocator, advertised func(map[string][]string), log *slog.Logger) error {
	target := &bgp.Kube{Client: mgr.GetClient(), Now: time.Now, Log: log}
	r := bgp.NewReconciler(bgp.Options{
		Fabric:  bgp.Fabric{Topology: cfg.BGP.Topology, ASN: cfg.BGP.ASN, Namespace: cfg.BGP.FRRNamespace, Default: cfg.BGP.ManagedDefault},
		Default: cfg.DefaultNetwork,
		NetworkOf: func(c *udnv1.ClusterUserDefinedNetwork) (network.Network, error) {
			req := udn.FromCUDN(c)
			_, n, err := req.NetConf(cfg.Plan)
			n.ID = ids.IDOf(req.Owner.Network())
			return n, err
		},
		Advertised: advertised,
	}, mgr.GetCache(), target, log)
	// One worker: there is one key.
	c, err := newController(mgr, "bgp", 1, r, func(bgp.Key) []any { return nil })
	if err != nil {
		return err
	}
	return r.Watch(c)
}
