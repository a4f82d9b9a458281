// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// Target is where mirrors are stored.
type Target interface {
	// Read returns every mirror of the source (see SourceOf).
	Read(ctx context.Context, s Source) (State, error)
	// Apply applies the operations in order. It continues after failures and
	// joins the errors, which name their operations.
	Apply(ctx context.Context, ops []Op) error
}

// applyAll implements Apply with a function for one operation.
func applyAll(ops []Op, do func(Op) error) error {
	var errs []error
	for _, op := range ops {
		if err := do(op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return errors.Join(errs...)
}

// Kube is the Kubernetes API. It reads from the cache, overlaid with the writes
// that the cache does not show yet. Without the overlay, a source that changes
// again before the cache shows its mirror would cause redundant writes.
type Kube struct {
	Cache  client.Reader // with the index of AddIndexes
	Client client.Client
	Now    func() time.Time
	Log    *slog.Logger
	writes writeCache
}

// Read implements Target.
func (k *Kube) Read(ctx context.Context, s Source) (State, error) {
	state := State{Source: s, Mirrors: map[string]Mirror{}}
	var l discoveryv1.EndpointSliceList
	if err := k.Cache.List(ctx, &l, client.InNamespace(s.Namespace), client.MatchingFields{indexMirror: s.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return state, fmt.Errorf("list mirrors of EndpointSlice %s: %w", s, err)
	}
	for i := range l.Items {
		m := mirrorOf(&l.Items[i])
		state.Mirrors[m.Name] = m
	}
	k.writes.overlay(s, state.Mirrors, k.Now())
	return state, nil
}

// mirrorOf converts a mirror. The result shares the object's endpoints.
func mirrorOf(s *discoveryv1.EndpointSlice) Mirror {
	_, exposed := s.Labels[discoveryv1.LabelServiceName]
	m := Mirror{
		Namespace: s.Namespace, Name: s.Name, Source: s.Annotations[network.AnnotationSource],
		Service: s.Labels[network.LabelMirrorService], Network: s.Annotations[network.AnnotationMirrorOn],
		Managed: s.Labels[discoveryv1.LabelManagedBy] == network.EndpointSliceManager, Exposed: exposed,
		AddressType: s.AddressType, Endpoints: s.Endpoints, Ports: s.Ports, UID: s.UID, ResourceVersion: s.ResourceVersion,
	}
	if ref := metav1.GetControllerOfNoCopy(s); ref != nil {
		m.OwnerUID = ref.UID
	}
	return m
}

// Apply implements Target.
func (k *Kube) Apply(ctx context.Context, ops []Op) error {
	return applyAll(ops, func(op Op) error {
		if err := k.do(ctx, op); err != nil {
			return err
		}
		k.Log.Debug(op.String(), "network", op.Mirror.Network, "service", op.Mirror.Namespace+"/"+op.Mirror.Service)
		return nil
	})
}

func (k *Kube) do(ctx context.Context, op Op) error {
	switch op.Kind {
	case Create:
		return k.create(ctx, op)
	case Update:
		return k.update(ctx, op)
	case Delete:
		m := op.Mirror
		err := k.Client.Delete(ctx, metadata(m), client.Preconditions{UID: &m.UID})
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		k.writes.deleted(op.Source, m, k.Now())
		return nil
	}
	return fmt.Errorf("unknown operation %q", op.Kind)
}

func (k *Kube) create(ctx context.Context, op Op) error {
	m := op.Mirror
	obj := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, OwnerReferences: []metav1.OwnerReference{ownerRef(m)},
			Labels: labels(m), Annotations: annotations(m),
		},
		AddressType: m.AddressType, Endpoints: m.Endpoints, Ports: m.Ports,
	}
	// Create decodes the response into the object, whose endpoints are shared
	// with the cache.
	obj = obj.DeepCopy()
	err := k.Client.Create(ctx, obj)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return nil // the namespace is being deleted or deleted, which the cache does not show yet
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: if it is not a mirror, delete or rename it", err)
	case err != nil:
		return err
	}
	m.UID, m.ResourceVersion = obj.UID, obj.ResourceVersion
	k.writes.written(op.Source, m, k.Now())
	return nil
}

func (k *Kube) update(ctx context.Context, op Op) error {
	m := op.Mirror
	set := map[string]any{discoveryv1.LabelServiceName: nil}
	for key, v := range labels(m) {
		set[key] = v
	}
	// The patch contains all fields, so that it reverts concurrent changes by
	// others and the write cache holds the actual state.
	meta := map[string]any{
		"uid":    m.UID, // the API server refuses the patch if the slice was recreated
		"labels": set, "annotations": annotations(m), "ownerReferences": []metav1.OwnerReference{ownerRef(m)},
	}
	body, err := json.Marshal(map[string]any{"metadata": meta, "endpoints": m.Endpoints, "ports": m.Ports})
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	obj := metadata(m)
	if err := k.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)); err != nil {
		return client.IgnoreNotFound(err) // the delete event enqueues the source
	}
	m.ResourceVersion = obj.ResourceVersion
	k.writes.written(op.Source, m, k.Now())
	return nil
}

func labels(m Mirror) map[string]string {
	return map[string]string{discoveryv1.LabelManagedBy: network.EndpointSliceManager, network.LabelMirrorService: m.Service}
}

func annotations(m Mirror) map[string]string {
	return map[string]string{network.AnnotationSource: m.Source, network.AnnotationMirrorOn: m.Network}
}

// ownerRef makes the garbage collector delete the mirror after its source. It
// does not block the source's deletion, which would need permission on the
// source's finalizers.
func ownerRef(m Mirror) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice", Name: m.Source, UID: m.OwnerUID, Controller: &yes,
	}
}

func metadata(m Mirror) *metav1.PartialObjectMetadata {
	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}}
	obj.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	return obj
}
