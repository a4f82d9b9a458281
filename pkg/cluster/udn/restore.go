// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// Restore reads, once after this process has become the leader, which
// ids and namespaces are taken. It asks the API server: the cache of a process
// that has just become the leader may lack its predecessor's last writes.
func (r *Reconciler) Restore(ctx context.Context) error {
	r.restore.Lock()
	defer r.restore.Unlock()
	if r.restore.done {
		return nil
	}
	var all []nadv1.NetworkAttachmentDefinition
	for token := ""; ; {
		var page nadv1.NetworkAttachmentDefinitionList
		if err := r.live.List(ctx, &page, client.Limit(500), client.Continue(token)); err != nil {
			return fmt.Errorf("read network ids from NetworkAttachmentDefinitions: %w", err)
		}
		all = append(all, page.Items...)
		if token = page.Continue; token == "" {
			break
		}
	}
	// Where two claim the same, the older has it.
	slices.SortStableFunc(all, func(a, b nadv1.NetworkAttachmentDefinition) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for i := range all {
		nad := &all[i]
		owner, ours := OwnerOf(nad)
		name, raw := nad.Annotations[network.AnnotationNetworkName], nad.Annotations[network.AnnotationNetworkID]
		if ours {
			name = owner.Network()
		}
		if raw != "" && name != "" {
			id, err := strconv.Atoi(raw)
			if err == nil {
				err = r.ledger.RestoreID(name, id)
			}
			if err != nil {
				r.log.Error("network id of NetworkAttachmentDefinition is not usable; it is given another", "network", name,
					"nad", network.NADKey(nad.Namespace, nad.Name), "id", raw, "err", err)
			}
		}
		if conf, err := network.ParseNetConf(nad.Spec.Config); ours && err == nil && conf.Role == string(network.RolePrimary) {
			r.ledger.Claim(nad.Namespace, owner.String())
		}
	}
	r.restore.done = true
	r.log.Info("network ids restored", "networks", len(all))
	return nil
}
