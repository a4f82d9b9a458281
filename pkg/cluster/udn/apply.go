// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// FieldManager is the manager of the conditions in server-side apply.
const FieldManager = "user-defined-network-controller"

// Target reads and writes owners and their NADs.
type Target interface {
	// Read returns the owner's finalizer and conditions, and every NAD that
	// carries its mark.
	Read(ctx context.Context, o Owner) (State, error)
	// Apply runs the operations in order. After a failed one it skips those that
	// depend on it, and returns the joined errors, each a *Failure.
	Apply(ctx context.Context, ops []Op) error
}

// runOps is Apply for any target: it skips operations that depend on a failed one.
func runOps(ops []Op, do func(Op) error) error {
	var errs []error
	for _, op := range ops {
		// Create no NAD before the owner has its finalizer; keep that finalizer
		// while a NAD could not be released.
		if len(errs) > 0 && (op.Kind == RemoveFinalizer || ops[0].Kind == AddFinalizer && errors.Is(errs[0], errNoFinalizer)) {
			continue
		}
		if err := do(op); err != nil {
			if op.Kind == AddFinalizer {
				err = fmt.Errorf("%w: %w", errNoFinalizer, err)
			}
			errs = append(errs, &Failure{Op: op, Err: err})
		}
	}
	return errors.Join(errs...)
}

var errNoFinalizer = errors.New("no other operation was run")

// Kube is the Target of the Kubernetes API. It reads from the cache, with our own
// writes applied that the cache does not have yet: otherwise the reconciler would
// repeat each write.
type Kube struct {
	Cache  client.Reader
	Client client.Client
	Events events.EventRecorder
	Now    func() time.Time
	writes writeCache
}

// Read implements Target.
func (k *Kube) Read(ctx context.Context, o Owner) (State, error) {
	s := State{Owner: o, NADs: map[string]NAD{}}
	meta, status, err := k.owner(ctx, o)
	if err != nil {
		return s, err
	}
	if meta != nil {
		rec := k.writes.owner(o, meta, status)
		s.Finalizer, s.Status = slices.Contains(rec.finalizers, network.FinalizerUDN), rec.status
	} else {
		// The response to our last write may arrive after the delete event, and
		// add a record that nothing else would remove.
		k.writes.forget(o)
	}
	nads, err := NADs(ctx, k.Cache, o)
	if err != nil {
		return s, err
	}
	for i := range nads {
		nad := nadOf(&nads[i])
		s.NADs[nad.Namespace] = nad
	}
	for ns, uid := range k.writes.strippedNADs(o) {
		nad := &nadv1.NetworkAttachmentDefinition{}
		err := k.Cache.Get(ctx, client.ObjectKey{Namespace: ns, Name: o.Name}, nad)
		if client.IgnoreNotFound(err) != nil {
			return s, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", network.NADKey(ns, o.Name), err)
		}
		if owner, marked := OwnerOf(nad); err != nil || marked && owner == o || nad.UID != uid {
			k.writes.clearStripped(o, ns)
			continue
		}
		s.NADs[ns] = nadOf(nad)
	}
	k.writes.merge(o, s.NADs, k.Now())
	return s, nil
}

// owner returns the owner's object, nil if it does not exist.
func (k *Kube) owner(ctx context.Context, o Owner) (client.Object, Status, error) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	var obj client.Object
	var status Status
	var err error
	if o.Cluster() {
		c := &udnv1.ClusterUserDefinedNetwork{}
		err = k.Cache.Get(ctx, key, c)
		obj, status = c, Status{c.Status.Conditions, c.Status.ActiveNamespaces}
	} else {
		u := &udnv1.UserDefinedNetwork{}
		err = k.Cache.Get(ctx, key, u)
		obj, status = u, Status{Conditions: u.Status.Conditions}
	}
	if apierrors.IsNotFound(err) {
		return nil, status, nil
	}
	if err != nil {
		return nil, status, fmt.Errorf("get %s: %w", o, err)
	}
	return obj, status, nil
}

// nadOf converts a NAD.
func nadOf(obj *nadv1.NetworkAttachmentDefinition) NAD {
	n := NAD{
		Namespace: obj.Namespace, Name: obj.Name, Config: obj.Spec.Config, Labels: obj.Labels, Annotations: obj.Annotations,
		UID: obj.UID, ResourceVersion: obj.ResourceVersion,
	}
	if obj.DeletionTimestamp != nil {
		n.Phase = Terminating
	}
	if ref := metav1.GetControllerOf(obj); ref != nil {
		n.OwnerUID = ref.UID
	}
	for _, f := range obj.Finalizers {
		if f == network.FinalizerUDN {
			n.Finalizer = true
		} else {
			n.OtherFinalizers = append(n.OtherFinalizers, f)
		}
	}
	return n
}

// Apply implements Target.
func (k *Kube) Apply(ctx context.Context, ops []Op) error {
	return runOps(ops, func(op Op) error { return k.do(ctx, op) })
}

