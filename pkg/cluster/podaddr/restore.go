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

// Restore reads, once after this process has become the leader, who holds
// what. It asks the API server: the cache of a process that has just become
// the leader may lack its predecessor's last writes. Nothing is handed out
// before it is through.
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
	// Where two claim the same, the older has it.
	slices.SortFunc(all, func(a, b metav1.Object) int {
		x, y := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return cmp.Or(x.Compare(y.Time), cmp.Compare(a.GetUID(), b.GetUID()))
	})
	for _, o := range all {
		switch o := o.(type) {
		case *ipamclaimv1.IPAMClaim:
			r.mu.Lock()
			r.book.claim(o)
			r.mu.Unlock()
		case *corev1.Pod:
			if err := r.restorePod(ctx, o, byKey); err != nil {
				return err
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.book.pods { // those that are gone meanwhile included
		r.book.waits.enqueue(key)
	}
	for key := range r.book.claimUIDs {
		r.book.claimChanged(key)
	}
	r.restore.done = true
	r.log.Info("pod addresses restored", "pods", len(r.book.pods), "claims", len(claims), "networks", len(r.book.allocators))
	return nil
}

// restoreMarks takes over how far tunnel ids have been given out. Of a network
// without a mark of its own, a leader gives at most portsAhead: the next one
// goes on after them.
func (r *Reconciler) restoreMarks(ctx context.Context) error {
	base, err := r.marks.Get(ctx, idlease.AllPorts)
	if err != nil {
		return fmt.Errorf("read how many tunnel ids were given: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base = base
	r.book.mark = func(name string) int64 {
		own, err := r.marks.Get(ctx, idlease.Ports(name))
		if err != nil { // it was read above
			return base
		}
		return max(base, own)
	}
	r.book.forgotten = func(name string) { r.marks.Drop(idlease.Ports(name)) }
	return nil
}

func (r *Reconciler) listClaims(ctx context.Context) ([]ipamclaimv1.IPAMClaim, error) {
	if !r.hasClaims.Load() {
		return nil, nil
	}
	var all []ipamclaimv1.IPAMClaim
	if err := kube.EachPage(ctx, r.live, &ipamclaimv1.IPAMClaimList{}, func(page *ipamclaimv1.IPAMClaimList) {
		all = append(all, page.Items...)
	}); err != nil {
		return nil, fmt.Errorf("read what IPAMClaims hold: %w", err)
	}
	return all, nil
}

// listPods are those that have more than the cluster default network.
func (r *Reconciler) listPods(ctx context.Context) ([]*corev1.Pod, error) {
	var all []*corev1.Pod
	live := client.MatchingFieldsSelector{Selector: fields.ParseSelectorOrDie("status.phase!=Succeeded,status.phase!=Failed")}
	if err := kube.EachPage(ctx, r.live, &corev1.PodList{}, func(page *corev1.PodList) {
		for i := range page.Items {
			p := &page.Items[i]
			if p.Spec.HostNetwork || ended(p) || network.PodNADs(p.Annotations[network.AnnotationPodNetworks]) == nil {
				continue
			}
			// No more of it than is needed, as there may be very many.
			all = append(all, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: p.Namespace, Name: p.Name, UID: p.UID, CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
					Annotations: p.Annotations,
				},
				Status: corev1.PodStatus{Phase: p.Status.Phase},
			})
		}
	}, live); err != nil {
		return nil, fmt.Errorf("read what pods hold: %w", err)
	}
	return all, nil
}

// restorePod gives a pod back what its annotation says. Of a pod that has not
// started, only what it asks for counts: the rest may be its creator's words.
func (r *Reconciler) restorePod(ctx context.Context, obj *corev1.Pod, claims map[string]*ipamclaimv1.IPAMClaim) error {
	had := entriesOf(obj.Annotations[network.AnnotationPodNetworks])
	in, _, err := r.inputs(ctx, obj, wishesOf(obj), nil)
	if err != nil {
		return err
	}
	in.Restoring, in.Pod.Leaving = true, false
	blind := map[string]string{} // names of networks whose NADs are broken, by key
	for key, entry := range had {
		if slices.ContainsFunc(in.Attachments, func(a Attachment) bool { return a.Key == key }) {
			continue
		}
		keep, err := r.restoreEntry(ctx, &in, key, entry, blind)
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
	st := r.book.pod(key, obj.UID)
	st.had = had
	r.book.pods[key] = st
	r.book.attachClaims(&in, named)
	r.book.build(in)
	for k, networkName := range blind {
		r.book.holdBlind(key, k, networkName)
	}
	return nil
}

// restoreEntry finds the network of an entry that the pod does not ask for
// (any more), or whose network is not as it was. keep tells whether the entry
// is, or may be, of those given here.
func (r *Reconciler) restoreEntry(ctx context.Context, in *Inputs, key string, entry network.PodNetwork, blind map[string]string) (keep bool, err error) {
	namespace, name, ok := splitKey(key)
	if !ok || !in.Pod.Started {
		return false, nil
	}
	obj, err := r.nad(ctx, namespace, name)
	if err != nil || obj == nil {
		return err == nil, err // it may come back
	}
	nad, ours := kube.ParseNAD(obj, r.lookup.Plan)
	switch {
	case !ours:
		return false, nil
	case nad.Err == nil && shared(nad.Network):
		in.Attachments = append(in.Attachments, Attachment{Key: key, NAD: nad.Key(), Source: network.AnnotationPodNetworks, Network: nad.Network})
		return true, nil
	case nad.Err == nil:
		return false, nil // the zone's
	}
	conf, err := network.ParseNetConf(obj.Spec.Config)
	if networkName := cmp.Or(obj.Annotations[network.AnnotationNetworkName], conf.Name); networkName != "" {
		if shared(network.Network{Topology: network.Topology(conf.Topology)}) || err != nil && entry.TunnelID != 0 {
			blind[key] = networkName
		}
	}
	return true, nil
}
