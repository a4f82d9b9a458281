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

// restore reads the allocated ids, once after this process has become the leader.
// It reads from the API server, because the cache may lack the former leader's last
// writes.
func (r *Reconciler) restore(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.restored {
		return nil
	}
	mark, err := r.marks.Get(ctx, idlease.Nodes)
	if err != nil {
		return fmt.Errorf("read the high-water mark of node ids: %w", err)
	}
	r.ids.Restore(mark, r.now())
	nodes, err := kube.ListMetadata(ctx, r.live, "Node")
	if err != nil {
		return fmt.Errorf("read node ids: %w", err)
	}
	// If two nodes have the same id, the older one keeps it.
	slices.SortStableFunc(nodes, func(a, b metav1.PartialObjectMetadata) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	known := map[string]bool{}
	for _, n := range nodes {
		if id := Parse(n.Annotations); id != 0 {
			known[n.Name] = true
			if err := r.ids.Reserve(n.Name, id); err != nil {
				r.log.Error("node id is not usable; the node gets another", "node", n.Name, "error", err)
			}
		}
	}
	unknown, err := r.idsOfPods(ctx, known)
	if err != nil {
		return err
	}
	for node, id := range unknown {
		if err := r.ids.Reserve(node, id); err != nil {
			// The former leader has assigned the id to another node already.
			r.log.Warn("pods of a node that was deleted have addresses of another node", "node", node, "error", err)
			continue
		}
		r.log.Info("a node that was deleted keeps its id until its pods are deleted", "node", node, "id", id)
		r.enqueue(reconcile.Request{NamespacedName: client.ObjectKey{Name: node}})
	}
	r.restored = true
	return nil
}

// idsOfPods returns the ids of nodes that have pods and no Node with an id: if a Node was
// deleted while there was no leader, and perhaps registered again, only its pods' addresses give the id.
func (r *Reconciler) idsOfPods(ctx context.Context, known map[string]bool) (map[string]int, error) {
	var pods corev1.PodList
	if err := r.cache.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	out := map[string]int{}
	for i := range pods.Items {
		node := pods.Items[i].Spec.NodeName
		if node == "" || pods.Items[i].Spec.HostNetwork || known[node] {
			continue
		}
		known[node] = true // one read per node
		// The cache does not hold every pod's addresses.
		all, err := kube.ListMetadata(ctx, r.live, "Pod", client.MatchingFields{"spec.nodeName": node})
		if err != nil {
			return nil, fmt.Errorf("read pods of node %s: %w", node, err)
		}
		if id := idFromPods(r.pods, all); id != 0 {
			out[node] = id
		}
	}
	return out, nil
}

// idFromPods returns the node id in the addresses that the pods, all of one node,
// have on the network; 0 if no pod has an address.
func idFromPods(n network.Network, pods []metav1.PartialObjectMetadata) int {
	for _, p := range pods {
		// A pod with an invalid annotation has no address to protect.
		networks, _ := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
		for _, ip := range networks[network.DefaultName].IPs {
			if id := n.NodeOf(ip.Addr()); id != 0 {
				return id
			}
		}
	}
	return 0
}
