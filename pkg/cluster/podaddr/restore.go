// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Restore reads all allocations once, after this process has become the leader.
// It reads from the API server, because the cache of a new leader may lack the
// last writes of the previous one. Nothing is allocated before Restore is done.
// The tracker has all NADs by then, which decide what claims may hold: a controller
// starts no reconcile before its handlers have handled the cache's objects.
func (r *Reconciler) Restore(ctx context.Context) error {
	r.restore.Lock()
	defer r.restore.Unlock()
	if r.restore.done {
		return nil
	}
	if err := r.restoreMarks(ctx); err != nil {
		return err
	}
	claims, err := r.listClaims(ctx)
	if err != nil {
		return err
	}
	pods, err := r.listPods(ctx)
	if err != nil {
		return err
	}
	byKey := map[string]*ipamclaimv1.IPAMClaim{}
	var all []metav1.Object
	for i := range claims {
		byKey[network.NADKey(claims[i].Namespace, claims[i].Name)] = &claims[i]
		all = append(all, &claims[i])
	}
	for _, p := range pods {
		all = append(all, p)
	}
	// If two objects have the same address, the older one holds it.
	slices.SortFunc(all, func(a, b metav1.Object) int {
		x, y := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return cmp.Or(x.Compare(y.Time), cmp.Compare(a.GetUID(), b.GetUID()))
	})
	for _, o := range all {
		switch o := o.(type) {
		case *ipamclaimv1.IPAMClaim:
			r.mu.Lock()
			r.tracker.syncClaim(o)
			r.mu.Unlock()
		case *corev1.Pod:
			if err := r.restorePod(ctx, o, byKey); err != nil {
				return err
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.tracker.pods { // including those that were deleted meanwhile
		r.tracker.waiting.enqueue(key)
	}
	for key := range r.tracker.claimUIDs {
		r.tracker.enqueueClaim(key)
	}
	if !r.restore.unnamed { // else a later leader drops them
		r.marks.DropPorts(func(name string) bool { return r.tracker.nadCount[name] > 0 || r.tracker.allocators[name] != nil })
	}
	r.restore.done = true
	r.log.Info("pod addresses restored", "pods", len(r.tracker.pods), "claims", len(claims), "networks", len(r.tracker.allocators))
	return nil
}

// restoreMarks reads the high-water marks of tunnel ids. A leader allocates at
// most portsAhead ids in a network without a mark of its own; the next leader
// continues after them.
func (r *Reconciler) restoreMarks(ctx context.Context) error {
	base, err := r.marks.Get(ctx, idlease.AllPorts)
	if err != nil {
		return fmt.Errorf("read the high-water mark of tunnel ids: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base = base
	r.tracker.mark = func(name string) int64 {
		own, err := r.marks.Get(ctx, idlease.Ports(name))
		if err != nil { // cannot fail, as the read above succeeded
			return base
		}
		return max(base, own)
	}
	r.tracker.onNetworkRemoved = func(name string) { r.marks.Drop(idlease.Ports(name)) }
	return nil
}

func (r *Reconciler) listClaims(ctx context.Context) ([]ipamclaimv1.IPAMClaim, error) {
	// A standby may be older than the CRD.
	if has, err := r.DiscoverClaims(); err != nil || !has {
		return nil, err
	}
	var all []ipamclaimv1.IPAMClaim
	if err := kube.EachPage(ctx, r.live, &ipamclaimv1.IPAMClaimList{}, func(page *ipamclaimv1.IPAMClaimList) {
		all = append(all, page.Items...)
	}); err != nil {
		return nil, fmt.Errorf("list IPAMClaims: %w", err)
	}
	return all, nil
}

// listPods lists the pods that have networks other than the cluster default
// network.
func (r *Reconciler) listPods(ctx context.Context) ([]*corev1.Pod, error) {
	var all []*corev1.Pod
	live := client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie("status.phase!=Succeeded,status.phase!=Failed")}
	if err := kube.EachPage(ctx, r.live, &corev1.PodList{}, func(page *corev1.PodList) {
		for i := range page.Items {
			p := &page.Items[i]
			if p.Spec.HostNetwork || ended(p) || network.PodNADs(p.Annotations[network.AnnotationPodNetworks]) == nil {
				continue
			}
			// There may be very many pods, so keep only what is needed.
			all = append(all, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: p.Namespace, Name: p.Name, UID: p.UID, CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
					Annotations: p.Annotations,
				},
				Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
			})
		}
	}, live); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return all, nil
}

// restorePod restores a pod's allocations from its annotation. If the pod has no
// interfaces yet, entries that it does not request are ignored: the pod's author
// may have written them.
func (r *Reconciler) restorePod(ctx context.Context, obj *corev1.Pod, claims map[string]*ipamclaimv1.IPAMClaim) error {
	had := entriesOf(obj.Annotations[network.AnnotationPodNetworks])
	in, _, err := r.inputs(ctx, obj, requestsOf(obj), nil, had)
	if err != nil {
		return err
	}
	in.Restoring, in.Pod.Deleting = true, false
	withoutNAD := map[string]string{} // names of networks with unusable NADs, by key; "": the NAD does not exist
	for key, entry := range had {
		if slices.ContainsFunc(in.Attachments, func(a Attachment) bool { return a.Key == key }) {
			continue
		}
		keep, err := r.restoreEntry(ctx, &in, key, entry, withoutNAD)
		if err != nil {
			return err
		}
		if !keep {
			delete(had, key)
		}
	}
	named := map[string]*ipamclaimv1.IPAMClaim{}
	for _, a := range in.Attachments {
		if c := claims[network.NADKey(obj.Namespace, a.Request.Claim)]; c != nil {
			named[a.Request.Claim] = c
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := network.NADKey(obj.Namespace, obj.Name)
	st := r.tracker.pod(key, obj.UID)
	st.previous = had
	r.tracker.pods[key] = st
	r.tracker.attachClaims(&in, named)
	r.tracker.build(in)
	for k, networkName := range withoutNAD {
		if networkName == "" {
			r.restore.unnamed = true
			r.tracker.reserveUnknown(key, k)
			continue
		}
		r.tracker.restoreWithoutNAD(key, k, networkName)
	}
	return nil
}

// restoreEntry finds the network of an entry that the pod does not request any
// more, or whose NAD has changed. keep is false for entries that this package
// certainly did not write.
func (r *Reconciler) restoreEntry(ctx context.Context, in *Inputs, key string, entry network.PodNetwork, withoutNAD map[string]string) (keep bool, err error) {
	namespace, name, ok := network.SplitNADKey(key)
	if !ok || !in.Pod.Started {
		return false, nil
	}
	obj, err := r.getNAD(ctx, namespace, name)
	if err != nil {
		return false, err
	}
	if obj == nil {
		withoutNAD[key] = ""
		return true, nil // the NAD may be recreated
	}
	nad, ours := kube.ParseNAD(obj, r.lookup.Plan)
	switch {
	case !ours, nad.Err == nil && !nad.Admits(in.Pod.Namespace):
		return false, nil
	case nad.Err == nil && managed(nad.Network):
		in.Attachments = append(in.Attachments, Attachment{Key: key, NAD: nad.Key(), Source: network.AnnotationPodNetworks, Network: nad.Network})
		return true, nil
	case nad.Err == nil:
		return false, nil // written by the zone
	}
	conf, err := network.ParseNetConf(obj.Spec.Config)
	if networkName := cmp.Or(obj.Annotations[network.AnnotationNetworkName], conf.Name); networkName != "" {
		if managed(network.Network{Topology: network.Topology(conf.Topology)}) || err != nil && entry.TunnelID != 0 {
			withoutNAD[key] = networkName
		}
	}
	return true, nil
}