func (k *Kube) do(ctx context.Context, op Op) error {
	switch op.Kind {
	case AddFinalizer, RemoveFinalizer:
		return k.patchFinalizer(ctx, op)
	case CreateNAD:
		return k.createNAD(ctx, op)
	case RepairNAD:
		meta := map[string]any{
			"resourceVersion": op.NAD.ResourceVersion, "labels": op.NAD.Labels, "annotations": op.NAD.Annotations,
			"finalizers": append(slices.Clone(op.NAD.OtherFinalizers), network.FinalizerUDN),
		}
		if op.NAD.OwnerUID != "" {
			meta["ownerReferences"] = []metav1.OwnerReference{ownerRef(op)}
		}
		return k.patchNAD(ctx, op, map[string]any{"metadata": meta, "spec": map[string]any{"config": op.NAD.Config}})
	case ReleaseNAD:
		return k.patchNAD(ctx, op, map[string]any{"metadata": map[string]any{
			"finalizers": append([]string{}, op.NAD.OtherFinalizers...),
			"uid":        op.NAD.UID, // not a recreated NAD of the same name
		}})
	case DeleteNAD:
		obj := nadMeta(op.NAD)
		err := k.Client.Delete(ctx, obj, client.Preconditions{UID: &op.NAD.UID})
		return client.IgnoreNotFound(err)
	case SetStatus:
		return k.setStatus(ctx, op)
	}
	return fmt.Errorf("unknown operation %q", op.Kind)
}

func (k *Kube) patchFinalizer(ctx context.Context, op Op) error {
	cached, conditions, err := k.owner(ctx, op.Owner)
	if err != nil || cached == nil {
		return err
	}
	rec := k.writes.owner(op.Owner, cached, conditions)
	finalizers := slices.DeleteFunc(slices.Clone(rec.finalizers), func(f string) bool { return f == network.FinalizerUDN })
	if op.Kind == AddFinalizer {
		finalizers = append(finalizers, network.FinalizerUDN)
	}
	// The patch names the resource version: it replaces the list as a whole, and
	// must not undo another controller's change.
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"finalizers": finalizers, "resourceVersion": rec.version, "uid": cached.GetUID(),
	}})
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	obj := ownerMeta(op.Owner)
	if err := k.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)); err != nil {
		if op.Kind == RemoveFinalizer {
			return client.IgnoreNotFound(err)
		}
		return err
	}
	k.writes.setOwner(op.Owner, ownerRecord{version: obj.ResourceVersion, finalizers: obj.Finalizers, status: rec.status})
	return nil
}

func (k *Kube) createNAD(ctx context.Context, op Op) error {
	obj := &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: op.NAD.Namespace, Name: op.NAD.Name, Labels: op.NAD.Labels, Annotations: op.NAD.Annotations,
			Finalizers: []string{network.FinalizerUDN}, OwnerReferences: []metav1.OwnerReference{ownerRef(op)},
		},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: op.NAD.Config},
	}
	err := k.Client.Create(ctx, obj)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the event of the namespace's deletion enqueues the owner
	}
	if err != nil {
		return err
	}
	k.writes.setNAD(op.Owner, nadOf(obj), k.Now())
	return nil
}

func (k *Kube) patchNAD(ctx context.Context, op Op, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	obj := nadMeta(op.NAD)
	err = k.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body))
	if op.Kind == ReleaseNAD {
		return client.IgnoreNotFound(err)
	}
	if err != nil {
		return err
	}
	nad := op.NAD
	nad.ResourceVersion = obj.ResourceVersion
	k.writes.setNAD(op.Owner, nad, k.Now())
	return nil
}

func (k *Kube) setStatus(ctx context.Context, op Op) error {
	conditions := slices.Clone(op.Status.Conditions)
	for i := range conditions {
		if conditions[i].LastTransitionTime.IsZero() {
			conditions[i].LastTransitionTime = metav1.NewTime(k.Now()).Rfc3339Copy()
		}
	}
	status := map[string]any{"conditions": conditions}
	if len(op.Status.ActiveNamespaces) > 0 {
		status["activeNamespaces"] = op.Status.ActiveNamespaces
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": udnv1.GroupVersion.String(), "kind": op.Owner.Kind(),
		"metadata": map[string]any{"name": op.Owner.Name, "namespace": op.Owner.Namespace},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("render status: %w", err)
	}
	obj := ownerMeta(op.Owner)
	// Apply would recreate a deleted object; applying to /status never creates.
	err = k.Client.Status().Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(FieldManager), client.ForceOwnership)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	k.writes.setOwner(op.Owner, ownerRecord{version: obj.ResourceVersion, finalizers: obj.Finalizers, status: Status{conditions, op.Status.ActiveNamespaces}})
	for _, c := range op.Warn {
		reason := c.Reason
		if c.Type == udnv1.ConditionNetworkAllocationSucceeded {
			reason = "NetworkAllocationFailed"
		}
		k.Events.Eventf(obj, nil, corev1.EventTypeWarning, reason, "Reconcile", "%s", c.Message)
	}
	return nil
}

func ownerRef(op Op) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: udnv1.GroupVersion.String(), Kind: op.Owner.Kind(), Name: op.Owner.Name, UID: op.NAD.OwnerUID,
		Controller: &yes, BlockOwnerDeletion: &yes,
	}
}

func ownerMeta(o Owner) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	m.SetGroupVersionKind(udnv1.GroupVersion.WithKind(o.Kind()))
	return m
}

func nadMeta(n NAD) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}}
	m.SetGroupVersionKind(nadv1.SchemeGroupVersion.WithKind("NetworkAttachmentDefinition"))
	return m
}
