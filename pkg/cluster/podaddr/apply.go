// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// FieldManager is the field manager of IPAMClaims' status in server-side apply.
const FieldManager = "bulkhead-pod-addresses"

// Target is where operations are applied.
type Target interface {
	// Apply applies the operations in order and stops at the first failure, so
	// that a pod never gets addresses that its claim does not hold.
	Apply(ctx context.Context, ops []Op) error
}

// Kube is the Kubernetes API.
type Kube struct {
	Cache  client.Reader
	Live   client.Reader // the API server itself
	Client client.Client
	Now    func() time.Time
}

// Apply implements Target.
func (k *Kube) Apply(ctx context.Context, ops []Op) error {
	for _, op := range ops {
		do := k.annotate
		if op.Kind == SetClaim {
			do = k.setClaim
		}
		if err := do(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

// attempts limits the retries after conflicts with the zone's writes.
const attempts = 5

// annotate writes entries in one patch. The annotation has a second writer, the
// zone of the pod's node, so the patch contains the old value, and the API
// server refuses it if that has changed. The patch also contains the pod's uid,
// because the pod may have been recreated with the same name.
func (k *Kube) annotate(ctx context.Context, op Op) error {
	key := types.NamespacedName{Namespace: op.Pod.Namespace, Name: op.Pod.Name}
	from := k.Cache
	var last error
	for range attempts {
		pod := &corev1.Pod{}
		err := from.Get(ctx, key, pod)
		if apierrors.IsNotFound(err) || err == nil && pod.UID != op.Pod.UID {
			return nil // the delete event enqueues it
		}
		if err != nil {
			return fmt.Errorf("get the pod: %w", err)
		}
		patch, err := annotationPatch(pod, op)
		if err != nil || patch == nil {
			return err
		}
		last = k.Client.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, client.RawPatch(types.JSONPatchType, patch))
		switch {
		case last == nil, apierrors.IsNotFound(last):
			return nil
		case !apierrors.IsInvalid(last) && !apierrors.IsConflict(last):
			return last
		}
		from = k.Live // the cache is stale
	}
	return last
}

// annotationPatch returns the patch for op, nil if nothing changes.
func annotationPatch(pod *corev1.Pod, op Op) ([]byte, error) {
	old, had := pod.Annotations[network.AnnotationPodNetworks]
	value, err := merge(old, op)
	_, labelled := pod.Labels[network.LabelLayer2Pod]
	if err != nil || had && value == old && (labelled || !op.Label) {
		return nil, err
	}
	return kube.PodNetworksPatch(pod, value, op.Label)
}

// merge returns the annotation with op applied. Other entries stay unchanged,
// even malformed ones.
func merge(old string, op Op) (string, error) {
	entries := map[string]json.RawMessage{}
	if old != "" && json.Unmarshal([]byte(old), &entries) != nil || entries == nil {
		entries = map[string]json.RawMessage{} // the zone rewrites a malformed annotation, too
	}
	for _, key := range op.Remove {
		delete(entries, key)
	}
	for _, key := range slices.Sorted(maps.Keys(op.Set)) {
		b, err := json.Marshal(op.Set[key].WithLegacyFields())
		if err != nil {
			return "", fmt.Errorf("render entry %s: %w", key, err)
		}
		entries[key] = b
	}
	out, err := json.Marshal(entries)
	if err != nil {
		return "", fmt.Errorf("render annotation %s: %w", network.AnnotationPodNetworks, err)
	}
	return string(out), nil
}

// setClaim writes a claim's status. The API server refuses the write if the
// claim's uid has changed.
func (k *Kube) setClaim(ctx context.Context, op Op) error {
	cached := &ipamclaimv1.IPAMClaim{}
	err := k.Cache.Get(ctx, types.NamespacedName{Namespace: op.Claim.Namespace, Name: op.Claim.Name}, cached)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get the claim: %w", err)
	}
	status := map[string]any{"ips": op.Status.IPs}
	if op.Status.IPs == nil {
		status["ips"] = []string{}
	}
	if op.Status.OwnerPod != "" {
		status["ownerPod"] = ipamclaimv1.OwnerPod{Name: op.Status.OwnerPod}
	}
	if c := op.Status.condition(metav1.NewTime(k.Now()).Rfc3339Copy()); c != nil {
		if old := meta.FindStatusCondition(cached.Status.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		status["conditions"] = []metav1.Condition{*c}
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": ipamclaimv1.SchemeGroupVersion.String(), "kind": "IPAMClaim",
		"metadata": map[string]any{"namespace": op.Claim.Namespace, "name": op.Claim.Name, "uid": op.Claim.UID},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("render status: %w", err)
	}
	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: op.Claim.Namespace, Name: op.Claim.Name}}
	obj.SetGroupVersionKind(ipamclaimv1.SchemeGroupVersion.WithKind("IPAMClaim"))
	err = k.Client.Status().Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(FieldManager), client.ForceOwnership)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // deleted or recreated
		return fmt.Errorf("%w: %w", errClaimGone, err)
	}
	return err
}

// errClaimGone is returned if a claim was deleted before its addresses were
// written to its status.
var errClaimGone = errors.New("the claim was deleted")
