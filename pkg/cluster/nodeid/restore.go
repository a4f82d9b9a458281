// SPDX-License-Identifier: Apache-2.0

package nodeid

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// restore reads, once after this process has become the leader, which ids
// are taken: from the API server, as the cache may lack the last writes.
func (r *Reconciler) restore(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.restored {
		return nil
	}
	mark, err := r.marks.Get(ctx, idlease.Nodes)
	if err != nil {
		return fmt.Errorf("read how many node ids were given: %w", err)
	}
	r.ids.Restore(mark, r.now())
	nodes, err := r.list(ctx, "Node")
	if err != nil {
		return fmt.Errorf("read node ids: %w", err)
	}
	// Where two nodes have the same, the older keeps it.
	slices.SortStableFunc(nodes, func(a, b metav1.PartialObjectMetadata) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	there := map[string]bool{}
	for _, n := range nodes {
		there[n.Name] = true
		if id := Parse(n.Annotations); id != 0 {
			if err := r.ids.Reserve(n.Name, id); err != nil {
				r.log.Error("node id is not usable; the node is given another", "node", n.Name, "err", err)
			}
		}
	}
	gone, err := r.gone(ctx, there)
	if err != nil {
		return err
	}
	for node, id := range gone {
		if err := r.ids.Reserve(node, id); err != nil {
			// Too late: this process' predecessor has given it away.
			r.log.Warn("pods of a node that is gone have addresses of another node", "node", node, "err", err)
			continue
		}
		r.log.Info("id of a node that is gone is held until its pods are gone", "node", node, "id", id)
		r.enqueue(reconcile.Request{NamespacedName: client.ObjectKey{Name: node}})
	}
	r.restored = true
	return nil
}

// gone are the nodes that are gone and whose pods are not, with their ids: a
// node that was deleted while nobody led is known by its pods' addresses only.
func (r *Reconciler) gone(ctx context.Context, there map[string]bool) (map[string]int, error) {
	var pods corev1.PodList
	if err := r.cache.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	out := map[string]int{}
	for i := range pods.Items {
		node := pods.Items[i].Spec.NodeName
		if node == "" || pods.Items[i].Spec.HostNetwork || there[node] {
			continue
		}
		there[node] = true // is looked at once
		// The cache does not keep every pod's addresses.
		all, err := r.list(ctx, "Pod", client.MatchingFields{"spec.nodeName": node})
		if err != nil {
			return nil, fmt.Errorf("read pods of node %s, which is gone: %w", node, err)
		}
		if id := nodeOf(r.pods, all); id != 0 {
			out[node] = id
		}
	}
	return out, nil
}

// nodeOf is the id of the node that the pods, all of one node, are on: what
// their addresses on the network say. 0 where none has one.
func nodeOf(n network.Network, pods []metav1.PartialObjectMetadata) int {
	for _, p := range pods {
		// Who made the annotation unreadable has no address to protect.
		networks, _ := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
		for _, ip := range networks[network.DefaultName].IPs {
			if id := n.NodeOf(ip.Addr()); id != 0 {
				return id
			}
		}
	}
	return 0
}

// list is the metadata of all objects of a kind that the API server has.
func (r *Reconciler) list(ctx context.Context, kind string, opts ...client.ListOption) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	empty := &metav1.PartialObjectMetadataList{}
	empty.SetGroupVersionKind(kube.Metadata(kind + "List").GroupVersionKind())
	err := kube.EachPage(ctx, r.live, empty, func(page *metav1.PartialObjectMetadataList) { all = append(all, page.Items...) }, opts...)
	return all, err
}
