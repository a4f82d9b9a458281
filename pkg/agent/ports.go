// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// portReconciler reconciles the management ports of all networks.
type portReconciler struct {
	config   config.Config
	cache    *Cache
	ovs      OVS
	node     *nodeReconciler
	networks *networkReconciler
}

// reconcile creates the networks' management ports and deletes all others. A
// deleted network keeps its port until the network's kernel state is removed, and one without a usable
// NAD as long as it has any.
func (r *portReconciler) reconcile(ctx context.Context) error {
	node := r.node.Node()
	kept, known := r.networks.keptNetworks()
	if !r.node.known() || !known {
		return nil // reconcileAll, and the first facts, enqueue the ports, whose names have the node's
	}
	nets := append([]network.Network{r.config.DefaultNetwork},
		slices.DeleteFunc(r.cache.Networks(), func(n network.Network) bool { return !n.HasNode(node.ID) })...)
	removing, last := r.cache.Removing(), r.networks.results()
	for _, id := range removing {
		if result, ok := last[id]; ok {
			nets = append(nets, result.network)
		}
	}
	if err := r.ovs.SyncManagement(ctx, node, nets, kept); err != nil {
		return fmt.Errorf("management ports: %w", err)
	}
	return nil
}
