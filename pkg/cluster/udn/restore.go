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

// claim is what a NAD says about an id and a namespace.
type claim struct {
	created time.Time
	nad     string
	network string
	id      string
	holder  string // of the namespace's primary network; "" where the NAD makes none
	in      string // the namespace
}

// Restore fills the ledger for all reconcilers: it reads, once after this
// process has become the leader, which ids and namespaces are taken. It asks
// the API server: the cache of a process that has just become the leader may
// lack its predecessor's last writes.
func (r *Reconciler) Restore(ctx context.Context) error {
	r.restore.Lock()
	defer r.restore.Unlock()
	if r.restore.done {
		return nil
	}
	if err := r.networkIDs.Restore(ctx); err != nil {
		return fmt.Errorf("read how many network ids were given: %w", err)
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
	// Where two claim the same, the older has it.
	slices.SortStableFunc(all, func(a, b claim) int { return a.created.Compare(b.created) })
	for _, c := range all {
		id, err := strconv.Atoi(c.id)
		if err == nil {
			err = r.networkIDs.RestoreID(c.network, id)
		}
		if err != nil {
			r.log.Error("network id of NetworkAttachmentDefinition is not usable; it is given another", "network", c.network,
				"nad", c.nad, "id", c.id, "err", err)
		}
		if c.holder != "" {
			r.networkIDs.Claim(c.in, c.holder)
		}
	}
	r.restore.done = true
	r.log.Info("network ids restored", "networks", len(all))
	return nil
}

// claimOf is what a NAD that has been given an id claims.
func claimOf(nad *nadv1.NetworkAttachmentDefinition) (claim, bool) {
	c := claim{
		created: nad.CreationTimestamp.Time, nad: network.NADKey(nad.Namespace, nad.Name), in: nad.Namespace,
		id: nad.Annotations[network.AnnotationNetworkID], network: nad.Annotations[network.AnnotationNetworkName],
	}
	owner, ours := OwnerOf(nad)
	holder := "NetworkAttachmentDefinition " + c.nad
	if ours {
		c.network, holder = owner.Network(), owner.String()
	} else if network.IsUDNName(c.network) {
		return c, false // whoever wrote that, it was not we
	}
	if c.id == "" || c.network == "" {
		return c, false
	}
	if conf, err := network.ParseNetConf(nad.Spec.Config); err == nil && conf.Role == string(network.RolePrimary) {
		c.holder = holder
	}
	return c, true
}
