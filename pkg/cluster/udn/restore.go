// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// claim is a NAD's claim on a network id and, for a primary network, a namespace.
type claim struct {
	created   time.Time
	nad       string
	network   string
	id        string
	holder    string // of the namespace's primary network; "" if the network is not primary
	namespace string
}

// Restore fills the id allocator for all reconcilers, once after this process has
// become the leader. It reads the NADs from the API server, because the cache may
// lack the former leader's last writes.
func (r *Reconciler) Restore(ctx context.Context) error {
	r.restore.Lock()
	defer r.restore.Unlock()
	if r.restore.done {
		return nil
	}
	if err := r.networkIDs.Restore(ctx); err != nil {
		return fmt.Errorf("read the high-water mark of network ids: %w", err)
	}
	var all []claim
	if err := kube.EachPage(ctx, r.live, &nadv1.NetworkAttachmentDefinitionList{}, func(page *nadv1.NetworkAttachmentDefinitionList) {
		for i := range page.Items {
			if c, ok := claimOf(&page.Items[i]); ok {
				all = append(all, c)
			}
		}
	}); err != nil {
		return fmt.Errorf("read network ids from NetworkAttachmentDefinitions: %w", err)
	}
	// If two NADs claim the same id or namespace, the older one keeps it.
	slices.SortStableFunc(all, func(a, b claim) int { return a.created.Compare(b.created) })
	for _, c := range all {
		id, err := strconv.Atoi(c.id)
		if err == nil {
			err = r.networkIDs.RestoreID(c.network, id)
		}
		if err != nil {
			r.log.Error("network id of NetworkAttachmentDefinition is not usable; the network gets another", "network", c.network,
				"nad", c.nad, "id", c.id, "error", err)
		}
		if c.holder != "" {
			r.networkIDs.Claim(c.namespace, c.holder)
		}
	}
	r.restore.done = true
	r.log.Info("network ids restored", "networks", len(all))
	return nil
}

// claimOf returns the claim of a NAD with a network id; ok is false for others.
func claimOf(nad *nadv1.NetworkAttachmentDefinition) (c claim, ok bool) {
	c = claim{
		created: nad.CreationTimestamp.Time, nad: network.NADKey(nad.Namespace, nad.Name), namespace: nad.Namespace,
		id: nad.Annotations[network.AnnotationNetworkID], network: nad.Annotations[network.AnnotationNetworkName],
	}
	owner, ours := OwnerOf(nad)
	holder := "NetworkAttachmentDefinition " + c.nad
	if ours {
		c.network, holder = owner.Network(), owner.String()
	} else if network.IsUDNName(c.network) {
		return c, false // the cluster controller did not write that annotation
	}
	if c.id == "" || c.network == "" {
		return c, false
	}
	if conf, err := network.ParseNetConf(nad.Spec.Config); err == nil && conf.Role == string(network.RolePrimary) {
		c.holder = holder
	}
	return c, true
}
